//! A pool, a request and a decision for the tests of plugins.

use crate::ask::Asked;
use crate::plan::InflightPlan;
use crate::plugin::{BuildError, Built, Descriptor, Value, Values};
use crate::policy::{Decision, Filter, Memory, Scorer};
use crate::pool::{Endpoint, EndpointId, EndpointSpec, Pool, Reading, Sample};
use forebay_base::{Draws, Nanos};
use std::sync::Arc;

/// Builds a plugin from its presets and some parameters.
pub(super) fn build(d: &Descriptor, given: &[(&'static str, Value)]) -> Result<Built, BuildError> {
    let mut v = d.presets();
    v.0.retain(|(name, _)| !given.iter().any(|(n, _)| n == name));
    v.0.extend(given.iter().cloned());
    (d.build)(&v)
}

pub(super) fn text(t: &str) -> Value {
    Value::Text(t.to_owned())
}

pub(super) fn object(fields: &[(&'static str, Value)]) -> Value {
    Value::Object(Values(fields.to_vec()))
}

pub(super) fn texts(items: &[&str]) -> Value {
    Value::List(items.iter().map(|t| text(t)).collect())
}

pub(super) struct Bench {
    pub(super) pool: Pool,
    pub(super) ask: Asked,
    pub(super) matched: Vec<u32>,
    pub(super) inflight: InflightPlan,
    pub(super) now: Nanos,
}

impl Bench {
    /// `n` endpoints, named `e0` and so on, never scraped.
    pub(super) fn new(n: usize) -> Bench {
        let mut pool = Pool::default();
        for i in 0..n {
            pool.add(EndpointSpec::named(format!("e{i}")));
        }
        Bench {
            pool,
            ask: Asked::default(),
            matched: vec![0; n],
            inflight: InflightPlan::default(),
            now: Nanos::ZERO,
        }
    }

    /// Endpoints with these values of a label; `None`: without it.
    pub(super) fn labelled(key: &str, values: &[Option<&str>]) -> Bench {
        let mut b = Bench::new(values.len());
        for (i, v) in values.iter().enumerate() {
            b.at(i as u32).spec.labels.extend(v.map(|v| (key.to_owned(), v.to_owned())));
        }
        b
    }

    pub(super) fn id(&self, i: u32) -> EndpointId {
        self.pool.at(i).unwrap().id
    }

    pub(super) fn at(&mut self, i: u32) -> &mut Endpoint {
        let id = self.id(i);
        self.pool.get_mut(id).unwrap()
    }

    /// A scrape of waiting, running and KV use.
    pub(super) fn scrape(&mut self, i: u32, waiting: f64, running: f64, kv: f64) {
        let v = Reading::Value;
        let sample = Sample { waiting: v(waiting), running: v(running), kv: v(kv), ..Sample::default() };
        self.at(i).sample = Some(sample);
    }

    pub(super) fn decision(&self) -> Decision<'_> {
        Decision {
            now: self.now,
            ask: &self.ask,
            pool: &self.pool,
            matched: &self.matched,
            draws: Draws::new(3),
            live: false,
            inflight: self.inflight,
        }
    }

    fn all(&self) -> Vec<u32> {
        self.pool.members().iter().collect()
    }

    pub(super) fn scores(&self, scorer: &Arc<dyn Scorer>) -> Vec<f64> {
        let mut out = vec![0.0; self.all().len()];
        scorer.score(&self.decision(), &self.all(), &mut out);
        out
    }

    pub(super) fn remembered_scores(&self, memory: &mut dyn Memory) -> Vec<f64> {
        let mut out = vec![0.0; self.all().len()];
        memory.score(&self.decision(), &self.all(), &mut out);
        out
    }

    pub(super) fn kept(&self, filter: &Arc<dyn Filter>) -> Vec<u32> {
        let mut set = self.pool.members().clone();
        filter.keep(&self.decision(), &mut set);
        set.iter().collect()
    }

    pub(super) fn remembered_kept(&self, memory: &mut dyn Memory) -> Vec<u32> {
        let mut set = self.pool.members().clone();
        memory.keep(&self.decision(), &mut set);
        set.iter().collect()
    }
}

/// Compares numbers computed by hand.
pub(super) fn near(got: &[f64], want: &[f64]) {
    let close = |(g, w): (&f64, &f64)| (g - w).abs() < 1e-9;
    assert!(got.len() == want.len() && got.iter().zip(want).all(close), "{got:?} instead of {want:?}");
}
