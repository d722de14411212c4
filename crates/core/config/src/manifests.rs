//! `InferenceObjective` and `InferenceModelRewrite` manifests.

use crate::table::{self, Field, Item, Shape};
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_document::{Content, Node, decode, parse};
use forebay_kernel::plugin::{Bounds, ParamKind};
use std::path::{Path, PathBuf};

/// The group and version in use, and the one that is still accepted.
const API_VERSIONS: &[&str] = &["llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"];
const OBJECTIVE: &str = "InferenceObjective";
const REWRITE: &str = "InferenceModelRewrite";
/// Kinds whose `items` are manifests.
const LISTS: [&str; 3] = ["List", "InferenceObjectiveList", "InferenceModelRewriteList"];

const TEXT: Shape = Shape::Plain(ParamKind::Text);

macro_rules! manifest {
    ($name:ident, $kind:expr, $spec:expr) => {
        static $name: &[Field] = &[
            Field::required(
                "apiVersion",
                Shape::Plain(ParamKind::Choice(API_VERSIONS)),
                "Group and version.",
            ),
            Field::required("kind", Shape::Plain(ParamKind::Choice(&[$kind])), "The kind of manifest."),
            Field::required("metadata", Shape::Object(METADATA), "Name and labels."),
            Field::new("spec", Shape::Object($spec), "What is wanted."),
            Field::new("status", Shape::Free, "Not read."),
        ];
    };
}
manifest!(OBJECTIVE_FIELDS, OBJECTIVE, OBJECTIVE_SPEC);
manifest!(REWRITE_FIELDS, REWRITE, REWRITE_SPEC);

/// Kubernetes' ObjectMeta; only the name is read.
static METADATA: &[Field] = &[
    Field::required("name", TEXT, "The name."),
    Field::new("namespace", TEXT, "Not read."),
    Field::new("labels", Shape::Free, "Not read."),
    Field::new("annotations", Shape::Free, "Not read."),
    Field::new("generateName", Shape::Free, "Not read."),
    Field::new("uid", Shape::Free, "Not read."),
    Field::new("resourceVersion", Shape::Free, "Not read."),
    Field::new("generation", Shape::Free, "Not read."),
    Field::new("creationTimestamp", Shape::Free, "Not read."),
    Field::new("deletionTimestamp", Shape::Free, "Not read."),
    Field::new("deletionGracePeriodSeconds", Shape::Free, "Not read."),
    Field::new("ownerReferences", Shape::Free, "Not read."),
    Field::new("finalizers", Shape::Free, "Not read."),
    Field::new("managedFields", Shape::Free, "Not read."),
    Field::new("selfLink", Shape::Free, "Not read."),
];

static POOL_REF: &[Field] = &[
    Field::new("group", TEXT, "Not read."),
    Field::new("kind", TEXT, "Not read."),
    Field::required("name", TEXT, "Not read: there is one pool."),
];

static OBJECTIVE_SPEC: &[Field] = &[
    Field::new(
        "priority",
        Shape::Plain(ParamKind::Int(Bounds {
            min: i32::MIN as f64,
            min_open: false,
            max: i32::MAX as f64,
            max_open: false,
        })),
        "The priority of requests that name this objective; 0 if absent.",
    ),
    Field::new("poolRef", Shape::Object(POOL_REF), "The pool."),
];

static REWRITE_SPEC: &[Field] = &[
    Field::new("poolRef", Shape::Object(POOL_REF), "The pool."),
    Field::required("rules", Shape::List(&Shape::Object(RULE)), "The rules in order."),
];

static RULE: &[Field] = &[
    Field::new(
        "matches",
        Shape::List(&Shape::Object(MATCH)),
        "Any of them has to match; all requests if empty.",
    ),
    Field::new("targets", Shape::List(&Shape::Object(TARGET)), "Where matching requests go."),
];

static MATCH: &[Field] = &[Field::required("model", Shape::Object(MODEL_MATCH), "How the model is matched.")];

static MODEL_MATCH: &[Field] = &[
    Field::new("type", Shape::Plain(ParamKind::Choice(&["Exact"])), "The kind of match."),
    Field::required("value", TEXT, "The model name."),
];

static TARGET: &[Field] = &[
    Field::new(
        "weight",
        Shape::Plain(ParamKind::Int(Bounds { min: 1.0, min_open: false, max: 1e6, max_open: false })),
        "The share of requests, relative to the other weights.",
    ),
    Field::required("modelRewrite", TEXT, "The model name to use instead."),
];

/// A named priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// The name that requests give.
    pub name: String,
    /// Its priority.
    pub priority: i32,
}

/// One rule of an `InferenceModelRewrite`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteRule {
    /// The name of the manifest that it stands in.
    pub manifest: String,
    /// The models it matches; empty for all.
    pub models: Vec<String>,
    /// Model names with their weights.
    pub targets: Vec<(String, Option<u32>)>,
}

/// Objectives and rewrite rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// In the order of the files.
    pub objectives: Vec<Objective>,
    /// In the order of the files.
    pub rules: Vec<RewriteRule>,
    /// What the reader should know.
    pub warnings: Diagnostics,
}

impl Manifests {
    /// Reads a file, or all files of a directory that end in `.yaml`, `.yml` or `.json`, by name.
    ///
    /// # Errors
    /// Files that cannot be read, and everything that is wrong in them.
    pub fn read_path(path: &Path) -> Result<Manifests, Diagnostics> {
        let failed = |path: &Path, e: &std::io::Error| {
            let mut found = Diagnostics::default();
            found.push(Diagnostic::error(Position::default(), "", format!("cannot be read: {e}")));
            found.finish(&path.display().to_string());
            found
        };
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            files = entries.map_err(|e| failed(path, &e))?.iter().map(std::fs::DirEntry::path).collect();
            files.retain(is_manifest);
            files.sort();
        }
        let mut texts = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file).map_err(|e| failed(&file, &e))?;
            texts.push((file.display().to_string(), text));
        }
        Manifests::read(texts.iter().map(|(file, text)| (file.as_str(), text.as_str())))
    }

    /// Reads texts, each with the file name for messages.
    ///
    /// # Errors
    /// Everything that is wrong in them.
    pub fn read<'t>(texts: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Manifests, Diagnostics> {
        let mut out = Manifests::default();
        let mut all = Diagnostics::default();
        for (file, text) in texts {
            let mut found = Diagnostics::default();
            for document in parse(text, &mut found) {
                out.add(&document, "", &mut found);
            }
            found.finish(file);
            all.0.extend(found.0);
        }
        if all.has_errors() {
            return Err(all);
        }
        out.warnings = all;
        Ok(out)
    }

    fn add(&mut self, node: &Node, path: &str, found: &mut Diagnostics) {
        if node.is_null() {
            return;
        }
        let kind = node.get("kind").and_then(Node::as_text);
        match kind {
            Some(list) if LISTS.contains(&list) => {
                if let Some(Content::List(items)) = node.get("items").map(|i| &i.content) {
                    for (i, n) in items.iter().enumerate() {
                        self.add(n, &decode::item(&decode::join(path, "items"), i), found);
                    }
                }
            }
            Some(REWRITE) => self.add_rewrite(node, path, found),
            Some(other)
                if other != OBJECTIVE && forebay_base::nearest(other, [OBJECTIVE, REWRITE]).is_none() =>
            {
                let message = format!("a manifest of kind {other:?} is not read");
                found.push(Diagnostic::warning(node.at, decode::join(path, "kind"), message));
            }
            // Anything else is read as an objective, so that a slip in the kind is pointed out.
            _ => self.add_objective(node, path, found),
        }
    }

    fn add_objective(&mut self, node: &Node, path: &str, found: &mut Diagnostics) {
        let Some(item) = table::read(node, &Shape::Object(OBJECTIVE_FIELDS), path, found) else { return };
        let Some(name) = manifest_name(&item) else { return };
        if self.objectives.iter().any(|o| o.name == name) {
            let d = item.get("metadata").map_or_else(
                || item.error("duplicate objective"),
                |m| m.error_at("name", format!("duplicate objective {name:?}")),
            );
            found.push(d.expected("each objective once"));
            return;
        }
        let priority = item.get("spec").and_then(|s| s.int("priority")).unwrap_or(0) as i32;
        self.objectives.push(Objective { name: name.to_owned(), priority });
    }

    fn add_rewrite(&mut self, node: &Node, path: &str, found: &mut Diagnostics) {
        let Some(item) = table::read(node, &Shape::Object(REWRITE_FIELDS), path, found) else { return };
        let (Some(name), Some(spec)) = (manifest_name(&item), item.get("spec")) else { return };
        for rule in spec.items("rules") {
            if rule.get("targets").is_some() && rule.items("targets").is_empty() {
                found.push(rule.error_at("targets", "the list is empty").expected("at least one target"));
            }
            let mut models = Vec::new();
            for m in rule.items("matches") {
                let Some(value) = m.get("model").and_then(|m| m.get("value")) else { continue };
                match value.as_text() {
                    Some(t) => models.push(t.to_owned()),
                    None => found.push(value.error("the model name is empty")),
                }
            }
            let target =
                |t: &Item| Some((t.text("modelRewrite")?.to_owned(), t.int("weight").map(|w| w as u32)));
            let targets = rule.items("targets").iter().filter_map(target).collect();
            self.rules.push(RewriteRule { manifest: name.to_owned(), models, targets });
        }
    }

    /// The priority of an objective.
    pub fn priority(&self, name: &str) -> Option<i32> {
        self.objectives.iter().find(|o| o.name == name).map(|o| o.priority)
    }

    /// The priorities of all objectives, highest first, each once.
    pub fn priorities(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.objectives.iter().map(|o| o.priority).collect();
        all.sort_unstable_by_key(|&p| std::cmp::Reverse(p));
        all.dedup();
        all
    }

    /// The model to use instead of `model`, if a rule says so. An exact match beats a rule for all
    /// models; then the order of the files counts. `draw` is uniform in 0..1 and chooses among targets
    /// by weight. Returns the name of the manifest and the model.
    pub fn rewrite(&self, model: &str, draw: f64) -> Option<(&str, &str)> {
        let exact = self.rules.iter().find(|r| r.models.iter().any(|m| m == model));
        let rule = exact.or_else(|| self.rules.iter().find(|r| r.models.is_empty()))?;
        Some((&rule.manifest, rule.target(draw)?))
    }
}

impl RewriteRule {
    /// The target that a uniform draw from 0..1 falls on. Without weights all targets are equal; with
    /// some, those without are never chosen.
    pub fn target(&self, draw: f64) -> Option<&str> {
        let weighted = self.targets.iter().any(|(_, w)| w.is_some());
        let weight = |w: Option<u32>| f64::from(if weighted { w.unwrap_or(0) } else { 1 });
        let total: f64 = self.targets.iter().map(|(_, w)| weight(*w)).sum();
        let mut left = draw * total;
        let mut last = None;
        for (model, w) in self.targets.iter().filter(|(_, w)| weight(*w) > 0.0) {
            last = Some(model.as_str());
            left -= weight(*w);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

#[expect(clippy::ptr_arg, reason = "passed to `retain`")]
fn is_manifest(path: &PathBuf) -> bool {
    let ends = path.extension().and_then(|e| e.to_str());
    matches!(ends, Some("yaml" | "yml" | "json")) && path.is_file()
}

fn manifest_name(item: &Item) -> Option<&str> {
    item.get("metadata")?.text("name")
}
