//! What the way through a live stack takes, and a simulated cluster with the same.

use forebay_base::Span;
use forebay_records::stats::quantile::Samples;
use forebay_sim::Cluster;

/// How long something took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// How often it was measured.
    pub count: u64,
    /// 10th, 50th, 90th and 99th percentile.
    pub quantiles: [Span; 4],
}

impl Spread {
    /// Of measurements.
    pub fn of(all: impl IntoIterator<Item = Span>) -> Spread {
        let mut samples = Samples::new();
        all.into_iter().for_each(|s| samples.push(Some(s.0)));
        let at = |samples: &mut Samples, q| Span(samples.quantile(q).value.unwrap_or(0));
        let quantiles = [0.1, 0.5, 0.9, 0.99].map(|q| at(&mut samples, q));
        Spread { count: samples.count(), quantiles }
    }

    /// The median.
    pub fn median(&self) -> Span {
        self.quantiles[1]
    }
}

/// The parts of the way that are no engine's and no queue's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From the time that the schedule has for a request to its sending.
    pub lag: Spread,
    /// From there to its offer to the router's kernel: network, reading, hashing of the prompt.
    pub to_router: Spread,
    /// From its dispatch to its arrival at the engine: network, reading, tokens.
    pub to_engine: Spread,
    /// From the end of the step that made its first or last token to the client's having it.
    pub to_client: Spread,
    /// From asking for an endpoint's metrics to having read them.
    pub scrape: Spread,
}

impl Delays {
    /// The parts with their names.
    pub fn parts(&self) -> [(&'static str, Spread); 5] {
        [
            ("send lag", self.lag),
            ("client to router", self.to_router),
            ("router to engine", self.to_engine),
            ("engine to client", self.to_client),
            ("scrape", self.scrape),
        ]
    }

    /// The cluster with these delays. Requests reach the simulated router in the instant that their schedule has, so
    /// that the way to it is added to the way behind it. Scrapes take their 10th percentile, with a jitter up to the
    /// 90th. What was not measured stays as it is.
    #[must_use]
    pub fn apply(&self, cluster: &Cluster) -> Cluster {
        let mut c = cluster.clone();
        if self.to_engine.count > 0 {
            c.network.to_engine = self.lag.median() + self.to_router.median() + self.to_engine.median();
        }
        if self.to_client.count > 0 {
            c.network.to_client = self.to_client.median();
        }
        if self.scrape.count > 0 {
            let [low, _, high, _] = self.scrape.quantiles;
            (c.scrape.delay, c.scrape.jitter) = (low, Span(high.0 - low.0));
        }
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_takes_over_what_was_measured_and_nothing_else() {
        let cluster = Cluster::parse("h100", "qwen3-14b", "", |_| {}).unwrap();
        assert_eq!(Delays::default().apply(&cluster).network, cluster.network);
        assert_eq!(Delays::default().apply(&cluster).scrape, cluster.scrape);
        let of = |all: &[u64]| Spread::of(all.iter().map(|x| Span(*x)));
        let delays = Delays {
            lag: of(&[1, 2, 3]),
            to_router: of(&[10, 20, 30]),
            to_engine: of(&[100, 200, 300]),
            to_client: of(&[5, 7, 9]),
            scrape: of(&[1000, 2000, 3000]),
        };
        let c = delays.apply(&cluster);
        assert_eq!((c.network.to_engine, c.network.to_client), (Span(222), Span(7)));
        assert_eq!((c.scrape.delay, c.scrape.jitter), (Span(1000), Span(2000)));
        assert_eq!(c.scrape.period, cluster.scrape.period);
    }

    #[test]
    fn a_spread_has_percentiles_by_nearest_rank() {
        let s = Spread::of((1..=100).map(Span));
        assert_eq!((s.count, s.quantiles), (100, [Span(10), Span(50), Span(90), Span(99)]));
        assert_eq!(Spread::of([]), Spread::default());
    }
}
