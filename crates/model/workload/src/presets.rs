//! Workloads that ship.

use crate::spec::Workload;

macro_rules! presets {
    ($($name:literal),+) => {
        &[$(($name, include_str!(concat!("../presets/", $name, ".yaml")))),+]
    };
}

/// Names and files of the workloads that ship.
pub const PRESETS: &[(&str, &str)] = presets![
    "code",
    "chat_30",
    "chat_80",
    "reasoning",
    "code_gamma3",
    "part1_balanced",
    "part1_w2",
    "part1_chatbot",
    "part1_codecompletion",
    "part1_blindspot",
    "summarization",
    "rag_long_context",
    "agentic"
];

impl Workload {
    /// The workload that ships under this name.
    pub fn preset(name: &str) -> Option<Workload> {
        let (name, text) = PRESETS.iter().find(|(n, _)| *n == name)?;
        // A test reads them all.
        Workload::read(text, name).ok()
    }
}
