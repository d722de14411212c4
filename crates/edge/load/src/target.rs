//! What is measured: where it listens, and how a request to it looks.

use crate::prompt::escaped;
use forebay_base::Span;
use forebay_wire::headers;
use forebay_workload::{Arrival, Workload};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Which of OpenAI's interfaces is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`.
    #[default]
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Api {
    /// The path below the base of the URL.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `host:port`.
    pub authority: String,
    /// What stands before `/v1`; empty, or begins with a slash and ends without.
    pub base: String,
}

impl Url {
    /// Reads `http://HOST[:PORT][/BASE]`; a closing `/v1` is the interface's own.
    pub fn parse(text: &str) -> Result<Url, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            return Err(match scheme {
                Some("https") => "https is not supported; expected http://HOST:PORT".to_owned(),
                _ => format!("found {text:?}; expected http://HOST:PORT"),
            });
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let wrong = || format!("found {text:?}; expected http://HOST:PORT");
        if authority.is_empty() || authority.contains(['@', '?', '#']) || path.contains(['?', '#']) {
            return Err(wrong());
        }
        let after_host = authority.rfind(']').unwrap_or(0);
        let authority = match authority[after_host..].split_once(':') {
            Some((_, port)) => {
                port.parse::<u16>().map_err(|_| wrong())?;
                authority.to_owned()
            }
            None => format!("{authority}:80"),
        };
        if authority.starts_with(':') {
            return Err(wrong());
        }
        let base = path.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/');
        Ok(Url { authority, base: base.to_owned() })
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.base)
    }
}

/// How requests look.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    /// Which interface.
    pub api: Api,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Whether each chunk should tell the tokens so far (`continuous_usage_stats`, which vLLM knows).
    pub chunk_usage: bool,
    /// Whether answers should have the workload's length (`ignore_eos` and `min_tokens`, which vLLM knows), and not
    /// only at most that.
    pub exact_output: bool,
    /// Whether the request's priority goes to the engine, too (`priority`, where vLLM takes less for more urgent).
    pub engine_priority: bool,
    /// Whether headers have the names that llm-d-router knew first.
    pub old_headers: bool,
    /// More headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The key for `authorization`.
    pub api_key: Option<String>,
    /// More fields of the body, as JSON without the braces.
    pub extra: String,
    /// Objectives by class, in the order of the workload; a class without one sends no such header.
    pub objectives: Vec<Option<String>>,
}

impl Style {
    /// Streamed chat, answers of the workload's length, each class with its name as objective.
    pub fn new(workload: &Workload) -> Style {
        Style {
            api: Api::Chat,
            stream: true,
            chunk_usage: false,
            exact_output: true,
            engine_priority: false,
            old_headers: false,
            headers: Vec::new(),
            api_key: None,
            extra: String::new(),
            objectives: workload.classes.iter().map(|c| Some(c.name.clone())).collect(),
        }
    }
}

/// Makes requests.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    style: Style,
    /// With quotes.
    model: String,
    /// With quotes, by adapter.
    adapters: Vec<String>,
    /// Of every request.
    common: HeaderMap,
    /// By class.
    headers: Vec<HeaderMap>,
    /// By flow.
    flows: Vec<HeaderValue>,
    fairness: HeaderName,
    salt: u64,
}

fn name_of(name: headers::Name, old: bool) -> HeaderName {
    HeaderName::from_static(name.alias.filter(|_| old).unwrap_or(name.current))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A header's value; what cannot stand in one becomes `_`.
fn header_text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| {
        let clean: String = text.chars().map(|c| if (' '..='~').contains(&c) { c } else { '_' }).collect();
        HeaderValue::from_str(&clean).unwrap_or_else(|_| HeaderValue::from_static("_"))
    })
}

impl Shape {
    pub(crate) fn new(workload: &Workload, url: &Url, model: &str, style: &Style, salt: u64) -> Shape {
        let adapters: u16 = workload.classes.iter().filter_map(|c| c.lora.map(|l| l.adapters)).sum();
        let mut all = HeaderMap::new();
        all.insert(HOST, header_text(&url.authority));
        all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        all.insert(
            ACCEPT,
            HeaderValue::from_static(if style.stream { "text/event-stream" } else { "application/json" }),
        );
        if let Some(key) = &style.api_key {
            let mut value = header_text(&format!("Bearer {key}"));
            value.set_sensitive(true);
            all.insert(AUTHORIZATION, value);
        }
        for (name, value) in &style.headers {
            all.append(name.clone(), value.clone());
        }
        let of_class = workload.classes.iter().enumerate().map(|(i, class)| {
            let mut h = all.clone();
            let old = style.old_headers;
            if let Some(objective) = style.objectives.get(i).and_then(Option::as_ref) {
                h.insert(name_of(headers::OBJECTIVE, old), header_text(objective));
            }
            let mut deadline = |name, limit: Option<Span>| {
                if let Some(limit) = limit {
                    let ms = (limit.as_millis_f64().round() as u64).max(1);
                    h.insert(name_of(name, old), HeaderValue::from(ms));
                }
            };
            deadline(headers::SLO_TTFT_MS, class.slo.ttft);
            deadline(headers::SLO_TPOT_MS, class.slo.tpot);
            h
        });
        Shape {
            style: style.clone(),
            model: quoted(model),
            adapters: (0..adapters).map(|i| quoted(&workload.lora_name(i))).collect(),
            headers: of_class.collect(),
            common: all,
            flows: (0..workload.flows()).map(|f| header_text(&workload.flow_name(f))).collect(),
            fairness: name_of(headers::FAIRNESS_ID, style.old_headers),
            salt,
        }
    }

    pub(crate) fn headers(&self, a: &Arrival) -> HeaderMap {
        let mut h = self.headers.get(usize::from(a.class)).cloned().unwrap_or_default();
        if let Some(flow) = self.flows.get(a.flow as usize) {
            h.insert(self.fairness.clone(), flow.clone());
        }
        let id = format!("{:08x}-{}", self.salt as u32, a.number);
        h.insert(HeaderName::from_static(headers::REQUEST_ID), header_text(&id));
        if let Some(session) = a.session {
            h.insert(
                HeaderName::from_static("x-session-id"),
                header_text(&format!("{:x}-{session:x}", a.class)),
            );
        }
        h
    }

    /// The body around a prompt that `prompt` appends.
    pub(crate) fn body(&self, a: &Arrival, prompt: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 5 * a.prompt_tokens as usize);
        let model = a.lora.and_then(|l| self.adapters.get(usize::from(l))).unwrap_or(&self.model);
        out.extend_from_slice(b"{\"model\":");
        out.extend_from_slice(model.as_bytes());
        out.push(b',');
        prompt(&mut out);
        field(&mut out, "max_tokens", i64::from(a.output_tokens));
        if self.style.exact_output {
            field(&mut out, "min_tokens", i64::from(a.output_tokens));
            out.extend_from_slice(b",\"ignore_eos\":true");
        }
        if self.style.engine_priority {
            field(&mut out, "priority", -i64::from(a.priority));
        }
        if self.style.stream {
            out.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true");
            if self.style.chunk_usage {
                out.extend_from_slice(b",\"continuous_usage_stats\":true");
            }
            out.push(b'}');
        }
        if !self.style.extra.is_empty() {
            out.push(b',');
            out.extend_from_slice(self.style.extra.as_bytes());
        }
        out.push(b'}');
        out
    }

    /// A body that asks for one token after a text, for probes.
    pub(crate) fn probe(&self, said: &[(String, String)], text: &str) -> Vec<u8> {
        let mut out = b"{\"model\":".to_vec();
        out.extend_from_slice(self.model.as_bytes());
        out.push(b',');
        crate::prompt::write_prompt(self.style.api, said, text, &mut out);
        field(&mut out, "max_tokens", 1);
        if !self.style.extra.is_empty() {
            out.push(b',');
            out.extend_from_slice(self.style.extra.as_bytes());
        }
        out.push(b'}');
        out
    }

    /// Headers of a probe: those of every request, without class and flow, and the mark that it is one.
    pub(crate) fn probe_headers(&self) -> HeaderMap {
        let mut h = self.common.clone();
        h.insert(HeaderName::from_static(headers::PROBE), HeaderValue::from_static("calibration"));
        h.insert(ACCEPT, HeaderValue::from_static("application/json"));
        h
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: i64) {
    out.extend_from_slice(b",\"");
    escaped(name, out);
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn urls_have_a_host_a_port_and_perhaps_a_base() {
        for (text, authority, base) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("http://vllm/", "vllm:80", ""),
            ("http://[::1]:80/v1", "[::1]:80", ""),
            ("http://[::1]", "[::1]:80", ""),
            ("http://gw:80/team/a/v1/", "gw:80", "/team/a"),
        ] {
            let url = Url { authority: authority.into(), base: base.into() };
            assert_eq!(Url::parse(text), Ok(url), "{text}");
        }
        for text in [
            "127.0.0.1:80",
            "http://",
            "http://:80",
            "http://a:x",
            "http://u@a:1",
            "http://a/?b",
            "https://a",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        assert!(Url::parse("https://a").unwrap_err().contains("https is not supported"));
    }

    #[test]
    fn a_request_says_what_its_class_says() {
        let text = "version: 1\nname: t\nmode: {kind: surge, window: 100s}\nclasses:\n  \"a\u{e9}\": {priority: 7, arrivals: {process: \
                    constant, phase: 0, rate: 5}, input: 20, output: 5, flows: 2, slo: {ttft: 1500ms}, lora: {adapters: 1, share: 1}}\n";
        let w = Workload::read(text, "t").unwrap();
        let mut style = Style::new(&w);
        (style.chunk_usage, style.engine_priority) = (true, true);
        style.api_key = Some("secret".into());
        style.extra = "\"temperature\":0".into();
        let url = Url::parse("http://h:1/x").unwrap();
        let shape = Shape::new(&w, &url, "m", &style, 3);
        let a = w.arrivals(1).next().unwrap();
        let body = shape.body(&a, |out| out.extend_from_slice(b"\"prompt\":\"x\""));
        let body: Value = serde_json::from_slice(&body).unwrap();
        let expected = serde_json::json!({
            "model": "a\u{e9}-lora-0", "prompt": "x", "max_tokens": 5, "min_tokens": 5, "ignore_eos": true, "priority": -7,
            "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "temperature": 0,
        });
        assert_eq!(body, expected);
        let h = shape.headers(&a);
        assert_eq!(h["x-llm-d-inference-objective"].as_bytes(), "a\u{e9}".as_bytes());
        assert_eq!(
            (&h["x-llm-d-slo-ttft-ms"], &h["host"]),
            (&HeaderValue::from(1500), &HeaderValue::from_static("h:1"))
        );
        assert!(h["authorization"].is_sensitive());
        assert!(h["x-llm-d-inference-fairness-id"].as_bytes().starts_with("a\u{e9}-".as_bytes()));
        style.old_headers = true;
        let h = Shape::new(&w, &url, "m", &style, 3).headers(&a);
        assert!(h.contains_key("x-gateway-inference-objective") && h.contains_key("x-slo-ttft-ms"));
    }
}
