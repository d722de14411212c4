//! What is noted of a run while it goes on: events, saturation, points of the timeline.

use super::World;
use crate::observe::Point;
use forebay_base::Span;
use std::sync::atomic::Ordering;

impl World<'_> {
    pub(super) fn count_event(&mut self) {
        self.counters.events += 1;
        if let Some(watch) = self.options.watch.as_ref().filter(|_| self.counters.events.is_multiple_of(1024))
        {
            watch.store(self.now.0, Ordering::Relaxed);
        }
    }

    pub(super) fn look_at_saturation(&mut self) {
        let saturation = self.routers[0].kernel.effective_saturation();
        if saturation != self.saturation.0 {
            self.saturation_is(saturation);
        }
    }

    pub(super) fn saturation_is(&mut self, saturation: f64) {
        let (last, since) = self.saturation;
        let until = self.now.min(self.options.window);
        self.counters.saturated(last, until.since(since));
        self.saturation = (saturation, self.now);
    }

    pub(super) fn sample(&mut self) {
        let kernel = &mut self.routers[0].kernel;
        let mut point = Point {
            at: self.now,
            saturation: kernel.saturation().effective,
            ceilings: kernel.ceilings().to_vec(),
            queued: kernel.bands().map(|b| b.requests).collect(),
            live: self.flights.live(),
            servers: self.servers.points(self.now),
            ready: self.routers[0].endpoints.iter().flatten().count() as u32,
        };
        for other in &self.routers[1..] {
            for (sum, band) in point.queued.iter_mut().zip(other.kernel.bands()) {
                *sum += band.requests;
            }
        }
        self.timeline.points.push(point);
        self.next_sample = self.options.sample.map(|distance| self.now + distance.max(Span(1)));
    }
}
