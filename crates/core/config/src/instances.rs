//! Plugin instances: read, checked against the catalogue, built, and found again by name.

use crate::known;
use crate::params;
use crate::table::{Datum, Item};
use forebay_base::{Diagnostic, Diagnostics, Position, nearest};
use forebay_document::{Node, decode};
use forebay_kernel::plugin::{BuildError, Built, Descriptor, Kind, Stability, Values};

/// How alpha plugins are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Alpha plugins load without a warning.
    pub allow_experimental: bool,
    /// Alpha plugins are refused unless `allow_experimental` is set, as llm-d-router does.
    pub strict_stability: bool,
}

/// One configured or injected plugin.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The name that other sections refer to.
    pub name: String,
    /// Its type.
    pub descriptor: &'static Descriptor,
    /// Its parameters, checked, presets filled in.
    pub values: Values,
    /// What it turned into.
    pub built: Built,
    /// Whether nobody configured it and it was added with presets.
    pub injected: bool,
}

impl Instance {
    /// What it can be used as, in words: `a saturation detector and a filter`.
    pub fn what(&self) -> String {
        let kinds: Vec<String> = self.descriptor.kinds.iter().map(|&k| with_article(k)).collect();
        kinds.join(" and ")
    }
}

/// The label of a kind after its indefinite article.
fn with_article(kind: Kind) -> String {
    let label = kind.label();
    let article = if label.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} {label}")
}

/// A plugin of the file or an injected one; without an instance if something is wrong with it.
struct Slot {
    name: String,
    instance: Option<Instance>,
}

/// All plugins while a configuration is being resolved.
pub(crate) struct Instances<'c> {
    catalogue: &'c [&'static Descriptor],
    slots: Vec<Slot>,
    /// Some entry has no readable name, so a reference that finds nothing may mean it.
    nameless: bool,
    warned: Vec<&'static str>,
}

/// A plugin found by name and kind: an index into the instances.
pub(crate) type Index = usize;

impl<'c> Instances<'c> {
    /// Reads the section `plugins`.
    pub(crate) fn read(
        items: &[Item],
        listed: usize,
        catalogue: &'c [&'static Descriptor],
        options: Options,
        found: &mut Diagnostics,
    ) -> Instances<'c> {
        // Entries that are no mappings at all have been reported and left out.
        let nameless = items.len() < listed;
        let mut all = Instances { catalogue, slots: Vec::new(), nameless, warned: Vec::new() };
        for item in items {
            all.add(item, options, found);
        }
        all
    }

    fn add(&mut self, item: &Item, options: Options, found: &mut Diagnostics) {
        let given = item.text("name").or_else(|| item.text("type"));
        let Some(name) = given.map(str::to_owned) else {
            self.nameless = true;
            found.push(item.error_at("type", "a plugin without a name is missing a type"));
            return;
        };
        if self.slots.iter().any(|s| s.name == name) {
            let field = if item.get("name").is_some() { "name" } else { "type" };
            let d = item.error_at(field, format!("duplicate plugin name {name:?}"));
            found.push(d.expected("a name of its own for each plugin"));
            return;
        }
        let instance = self.instance(item, &name, options, found);
        self.slots.push(Slot { name, instance });
    }

    fn instance(
        &mut self,
        item: &Item,
        name: &str,
        options: Options,
        found: &mut Diagnostics,
    ) -> Option<Instance> {
        let Some(kind) = item.text("type") else {
            found.push(item.error_at("type", format!("the plugin {name:?} is missing a type")));
            return None;
        };
        let descriptor = self.descriptor(item, kind, found)?;
        let stable = self.stability(item, kind, descriptor, options, found);
        let parameters = match item.get("parameters").map(|p| &p.datum) {
            Some(Datum::Node(node)) => Some(node),
            _ => None,
        };
        let path = decode::join(&item.path, "parameters");
        let values = if descriptor.ignores_parameters {
            if let Some(node) = parameters {
                let message = format!("{} takes no notice of parameters", descriptor.name);
                found.push(Diagnostic::warning(node.at, path.clone(), message));
            }
            Values::default()
        } else {
            params::read_all(parameters, descriptor.params, &path, found)
                .or_else(|| point_at_plugin(item, parameters, found))?
        };
        match (descriptor.build)(&values) {
            Ok(built) if stable => {
                Some(Instance { name: name.to_owned(), descriptor, values, built, injected: false })
            }
            Ok(_) => None,
            Err(e) => {
                found.push(build_error(item, name, descriptor, parameters, &e));
                None
            }
        }
    }

    fn descriptor(&self, item: &Item, kind: &str, found: &mut Diagnostics) -> Option<&'static Descriptor> {
        for d in self.catalogue {
            if d.name == kind {
                return Some(d);
            }
            if let Some(alias) = d.aliases.iter().find(|a| a.name == kind) {
                let message = format!("the plugin type {kind:?} means {:?}: {}", d.name, alias.note);
                found.push(item.get("type")?.warning(message));
                return Some(d);
            }
        }
        let d = if known::is_known(kind) {
            let message =
                format!("the plugin type {kind:?} is known to llm-d-router, not supported by forebay yet");
            item.error_at("type", message)
        } else {
            let message = format!("the plugin type {kind:?} is not registered");
            item.error_at("type", message)
                .expected("a type that `forebay plugins` lists")
                .nearest_of(kind, type_names(self.catalogue).into_iter().chain(known::KNOWN.iter().copied()))
        };
        found.push(d);
        None
    }

    /// Reports a type that is not settled or will go; whether it may be loaded.
    fn stability(
        &mut self,
        item: &Item,
        kind: &str,
        d: &'static Descriptor,
        options: Options,
        found: &mut Diagnostics,
    ) -> bool {
        let Some(place) = item.get("type") else { return true };
        match d.stability {
            Stability::Alpha if options.allow_experimental => {}
            Stability::Alpha if options.strict_stability => {
                let message = format!("the plugin type {kind:?} has Alpha stability level");
                found.push(place.error(message).expected("the flag --allow-experimental-plugins"));
                return false;
            }
            Stability::Alpha if !self.warned.contains(&d.name) => {
                self.warned.push(d.name);
                let message = format!("the plugin type {kind:?} has Alpha stability level and may change");
                found.push(place.warning(message));
            }
            Stability::Deprecated(instead) if !self.warned.contains(&d.name) => {
                self.warned.push(d.name);
                found.push(place.warning(format!("the plugin type {kind:?} is deprecated: {instead}")));
            }
            _ => {}
        }
        true
    }

    /// Whether the catalogue has this type.
    pub(crate) fn can_make(&self, kind: &str) -> bool {
        self.catalogue.iter().any(|d| d.name == kind)
    }

    /// Whether the catalogue has any type of a kind.
    pub(crate) fn can_make_any(&self, kind: Kind) -> bool {
        self.catalogue.iter().any(|d| d.is(kind))
    }

    /// Whether a plugin of this name is there, good or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.slots.iter().any(|s| s.name == name)
    }

    /// Adds a plugin with presets, named like its type, unless the name is taken.
    pub(crate) fn inject(&mut self, kind: &str, found: &mut Diagnostics) {
        if self.has(kind) {
            return;
        }
        let Some(d) = self.catalogue.iter().find(|d| d.name == kind) else {
            let message = format!("the default plugin {kind:?} is not in this build's catalogue");
            found.push(Diagnostic::error(Position::default(), "", message));
            return;
        };
        let values = d.presets();
        let instance = match (d.build)(&values) {
            Ok(built) => {
                Some(Instance { name: kind.to_owned(), descriptor: d, values, built, injected: true })
            }
            Err(e) => {
                let message = format!("the default plugin {kind:?} cannot be built: {}", e.message);
                found.push(Diagnostic::error(Position::default(), "", message));
                None
            }
        };
        self.slots.push(Slot { name: kind.to_owned(), instance });
    }

    /// Adds the producers that plugins need and nobody configured, also those that producers need.
    pub(crate) fn inject_needs(&mut self, found: &mut Diagnostics) {
        let mut next = 0;
        while next < self.slots.len() {
            let needs = self.slots[next].instance.as_ref().and_then(|i| i.descriptor.needs);
            if let Some(kind) = needs
                && !self.good().any(|(_, i)| i.descriptor.name == kind)
            {
                self.inject(kind, found);
            }
            next += 1;
        }
    }

    /// The plugins that are fine, in order.
    pub(crate) fn good(&self) -> impl Iterator<Item = (Index, &Instance)> + '_ {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i, s.instance.as_ref()?)))
    }

    /// Whether something is wrong with some plugin, so that what is missing may be a consequence.
    pub(crate) fn some_failed(&self) -> bool {
        self.nameless || self.slots.iter().any(|s| s.instance.is_none())
    }

    /// The plugin of this index, if it is fine.
    pub(crate) fn at(&self, index: Index) -> Option<&Instance> {
        self.slots.get(index)?.instance.as_ref()
    }

    /// The index of an injected or configured plugin of this name that can be used as `kind`.
    pub(crate) fn named(&self, name: &str, kind: Kind, found: &mut Diagnostics) -> Option<Index> {
        let nowhere = Item {
            at: Position::default(),
            path: String::new(),
            datum: Datum::Value(forebay_kernel::plugin::Value::Text(name.to_owned())),
        };
        self.find(&nowhere, kind, found)
    }

    /// Looks up the plugin that `reference` names, which has to be usable as `kind`. What is wrong is
    /// reported, unless it is the plugin itself and has been reported already.
    pub(crate) fn find(&self, reference: &Item, kind: Kind, found: &mut Diagnostics) -> Option<Index> {
        let role = with_article(kind);
        let index = self.index_of(reference, &role, found)?;
        let instance = self.at(index)?;
        if serves(instance, kind) {
            return Some(index);
        }
        let message = format!("the plugin {:?} is {}", instance.name, instance.what());
        let right = self.good().filter(|(_, i)| serves(i, kind)).map(|(_, i)| i.name.as_str());
        let right: Vec<&str> = right.collect();
        let expected = if right.is_empty() { role } else { format!("{role}, such as {}", right.join(", ")) };
        found.push(reference.error(message).expected(expected));
        None
    }

    /// The index of the plugin that `reference` names, whatever it is.
    pub(crate) fn index_of(&self, reference: &Item, role: &str, found: &mut Diagnostics) -> Option<Index> {
        let Some(name) = reference.as_text() else {
            found.push(reference.error("the reference is empty").expected(format!("the name of {role}")));
            return None;
        };
        let index = self.slots.iter().position(|s| s.name == name);
        // What a misspelt type was meant to be is told where it stands, not where it is referred to.
        let misspelt = |s: &Slot| s.instance.is_none() && nearest(&s.name, [name]).is_some();
        if index.is_none() && !self.nameless && !self.slots.iter().any(misspelt) {
            found.push(self.undefined(reference, name, role));
        }
        index
    }

    fn undefined(&self, reference: &Item, name: &str, role: &str) -> Diagnostic {
        if self.can_make(name) {
            let d = reference.error(format!("references the undefined plugin {name:?}"));
            return d.expected(format!("an item \"type: {name}\" under plugins"));
        }
        if known::is_known(name) {
            return reference.error(format!(
                "references {name:?}, a plugin type that is known to llm-d-router, not supported by forebay yet"
            ));
        }
        reference
            .error(format!("references the undefined plugin {name:?}"))
            .expected(format!("the name of {role} listed under plugins"))
            .nearest_of(name, self.slots.iter().map(|s| s.name.as_str()))
    }

    /// The finished list. Call it only after everything turned out fine.
    pub(crate) fn finish(self) -> Vec<Instance> {
        self.slots.into_iter().filter_map(|s| s.instance).collect()
    }
}

/// The types and their aliases.
fn type_names(catalogue: &[&'static Descriptor]) -> Vec<&'static str> {
    catalogue.iter().flat_map(|d| std::iter::once(d.name).chain(d.aliases.iter().map(|a| a.name))).collect()
}

/// Whether an instance can be used as `kind`: declared, and built where the kernel uses it.
pub(crate) fn serves(instance: &Instance, kind: Kind) -> bool {
    let b = &instance.built;
    instance.descriptor.is(kind)
        && match kind {
            Kind::Filter => b.filter.is_some(),
            Kind::Scorer => b.scorer.is_some(),
            Kind::Picker => b.picker.is_some(),
            Kind::SaturationDetector => b.detector.is_some(),
            Kind::UsageLimitPolicy => b.limit.is_some(),
            Kind::FairnessPolicy => b.fairness.is_some(),
            Kind::OrderingPolicy => b.ordering.is_some(),
            Kind::Gate => b.gate.is_some(),
            Kind::Admitter => b.admitter.is_some(),
            Kind::PrefillDecider => b.decider.is_some(),
            Kind::ProfileHandler
            | Kind::DataProducer
            | Kind::DataSource
            | Kind::Extractor
            | Kind::Discovery
            | Kind::Parser
            | Kind::RequestProcessor => true,
        }
}

/// Points at the parameter that the plugin complains about, if it was given.
fn build_error(
    item: &Item,
    name: &str,
    descriptor: &Descriptor,
    parameters: Option<&Node>,
    e: &BuildError,
) -> Diagnostic {
    let path = decode::join(&item.path, "parameters");
    let message = format!("the plugin {name:?} ({}) cannot be built: {}", descriptor.name, e.message);
    let given = parameters.and_then(|n| n.get(e.param)).filter(|_| !e.param.is_empty());
    let at = given.or(parameters).map_or_else(|| item.get("type").map_or(item.at, |t| t.at), |n| n.at);
    let path = if e.param.is_empty() { path } else { decode::join(&path, e.param) };
    Diagnostic::error(at, path, message)
}

/// A parameter that is missing where no parameters are given has no place of its own: the plugin's is
/// used.
fn point_at_plugin(item: &Item, parameters: Option<&Node>, found: &mut Diagnostics) -> Option<Values> {
    if parameters.is_none() {
        let path = decode::join(&item.path, "parameters");
        for d in found.0.iter_mut().filter(|d| d.at.line == 0 && d.path.starts_with(&path)) {
            d.at = item.at;
        }
    }
    None
}
