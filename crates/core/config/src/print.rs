//! The effective configuration as YAML.

use crate::config::{BandConfig, Config, FlowConfig, ProfileConfig};
use crate::fields::{API_VERSION, KIND};
use crate::proxy::ProxyConfig;
use forebay_base::Span;
use forebay_kernel::plan::Driver;
use forebay_kernel::plugin::{Value, Values};
use std::fmt;

/// A value to print.
enum Out {
    Scalar(String),
    List(Vec<Out>),
    Map(Vec<(&'static str, Out)>),
    /// Names from the file.
    Texts(Vec<(String, String)>),
}

/// The configuration with every default written out, in the order of the documentation. Loaded again
/// with the same catalogue it gives the same configuration.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        block(&document(self), 0, &mut text);
        f.write_str(&text)
    }
}

fn document(c: &Config) -> Out {
    let gates = c.gates.iter().map(|(name, on)| Out::Scalar(format!("{name}={on}"))).collect();
    let mut top = vec![
        ("apiVersion", Out::Scalar(API_VERSION.to_owned())),
        ("kind", Out::Scalar(KIND.to_owned())),
        ("featureGates", Out::List(gates)),
        ("plugins", plugins(c)),
        ("schedulingProfiles", Out::List(profiles(c))),
        ("dataLayer", data_layer(c)),
        ("flowControl", flow(c)),
    ];
    if !c.parsers.is_empty() {
        let parsers = Out::List(c.parsers.iter().map(|&i| reference(c, i)).collect());
        top.push(("requestHandler", Out::Map(vec![("parsers", parsers)])));
    }
    top.push(("proxy", proxy(&c.proxy)));
    Out::Map(top)
}

fn proxy(p: &ProxyConfig) -> Out {
    let count = |n: u64| Out::Scalar(n.to_string());
    let time = |t: Span| Out::Scalar(t.to_string());
    Out::Map(vec![
        ("maxBody", count(p.max_body)),
        ("maxBufferedBytes", count(p.max_buffered_bytes)),
        ("maxConnections", count(p.max_connections)),
        ("headerTimeout", time(p.header_timeout)),
        ("bodyTimeout", time(p.body_timeout)),
        ("writeTimeout", time(p.write_timeout)),
        ("connectTimeout", time(p.connect_timeout)),
        ("firstByteTimeout", time(p.first_byte_timeout)),
        ("idleTimeout", time(p.idle_timeout)),
        ("keepIdle", time(p.keep_idle)),
        ("retryOn", text(p.retry_on.word())),
        ("checkModels", Out::Scalar(p.check_models.to_string())),
        ("shutdownDelay", time(p.shutdown_delay)),
        ("drainTimeout", time(p.drain_timeout)),
    ])
}

fn plugins(c: &Config) -> Out {
    let plugin = |i: &crate::Instance| {
        let mut fields = vec![("name", text(&i.name)), ("type", text(i.descriptor.name))];
        if !i.values.0.is_empty() {
            fields.push(("parameters", values(&i.values)));
        }
        Out::Map(fields)
    };
    Out::List(c.plugins.iter().map(plugin).collect())
}

fn profiles(c: &Config) -> Vec<Out> {
    let prefill = c.prefill.iter().map(|p| &p.profile);
    std::iter::once(&c.profile).chain(prefill).map(|p| profile(c, p)).collect()
}

fn profile(c: &Config, profile: &ProfileConfig) -> Out {
    let plugins = profile.plugins.iter().map(|p| {
        let mut fields = vec![("pluginRef", name(c, p.plugin))];
        fields.extend(p.weight.map(|w| ("weight", number(w))));
        Out::Map(fields)
    });
    Out::Map(vec![("name", text(&profile.name)), ("plugins", Out::List(plugins.collect()))])
}

fn data_layer(c: &Config) -> Out {
    let mut fields = vec![("injectDefaults", Out::Scalar(c.data_layer.inject_defaults.to_string()))];
    if !c.data_layer.sources.is_empty() {
        let sources = c.data_layer.sources.iter().map(|s| {
            let extractors = s.extractors.iter().map(|&e| reference(c, e)).collect();
            Out::Map(vec![("pluginRef", name(c, s.source)), ("extractors", Out::List(extractors))])
        });
        fields.push(("sources", Out::List(sources.collect())));
    }
    fields.extend(c.data_layer.discovery.map(|d| ("discovery", reference(c, d))));
    Out::Map(fields)
}

fn flow(c: &Config) -> Out {
    let detector = ("saturationDetector", reference(c, c.detector));
    let Some(f) = &c.flow else { return Out::Map(vec![detector]) };
    let FlowConfig { max_bytes, max_requests, ttl, no_endpoint_ttl, .. } = f;
    let count = |n: &Option<u64>| Out::Scalar(n.unwrap_or(0).to_string());
    let time = |s: &Option<Span>| Out::Scalar(s.unwrap_or(Span::ZERO).to_string());
    let bands = f.bands.iter().map(|(p, b)| band(c, Some(*p), b)).collect();
    let mut fields = vec![
        ("maxBytes", count(max_bytes)),
        ("maxRequests", count(max_requests)),
        ("defaultRequestTTL", time(ttl)),
        ("noEndpointRequestTTL", time(no_endpoint_ttl)),
        ("defaultPriorityBand", band(c, None, &f.default_band)),
        ("defaultNegativePriorityBand", band(c, None, &f.default_negative_band)),
        ("priorityBands", Out::List(bands)),
        ("usageLimitPolicyPluginRef", name(c, f.limit)),
        detector,
        ("gatePluginRef", name(c, f.gate)),
        ("cycleDriver", text(if f.driver == Driver::Event { "event" } else { "upstream" })),
        ("liveRouting", Out::Scalar(f.live_routing.to_string())),
    ];
    fields.extend(f.top_band_ceiling.map(|c| ("topBandCeiling", number(c))));
    fields.push(("enableEviction", Out::Scalar("false".to_owned())));
    Out::Map(fields)
}

fn band(c: &Config, priority: Option<i32>, b: &BandConfig) -> Out {
    let mut fields = Vec::new();
    fields.extend(priority.map(|p| ("priority", Out::Scalar(p.to_string()))));
    fields.extend([
        ("maxBytes", Out::Scalar(b.max_bytes.to_string())),
        ("maxRequests", Out::Scalar(b.max_requests.to_string())),
        ("fairnessPolicyRef", name(c, b.fairness)),
        ("orderingPolicyRef", name(c, b.ordering)),
    ]);
    Out::Map(fields)
}

fn name(c: &Config, plugin: usize) -> Out {
    text(&c.plugins[plugin].name)
}

fn reference(c: &Config, plugin: usize) -> Out {
    Out::Map(vec![("pluginRef", name(c, plugin))])
}

fn values(v: &Values) -> Out {
    Out::Map(v.0.iter().map(|(name, v)| (*name, value(v))).collect())
}

fn value(v: &Value) -> Out {
    match v {
        Value::Bool(b) => Out::Scalar(b.to_string()),
        Value::Int(i) => Out::Scalar(i.to_string()),
        Value::Float(x) => number(*x),
        Value::Text(t) => text(t),
        Value::Span(s) => Out::Scalar(s.to_string()),
        Value::List(items) => Out::List(items.iter().map(value).collect()),
        Value::Object(fields) => values(fields),
        Value::Map(pairs) => Out::Texts(pairs.clone()),
        // What was given is not known; a mapping without fields reads back as given.
        Value::Given => Out::Scalar("{}".to_owned()),
    }
}

/// The shortest form that reads back as the same number.
fn number(x: f64) -> Out {
    Out::Scalar(x.to_string())
}

/// A text, quoted unless it can be nothing else but a text.
fn text(t: &str) -> Out {
    let safe = t.starts_with(|c: char| c.is_ascii_alphabetic())
        && t.ends_with(|c: char| c.is_ascii_alphanumeric())
        && t.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && (t.contains('-') || t.len() > 5);
    Out::Scalar(if safe { t.to_owned() } else { quoted(t) })
}

/// As a JSON string, which YAML's double quotes can read, too.
fn quoted(t: &str) -> String {
    serde_json::Value::from(t).to_string()
}

/// Writes a value whose first line starts at the current position and whose others are indented.
fn block(out: &Out, indent: usize, text: &mut String) {
    match out {
        Out::Scalar(s) => {
            text.push_str(s);
            text.push('\n');
        }
        Out::List(items) => {
            for (i, item) in items.iter().enumerate() {
                pad(if i == 0 { 0 } else { indent }, text);
                text.push_str("- ");
                block(item, indent + 2, text);
            }
        }
        Out::Map(fields) => {
            for (i, (name, value)) in fields.iter().enumerate() {
                pad(if i == 0 { 0 } else { indent }, text);
                text.push_str(name);
                text.push(':');
                nested(value, indent, text);
            }
        }
        Out::Texts(pairs) => {
            for (i, (name, value)) in pairs.iter().enumerate() {
                pad(if i == 0 { 0 } else { indent }, text);
                text.push_str(&quoted(name));
                text.push_str(": ");
                text.push_str(&quoted(value));
                text.push('\n');
            }
        }
    }
}

/// Writes the value of a field: a scalar or something empty beside the key, anything else below it.
fn nested(value: &Out, indent: usize, text: &mut String) {
    match value {
        Out::Scalar(_) => {
            text.push(' ');
            block(value, indent, text);
        }
        Out::List(items) if items.is_empty() => text.push_str(" []\n"),
        Out::Map(fields) if fields.is_empty() => text.push_str(" {}\n"),
        Out::Texts(pairs) if pairs.is_empty() => text.push_str(" {}\n"),
        Out::List(_) | Out::Map(_) | Out::Texts(_) => {
            text.push('\n');
            pad(indent + 2, text);
            block(value, indent + 2, text);
        }
    }
}

fn pad(n: usize, text: &mut String) {
    text.extend(std::iter::repeat_n(' ', n));
}
