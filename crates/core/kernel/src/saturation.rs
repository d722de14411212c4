//! Saturation of the pool: a cached score per endpoint, and the mean per stage, re-summed in index order
//! when something changed.

use crate::policy::Detector;
use crate::pool::{Endpoint, Pool};
use forebay_base::Nanos;

/// Saturation now, by stage. A stage without endpoints has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSaturation {
    /// Mean over endpoints that prefill.
    pub prefill: Option<f64>,
    /// Mean over endpoints that decode.
    pub decode: Option<f64>,
    /// What gates: the greater of the two; without either, the mean over all, 1 for a pool without available
    /// endpoints.
    pub effective: f64,
    /// Mean over all endpoints, 1 for an empty pool; what legacy admission goes by.
    pub all: f64,
    /// Endpoints whose metrics are missing or too old.
    pub stale: u32,
    /// Of `all`, the part that comes from metrics and not from a lack of them.
    pub known: f64,
}

/// What the detector says of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    value: f64,
    /// Whether it comes from metrics.
    known: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Saturation {
    scores: Vec<Score>,
    now: StageSaturation,
    dirty: bool,
    /// The next instant at which a fresh scrape turns stale.
    edge: Option<Nanos>,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    n: u32,
}

impl Mean {
    fn add(&mut self, x: f64) {
        self.sum += x;
        self.n += 1;
    }
    fn get(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / f64::from(self.n))
    }
}

impl Saturation {
    pub(crate) fn new() -> Saturation {
        Saturation { scores: Vec::new(), now: StageSaturation::default(), dirty: true, edge: None }
    }

    /// The endpoint has changed.
    pub(crate) fn touch(&mut self, detector: &dyn Detector, e: &Endpoint) {
        let i = e.id.index as usize;
        if i >= self.scores.len() {
            self.scores.resize(i + 1, Score::default());
        }
        self.scores[i] = Score { value: detector.endpoint(e), known: detector.knows(e) };
        self.dirty = true;
    }

    /// An endpoint has left, or is available now or no longer.
    pub(crate) fn members_changed(&mut self) {
        self.dirty = true;
    }

    /// The next instant at which saturation changes by itself.
    pub(crate) fn edge(&mut self, detector: &dyn Detector, pool: &Pool) -> Option<Nanos> {
        self.refresh(detector, pool);
        self.edge
    }

    /// Marks endpoints whose metrics are too old at `now`.
    pub(crate) fn age(&mut self, detector: &dyn Detector, pool: &mut Pool, now: Nanos) {
        let Some(threshold) = detector.staleness() else { return };
        for e in pool.iter_mut() {
            if !e.stale && now.since(e.sampled) > threshold {
                e.stale = true;
                self.touch(detector, e);
            }
        }
    }

    pub(crate) fn get(&mut self, detector: &dyn Detector, pool: &Pool) -> StageSaturation {
        self.refresh(detector, pool);
        self.now
    }

    /// What gates, alone: most callers want no more.
    pub(crate) fn effective(&mut self, detector: &dyn Detector, pool: &Pool) -> f64 {
        self.refresh(detector, pool);
        self.now.effective
    }

    #[inline]
    fn refresh(&mut self, detector: &dyn Detector, pool: &Pool) {
        if self.dirty {
            self.sum(detector, pool);
        }
    }

    fn sum(&mut self, detector: &dyn Detector, pool: &Pool) {
        let (mut prefill, mut decode, mut all) = (Mean::default(), Mean::default(), Mean::default());
        let (mut stale, mut known) = (0, 0.0);
        for e in pool.available() {
            let score = self.scores[e.id.index as usize];
            let s = score.value;
            all.add(s);
            if e.stages.prefill {
                prefill.add(s);
            }
            if e.stages.decode {
                decode.add(s);
            }
            stale += u32::from(e.stale);
            known += if score.known { s } else { 0.0 };
        }
        let everyone = all.get().unwrap_or(1.0);
        let known = known / f64::from(all.n.max(1));
        let (prefill, decode) = (prefill.get(), decode.get());
        let effective = match (prefill, decode) {
            (Some(p), Some(d)) => p.max(d),
            (Some(s), None) | (None, Some(s)) => s,
            (None, None) => everyone,
        };
        self.now = StageSaturation { prefill, decode, effective, all: everyone, stale, known };
        self.edge = detector.staleness().and_then(|t| pool.next_staleness(t));
        self.dirty = false;
    }
}
