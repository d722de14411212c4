//! `single-profile-handler`: runs the only scheduling profile.

use crate::plugin::{Descriptor, Kind, Stability, nothing};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "single-profile-handler",
    aliases: &[],
    kinds: &[Kind::ProfileHandler],
    summary: "Runs the one scheduling profile; created by default when there is exactly one.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: nothing,
};
