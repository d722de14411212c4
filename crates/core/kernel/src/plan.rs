//! What the configuration turns into: an immutable [`Plan`] that the kernel decides by.

use crate::policy::{
    Admitter, Decider, Detector, FairnessPolicy, Filter, Gate, OrderingPolicy, Picker, Scorer, UsageLimit,
};
use forebay_base::Span;
use std::sync::Arc;

/// Everything that decides, built once and shared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Flow control, or `None` for legacy admission (feature gate off).
    pub flow: Option<FlowPlan>,
    /// The saturation detector, used by flow control and by legacy admission.
    pub detector: Arc<dyn Detector>,
    /// Admitters, asked in order before a request is queued: they protect the queue itself.
    pub admitters: Vec<Arc<dyn Admitter>>,
    /// How an endpoint is chosen: with disaggregation, the one that decodes.
    pub profile: Profile,
    /// How an endpoint is chosen that computes the prompt for another one, if that is wanted at all.
    pub prefill: Option<PrefillPlan>,
    /// The approximate prefix index, if a plugin in use needs it.
    pub prefix: Option<PrefixPlan>,
    /// Whether scorers read queue length and KV cache use with what is in flight, instead of scraped.
    pub live_routing: bool,
    /// How tokens in flight are counted.
    pub inflight: InflightPlan,
}

impl Plan {
    /// Whether a fairness policy wants to be told of output tokens while they come. Without, a caller may
    /// save itself [`crate::Progress::Output`].
    pub fn counts_output(&self) -> bool {
        let Some(f) = &self.flow else { return false };
        let templates =
            f.bands.iter().map(|b| &b.template).chain([&f.default_band, &f.default_negative_band]);
        templates.into_iter().any(|t| t.fairness.counts_output())
    }
}

/// Settings of `inflight-load-producer`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InflightPlan {
    /// Whether output tokens are estimated and count until the end of the answer.
    pub output: Option<OutputEstimate>,
}

/// How many output tokens a request is expected to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputEstimate {
    /// Output tokens per prompt token.
    pub ratio: f64,
    /// The most that is expected.
    pub max: Option<u64>,
}

impl InflightPlan {
    /// Estimated output tokens: the prompt's tokens times the ratio, rounded, at most the client's bound and
    /// the configured one; 0 without a prompt or if output is not estimated.
    pub fn output_tokens(&self, prompt_tokens: u32, client_max: Option<u32>) -> u64 {
        let Some(output) = self.output.filter(|_| prompt_tokens > 0) else { return 0 };
        let estimate = (f64::from(prompt_tokens) * output.ratio).round() as u64;
        estimate.min(client_max.map_or(u64::MAX, u64::from)).min(output.max.unwrap_or(u64::MAX))
    }
}

/// The settings of flow control.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Bytes of request bodies that may wait in all bands together; `None` is unlimited.
    pub max_bytes: Option<u64>,
    /// Requests that may wait in all bands together; `None` is unlimited.
    pub max_requests: Option<u64>,
    /// How long a request may wait while the pool has endpoints; `None` is forever.
    pub ttl: Option<Span>,
    /// How long a request may wait while the pool is empty; `None` is forever.
    pub no_endpoint_ttl: Option<Span>,
    /// The bands that exist from the start, highest priority first, each priority once; band 0 among
    /// them.
    pub bands: Vec<BandPlan>,
    /// The template of bands that come later with a priority of 0 or more.
    pub default_band: BandTemplate,
    /// The template of bands that come later with a negative priority.
    pub default_negative_band: BandTemplate,
    /// Gives the ceilings.
    pub limit: Arc<dyn UsageLimit>,
    /// Asked once a head has been chosen.
    pub gate: Arc<dyn Gate>,
    /// When cycles run.
    pub driver: Driver,
    /// A ceiling above 1 for the highest band, so that it can use a saturated pool; `None`: as the policy
    /// says. Holds only beside other bands, where the policy leaves the band open, and where saturation
    /// is not for want of metrics.
    pub top_band_ceiling: Option<f64>,
}

impl FlowPlan {
    /// How long a request may wait while the pool has endpoints: the configured bound or its own, whichever is
    /// shorter. A bound of 0 is none.
    pub fn ttl_of(&self, own: Option<Span>) -> Option<Span> {
        self.ttl.into_iter().chain(own.filter(|&o| o > Span::ZERO)).min()
    }
}

/// When cycles run. Drivers never decide anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// One cycle per arrival and one per elapsed millisecond, as llm-d-router does.
    Upstream,
    /// Cycles when something has changed, as long as they dispatch, [`Driver::TURN`] at most in a row.
    /// Ticks count elapsed milliseconds only.
    Event,
}

impl Driver {
    /// Dispatches in a row before others get a word in.
    pub const TURN: u32 = 64;
}

/// A band that exists from the start.
#[derive(Clone, Debug)]
pub struct BandPlan {
    /// Its priority; higher goes first, negative is sheddable.
    pub priority: i32,
    /// Its limits and policies.
    pub template: BandTemplate,
}

/// Limits and policies of a band.
#[derive(Clone, Debug)]
pub struct BandTemplate {
    /// Bytes of request bodies that may wait in the band.
    pub max_bytes: u64,
    /// Requests that may wait in the band.
    pub max_requests: u64,
    /// Which flow goes next.
    pub fairness: Arc<dyn FairnessPolicy>,
    /// Which request of a flow goes next.
    pub ordering: Arc<dyn OrderingPolicy>,
}

/// Disaggregation: the prompt is computed at one endpoint, and the answer at another.
#[derive(Clone, Debug)]
pub struct PrefillPlan {
    /// How the endpoint that computes the prompt is chosen. If it leaves none, the other one does both.
    pub profile: Profile,
    /// Decides, once the endpoint that decodes is chosen; `None`: the prompt's endpoint is chosen first, and
    /// always.
    pub decider: Option<Arc<dyn Decider>>,
}

/// A scheduling profile: filters, then scorers, then the picker.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name in the configuration.
    pub name: String,
    /// In the order of the configuration.
    pub filters: Vec<Arc<dyn Filter>>,
    /// With their weights, in the order of the configuration.
    pub scorers: Vec<WeightedScorer>,
    /// Chooses among the rated.
    pub picker: Arc<dyn Picker>,
}

/// A scorer in a profile.
#[derive(Clone, Debug)]
pub struct WeightedScorer {
    /// The instance name in the configuration.
    pub name: String,
    /// Its weight; any number.
    pub weight: f64,
    /// The scorer.
    pub scorer: Arc<dyn Scorer>,
}

/// Settings of the approximate prefix index (`approx-prefix-cache-producer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixPlan {
    /// Take block size and capacity from what the engines report, where they do.
    pub auto_tune: bool,
    /// Tokens per block when nothing is reported; at least 64 are used.
    pub block_tokens: u32,
    /// Prompt tokens that are matched at most, in whole blocks; 0 leaves it to `max_blocks`.
    pub max_tokens: u32,
    /// Blocks that are matched at most, read if `max_tokens` is 0; 0 is unlimited.
    pub max_blocks: u32,
    /// Blocks remembered per endpoint when the engine reports no capacity.
    pub blocks_per_endpoint: u32,
    /// Bytes that the whole index may take.
    pub max_bytes: u64,
}
