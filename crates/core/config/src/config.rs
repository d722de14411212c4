//! The checked configuration.

use crate::gates::Gates;
use crate::instances::Instance;
use crate::proxy::ProxyConfig;
use forebay_base::{Diagnostics, Span};
use forebay_kernel::plan::{
    BandPlan, BandTemplate, Driver, FlowPlan, Plan, PrefillPlan, PrefixPlan, Profile, WeightedScorer,
};
use forebay_kernel::plugin::Kind;
use std::sync::Arc;

/// A checked configuration, every default filled in and every reference resolved.
#[derive(Clone, Debug)]
pub struct Config {
    /// The feature gates.
    pub gates: Gates,
    /// All plugins: the configured ones in the order of the file, then the injected ones. The other
    /// fields refer to them by index.
    pub plugins: Vec<Instance>,
    /// The scheduling profile; with disaggregation, the one that chooses where to decode.
    pub profile: ProfileConfig,
    /// The profile that chooses where to compute prompts, if one is used.
    pub prefill: Option<PrefillConfig>,
    /// The profile handler.
    pub handler: usize,
    /// The saturation detector.
    pub detector: usize,
    /// Flow control; `None` while its feature gate is off.
    pub flow: Option<FlowConfig>,
    /// Where data about endpoints comes from.
    pub data_layer: DataLayer,
    /// The request parsers in the order in which they are asked.
    pub parsers: Vec<usize>,
    /// The HTTP door.
    pub proxy: ProxyConfig,
    /// What the reader should know; no errors among them.
    pub warnings: Diagnostics,
}

/// A scheduling profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileConfig {
    /// Its name.
    pub name: String,
    /// Its plugins in the order of the file, a picker last if none was listed.
    pub plugins: Vec<ProfilePlugin>,
}

/// The profile that chooses where to compute prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillConfig {
    /// The profile.
    pub profile: ProfileConfig,
    /// The plugin that decides when; `None`: always.
    pub decider: Option<usize>,
}

/// A plugin in a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfilePlugin {
    /// Which plugin.
    pub plugin: usize,
    /// Its weight, if it is a scorer.
    pub weight: Option<f64>,
}

/// The section `flowControl`.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowConfig {
    /// Bytes that may wait in all bands together; `None` is unlimited.
    pub max_bytes: Option<u64>,
    /// Requests that may wait in all bands together; `None` is unlimited.
    pub max_requests: Option<u64>,
    /// How long a request may wait while the pool has endpoints; `None` is forever.
    pub ttl: Option<Span>,
    /// How long a request may wait while the pool is empty; `None` is forever.
    pub no_endpoint_ttl: Option<Span>,
    /// The bands that the file lists, highest priority first.
    pub bands: Vec<(i32, BandConfig)>,
    /// The template of band 0 and of other bands that are not listed.
    pub default_band: BandConfig,
    /// The same for negative priorities.
    pub default_negative_band: BandConfig,
    /// The usage limit policy.
    pub limit: usize,
    /// The gate.
    pub gate: usize,
    /// When cycles run.
    pub driver: Driver,
    /// Whether scorers count what is in flight.
    pub live_routing: bool,
    /// The ceiling of the highest band, if it is not the policy's.
    pub top_band_ceiling: Option<f64>,
}

/// Limits and policies of a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandConfig {
    /// Bytes that may wait in the band.
    pub max_bytes: u64,
    /// Requests that may wait in the band.
    pub max_requests: u64,
    /// The fairness policy.
    pub fairness: usize,
    /// The ordering policy.
    pub ordering: usize,
}

/// The section `dataLayer`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataLayer {
    /// Whether the default metrics source is added when it is not listed.
    pub inject_defaults: bool,
    /// Data sources in the order of the file.
    pub sources: Vec<SourceConfig>,
    /// Where endpoints come from, if a plugin does it.
    pub discovery: Option<usize>,
}

/// A data source and its extractors.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceConfig {
    /// The source.
    pub source: usize,
    /// What turns its data into attributes.
    pub extractors: Vec<usize>,
}

/// The value of a part that the loader has checked to be there.
fn part<T: ?Sized>(part: Option<&Arc<T>>) -> Arc<T> {
    Arc::clone(part.expect("a plugin is referred to only as a kind that it was built as"))
}

impl Config {
    /// The plugins that can be used as `kind`, in order.
    pub fn plugins_of(&self, kind: Kind) -> impl Iterator<Item = &Instance> + '_ {
        self.plugins.iter().filter(move |i| i.descriptor.is(kind))
    }

    /// The request parsers in the order in which they are asked.
    pub fn parsers(&self) -> impl Iterator<Item = &Instance> + '_ {
        self.parsers.iter().map(|&i| &self.plugins[i])
    }

    /// The data sources, each with its extractors.
    pub fn sources(&self) -> impl Iterator<Item = (&Instance, Vec<&Instance>)> + '_ {
        self.data_layer
            .sources
            .iter()
            .map(|s| (&self.plugins[s.source], s.extractors.iter().map(|&e| &self.plugins[e]).collect()))
    }

    /// The plugin that finds endpoints, if one is configured.
    pub fn discovery(&self) -> Option<&Instance> {
        self.data_layer.discovery.map(|i| &self.plugins[i])
    }

    /// What the kernel decides by. `priorities` are those of the objectives: each gets a band from the
    /// start, beside the listed ones and band 0.
    pub fn plan(&self, priorities: &[i32]) -> Plan {
        Plan {
            flow: self.flow.as_ref().map(|f| self.flow_plan(f, priorities)),
            detector: part(self.plugins[self.detector].built.detector.as_ref()),
            admitters: self.plugins.iter().filter_map(|i| i.built.admitter.clone()).collect(),
            profile: self.profile_plan(&self.profile),
            prefill: self.prefill.as_ref().map(|p| self.prefill_plan(p)),
            prefix: self.prefix_plan(),
            inflight: self.plugins.iter().find_map(|i| i.built.inflight).unwrap_or_default(),
            live_routing: self.flow.as_ref().is_some_and(|f| f.live_routing),
        }
    }

    fn prefix_plan(&self) -> Option<PrefixPlan> {
        self.plugins.iter().find_map(|i| i.built.prefix)
    }

    fn prefill_plan(&self, p: &PrefillConfig) -> PrefillPlan {
        let decider = p.decider.map(|i| part(self.plugins[i].built.decider.as_ref()));
        PrefillPlan { profile: self.profile_plan(&p.profile), decider }
    }

    fn profile_plan(&self, profile: &ProfileConfig) -> Profile {
        let mut filters = Vec::new();
        let mut scorers = Vec::new();
        let mut picker = None;
        for p in &profile.plugins {
            let Instance { name, built, .. } = &self.plugins[p.plugin];
            filters.extend(built.filter.clone());
            if let Some(scorer) = built.scorer.clone() {
                let weight = p.weight.unwrap_or(1.0);
                scorers.push(WeightedScorer { name: name.clone(), weight, scorer });
            }
            picker = picker.or(built.picker.as_ref());
        }
        Profile { name: profile.name.clone(), filters, scorers, picker: part(picker) }
    }

    fn flow_plan(&self, f: &FlowConfig, priorities: &[i32]) -> FlowPlan {
        let mut all: Vec<i32> = f.bands.iter().map(|(p, _)| *p).chain(priorities.iter().copied()).collect();
        all.push(0);
        all.sort_unstable_by_key(|&p| std::cmp::Reverse(p));
        all.dedup();
        let bands = all.into_iter().map(|priority| {
            let listed = f.bands.iter().find(|(p, _)| *p == priority).map(|(_, b)| b);
            let band =
                listed.unwrap_or(if priority < 0 { &f.default_negative_band } else { &f.default_band });
            BandPlan { priority, template: self.template(band) }
        });
        FlowPlan {
            max_bytes: f.max_bytes,
            max_requests: f.max_requests,
            ttl: f.ttl,
            no_endpoint_ttl: f.no_endpoint_ttl,
            bands: bands.collect(),
            default_band: self.template(&f.default_band),
            default_negative_band: self.template(&f.default_negative_band),
            limit: part(self.plugins[f.limit].built.limit.as_ref()),
            gate: part(self.plugins[f.gate].built.gate.as_ref()),
            driver: f.driver,
            top_band_ceiling: f.top_band_ceiling,
        }
    }

    fn template(&self, b: &BandConfig) -> BandTemplate {
        BandTemplate {
            max_bytes: b.max_bytes,
            max_requests: b.max_requests,
            fairness: part(self.plugins[b.fairness].built.fairness.as_ref()),
            ordering: part(self.plugins[b.ordering].built.ordering.as_ref()),
        }
    }
}
