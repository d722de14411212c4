//! Descriptors of the plugins that work outside the kernel: data layer, parsers, token estimate.

use forebay_base::Span;
use forebay_kernel::plugin::{
    Alias, Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Values, nothing,
};

/// Every plugin of the edge, in the order of the documentation.
pub static ALL: &[&Descriptor] = &[
    &METRICS_DATA_SOURCE,
    &CORE_METRICS_EXTRACTOR,
    &FILE_DISCOVERY,
    &TOKEN_PRODUCER,
    &SESSION_ID_PRODUCER,
    &AGENT_IDENTITY,
    &OPENAI_PARSER,
    &ANTHROPIC_PARSER,
    &VLLMHTTP_PARSER,
    &PASSTHROUGH_PARSER,
];

const fn text(name: &'static str, preset: Preset, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset, unit: "", doc }
}

/// Scrapes endpoints' Prometheus metrics.
pub static METRICS_DATA_SOURCE: Descriptor = Descriptor {
    name: "metrics-data-source",
    aliases: &[],
    kinds: &[Kind::DataSource],
    summary: "Scrapes the Prometheus metrics of every endpoint; injected by default.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "scheme",
            kind: ParamKind::Choice(&["http", "https"]),
            preset: Preset::Text("http"),
            unit: "",
            doc: "The scheme of scrape requests; https is not supported yet.",
        },
        text("path", Preset::Text("/metrics"), "The path of scrape requests."),
        Param {
            name: "port",
            kind: ParamKind::Int(Bounds { min: 1.0, min_open: false, max: 65_535.0, max_open: false }),
            preset: Preset::Absent,
            unit: "",
            doc: "The port of scrape requests; the endpoint's own if not given.",
        },
        Param {
            name: "insecureSkipVerify",
            kind: ParamKind::Bool,
            preset: Preset::Bool(true),
            unit: "",
            doc: "Accept any certificate; has no effect with http.",
        },
        text("caCertPath", Preset::Absent, "A certificate authority; has no effect with http."),
        text("clientCertPath", Preset::Absent, "A client certificate; has no effect with http."),
        text("clientKeyPath", Preset::Absent, "Its key; has no effect with http."),
        Param {
            name: "interval",
            kind: ParamKind::Duration,
            preset: Preset::Absent,
            unit: "",
            doc: "Time between scrapes of an endpoint, at least 50ms; the router's refresh interval if not given.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        if v.text("scheme") == Some("https") {
            return Err(BuildError {
                param: "scheme",
                message: "scrapes over https are not supported by forebay yet".into(),
            });
        }
        Ok(Built::default())
    },
};

/// The shortest interval between scrapes of an endpoint.
pub const MIN_SCRAPE_INTERVAL: Span = Span::millis(50);

static CUSTOM_METRIC: &[Param] = &[
    text("attributeKey", Preset::Required, "The attribute that takes the value."),
    text("metricSpec", Preset::Required, "The series, as `name` or `name{label=value,…}`."),
];

static ENGINE_CONFIG: &[Param] = &[
    text("name", Preset::Required, "The value of the engine label that selects this mapping."),
    text("queuedRequestsSpec", Preset::Absent, "Series of waiting requests; empty switches it off."),
    text("runningRequestsSpec", Preset::Absent, "Series of running requests; empty switches it off."),
    text("kvUsageSpec", Preset::Absent, "Series of the used share of the KV cache; empty switches it off."),
    text("loraSpec", Preset::Absent, "Series whose labels list LoRA adapters; empty switches it off."),
    text("cacheInfoSpec", Preset::Absent, "Series whose labels tell block size and number of blocks."),
    text("cacheBlockSizeLabelName", Preset::Absent, "Label of the tokens per block."),
    text("cacheNumBlocksLabelName", Preset::Absent, "Label of the number of blocks."),
    text("cacheBlockSizeSpec", Preset::Absent, "Series whose value is the tokens per block."),
    text("cacheNumBlocksSpec", Preset::Absent, "Series whose value is the number of blocks."),
    Param {
        name: "customMetrics",
        kind: ParamKind::List(&ParamKind::Object(CUSTOM_METRIC)),
        preset: Preset::Absent,
        unit: "",
        doc: "Further series to read; no plugin reads them yet.",
    },
];

/// Reads queue length, running requests, KV cache use and cache facts from a scrape.
pub static CORE_METRICS_EXTRACTOR: Descriptor = Descriptor {
    name: "core-metrics-extractor",
    aliases: &[],
    kinds: &[Kind::Extractor],
    summary: "Reads waiting, running, KV cache use, LoRA and cache facts by the endpoint's engine type.",
    stability: Stability::Beta,
    params: &[
        text(
            "engineLabelKey",
            Preset::Text("llm-d.ai/engine-type"),
            "The endpoint label that names its engine.",
        ),
        text("defaultEngine", Preset::Text("vllm"), "The engine of endpoints without that label."),
        Param {
            name: "engineConfigs",
            kind: ParamKind::List(&ParamKind::Object(ENGINE_CONFIG)),
            preset: Preset::Absent,
            unit: "",
            doc: "Mappings beside or instead of the built-in ones (vllm, sglang, trtllm-serve, \
                  triton-tensorrt-llm, triton).",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        crate::engines::Engines::from_values(v)
            .map(|_| Built::default())
            .map_err(|message| BuildError { param: "engineConfigs", message })
    },
};

/// Endpoints from a file.
pub static FILE_DISCOVERY: Descriptor = Descriptor {
    name: "file-discovery",
    aliases: &[],
    kinds: &[Kind::Discovery],
    summary: "Endpoints from a YAML or JSON file, re-read when it changes if asked to.",
    stability: Stability::Beta,
    params: &[
        text("path", Preset::Required, "The file: `endpoints[]` of name, namespace, address, port, labels."),
        Param {
            name: "watchFile",
            kind: ParamKind::Bool,
            preset: Preset::Bool(false),
            unit: "",
            doc: "Read the file again when it changes; a bad file leaves the endpoints as they are.",
        },
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        if v.text("path") == Some("") {
            return Err(BuildError { param: "path", message: "the path of the file is empty".into() });
        }
        Ok(Built::default())
    },
};

static ESTIMATE: &[Param] = &[
    Param {
        name: "image",
        kind: ParamKind::Any,
        preset: Preset::Absent,
        unit: "",
        doc: "Accepted and not read.",
    },
    Param {
        name: "video",
        kind: ParamKind::Any,
        preset: Preset::Absent,
        unit: "",
        doc: "Accepted and not read.",
    },
];

/// Token counts by estimate.
pub static TOKEN_PRODUCER: Descriptor = Descriptor {
    name: "token-producer",
    aliases: &[Alias { name: "tokenizer", note: "`tokenizer` is deprecated, use `token-producer`" }],
    kinds: &[Kind::DataProducer],
    summary: "Estimates prompt tokens as a quarter of the prompt's bytes; always on.",
    stability: Stability::Beta,
    params: &[
        Param {
            name: "estimate",
            kind: ParamKind::Object(ESTIMATE),
            preset: Preset::Absent,
            unit: "",
            doc: "The estimating backend, which is the only one.",
        },
        Param {
            name: "vllm",
            kind: ParamKind::Any,
            preset: Preset::Absent,
            unit: "",
            doc: "The remote tokenizing backend; not supported yet.",
        },
        Param {
            name: "udsTokenizerConfig",
            kind: ParamKind::Any,
            preset: Preset::Absent,
            unit: "",
            doc: "The socket tokenizing backend; not supported.",
        },
        text(
            "modelName",
            Preset::Absent,
            "The model of a tokenizing backend; not supported, because it selects one.",
        ),
    ],
    ignores_parameters: false,
    needs: None,
    build: token_producer,
};

fn token_producer(v: &Values) -> Result<Built, BuildError> {
    for param in ["vllm", "udsTokenizerConfig"] {
        if v.get(param).is_some() {
            let message =
                format!("the {param} backend is known to llm-d-router, not supported by forebay yet");
            return Err(BuildError { param, message });
        }
    }
    if v.text("modelName").is_some_and(|name| !name.is_empty()) {
        let message = if v.get("estimate").is_some() {
            "modelName and estimate exclude each other: the estimate needs no model".into()
        } else {
            "modelName selects the vllm backend, which is known to llm-d-router, not supported by forebay yet"
                .into()
        };
        return Err(BuildError { param: "modelName", message });
    }
    Ok(Built::default())
}

const fn parser(name: &'static str, summary: &'static str) -> Descriptor {
    Descriptor {
        name,
        aliases: &[],
        kinds: &[Kind::Parser],
        summary,
        stability: Stability::Beta,
        params: &[],
        ignores_parameters: true,
        needs: None,
        build: nothing,
    }
}

/// OpenAI bodies.
pub static OPENAI_PARSER: Descriptor =
    parser("openai-parser", "Chat completions, completions, embeddings, responses, conversations, images.");
/// Anthropic bodies.
pub static ANTHROPIC_PARSER: Descriptor = parser("anthropic-parser", "Anthropic messages and token counts.");
/// vLLM's token API.
pub static VLLMHTTP_PARSER: Descriptor = parser("vllmhttp-parser", "vLLM's generate API over token ids.");
/// Anything.
pub static PASSTHROUGH_PARSER: Descriptor =
    parser("passthrough-parser", "Any body, unread: no model, no rewrite. The fallback.");

/// Sessions from a header or cookie.
pub static SESSION_ID_PRODUCER: Descriptor = Descriptor {
    name: "session-id-producer",
    aliases: &[],
    kinds: &[Kind::DataProducer],
    summary: "Takes the session of a request from a header or a cookie, for session affinity.",
    stability: Stability::Beta,
    params: &[
        text("headerName", Preset::Absent, "The header; either it or cookieName is given."),
        text("cookieName", Preset::Absent, "The cookie; either it or headerName is given."),
    ],
    ignores_parameters: false,
    needs: None,
    build: |v| {
        let given = |name| v.text(name).is_some_and(|t| !t.trim().is_empty());
        if given("headerName") == given("cookieName") {
            let message = "exactly one of headerName and cookieName is needed".into();
            return Err(BuildError { param: "", message });
        }
        Ok(Built::default())
    },
};

/// Fairness ids of coding agents.
pub static AGENT_IDENTITY: Descriptor = Descriptor {
    name: "agent-identity",
    aliases: &[],
    kinds: &[Kind::RequestProcessor],
    summary: "Takes a coding agent's session as the fairness id of requests that name none.",
    stability: Stability::Alpha,
    params: &[Param {
        name: "additionalSessionHeaders",
        kind: ParamKind::List(&ParamKind::Text),
        preset: Preset::Absent,
        unit: "",
        doc: "Headers looked at before x-claude-code-session-id, x-session-affinity, session-id and session_id.",
    }],
    ignores_parameters: false,
    needs: None,
    build: nothing,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn load(plugin: &str) -> Result<(), String> {
        let catalogue: Vec<_> = forebay_kernel::plugins::ALL.iter().chain(ALL).copied().collect();
        let text = format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n  - {plugin}\n\
             \x20 - type: queue-scorer\nschedulingProfiles:\n  - name: default\n    plugins: [{{pluginRef: queue-scorer}}]\n"
        );
        forebay_config::load(&text, "config.yaml", &catalogue, forebay_config::Options::default())
            .map(|_| ())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn backends_that_are_not_supported_are_refused_by_the_loader() {
        for (parameters, message) in [
            ("{}", None),
            ("{estimate: {image: {mode: static}}}", None),
            ("{modelName: ''}", None),
            ("{vllm: {http: 'http://tokenizer'}}", Some("the vllm backend is known to llm-d-router")),
            ("{vllm: null}", None),
            ("{udsTokenizerConfig: {socketFile: /tmp/x}}", Some("the udsTokenizerConfig backend is known")),
            ("{modelName: llama}", Some("modelName selects the vllm backend")),
            ("{modelName: llama, estimate: {}}", Some("modelName and estimate exclude each other")),
        ] {
            let loaded = load(&format!("{{type: token-producer, parameters: {parameters}}}"));
            match message {
                None => assert_eq!(loaded, Ok(()), "{parameters}"),
                Some(m) => assert!(loaded.as_ref().is_err_and(|e| e.contains(m)), "{parameters}: {loaded:?}"),
            }
        }
    }

    #[test]
    fn an_empty_path_and_a_reserved_engine_are_refused_by_the_loader() {
        let empty = load("{type: file-discovery, parameters: {path: ''}}").unwrap_err();
        assert!(empty.contains("the path of the file is empty"), "{empty}");
        assert_eq!(load("{type: file-discovery, parameters: {path: endpoints.yaml}}"), Ok(()));
        let engine = |name: &str| {
            load(&format!(
                "{{type: core-metrics-extractor, parameters: {{engineConfigs: [{{name: {name}}}]}}}}"
            ))
        };
        let reserved = engine("default").unwrap_err();
        assert!(reserved.contains("\"default\" is reserved"), "{reserved}");
        assert_eq!(engine("mine"), Ok(()));
    }

    #[test]
    fn a_session_comes_from_either_a_header_or_a_cookie() {
        let build = |header: &str, cookie: &str| {
            let given = format!("{{headerName: '{header}', cookieName: '{cookie}'}}");
            load(&format!("{{type: session-id-producer, parameters: {given}}}")).is_ok()
        };
        assert!(build("x-a", "") && build("", "sid") && build("x-a", " "));
        assert!(!build("", "") && !build("x-a", "sid"));
    }
}
