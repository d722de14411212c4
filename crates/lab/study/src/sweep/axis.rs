//! One field and its values.

use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_document::edit::{self, Step};
use forebay_document::{Content, Node, ScalarKind, parse, parse_duration};

/// Which file a field is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The `EndpointPickerConfig`.
    Config,
    /// The cluster file.
    Cluster,
    /// The workload file.
    Workload,
}

impl Root {
    /// All of them.
    pub const ALL: [Root; 3] = [Root::Config, Root::Cluster, Root::Workload];

    /// `config`, `cluster` or `workload`.
    pub const fn label(self) -> &'static str {
        match self {
            Root::Config => "config",
            Root::Cluster => "cluster",
            Root::Workload => "workload",
        }
    }
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// As it was written.
    pub text: String,
    /// What it means.
    pub node: Node,
}

/// A field and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its file.
    pub root: Root,
    /// Its path as it was written.
    pub field: String,
    /// Its path.
    pub path: Vec<Step>,
    /// Its values.
    pub values: Vec<Value>,
}

const FLAG: &str = "--set";
const FORM: &str = "ROOT:PATH=VALUE,… such as cluster:scrape.period=50ms,500ms";

impl Axis {
    /// Reads `ROOT:PATH=VALUE,VALUE…`. Values are YAML; commas inside brackets, braces and quotes belong to
    /// the value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Axis, Diagnostics> {
        Axis::read(text).map_err(|d| Diagnostics(vec![*d]))
    }

    fn read(text: &str) -> Result<Axis, Box<Diagnostic>> {
        let wrong = |message: String| Box::new(Diagnostic::error(Position::default(), FLAG, message));
        let expecting = |message: String, what: &str| Box::new(wrong(message).expected(what));
        let Some((root, rest)) = text.split_once(':') else {
            return Err(expecting(format!("found {text:?}"), FORM));
        };
        let labels = || Root::ALL.iter().map(|r| r.label());
        let Some(root_found) = Root::ALL.iter().find(|r| r.label() == root).copied() else {
            let d = wrong(format!("found {root:?} in {text:?}"));
            return Err(Box::new(d.expected("one of config, cluster, workload").nearest_of(root, labels())));
        };
        let Some((field, values)) = rest.split_once('=') else {
            return Err(expecting(format!("{text:?} has no values"), FORM));
        };
        let path =
            edit::path(field).map_err(|e| expecting(format!("{text:?}: {}", e.message), &e.expected))?;
        let values = split(values).into_iter().map(|v| value(v).map_err(|m| wrong(format!("{text:?}: {m}"))));
        let values = values.collect::<Result<Vec<Value>, _>>()?;
        if let Some(v) =
            values.iter().enumerate().find(|(i, v)| values[..*i].iter().any(|w| w.text == v.text))
        {
            return Err(expecting(format!("{text:?} has the value {} twice", v.1.text), "each value once"));
        }
        Ok(Axis { root: root_found, field: field.to_owned(), path, values })
    }

    /// Reads several, all findings at once.
    ///
    /// # Errors
    /// What is wrong with any of them.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Axis>, Diagnostics> {
        let mut wrong = Diagnostics::default();
        let mut axes: Vec<Axis> = Vec::new();
        for text in texts {
            match Axis::parse(text) {
                Ok(a) if axes.iter().any(|b| b.root == a.root && b.path == a.path) => {
                    let d =
                        Diagnostic::error(Position::default(), FLAG, format!("{} is set twice", a.name()));
                    wrong.push(d.expected("each field once"));
                }
                Ok(a) => axes.push(a),
                Err(d) => wrong.0.extend(d.0),
            }
        }
        if wrong.has_errors() { Err(wrong) } else { Ok(axes) }
    }

    /// Whether it is about efficiency factors, which a calibration sets, too.
    pub(crate) fn is_of_factors(&self) -> bool {
        let factors = |s: &Step| matches!(s, Step::Key(k) if k == "factors");
        self.root == Root::Cluster && self.path.iter().any(factors)
    }

    /// `cluster:scrape.period`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.root.label(), self.field)
    }

    /// For messages about a value: `--set 'cluster:scrape.period=5ms'`.
    pub fn expression(&self, value: usize) -> String {
        format!("{FLAG} '{}={}'", self.name(), self.values[value].text)
    }

    /// The last names of the path, as many as tell it from all others.
    pub fn label(&self, all: &[Axis]) -> String {
        let parts: Vec<&str> = self.field.split('.').collect();
        (1..=parts.len())
            .map(|n| parts[parts.len() - n..].join("."))
            .find(|tail| {
                all.iter().filter(|a| format!(".{}", a.field).ends_with(&format!(".{tail}"))).count() == 1
            })
            .unwrap_or_else(|| self.name())
    }

    /// Its values as numbers, durations in seconds, with the unit; `None` if any is neither.
    pub fn numbers(&self) -> Option<(Vec<f64>, &'static str)> {
        let number = |v: &Value| match &v.node.content {
            Content::Scalar(s) => match s.kind {
                ScalarKind::Int(i) => Some(i as f64),
                ScalarKind::Float(x) if x.is_finite() => Some(x),
                _ => None,
            },
            _ => None,
        };
        let seconds = |v: &Value| Some(parse_duration(v.node.as_text()?).ok()? as f64 / 1e9);
        let plain: Option<Vec<f64>> = self.values.iter().map(number).collect();
        plain
            .map(|v| (v, ""))
            .or_else(|| Some((self.values.iter().map(seconds).collect::<Option<Vec<f64>>>()?, "s")))
    }
}

/// Splits at commas that are not inside brackets, braces or quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0usize, None);
    for (i, c) in text.char_indices() {
        if let Some(q) = quote {
            quote = Some(q).filter(|q| *q != c);
            continue;
        }
        match c {
            '"' | '\'' => quote = Some(c),
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn value(text: &str) -> Result<Value, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("a value is empty; expected null to take a field away".to_owned());
    }
    let mut found = Diagnostics::default();
    let mut documents = parse(text, &mut found);
    if let Some(d) = found.0.first() {
        return Err(format!("the value {text}: {}", d.message));
    }
    match documents.len() {
        1 => Ok(Value { text: text.to_owned(), node: documents.remove(0) }),
        n => Err(format!("the value {text} is {n} documents")),
    }
}
