//! The plugins of the kernel: one file each, one line each in [`ALL`].

mod admit_probabilistic;
mod detector_inflight;
mod detector_utilization;
mod fairness_global_strict;
mod gate_open;
mod handler_single;
mod limit_holdback;
mod limit_soft_reflective;
mod limit_static;
mod ordering_fcfs;
mod picker_max_score;
mod picker_random;
mod picker_weighted_random;
mod prefix_producer;
mod scorer_kv_cache;
mod scorer_prefix_cache;
mod scorer_queue;
mod scorer_running;

use crate::plugin::Descriptor;

/// Every plugin of the kernel, in the order of the documentation.
pub static ALL: &[&Descriptor] = &[
    &limit_static::DESCRIPTOR,
    &limit_holdback::DESCRIPTOR,
    &limit_soft_reflective::DESCRIPTOR,
    &detector_utilization::DESCRIPTOR,
    &detector_inflight::DESCRIPTOR,
    &fairness_global_strict::DESCRIPTOR,
    &ordering_fcfs::DESCRIPTOR,
    &gate_open::DESCRIPTOR,
    &admit_probabilistic::DESCRIPTOR,
    &handler_single::DESCRIPTOR,
    &scorer_queue::DESCRIPTOR,
    &scorer_kv_cache::DESCRIPTOR,
    &scorer_running::DESCRIPTOR,
    &scorer_prefix_cache::DESCRIPTOR,
    &prefix_producer::DESCRIPTOR,
    &picker_max_score::DESCRIPTOR,
    &picker_random::DESCRIPTOR,
    &picker_weighted_random::DESCRIPTOR,
];

pub use prefix_producer::MIN_BLOCK_TOKENS;

/// The plugin type of this name or alias.
pub fn find(name: &str) -> Option<&'static Descriptor> {
    ALL.iter().copied().find(|d| d.name == name || d.aliases.iter().any(|a| a.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_presets_build() {
        let mut names: Vec<&str> = ALL.iter().map(|d| d.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for d in ALL {
            assert!(!d.summary.is_empty() && !d.kinds.is_empty(), "{}", d.name);
            let built = (d.build)(&d.presets());
            let required = d.name == "priority-holdback-policy";
            assert_eq!(built.is_err(), required, "{}: {built:?}", d.name);
        }
    }
}
