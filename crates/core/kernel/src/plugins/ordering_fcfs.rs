//! `fcfs-ordering-policy`: first come, first served.

use crate::ask::Asked;
use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::OrderingPolicy;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "fcfs-ordering-policy",
    aliases: &[],
    kinds: &[Kind::OrderingPolicy],
    summary: "Requests of a flow leave in the order of their arrival; the default.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: |_| Ok(Built { ordering: Some(Arc::new(Fcfs)), ..Built::default() }),
};

#[derive(Debug)]
struct Fcfs;

impl OrderingPolicy for Fcfs {
    fn key(&self, ask: &Asked) -> u64 {
        ask.arrived.0
    }
}
