//! `forebay plugins`: what can stand under `plugins` in a configuration.

use crate::catalogue::{catalogue, find};
use crate::layout::{lines, table};
use clap::Args;
use comfy_table::ColumnConstraint;
use forebay_kernel::plugin::{Bounds, Descriptor, Param, ParamKind, Preset, Stability};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

/// List the plugin types, or describe one with its parameters
#[derive(Debug, Args)]
pub(crate) struct Plugins {
    /// The plugin type to describe, by its name or an alias
    name: Option<String>,
    /// Print JSON, parameters included
    #[arg(long)]
    json: bool,
    /// Print Markdown, parameters included
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

impl Plugins {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let one = self.name.as_deref().map(|name| find(name, None, "")).transpose()?;
        let chosen: Vec<Entry> = one.map_or_else(catalogue, |d| vec![d]).into_iter().map(entry).collect();
        match (&one, self.json, self.markdown) {
            (None, true, _) => writeln!(out, "{}", serde_json::to_string_pretty(&chosen)?)?,
            (Some(_), true, _) => writeln!(out, "{}", serde_json::to_string_pretty(&chosen[0])?)?,
            (_, _, true) => write!(out, "{}", markdown(&chosen))?,
            (None, _, _) => write!(out, "{}", list(&chosen))?,
            (Some(_), _, _) => write!(out, "{}", described(&chosen[0]))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A descriptor as it is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: &'static str,
    aliases: Vec<Alias>,
    kinds: Vec<&'static str>,
    summary: &'static str,
    stability: &'static str,
    /// What to use instead of a deprecated type.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<&'static str>,
    /// Parameters are accepted and not read.
    ignores_parameters: bool,
    parameters: Vec<Parameter>,
}

#[derive(Debug, Serialize)]
struct Alias {
    name: &'static str,
    note: &'static str,
}

/// A parameter; fields of nested mappings follow it, `[]` in their names standing for any item.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Parameter {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
    required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "str::is_empty")]
    unit: &'static str,
    doc: &'static str,
}

fn entry(d: &'static Descriptor) -> Entry {
    let (stability, instead) = match d.stability {
        Stability::Alpha => ("alpha", None),
        Stability::Beta => ("beta", None),
        Stability::Deprecated(instead) => ("deprecated", Some(instead)),
    };
    let mut parameters = Vec::new();
    flatten(d.params, "", &mut parameters);
    Entry {
        name: d.name,
        aliases: d.aliases.iter().map(|a| Alias { name: a.name, note: a.note }).collect(),
        kinds: d.kinds.iter().map(|k| k.label()).collect(),
        summary: d.summary,
        stability,
        instead,
        needs: d.needs,
        ignores_parameters: d.ignores_parameters,
        parameters,
    }
}

fn flatten(params: &'static [Param], prefix: &str, out: &mut Vec<Parameter>) {
    for p in params {
        let name = format!("{prefix}{}", p.name);
        out.push(Parameter {
            name: name.clone(),
            kind: kind(&p.kind),
            range: range(&p.kind),
            required: matches!(p.preset, Preset::Required),
            default: default(&p.preset),
            unit: p.unit,
            doc: p.doc,
        });
        match p.kind {
            ParamKind::Object(fields) => flatten(fields, &format!("{name}."), out),
            ParamKind::List(ParamKind::Object(fields)) => flatten(fields, &format!("{name}[]."), out),
            _ => {}
        }
    }
}

fn kind(k: &ParamKind) -> String {
    match k {
        ParamKind::Bool => "true or false".to_owned(),
        ParamKind::Int(_) => "whole number".to_owned(),
        ParamKind::Float(_) => "number".to_owned(),
        ParamKind::Text => "text".to_owned(),
        ParamKind::Choice(words) if words.len() == 1 => format!("only {}", words[0]),
        ParamKind::Choice(words) => format!("one of {}", words.join(", ")),
        ParamKind::Duration => "duration".to_owned(),
        ParamKind::List(of) => format!("list of {}", plural(of)),
        ParamKind::Object(_) => "mapping".to_owned(),
        ParamKind::Map => "mapping of texts".to_owned(),
        ParamKind::Any => "anything".to_owned(),
    }
}

fn plural(k: &ParamKind) -> String {
    match k {
        ParamKind::Bool | ParamKind::Choice(_) | ParamKind::List(_) => format!("({})", kind(k)),
        ParamKind::Any | ParamKind::Text => kind(k),
        _ => format!("{}s", kind(k)),
    }
}

fn range(k: &ParamKind) -> Option<String> {
    // Bounds read "a number in (0, 1]"; the type is said already. Those of the machine's own integers say
    // nothing to anybody.
    let whole = |b: &Bounds| b.min == f64::from(i32::MIN) && b.max == f64::from(i32::MAX);
    match k {
        ParamKind::Int(b) | ParamKind::Float(b) if !whole(b) => {
            b.to_string().strip_prefix("a number ").map(str::to_owned)
        }
        ParamKind::List(of) => range(of),
        _ => None,
    }
}

fn default(p: &Preset) -> Option<serde_json::Value> {
    match p {
        Preset::Required | Preset::Absent => None,
        Preset::Bool(b) => Some((*b).into()),
        Preset::Int(i) => Some((*i).into()),
        Preset::Float(x) => Some((*x).into()),
        Preset::Text(t) => Some((*t).into()),
        Preset::Span(s) => Some(s.to_string().into()),
    }
}

impl Parameter {
    /// The field's own name, indented below the mapping that it belongs to.
    fn nested(&self) -> String {
        let own = self.name.rsplit('.').next().unwrap_or(&self.name);
        format!("{:1$}{own}", "", 2 * self.name.matches('.').count())
    }

    fn typed(&self) -> String {
        let range = self.range.as_ref().map(|r| format!(" {r}")).unwrap_or_default();
        let unit = if self.unit.is_empty() { String::new() } else { format!(" ({})", self.unit) };
        format!("{}{range}{unit}", self.kind)
    }

    fn preset(&self) -> String {
        match &self.default {
            Some(serde_json::Value::String(t)) => t.clone(),
            Some(serde_json::Value::Number(n)) => n.as_f64().map_or_else(|| n.to_string(), |x| x.to_string()),
            Some(value) => value.to_string(),
            None if self.required => "required".to_owned(),
            None => "-".to_owned(),
        }
    }
}

impl Entry {
    /// What stands beside the name and the summary, as label and text.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let stability = match (self.stability, self.instead) {
            (_, Some(instead)) => format!("deprecated: {instead}"),
            ("alpha", None) => {
                "alpha: may change; loads with a warning unless --allow-experimental-plugins is given"
                    .to_owned()
            }
            (s, None) => s.to_owned(),
        };
        let mut out = vec![("Kind", self.kinds.join(", ")), ("Stability", stability)];
        out.extend(self.aliases.iter().map(|a| ("Alias", format!("{}: {}", a.name, a.note))));
        out.extend(self.needs.map(|n| ("Needs", format!("{n}, added with its defaults if not configured"))));
        if self.ignores_parameters {
            out.push(("Parameters", "accepted and not read".to_owned()));
        } else if self.parameters.is_empty() {
            out.push(("Parameters", "none".to_owned()));
        }
        out
    }
}

fn list(all: &[Entry]) -> String {
    let mut t = table(["NAME", "KIND", "STABILITY", "SUMMARY"]);
    for e in all {
        t.add_row([e.name, &e.kinds.join("\n"), e.stability, e.summary]);
    }
    for i in 0..3 {
        t.column_mut(i).map(|c| c.set_constraint(ColumnConstraint::ContentWidth));
    }
    lines(&t)
}

fn described(e: &Entry) -> String {
    let mut facts = table([] as [&str; 0]);
    facts.add_row(["Type", e.name]).add_row(["Summary", e.summary]);
    for (label, text) in e.facts() {
        facts.add_row([label, &text]);
    }
    facts.column_mut(0).map(|c| c.set_constraint(ColumnConstraint::ContentWidth));
    let mut out = lines(&facts);
    if !e.parameters.is_empty() {
        let mut t = table(["PARAMETER", "TYPE", "DEFAULT", "MEANING"]);
        for p in &e.parameters {
            t.add_row([&p.nested(), &p.typed(), &p.preset(), p.doc]);
        }
        for i in [0, 2] {
            t.column_mut(i).map(|c| c.set_constraint(ColumnConstraint::ContentWidth));
        }
        out.push('\n');
        out.push_str(&lines(&t));
    }
    out
}

/// The reference of all plugin types.
fn markdown(all: &[Entry]) -> String {
    let mut out = String::from(
        "# Plugin reference\n\n\
         Every type that can stand under `plugins` in an `EndpointPickerConfig`, from the descriptors in\n\
         the code. Written by `cargo xtask docs`.\n\n\
         | Type | Kind | Stability | Summary |\n|---|---|---|---|\n",
    );
    for e in all {
        let name = e.name;
        let _ = writeln!(
            out,
            "| [`{name}`](#{name}) | {} | {} | {} |",
            e.kinds.join(", "),
            e.stability,
            escaped(e.summary)
        );
    }
    for e in all {
        let _ = write!(out, "\n## {}\n\n{}\n\n", e.name, e.summary);
        for (label, text) in e.facts() {
            let _ = writeln!(out, "- {label}: {text}");
        }
        if e.parameters.is_empty() {
            continue;
        }
        out.push_str("\n| Parameter | Type | Default | Meaning |\n|---|---|---|---|\n");
        for p in &e.parameters {
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} |",
                p.name,
                escaped(&p.typed()),
                escaped(&p.preset()),
                escaped(p.doc)
            );
        }
    }
    out
}

/// A text as the cell of a Markdown table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}
