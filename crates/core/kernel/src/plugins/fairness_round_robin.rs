//! `round-robin-fairness-policy`: flows with something queued take turns in the order of their names.
//!
//! The next flow is the one after the last chosen that has something queued. As in llm-d-router, the round
//! starts anew when nothing is queued any more, and when the last chosen flow has been forgotten.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Fairness, FairnessPolicy, HeadKey};
use forebay_base::Nanos;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "round-robin-fairness-policy",
    aliases: &[],
    kinds: &[Kind::FairnessPolicy],
    summary: "Flows take turns, one request each, in the order of their fairness ids.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { fairness: Some(Arc::new(RoundRobin)), ..Built::default() }),
};

#[derive(Debug)]
struct RoundRobin;

impl FairnessPolicy for RoundRobin {
    fn start(&self) -> Box<dyn Fairness> {
        Box::new(Ring::default())
    }
}

#[derive(Clone, Debug, Default)]
struct Ring {
    names: Vec<Option<Arc<str>>>,
    /// Flows that have something queued, by name.
    queued: BTreeMap<Arc<str>, u32>,
    /// The flow chosen last.
    last: Option<Arc<str>>,
}

impl Ring {
    fn name(&self, flow: u32) -> Option<&Arc<str>> {
        self.names.get(flow as usize)?.as_ref()
    }
}

impl Fairness for Ring {
    fn opened(&mut self, _: Nanos, flow: u32, name: &Arc<str>) {
        if flow as usize >= self.names.len() {
            self.names.resize(flow as usize + 1, None);
        }
        self.names[flow as usize] = Some(name.clone());
    }
    fn head_changed(&mut self, flow: u32, _: HeadKey) {
        if let Some(name) = self.name(flow).cloned() {
            self.queued.insert(name, flow);
        }
    }
    fn emptied(&mut self, flow: u32) {
        if let Some(name) = self.name(flow).cloned() {
            self.queued.remove(&name);
        }
        if self.queued.is_empty() {
            self.last = None;
        }
    }
    fn closed(&mut self, _: Nanos, flow: u32) {
        let name = self.names.get_mut(flow as usize).and_then(Option::take);
        if name.is_some() && name == self.last {
            self.last = None;
        }
    }
    fn pick(&self, _: Nanos) -> Option<u32> {
        let after = self
            .last
            .as_deref()
            .and_then(|last| self.queued.range::<str, _>((Bound::Excluded(last), Bound::Unbounded)).next());
        after.or_else(|| self.queued.first_key_value()).map(|(_, &flow)| flow)
    }
    fn taken(&mut self, flow: u32) {
        self.last = self.name(flow).cloned();
    }
    fn fork(&self) -> Box<dyn Fairness> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Draws, Purpose};

    const T: Nanos = Nanos::ZERO;
    const HEAD: HeadKey = HeadKey { key: 0, number: 0, since: T };

    fn ring(names: &[&str]) -> Box<dyn Fairness> {
        let mut r = RoundRobin.start();
        for (i, &name) in names.iter().enumerate() {
            r.opened(T, i as u32, &name.into());
        }
        r
    }

    fn next(r: &mut Box<dyn Fairness>) -> Option<u32> {
        let flow = r.pick(T)?;
        r.taken(flow);
        Some(flow)
    }

    #[test]
    fn turns_go_by_name_and_skip_what_has_nothing_queued() {
        let mut r = ring(&["b", "c", "a"]);
        for flow in [0, 1, 2] {
            r.head_changed(flow, HEAD);
        }
        assert_eq!((0..4).filter_map(|_| next(&mut r)).collect::<Vec<_>>(), [2, 0, 1, 2]);
        r.emptied(0);
        assert_eq!((0..3).filter_map(|_| next(&mut r)).collect::<Vec<_>>(), [1, 2, 1]);
        // The cursor stays on a flow that has just run dry.
        r.head_changed(0, HEAD);
        assert_eq!(next(&mut r), Some(2));
        r.emptied(2);
        assert_eq!(next(&mut r), Some(0));
    }

    #[test]
    fn the_round_starts_anew_when_all_are_empty_or_the_last_is_forgotten() {
        let mut r = ring(&["a", "b", "c"]);
        r.head_changed(0, HEAD);
        r.head_changed(1, HEAD);
        assert_eq!((next(&mut r), r.pick(T)), (Some(0), Some(1)));
        r.emptied(0);
        r.emptied(1);
        assert_eq!(r.pick(T), None);
        r.head_changed(0, HEAD);
        r.head_changed(1, HEAD);
        assert_eq!(next(&mut r), Some(0), "not b, although a was the last");
        assert_eq!(next(&mut r), Some(1));
        r.head_changed(2, HEAD);
        r.emptied(1);
        r.closed(T, 1);
        assert_eq!(next(&mut r), Some(0), "the place of b is not known any more");
    }

    /// Between two turns of a flow that stays queued, no other flow has two turns.
    #[test]
    fn no_queued_flow_is_passed_over_twice() {
        let (d, p) = (Draws::new(5), Purpose::named("round-robin"));
        let names: Vec<String> = (0..7).map(|i| format!("f{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut r = ring(&names);
        let mut queued = [false; 7];
        // Turns that each flow has had to let pass, by flow.
        let mut passed = [[0u32; 7]; 7];
        for n in 0..5_000 {
            let flow = d.below(p, n, 0, 7) as usize;
            if d.below(p, n, 1, 3) == 0 {
                if queued[flow] {
                    queued[flow] = false;
                    r.emptied(flow as u32);
                }
            } else if !queued[flow] {
                queued[flow] = true;
                passed[flow] = [0; 7];
                r.head_changed(flow as u32, HEAD);
            }
            let Some(chosen) = next(&mut r).map(|f| f as usize) else {
                assert!(!queued.contains(&true));
                continue;
            };
            assert!(queued[chosen]);
            passed[chosen] = [0; 7];
            for other in (0..7).filter(|&o| o != chosen && queued[o]) {
                passed[other][chosen] += 1;
                assert!(passed[other][chosen] <= 1, "{other} was passed over twice for {chosen} at {n}");
            }
        }
    }
}
