//! JSON Schema of the configuration, from the same tables that decode it.

use crate::fields::TOP;
use crate::table::{Field, Shape};
use forebay_kernel::plugin::{Bounds, Descriptor, Param, ParamKind, Preset, Stability};
use serde_json::{Map, Value, json};

/// The forms that Go's duration parser takes, without a sign.
const DURATION: &str =
    "^(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)([0-9.]+(ns|us|µs|μs|ms|s|m|h))*)$";
/// The forms of a Kubernetes quantity, without a minus.
const QUANTITY: &str =
    "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$";

/// The JSON Schema (2020-12) of `EndpointPickerConfig` with the plugin types of a catalogue.
pub fn schema(catalogue: &[&'static Descriptor]) -> Value {
    let mut top = object(TOP);
    top["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    top["title"] = json!(crate::fields::KIND);
    top["properties"]["plugins"]["items"] = plugin(catalogue);
    top
}

fn plugin(catalogue: &[&'static Descriptor]) -> Value {
    let mut item = object(crate::fields::PLUGIN);
    let names = |d: &Descriptor| -> Vec<&'static str> {
        std::iter::once(d.name).chain(d.aliases.iter().map(|a| a.name)).collect()
    };
    let types: Vec<&str> = catalogue.iter().flat_map(|d| names(d)).collect();
    item["properties"]["type"]["enum"] = json!(types);
    item["required"] = json!(["type"]);
    let rules = catalogue.iter().filter(|d| !d.ignores_parameters).map(|d| {
        let mut parameters = parameters(d.params);
        parameters["description"] = json!(d.summary);
        if let Stability::Deprecated(instead) = d.stability {
            parameters["deprecated"] = json!(true);
            parameters["description"] = json!(format!("{} Deprecated: {instead}", d.summary));
        }
        let mut then = json!({ "properties": { "parameters": parameters } });
        if d.params.iter().any(|p| matches!(p.preset, Preset::Required)) {
            then["required"] = json!(["parameters"]);
        }
        json!({ "if": { "properties": { "type": { "enum": names(d) } } }, "then": then })
    });
    item["allOf"] = Value::Array(rules.collect());
    item
}

fn object(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for f in fields {
        let mut s = shape(&f.shape);
        s["description"] = json!(f.doc);
        if f.instead.is_some() {
            s["deprecated"] = json!(true);
        }
        properties.insert(f.name.to_owned(), s);
    }
    let required: Vec<&str> = fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    closed(&properties, &required)
}

fn closed(properties: &Map<String, Value>, required: &[&str]) -> Value {
    let mut out = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        out["required"] = json!(required);
    }
    out
}

fn shape(s: &Shape) -> Value {
    match s {
        Shape::Plain(kind) => param_kind(kind),
        Shape::Quantity => json!({
            "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string", "pattern": QUANTITY }],
        }),
        Shape::Duration => json!({ "type": "string", "pattern": DURATION }),
        Shape::Ref(_) => json!({ "type": "string" }),
        Shape::List(of) => json!({ "type": "array", "items": shape(of) }),
        Shape::Object(fields) => object(fields),
        Shape::Free => json!({}),
    }
}

fn parameters(params: &[Param]) -> Value {
    let mut properties = Map::new();
    for p in params {
        let mut s = param_kind(&p.kind);
        let unit = if p.unit.is_empty() { String::new() } else { format!(" Unit: {}.", p.unit) };
        s["description"] = json!(format!("{}{unit}", p.doc));
        match p.preset {
            Preset::Required | Preset::Absent => {}
            Preset::Bool(b) => s["default"] = json!(b),
            Preset::Int(i) => s["default"] = json!(i),
            Preset::Float(x) => s["default"] = json!(x),
            Preset::Text(t) => s["default"] = json!(t),
            Preset::Span(t) => s["default"] = json!(t.to_string()),
        }
        properties.insert(p.name.to_owned(), s);
    }
    let required = params.iter().filter(|p| matches!(p.preset, Preset::Required)).map(|p| p.name);
    closed(&properties, &required.collect::<Vec<&str>>())
}

fn param_kind(kind: &ParamKind) -> Value {
    match kind {
        ParamKind::Bool => json!({ "type": "boolean" }),
        ParamKind::Int(b) => bounded("integer", b),
        ParamKind::Float(b) => bounded("number", b),
        ParamKind::Text => json!({ "type": "string" }),
        ParamKind::Choice(words) => json!({ "type": "string", "enum": words }),
        ParamKind::Duration => json!({ "type": "string", "pattern": DURATION }),
        ParamKind::List(of) => json!({ "type": "array", "items": param_kind(of) }),
        ParamKind::Object(params) => parameters(params),
        ParamKind::Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ParamKind::Any => json!({}),
    }
}

fn bounded(kind: &str, b: &Bounds) -> Value {
    let mut out = json!({ "type": kind });
    let number = |x: f64| if x.fract() == 0.0 && x.abs() < 1e15 { json!(x as i64) } else { json!(x) };
    if b.min.is_finite() {
        out[if b.min_open { "exclusiveMinimum" } else { "minimum" }] = number(b.min);
    }
    if b.max.is_finite() {
        out[if b.max_open { "exclusiveMaximum" } else { "maximum" }] = number(b.max);
    }
    out
}
