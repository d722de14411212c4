//! The plugins of the kernel: one file each, one line each in [`ALL`].

mod admit_probabilistic;
mod context_length_aware;
mod decider_prefix;
mod detector_concurrency;
mod detector_inflight;
mod detector_utilization;
mod fairness_global_strict;
mod fairness_program;
mod fairness_round_robin;
mod fairness_token;
mod filter_by_label;
mod filter_endpoint_attribute;
mod filter_label_selector;
mod filter_prefix_affinity;
mod filter_utilization;
mod gate_kv_reserve;
mod gate_open;
mod handler_disagg;
mod handler_single;
mod inflight_producer;
mod limit_holdback;
mod limit_soft_reflective;
mod limit_static;
mod ordering_edf;
mod ordering_fcfs;
mod ordering_slo_deadline;
mod picker_max_score;
mod picker_random;
mod picker_weighted_random;
mod prefix_producer;
mod scorer_active_request;
mod scorer_kv_cache;
mod scorer_latency;
mod scorer_load_aware;
mod scorer_lora_affinity;
mod scorer_no_hit_lru;
mod scorer_prefix_cache;
mod scorer_queue;
mod scorer_running;
mod scorer_token_load;
mod session_affinity;
#[cfg(test)]
mod testing;

use crate::plugin::Descriptor;

/// Every plugin of the kernel, in the order of the documentation.
pub static ALL: &[&Descriptor] = &[
    &limit_static::DESCRIPTOR,
    &limit_holdback::DESCRIPTOR,
    &limit_soft_reflective::DESCRIPTOR,
    &detector_utilization::DESCRIPTOR,
    &detector_inflight::DESCRIPTOR,
    &detector_concurrency::DESCRIPTOR,
    &fairness_global_strict::DESCRIPTOR,
    &fairness_round_robin::DESCRIPTOR,
    &fairness_program::DESCRIPTOR,
    &fairness_token::DESCRIPTOR,
    &ordering_fcfs::DESCRIPTOR,
    &ordering_edf::DESCRIPTOR,
    &ordering_slo_deadline::DESCRIPTOR,
    &gate_open::DESCRIPTOR,
    &gate_kv_reserve::DESCRIPTOR,
    &admit_probabilistic::DESCRIPTOR,
    &handler_single::DESCRIPTOR,
    &handler_disagg::DESCRIPTOR,
    &decider_prefix::PREFIX,
    &decider_prefix::ALWAYS,
    &filter_label_selector::DESCRIPTOR,
    &filter_by_label::DECODE,
    &filter_by_label::PREFILL,
    &filter_by_label::ENCODE,
    &filter_by_label::BY_LABEL,
    &filter_utilization::DESCRIPTOR,
    &filter_endpoint_attribute::DESCRIPTOR,
    &filter_prefix_affinity::DESCRIPTOR,
    &session_affinity::FILTER,
    &context_length_aware::DESCRIPTOR,
    &scorer_queue::DESCRIPTOR,
    &scorer_kv_cache::DESCRIPTOR,
    &scorer_running::DESCRIPTOR,
    &scorer_load_aware::DESCRIPTOR,
    &scorer_active_request::DESCRIPTOR,
    &scorer_token_load::DESCRIPTOR,
    &scorer_prefix_cache::DESCRIPTOR,
    &scorer_no_hit_lru::DESCRIPTOR,
    &scorer_lora_affinity::DESCRIPTOR,
    &session_affinity::SCORER,
    &scorer_latency::DESCRIPTOR,
    &prefix_producer::DESCRIPTOR,
    &inflight_producer::DESCRIPTOR,
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
            let required = d.name == "priority-holdback-policy"
                || d.params.iter().any(|p| matches!(p.preset, crate::plugin::Preset::Required));
            assert_eq!(built.is_err(), required, "{}: {built:?}", d.name);
        }
    }
}
