//! The configuration loader over the kernel's plugins and a few that stand for those of the edge.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers, too")]

mod errors;
mod files;
mod loading;
mod round_trip;

use forebay_base::{Diagnostics, Span};
use forebay_config::{Config, Options, load};
use forebay_kernel::plugin::{Alias, Bounds, Descriptor, Kind, Param, ParamKind, Preset, Stability, nothing};

/// A plugin that works outside the kernel.
const EDGE: Descriptor = Descriptor {
    name: "",
    aliases: &[],
    kinds: &[Kind::Parser],
    summary: "A plugin of the edge.",
    stability: Stability::Beta,
    params: &[],
    ignores_parameters: true,
    needs: None,
    build: nothing,
};

const fn parser(name: &'static str) -> Descriptor {
    Descriptor { name, ..EDGE }
}

static OPENAI: Descriptor = parser("openai-parser");
static ANTHROPIC: Descriptor = parser("anthropic-parser");
static VLLM: Descriptor = parser("vllmhttp-parser");
static PASS: Descriptor = parser("passthrough-parser");
static EXTRACTOR: Descriptor = Descriptor {
    kinds: &[Kind::Extractor],
    ignores_parameters: false,
    params: &[
        Param {
            name: "defaultEngine",
            kind: ParamKind::Choice(&["vllm", "sglang"]),
            preset: Preset::Text("vllm"),
            unit: "",
            doc: "The engine of endpoints without a label.",
        },
        Param {
            name: "engineConfigs",
            kind: ParamKind::List(&ParamKind::Object(&[
                Param {
                    name: "name",
                    kind: ParamKind::Text,
                    preset: Preset::Required,
                    unit: "",
                    doc: "Engine.",
                },
                Param {
                    name: "on",
                    kind: ParamKind::Bool,
                    preset: Preset::Bool(true),
                    unit: "",
                    doc: "Whether.",
                },
            ])),
            preset: Preset::Absent,
            unit: "",
            doc: "Engines.",
        },
        Param { name: "extra", kind: ParamKind::Any, preset: Preset::Absent, unit: "", doc: "Anything." },
    ],
    ..parser("core-metrics-extractor")
};
static SOURCE: Descriptor = Descriptor {
    kinds: &[Kind::DataSource],
    ignores_parameters: false,
    params: &[Param {
        name: "interval",
        kind: ParamKind::Duration,
        preset: Preset::Span(Span::millis(50)),
        unit: "",
        doc: "Time between scrapes.",
    }],
    ..parser("metrics-data-source")
};
static DISCOVERY: Descriptor = Descriptor {
    kinds: &[Kind::Discovery],
    ignores_parameters: false,
    params: &[Param {
        name: "path",
        kind: ParamKind::Text,
        preset: Preset::Required,
        unit: "",
        doc: "The file.",
    }],
    ..parser("file-discovery")
};
static HEADER_HANDLER: Descriptor =
    Descriptor { kinds: &[Kind::ProfileHandler], ..parser("other-profile-handler") };
static OLD: Descriptor = Descriptor {
    stability: Stability::Deprecated("use token-producer"),
    kinds: &[Kind::DataProducer],
    aliases: &[Alias { name: "tokeniser", note: "the spelling changed" }],
    ignores_parameters: false,
    params: &[Param {
        name: "ratio",
        kind: ParamKind::Float(Bounds::UNIT),
        preset: Preset::Float(0.5),
        unit: "",
        doc: "A ratio.",
    }],
    ..parser("old-producer")
};

static EDGE_PLUGINS: &[&Descriptor] =
    &[&OPENAI, &ANTHROPIC, &VLLM, &PASS, &SOURCE, &EXTRACTOR, &DISCOVERY, &HEADER_HANDLER, &OLD];

/// What a binary hands in.
fn catalogue() -> Vec<&'static Descriptor> {
    forebay_kernel::plugins::ALL.iter().chain(EDGE_PLUGINS).copied().collect()
}

const HEAD: &str = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n";

/// Loads a text below the two lines of the envelope.
fn body(text: &str) -> Result<Config, Diagnostics> {
    load(&format!("{HEAD}{text}"), "config.yaml", &catalogue(), Options::default())
}

fn good(text: &str) -> Config {
    body(text).unwrap_or_else(|e| panic!("{e}\nin\n{text}"))
}
