//! `token-fair-policy`: flows share tokens, not requests, in proportion to their weights.
//!
//! The virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language Models": each flow
//! has a counter of the tokens it was served, divided by its weight; the flow with the least goes next.
//! Prompt tokens (estimated) are charged at dispatch, output tokens as they come. A flow that has something
//! queued again is lifted to the least counter of those that have, or, if none has, to the counter of the
//! flow that ran dry last: time without requests earns nothing. A flow that the band forgets is forgotten
//! here, too.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{Fairness, FairnessPolicy, HeadKey};
use forebay_base::{IndexedHeap, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

static WEIGHT: &[Param] = &[
    Param { name: "id", kind: ParamKind::Text, preset: Preset::Required, unit: "", doc: "The fairness id." },
    Param {
        name: "weight",
        kind: ParamKind::Float(RANGE),
        preset: Preset::Required,
        unit: "",
        doc: "Its share relative to others.",
    },
];

/// Wider ranges would only make counters coarse.
const RANGE: Bounds = Bounds { min: 1e-3, min_open: false, max: 1e6, max_open: false };

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "token-fair-policy",
    aliases: &[],
    kinds: &[Kind::FairnessPolicy],
    summary: "Flows share served tokens in proportion to their weights (virtual token counter).",
    stability: Stability::Alpha,
    params: &[
        Param {
            name: "weights",
            kind: ParamKind::List(&ParamKind::Object(WEIGHT)),
            preset: Preset::Absent,
            unit: "",
            doc: "Weights of fairness ids.",
        },
        Param {
            name: "defaultWeight",
            kind: ParamKind::Float(RANGE),
            preset: Preset::Float(1.0),
            unit: "",
            doc: "The weight of every other fairness id.",
        },
        Param {
            name: "inputTokenCost",
            kind: ParamKind::Float(Bounds { min: 0.0, min_open: false, max: 1e6, max_open: false }),
            preset: Preset::Float(1.0),
            unit: "",
            doc: "What a prompt token costs, charged at dispatch.",
        },
        Param {
            name: "outputTokenCost",
            kind: ParamKind::Float(Bounds { min: 0.0, min_open: false, max: 1e6, max_open: false }),
            preset: Preset::Float(2.0),
            unit: "",
            doc: "What an output token costs, charged as it comes.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build,
};

fn build(v: &Values) -> Result<Built, BuildError> {
    let mut weights = BTreeMap::new();
    for item in v.list("weights") {
        let Value::Object(w) = item else { continue };
        let id = w.text("id").unwrap_or_default();
        if weights.insert(id.to_owned(), w.float("weight")).is_some() {
            let message = format!("the fairness id {id:?} has two weights");
            return Err(BuildError { param: "weights", message });
        }
    }
    let it = TokenFair(Arc::new(Settings {
        weights,
        default_weight: v.float("defaultWeight"),
        input: v.float("inputTokenCost"),
        output: v.float("outputTokenCost"),
    }));
    Ok(Built { fairness: Some(Arc::new(it)), ..Built::default() })
}

#[derive(Debug)]
struct Settings {
    weights: BTreeMap<String, f64>,
    default_weight: f64,
    input: f64,
    output: f64,
}

#[derive(Debug)]
struct TokenFair(Arc<Settings>);

impl FairnessPolicy for TokenFair {
    fn start(&self) -> Box<dyn Fairness> {
        Box::new(Counters {
            settings: self.0.clone(),
            accounts: Vec::new(),
            heads: IndexedHeap::default(),
            last: None,
            floor: 0,
        })
    }
    fn counts_output(&self) -> bool {
        self.0.output > 0.0
    }
}

/// Counters are whole numbers of these per unit of cost: sums then do not depend on their order.
const UNITS: f64 = 1_048_576.0;

#[derive(Clone, Copy, Debug)]
struct Account {
    weight: f64,
    counter: u128,
    /// The head, if something is queued.
    head: Option<HeadKey>,
}

#[derive(Clone, Debug)]
struct Counters {
    settings: Arc<Settings>,
    accounts: Vec<Account>,
    /// Flows with something queued.
    heads: IndexedHeap<(u128, HeadKey)>,
    /// The flow that ran dry last, while it is known.
    last: Option<u32>,
    /// The counter that it had when it was forgotten.
    floor: u128,
}

impl Counters {
    fn charge(&mut self, flow: u32, tokens: u64, cost: f64) {
        let Some(a) = self.accounts.get_mut(flow as usize) else { return };
        a.counter += (tokens as f64 * cost / a.weight * UNITS).round() as u128;
        if let Some(head) = a.head {
            self.heads.set(flow, (a.counter, head));
        }
    }
}

impl Fairness for Counters {
    fn opened(&mut self, _: Nanos, flow: u32, name: &Arc<str>) {
        let weight = self.settings.weights.get(&**name).copied().unwrap_or(self.settings.default_weight);
        let account = Account { weight, counter: 0, head: None };
        if flow as usize >= self.accounts.len() {
            self.accounts.resize(flow as usize + 1, account);
        }
        self.accounts[flow as usize] = account;
    }
    fn head_changed(&mut self, flow: u32, head: HeadKey) {
        let least = match (self.heads.peek(), self.last) {
            (Some(((least, _), _)), _) => least,
            (None, Some(last)) => self.accounts[last as usize].counter,
            (None, None) => self.floor,
        };
        let a = &mut self.accounts[flow as usize];
        if a.head.replace(head).is_none() {
            a.counter = a.counter.max(least);
        }
        self.heads.set(flow, (a.counter, head));
    }
    fn emptied(&mut self, flow: u32) {
        self.accounts[flow as usize].head = None;
        self.heads.remove(flow);
        self.last = Some(flow);
    }
    fn closed(&mut self, _: Nanos, flow: u32) {
        if self.last == Some(flow) {
            self.last = None;
            self.floor = self.accounts[flow as usize].counter;
        }
    }
    fn pick(&self, _: Nanos) -> Option<u32> {
        self.heads.peek().map(|(_, flow)| flow)
    }
    fn dispatched(&mut self, _: Nanos, flow: u32, input: u64) {
        self.charge(flow, input, self.settings.input);
    }
    fn output(&mut self, _: Nanos, flow: u32, tokens: u64) {
        self.charge(flow, tokens, self.settings.output);
    }
    fn fork(&self) -> Box<dyn Fairness> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Nanos = Nanos::ZERO;

    fn head(number: u64) -> HeadKey {
        HeadKey { key: 0, number, since: T }
    }

    fn counters(weights: &[(&str, f64)]) -> Box<dyn Fairness> {
        let weights = weights
            .iter()
            .map(|&(id, w)| {
                Value::Object(Values(vec![("id", Value::Text(id.into())), ("weight", Value::Float(w))]))
            })
            .collect();
        let mut v = DESCRIPTOR.presets();
        v.0.push(("weights", Value::List(weights)));
        build(&v).unwrap().fairness.unwrap().start()
    }

    #[test]
    fn the_least_served_flow_goes_next() {
        let mut c = counters(&[]);
        for (flow, name) in ["a", "b"].iter().enumerate() {
            c.opened(T, flow as u32, &(*name).into());
            c.head_changed(flow as u32, head(flow as u64));
        }
        assert_eq!(c.pick(T), Some(0), "a tie goes to the earlier head");
        c.dispatched(T, 0, 100);
        assert_eq!(c.pick(T), Some(1));
        c.dispatched(T, 1, 90);
        assert_eq!(c.pick(T), Some(1), "90 are less than 100");
        c.output(T, 1, 6);
        assert_eq!(c.pick(T), Some(0), "90 + 2 * 6 are more than 100");
    }

    #[test]
    fn a_flow_that_comes_back_is_lifted_to_the_least() {
        let mut c = counters(&[]);
        c.opened(T, 0, &"a".into());
        c.opened(T, 1, &"b".into());
        c.head_changed(0, head(0));
        c.dispatched(T, 0, 1000);
        // b has had nothing while a was served 1000; it starts level with a and has the later head.
        c.head_changed(1, head(1));
        assert_eq!(c.pick(T), Some(0));
        c.dispatched(T, 0, 1);
        assert_eq!(c.pick(T), Some(1));
        // Both run dry, b last; c is lifted to b's 1005, and so is behind nobody.
        c.emptied(0);
        c.emptied(1);
        c.dispatched(T, 1, 5);
        c.opened(T, 2, &"c".into());
        c.head_changed(2, head(3));
        c.head_changed(0, head(4));
        assert_eq!(c.pick(T), Some(2), "a was lifted to c's counter and has the later head");
        // A debt is kept.
        c.head_changed(1, head(2));
        c.dispatched(T, 1, 100);
        c.dispatched(T, 2, 50);
        c.dispatched(T, 0, 99);
        assert_eq!(c.pick(T), Some(2));
    }

    #[test]
    fn the_floor_outlives_the_flow_that_set_it() {
        let mut c = counters(&[]);
        c.opened(T, 0, &"a".into());
        c.head_changed(0, head(0));
        c.dispatched(T, 0, 1000);
        c.emptied(0);
        c.closed(T, 0);
        c.opened(T, 0, &"b".into());
        c.head_changed(0, head(1));
        c.opened(T, 1, &"c".into());
        c.head_changed(1, head(2));
        c.dispatched(T, 0, 1);
        c.dispatched(T, 1, 2);
        assert_eq!(c.pick(T), Some(0), "both started from 1000");
    }

    #[test]
    fn two_weights_for_one_id_are_refused() {
        let w =
            || Value::Object(Values(vec![("id", Value::Text("a".into())), ("weight", Value::Float(1.0))]));
        let mut v = DESCRIPTOR.presets();
        v.0.push(("weights", Value::List(vec![w(), w()])));
        assert_eq!(build(&v).unwrap_err().param, "weights");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, ..Default::default() })]

        /// Two flows that always have something queued get tokens in proportion to their weights: their
        /// weighted services never differ by more than the two largest requests.
        #[test]
        fn shares_converge_to_the_weights(
            weight in 0.05f64..20.0,
            requests in proptest::collection::vec((1u64..4000, 0u64..1000), 200..400),
        ) {
            let mut c = counters(&[("a", weight), ("b", 1.0)]);
            c.opened(T, 0, &"a".into());
            c.opened(T, 1, &"b".into());
            c.head_changed(0, head(0));
            c.head_changed(1, head(1));
            let weights = [weight, 1.0];
            let mut served = [0.0f64; 2];
            for (n, &(input, output)) in requests.iter().enumerate() {
                let flow = c.pick(T).unwrap();
                c.taken(flow);
                c.dispatched(T, flow, input);
                c.head_changed(flow, head(n as u64 + 2));
                c.output(T, flow, output);
                served[flow as usize] += input as f64 + 2.0 * output as f64;
                let apart = (served[0] / weights[0] - served[1] / weights[1]).abs();
                let most = 6000.0 / weights[0].min(weights[1]);
                proptest::prop_assert!(apart <= most + 0.01, "{} apart, {} at most", apart, most);
            }
        }
    }
}
