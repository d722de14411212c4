//! What a plugin says about itself: one static [`Descriptor`] beside each plugin.
//!
//! The loader, `forebay plugins`, the JSON Schema and the reference documentation are all derived from
//! descriptors; nothing else in the tree matches on a plugin's name. A crate that has plugins lists
//! their descriptors in one explicit slice, and the binary joins the slices into a catalogue.

use crate::plan::{InflightPlan, PrefixPlan};
use crate::policy::{
    Admitter, Decider, Detector, FairnessPolicy, Filter, Gate, OrderingPolicy, Picker, Scorer, UsageLimit,
};
use forebay_base::Span;
use std::sync::Arc;

/// What a plugin can be used as. A plugin may be several things (a detector is also a filter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Removes endpoints from the candidates of a request.
    Filter,
    /// Rates each candidate from 0 to 1.
    Scorer,
    /// Chooses among rated candidates.
    Picker,
    /// Chooses which scheduling profiles run.
    ProfileHandler,
    /// Decides whether the prompt of a request is computed elsewhere than its answer.
    PrefillDecider,
    /// Rates how full the pool is: 0 idle, 1 and more saturated.
    SaturationDetector,
    /// Gives each priority band the saturation at which it stops.
    UsageLimitPolicy,
    /// Chooses which flow of a band goes next.
    FairnessPolicy,
    /// Orders the requests of a flow.
    OrderingPolicy,
    /// Decides per band and endpoint whether the head may go there now.
    Gate,
    /// Refuses requests before they are queued or scheduled.
    Admitter,
    /// Prepares data about a request for other plugins.
    DataProducer,
    /// Fetches raw data from endpoints.
    DataSource,
    /// Turns raw data into endpoint attributes.
    Extractor,
    /// Finds endpoints.
    Discovery,
    /// Reads a request body.
    Parser,
    /// Reads or changes a request before it is queued.
    RequestProcessor,
}

impl Kind {
    /// The words used in messages and documentation.
    pub const fn label(self) -> &'static str {
        match self {
            Kind::Filter => "filter",
            Kind::Scorer => "scorer",
            Kind::Picker => "picker",
            Kind::ProfileHandler => "profile handler",
            Kind::PrefillDecider => "prefill decider",
            Kind::SaturationDetector => "saturation detector",
            Kind::UsageLimitPolicy => "usage limit policy",
            Kind::FairnessPolicy => "fairness policy",
            Kind::OrderingPolicy => "ordering policy",
            Kind::Gate => "gate",
            Kind::Admitter => "admitter",
            Kind::DataProducer => "data producer",
            Kind::DataSource => "data source",
            Kind::Extractor => "extractor",
            Kind::Discovery => "endpoint discovery",
            Kind::Parser => "request parser",
            Kind::RequestProcessor => "request processor",
        }
    }
}

/// How settled a plugin is, in llm-d-router's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// May change or go; loading it is warned about.
    Alpha,
    /// Stays.
    Beta,
    /// Will go; the text says what to use instead.
    Deprecated(&'static str),
}

/// Another name under which a plugin type is still accepted.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// The accepted name.
    pub name: &'static str,
    /// What the reader is told when it is used.
    pub note: &'static str,
}

/// An interval of numbers; an open end excludes its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Lower bound, `-inf` for none.
    pub min: f64,
    /// Whether `min` itself is excluded.
    pub min_open: bool,
    /// Upper bound, `inf` for none.
    pub max: f64,
    /// Whether `max` itself is excluded.
    pub max_open: bool,
}

impl Bounds {
    /// Any number.
    pub const ANY: Bounds =
        Bounds { min: f64::NEG_INFINITY, min_open: false, max: f64::INFINITY, max_open: false };
    /// Greater than 0.
    pub const POSITIVE: Bounds = Bounds { min: 0.0, min_open: true, ..Bounds::ANY };
    /// 0 or more.
    pub const NON_NEGATIVE: Bounds = Bounds { min: 0.0, ..Bounds::ANY };
    /// Greater than 0 up to 1.
    pub const UNIT_POSITIVE: Bounds = Bounds { min: 0.0, min_open: true, max: 1.0, max_open: false };
    /// 0 up to 1.
    pub const UNIT: Bounds = Bounds { min: 0.0, min_open: false, max: 1.0, max_open: false };
    /// 0 up to, but not, 1.
    pub const UNIT_BELOW_ONE: Bounds = Bounds { min: 0.0, min_open: false, max: 1.0, max_open: true };

    /// Whether `x` lies inside. NaN never does.
    pub fn contains(&self, x: f64) -> bool {
        (if self.min_open { x > self.min } else { x >= self.min })
            && (if self.max_open { x < self.max } else { x <= self.max })
    }
}

/// As mathematicians write intervals: `(0, 1]`, or in words where one side is open-ended.
impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.min.is_finite(), self.max.is_finite()) {
            (false, false) => f.write_str("any number"),
            (true, false) if self.min_open => write!(f, "a number greater than {}", self.min),
            (true, false) => write!(f, "a number of at least {}", self.min),
            (false, true) if self.max_open => write!(f, "a number below {}", self.max),
            (false, true) => write!(f, "a number of at most {}", self.max),
            (true, true) => write!(
                f,
                "a number in {}{}, {}{}",
                if self.min_open { '(' } else { '[' },
                self.min,
                self.max,
                if self.max_open { ')' } else { ']' }
            ),
        }
    }
}

/// The type and range of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum ParamKind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int(Bounds),
    /// A number.
    Float(Bounds),
    /// Any text.
    Text,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A Go duration string such as `500ms`.
    Duration,
    /// A list of one kind.
    List(&'static ParamKind),
    /// A mapping with these fields.
    Object(&'static [Param]),
    /// A mapping of texts to texts, such as labels.
    Map,
    /// Anything; only that it was given is known.
    Any,
}

/// What holds when a parameter is not given.
#[derive(Clone, Copy, Debug)]
pub enum Preset {
    /// It must be given.
    Required,
    /// Nothing: the plugin decides.
    Absent,
    /// This truth value.
    Bool(bool),
    /// This whole number.
    Int(i64),
    /// This number.
    Float(f64),
    /// This text.
    Text(&'static str),
    /// This length of time.
    Span(Span),
}

/// One typed parameter of a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The field name, as in the configuration.
    pub name: &'static str,
    /// Type and range.
    pub kind: ParamKind,
    /// What holds when it is not given.
    pub preset: Preset,
    /// The unit, or empty.
    pub unit: &'static str,
    /// What it does, one sentence.
    pub doc: &'static str,
}

/// A checked parameter value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// From [`ParamKind::Bool`].
    Bool(bool),
    /// From [`ParamKind::Int`].
    Int(i64),
    /// From [`ParamKind::Float`].
    Float(f64),
    /// From [`ParamKind::Text`] and [`ParamKind::Choice`].
    Text(String),
    /// From [`ParamKind::Duration`].
    Span(Span),
    /// From [`ParamKind::List`].
    List(Vec<Value>),
    /// From [`ParamKind::Object`].
    Object(Values),
    /// From [`ParamKind::Map`], in the order of the text.
    Map(Vec<(String, String)>),
    /// From [`ParamKind::Any`]: something was given.
    Given,
}

/// The checked parameters of one plugin instance, presets filled in, in the order of the descriptor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(pub Vec<(&'static str, Value)>);

impl Values {
    /// The value of `name`, if it was given or has a preset.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }
    /// A number; the descriptor guarantees that it is there.
    pub fn float(&self, name: &str) -> f64 {
        self.opt_float(name).expect("the descriptor declares this number with a preset")
    }
    /// A number that may be absent.
    pub fn opt_float(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Value::Float(x)) => Some(*x),
            Some(Value::Int(i)) => Some(*i as f64),
            _ => None,
        }
    }
    /// A whole number; the descriptor guarantees that it is there.
    pub fn int(&self, name: &str) -> i64 {
        self.opt_int(name).expect("the descriptor declares this whole number with a preset")
    }
    /// A whole number that may be absent.
    pub fn opt_int(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Value::Int(i)) => Some(*i),
            _ => None,
        }
    }
    /// A truth value; the descriptor guarantees that it is there.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Bool(true)))
    }
    /// A text that may be absent.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(t)) => Some(t),
            _ => None,
        }
    }
    /// A length of time that may be absent.
    pub fn span(&self, name: &str) -> Option<Span> {
        match self.get(name) {
            Some(Value::Span(s)) => Some(*s),
            _ => None,
        }
    }
    /// The fields of a mapping, if it was given.
    pub fn object(&self, name: &str) -> Option<&Values> {
        match self.get(name) {
            Some(Value::Object(fields)) => Some(fields),
            _ => None,
        }
    }
    /// The pairs of a mapping of texts; empty if absent.
    pub fn map(&self, name: &str) -> &[(String, String)] {
        match self.get(name) {
            Some(Value::Map(pairs)) => pairs,
            _ => &[],
        }
    }
    /// The items of a list; empty if absent.
    pub fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }
}

/// Why a plugin could not be built from values that are each in range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The parameter to point at; empty for the plugin as a whole.
    pub param: &'static str,
    /// What is wrong, one sentence without a full stop.
    pub message: String,
}

/// What a plugin turned into. A plugin that is several kinds fills several fields; plugins that work
/// outside the kernel (parsers, data sources, discovery) fill none: their crate reads the values.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// As a filter.
    pub filter: Option<Arc<dyn Filter>>,
    /// As a scorer.
    pub scorer: Option<Arc<dyn Scorer>>,
    /// As a picker.
    pub picker: Option<Arc<dyn Picker>>,
    /// As a saturation detector.
    pub detector: Option<Arc<dyn Detector>>,
    /// As a usage limit policy.
    pub limit: Option<Arc<dyn UsageLimit>>,
    /// As a fairness policy.
    pub fairness: Option<Arc<dyn FairnessPolicy>>,
    /// As an ordering policy.
    pub ordering: Option<Arc<dyn OrderingPolicy>>,
    /// As a gate.
    pub gate: Option<Arc<dyn Gate>>,
    /// As an admitter.
    pub admitter: Option<Arc<dyn Admitter>>,
    /// As the producer of approximate prefix matches.
    pub prefix: Option<PrefixPlan>,
    /// As the producer of in-flight load.
    pub inflight: Option<InflightPlan>,
    /// As a prefill decider.
    pub decider: Option<Arc<dyn Decider>>,
    /// As a profile handler of several profiles.
    pub stages: Option<StageNames>,
}

/// What a profile handler says of its stages, by names in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageNames {
    /// The profile that chooses the endpoint that decodes.
    pub decode: String,
    /// The profile that chooses the endpoint that computes the prompt.
    pub prefill: String,
    /// The plugin that decides whether there is such an endpoint; `None`: there is not, unless it is chosen
    /// first.
    pub decider: Option<String>,
    /// Whether the prompt's endpoint is chosen first, and always.
    pub prefill_first: bool,
}

/// Everything the outside knows about a plugin type.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The `type` in the configuration.
    pub name: &'static str,
    /// Other accepted types, with what to say about them.
    pub aliases: &'static [Alias],
    /// What it can be used as.
    pub kinds: &'static [Kind],
    /// One line for lists.
    pub summary: &'static str,
    /// How settled it is.
    pub stability: Stability,
    /// Its parameters.
    pub params: &'static [Param],
    /// Whether parameters are accepted and not read, as llm-d-router does for plugins that have none.
    pub ignores_parameters: bool,
    /// The producer type that has to exist beside it, created with presets if none is configured.
    pub needs: Option<&'static str>,
    /// Turns checked values into the plugin.
    pub build: fn(&Values) -> Result<Built, BuildError>,
}

impl Descriptor {
    /// Whether it can be used as `kind`.
    pub fn is(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Values with every preset filled in and nothing given; for tests and for plugins created by
    /// default. Required parameters stay absent.
    pub fn presets(&self) -> Values {
        presets(self.params)
    }
}

/// The presets of a parameter list.
pub fn presets(params: &'static [Param]) -> Values {
    let value = |p: &Param| match p.preset {
        Preset::Required | Preset::Absent => None,
        Preset::Bool(b) => Some(Value::Bool(b)),
        Preset::Int(i) => Some(Value::Int(i)),
        Preset::Float(x) => Some(Value::Float(x)),
        Preset::Text(t) => Some(Value::Text(t.to_owned())),
        Preset::Span(s) => Some(Value::Span(s)),
    };
    Values(params.iter().filter_map(|p| Some((p.name, value(p)?))).collect())
}

/// A plugin that needs nothing from the kernel when it is built.
pub fn nothing(_: &Values) -> Result<Built, BuildError> {
    Ok(Built::default())
}
