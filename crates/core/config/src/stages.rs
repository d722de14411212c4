//! The profile handler, and which profile does what.

use crate::config::{PrefillConfig, ProfileConfig};
use crate::instances::{Index, Instance, Instances, serves};
use crate::table::{Datum, Item};
use forebay_base::Diagnostics;
use forebay_document::decode;
use forebay_kernel::plugin::{Kind, StageNames, Value};

const DEFAULT_HANDLER: &str = "single-profile-handler";

/// What the profiles are used for.
pub(crate) struct Stages {
    pub(crate) handler: Index,
    pub(crate) profile: ProfileConfig,
    pub(crate) prefill: Option<PrefillConfig>,
}

/// The one profile handler, and the profiles that it runs.
pub(crate) fn read(
    top: &Item,
    profiles: Vec<ProfileConfig>,
    all: &mut Instances<'_>,
    found: &mut Diagnostics,
) -> Option<Stages> {
    let handlers = |all: &Instances<'_>| -> Vec<Index> {
        all.good().filter(|(_, i)| serves(i, Kind::ProfileHandler)).map(|(index, _)| index).collect()
    };
    let listed = profiles.len();
    if handlers(all).is_empty() && listed <= 1 {
        all.inject(DEFAULT_HANDLER, found);
    }
    let name = |i: Index| all.at(i).map(|i| i.name.as_str()).unwrap_or_default();
    match handlers(all).as_slice() {
        &[handler] => {
            let instance = all.at(handler)?;
            if let Some(names) = &instance.built.stages {
                return staged(top, (handler, instance), names, profiles, all, found);
            }
            if listed <= 1 {
                return Some(Stages { handler, profile: profiles.into_iter().next()?, prefill: None });
            }
            let message =
                format!("{:?} supports one scheduling profile, and there are {listed}", name(handler));
            found.push(top.error_at("schedulingProfiles", message).expected("a multi-profile handler"));
            None
        }
        [] => {
            // A handler that is not supported has been reported already.
            if !all.some_failed() {
                let message = format!("no profile handler is configured for {listed} scheduling profiles");
                found.push(
                    top.error_at("schedulingProfiles", message).expected("exactly one profile handler"),
                );
            }
            None
        }
        [first, second, ..] => {
            let message = format!("{:?} and {:?} are both profile handlers", name(*first), name(*second));
            found.push(top.error_at("plugins", message).expected("exactly one profile handler"));
            None
        }
    }
}

/// The profiles by the names that the handler gives them.
fn staged(
    top: &Item,
    (handler, instance): (Index, &Instance),
    names: &StageNames,
    profiles: Vec<ProfileConfig>,
    all: &Instances<'_>,
    found: &mut Diagnostics,
) -> Option<Stages> {
    let place = Place::of(top, &instance.name);
    let wants_prefill = names.prefill_first || names.decider.is_some();
    let decider = names.decider.as_deref().and_then(|d| {
        let fields = [&["deciders", "prefill"][..], &["prefillDeciderPluginName"], &["deciderPluginName"]];
        all.find(&place.text(&fields, d), Kind::PrefillDecider, found)
    });
    let (mut decode, mut prefill) = (None, None);
    let known: Vec<String> = profiles.iter().map(|p| p.name.clone()).collect();
    for p in profiles {
        if p.name == names.decode {
            decode = Some(p);
        } else if p.name == names.prefill && wants_prefill {
            prefill = Some(p);
        } else {
            let message = format!("{:?} does not run the profile {:?}", instance.name, p.name);
            found.push(
                top.get("schedulingProfiles").map_or_else(|| top.warning(&message), |i| i.warning(&message)),
            );
        }
    }
    let mut missing = |name: &str, fields: &[&[&str]]| {
        let item = place.text(fields, name);
        let message = format!("{:?} runs the profile {name:?}, and there is none", instance.name);
        let all = known.join(", ");
        let d = item.error(message).expected(format!("a name under schedulingProfiles: {all}"));
        found.push(d.nearest_of(name, known.iter().map(String::as_str)));
    };
    if decode.is_none() {
        missing(&names.decode, &[&["profiles", "decode"], &["decodeProfile"]]);
    }
    if prefill.is_none() && wants_prefill {
        missing(&names.prefill, &[&["profiles", "prefill"], &["prefillProfile"]]);
    }
    if wants_prefill && (prefill.is_none() || names.decider.is_some() != decider.is_some()) {
        return None;
    }
    let prefill = prefill.map(|profile| PrefillConfig { profile, decider });
    Some(Stages { handler, profile: decode?, prefill })
}

/// Where a plugin stands in the file.
struct Place<'a>(Option<&'a Item>);

impl<'a> Place<'a> {
    fn of(top: &'a Item, name: &str) -> Place<'a> {
        let is = |i: &&Item| i.text("name").or_else(|| i.text("type")) == Some(name);
        Place(top.items("plugins").iter().find(is))
    }

    /// A text at the first of some parameters that is given, or at the plugin.
    fn text(&self, fields: &[&[&str]], text: &str) -> Item {
        let datum = Datum::Value(Value::Text(text.to_owned()));
        let Some(plugin) = self.0 else {
            return Item { at: forebay_base::Position::default(), path: String::new(), datum };
        };
        let parameters = match plugin.get("parameters").map(|p| &p.datum) {
            Some(Datum::Node(node)) => Some(node),
            _ => None,
        };
        let at = |names: &&[&str]| {
            let node = names.iter().try_fold(parameters?, |n, name| n.get(name))?;
            let path = format!("parameters.{}", names.join("."));
            Some((node.at, decode::join(&plugin.path, &path)))
        };
        let (at, path) = fields.iter().find_map(at).unwrap_or((plugin.at, plugin.path.clone()));
        Item { at, path, datum }
    }
}
