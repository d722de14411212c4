//! What plugins are called in metrics.

use crate::metrics::Labels;
use forebay_config::Config;

/// What plugins whose names are labels are called in the configuration; their types by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The saturation detector.
    pub detector: String,
    /// The approximate prefix producer, if one is in use.
    pub prefix: Option<String>,
    /// The producer of in-flight load.
    pub inflight: String,
}

const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
const INFLIGHT_PRODUCER: &str = "inflight-load-producer";

impl Default for Names {
    fn default() -> Names {
        Names {
            detector: "utilization-detector".into(),
            prefix: Some(PREFIX_PRODUCER.into()),
            inflight: INFLIGHT_PRODUCER.into(),
        }
    }
}

impl Names {
    /// As a configuration names them.
    pub fn of_config(config: &Config) -> Names {
        let named = |kind| config.plugins.iter().find(|i| i.descriptor.name == kind).map(|i| i.name.clone());
        Names {
            detector: config.plugins[config.detector].name.clone(),
            prefix: named(PREFIX_PRODUCER),
            inflight: named(INFLIGHT_PRODUCER).unwrap_or_else(|| INFLIGHT_PRODUCER.into()),
        }
    }
}

/// The labels of a prefix producer of this name.
pub(crate) fn prefix_labels(name: &str) -> Labels {
    vec![("plugin_name", name.to_owned()), ("plugin_type", PREFIX_PRODUCER.to_owned())]
}
