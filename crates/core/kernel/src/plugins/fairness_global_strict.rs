//! `global-strict-fairness-policy`: the best head of all flows goes next, whatever its flow.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Fairness, FairnessPolicy, HeadKey};
use forebay_base::{IndexedHeap, Nanos};
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "global-strict-fairness-policy",
    aliases: &[],
    kinds: &[Kind::FairnessPolicy],
    summary: "Flows do not count: the band's best head goes next; the default.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { fairness: Some(Arc::new(GlobalStrict)), ..Built::default() }),
};

#[derive(Debug)]
struct GlobalStrict;

impl FairnessPolicy for GlobalStrict {
    fn start(&self) -> Box<dyn Fairness> {
        Box::new(Heads::default())
    }
}

/// The heads of all flows that have one; a pick is a look at the top.
#[derive(Clone, Debug, Default)]
struct Heads(IndexedHeap<HeadKey>);

impl Fairness for Heads {
    fn head_changed(&mut self, flow: u32, head: HeadKey) {
        self.0.set(flow, head);
    }
    fn emptied(&mut self, flow: u32) {
        self.0.remove(flow);
    }
    fn pick(&self, _: Nanos) -> Option<u32> {
        self.0.peek().map(|(_, flow)| flow)
    }
    fn fork(&self) -> Box<dyn Fairness> {
        Box::new(self.clone())
    }
}
