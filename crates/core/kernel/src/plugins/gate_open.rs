//! `open-gate`: every endpoint is open to every band.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{Gate, Passage};
use crate::pool::EndpointSet;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "open-gate",
    aliases: &[],
    kinds: &[Kind::Gate],
    summary: "Lets every band use every endpoint; the default.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: false,
    needs: None,
    build: |_| Ok(Built { gate: Some(Arc::new(Open)), ..Built::default() }),
};

#[derive(Debug)]
struct Open;

impl Gate for Open {
    fn allow(&self, _: &Passage<'_>, _: &mut EndpointSet) {}
    fn is_open(&self) -> bool {
        true
    }
}
