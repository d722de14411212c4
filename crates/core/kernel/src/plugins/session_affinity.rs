//! `session-affinity-scorer` and `session-affinity-filter`: requests of a session go where the last went.
//!
//! With the strategy `encoded_endpoint_header` the client carries the endpoint's name in a token that the
//! router's answer gave it ([`crate::Asked::sticky`]), and nothing is remembered here. With `session_id`
//! the router remembers which endpoint each session is bound to ([`crate::Asked::session`]): the first
//! dispatch binds, one to the bound endpoint renews, and one elsewhere binds anew only if the bound
//! endpoint was no candidate.

use crate::plugin::{
    Bounds, BuildError, Built, Descriptor, Kind, Param, ParamKind, Preset, Stability, Value, Values,
};
use crate::policy::{Decision, Filter, Memory, Scorer};
use crate::pool::{EndpointId, EndpointSet};
use forebay_base::{IndexedHeap, Nanos, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

const fn optional(name: &'static str, doc: &'static str) -> Param {
    Param { name, kind: ParamKind::Text, preset: Preset::Absent, unit: "", doc }
}

static ENCODED: &[Param] = &[Param {
    name: "header",
    kind: ParamKind::Text,
    preset: Preset::Text("x-session-token"),
    unit: "",
    doc: "The header that carries the token, in requests and answers.",
}];

static SOURCE: &[Param] = &[
    optional("header", "A header that carries the session."),
    optional("attribute", "Or an attribute of the request: SessionIDDataKey or agent-identity."),
    optional("producer", "The plugin that produces the attribute."),
];

static SESSION_ID: &[Param] = &[
    Param {
        name: "sources",
        kind: ParamKind::List(&ParamKind::Object(SOURCE)),
        preset: Preset::Absent,
        unit: "",
        doc: "Where sessions come from, the first that has one counts; the header x-session-id if not given.",
    },
    Param {
        name: "evictionTtlSeconds",
        kind: ParamKind::Float(Bounds::NON_NEGATIVE),
        preset: Preset::Float(300.0),
        unit: "seconds",
        doc: "How long an unused binding is remembered; 0 counts as 300.",
    },
    Param {
        name: "evictionSweepSeconds",
        kind: ParamKind::Float(Bounds::NON_NEGATIVE),
        preset: Preset::Float(10.0),
        unit: "seconds",
        doc: "Accepted and not read: what is too old is never used.",
    },
];

static PARAMS: &[Param] = &[
    Param {
        name: "strategy",
        kind: ParamKind::Choice(&["encoded_endpoint_header", "session_id"]),
        preset: Preset::Text("encoded_endpoint_header"),
        unit: "",
        doc: "Who remembers: the client or the router.",
    },
    Param {
        name: "encodedEndpointHeaderConfig",
        kind: ParamKind::Object(ENCODED),
        preset: Preset::Absent,
        unit: "",
        doc: "Settings of encoded_endpoint_header.",
    },
    Param {
        name: "sessionIdConfig",
        kind: ParamKind::Object(SESSION_ID),
        preset: Preset::Absent,
        unit: "",
        doc: "Settings of session_id.",
    },
    optional("profileName", "Accepted and not read: there is one profile."),
];

const fn descriptor(
    name: &'static str,
    kinds: &'static [Kind],
    summary: &'static str,
    build: fn(&Values) -> Result<Built, BuildError>,
) -> Descriptor {
    Descriptor {
        name,
        aliases: &[],
        kinds,
        summary,
        stability: Stability::Alpha,
        params: PARAMS,
        ignores_parameters: false,
        needs: None,
        build,
    }
}

pub(super) static SCORER: Descriptor = descriptor(
    "session-affinity-scorer",
    &[Kind::Scorer],
    "1 for the endpoint that the session's last request went to, else 0.",
    |v| Ok(Built { scorer: Some(Arc::new(affinity(v)?)), ..Built::default() }),
);

pub(super) static FILTER: Descriptor = descriptor(
    "session-affinity-filter",
    &[Kind::Filter],
    "Narrows to the endpoint that the session's last request went to, if it is a candidate.",
    |v| Ok(Built { filter: Some(Arc::new(affinity(v)?)), ..Built::default() }),
);

/// The preset of [`SESSION_ID`]'s time.
const TTL_SECS: f64 = 300.0;

fn affinity(v: &Values) -> Result<Affinity, BuildError> {
    if v.text("strategy") != Some("session_id") {
        return Ok(Affinity::Token);
    }
    let config = v.object("sessionIdConfig");
    for item in config.map_or(&[][..], |c| c.list("sources")) {
        let Value::Object(s) = item else { continue };
        let given = |name| s.text(name).is_some_and(|t| !t.is_empty());
        if given("header") == given("attribute") {
            let message = "a source needs exactly one of header and attribute".into();
            return Err(BuildError { param: "sessionIdConfig", message });
        }
        if let Some(a) =
            s.text("attribute").filter(|a| !["", "SessionIDDataKey", "agent-identity"].contains(a))
        {
            let message = format!("found the attribute {a:?}, expected SessionIDDataKey or agent-identity");
            return Err(BuildError { param: "sessionIdConfig", message });
        }
    }
    let ttl = config.and_then(|c| c.opt_float("evictionTtlSeconds")).filter(|&t| t > 0.0);
    Ok(Affinity::Session { ttl: Span::from_secs_f64(ttl.unwrap_or(TTL_SECS)) })
}

#[derive(Clone, Copy, Debug)]
enum Affinity {
    /// By the endpoint's name in the request.
    Token,
    /// By what the router remembers.
    Session { ttl: Span },
}

impl Affinity {
    fn start(self) -> Option<Box<dyn Memory>> {
        match self {
            Affinity::Token => None,
            Affinity::Session { ttl } => Some(Box::new(Sessions { ttl, ..Sessions::default() })),
        }
    }

    /// The candidate that the request's token names.
    fn named(d: &Decision<'_>, mut candidates: impl Iterator<Item = u32>) -> Option<u32> {
        let name = &*d.ask.sticky;
        if name.is_empty() {
            return None;
        }
        candidates.find(|&i| d.pool.at(i).is_some_and(|e| e.spec.name == name))
    }
}

fn narrow(set: &mut EndpointSet, to: Option<u32>) {
    if let Some(to) = to {
        set.retain(|i| i == to);
    }
}

fn mark(candidates: &[u32], which: Option<u32>, out: &mut [f64]) {
    for (o, &i) in out.iter_mut().zip(candidates) {
        *o = f64::from(u8::from(Some(i) == which));
    }
}

impl Scorer for Affinity {
    fn score(&self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        mark(candidates, Affinity::named(d, candidates.iter().copied()), out);
    }
    fn start(&self) -> Option<Box<dyn Memory>> {
        Affinity::start(*self)
    }
}

impl Filter for Affinity {
    fn keep(&self, d: &Decision<'_>, set: &mut EndpointSet) {
        let to = Affinity::named(d, set.iter());
        narrow(set, to);
    }
    fn start(&self) -> Option<Box<dyn Memory>> {
        Affinity::start(*self)
    }
}

/// Sessions that are remembered at most; the longest unused go first.
const MAX_SESSIONS: usize = 65_536;

#[derive(Clone, Debug)]
struct Binding {
    session: Arc<str>,
    endpoint: EndpointId,
    used: Nanos,
}

#[derive(Clone, Debug, Default)]
struct Sessions {
    ttl: Span,
    by_name: BTreeMap<Arc<str>, u32>,
    bindings: Vec<Option<Binding>>,
    free: Vec<u32>,
    /// By last use; the number makes keys unique.
    by_use: IndexedHeap<(Nanos, u64)>,
    uses: u64,
    /// Whether the bound endpoint was among the candidates of the last decision.
    present: bool,
}

impl Sessions {
    fn binding(&self, d: &Decision<'_>) -> Option<(u32, &Binding)> {
        if d.ask.session.is_empty() {
            return None;
        }
        let &at = self.by_name.get(&d.ask.session)?;
        let b = self.bindings[at as usize].as_ref()?;
        (d.now.since(b.used) <= self.ttl).then_some((at, b))
    }

    /// The bound endpoint, if it is one of the candidates.
    fn bound(&mut self, d: &Decision<'_>, is_candidate: impl Fn(u32) -> bool) -> Option<u32> {
        let bound = self.binding(d).map(|(_, b)| b.endpoint);
        let present = bound.filter(|&e| d.pool.get(e).is_some() && is_candidate(e.index));
        self.present = present.is_some();
        present.map(|e| e.index)
    }

    fn forget(&mut self, at: u32) {
        if let Some(b) = self.bindings[at as usize].take() {
            self.by_name.remove(&b.session);
            self.by_use.remove(at);
            self.free.push(at);
        }
    }

    fn bind(&mut self, d: &Decision<'_>, endpoint: EndpointId) {
        let binding = Some(Binding { session: d.ask.session.clone(), endpoint, used: d.now });
        let known = self.by_name.get(&d.ask.session).copied();
        let at = if let Some(at) = known.or_else(|| self.free.pop()) {
            self.bindings[at as usize] = binding;
            at
        } else {
            self.bindings.push(binding);
            self.bindings.len() as u32 - 1
        };
        self.by_name.insert(d.ask.session.clone(), at);
        self.uses += 1;
        self.by_use.set(at, (d.now, self.uses));
        while let Some(((used, _), oldest)) = self.by_use.peek() {
            if d.now.since(used) <= self.ttl && self.by_name.len() <= MAX_SESSIONS {
                return;
            }
            self.forget(oldest);
        }
    }
}

impl Memory for Sessions {
    fn keep(&mut self, d: &Decision<'_>, set: &mut EndpointSet) {
        let to = self.bound(d, |i| set.contains(i));
        narrow(set, to);
    }
    fn score(&mut self, d: &Decision<'_>, candidates: &[u32], out: &mut [f64]) {
        let which = self.bound(d, |i| candidates.contains(&i));
        mark(candidates, which, out);
    }
    fn dispatched(&mut self, d: &Decision<'_>, to: EndpointId) {
        if d.ask.session.is_empty() {
            return;
        }
        match self.binding(d) {
            // The endpoint could have been chosen and was not: the session stays where it is.
            Some((_, b)) if b.endpoint != to && self.present => {}
            _ => self.bind(d, to),
        }
    }
    fn removed(&mut self, _: EndpointId) {
        // Bindings to it are recognised by its generation, and replaced by the session's next dispatch.
    }
    fn fork(&self) -> Box<dyn Memory> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Bench, near, object, text};
    use super::*;

    fn given(ttl: f64, sources: Vec<Value>) -> Vec<(&'static str, Value)> {
        let config = object(&[("evictionTtlSeconds", Value::Float(ttl)), ("sources", Value::List(sources))]);
        vec![("strategy", text("session_id")), ("sessionIdConfig", config)]
    }

    fn filter(ttl: f64) -> Box<dyn Memory> {
        testing::build(&FILTER, &given(ttl, vec![])).unwrap().filter.unwrap().start().unwrap()
    }

    fn send(b: &Bench, m: &mut Box<dyn Memory>, to: u32) -> Vec<u32> {
        let kept = b.remembered_kept(&mut **m);
        m.dispatched(&b.decision(), b.id(to));
        kept
    }

    #[test]
    fn a_token_names_the_endpoint() {
        let mut b = Bench::new(3);
        let built = |d| testing::build(d, &[]).unwrap();
        let (scorer, filter) = (built(&SCORER).scorer.unwrap(), built(&FILTER).filter.unwrap());
        assert!(scorer.start().is_none() && filter.start().is_none());
        near(&b.scores(&scorer), &[0.0, 0.0, 0.0]);
        assert_eq!(b.kept(&filter), [0, 1, 2]);
        b.ask.sticky = "e1".into();
        near(&b.scores(&scorer), &[0.0, 1.0, 0.0]);
        assert_eq!(b.kept(&filter), [1]);
        b.ask.sticky = "elsewhere".into();
        assert_eq!(b.kept(&filter), [0, 1, 2]);
    }

    #[test]
    fn sessions_are_bound_by_their_first_dispatch() {
        let (mut b, mut m) = (Bench::new(3), filter(300.0));
        assert_eq!(send(&b, &mut m, 0), [0, 1, 2], "no session");
        b.ask.session = "s".into();
        assert_eq!(send(&b, &mut m, 2), [0, 1, 2]);
        assert_eq!(send(&b, &mut m, 2), [2]);
        // Sent elsewhere although the bound endpoint was there: still bound.
        assert_eq!(send(&b, &mut m, 0), [2]);
        assert_eq!(send(&b, &mut m, 2), [2]);
        b.ask.session = "t".into();
        assert_eq!(send(&b, &mut m, 1), [0, 1, 2]);
        assert_eq!(m.fork().as_mut().score_of(&b), [0.0, 1.0, 0.0]);
    }

    trait ScoreOf {
        fn score_of(&mut self, b: &Bench) -> Vec<f64>;
    }
    impl ScoreOf for dyn Memory {
        fn score_of(&mut self, b: &Bench) -> Vec<f64> {
            b.remembered_scores(self)
        }
    }

    #[test]
    fn a_session_moves_when_its_endpoint_is_no_candidate() {
        let (mut b, mut m) = (Bench::new(3), filter(300.0));
        b.ask.session = "s".into();
        send(&b, &mut m, 1);
        let gone = b.id(1);
        b.pool.remove(gone);
        m.removed(gone);
        b.pool.add(crate::pool::EndpointSpec::named("e1"));
        assert_eq!(send(&b, &mut m, 0), [0, 1, 2], "the one that came back is another one");
        assert_eq!(send(&b, &mut m, 0), [0]);
    }

    #[test]
    fn unused_bindings_are_forgotten_after_their_time() {
        let (mut b, mut m) = (Bench::new(2), filter(10.0));
        b.ask.session = "s".into();
        send(&b, &mut m, 1);
        b.now = Nanos::ZERO + Span::secs(10);
        assert_eq!(send(&b, &mut m, 1), [1], "renewed");
        b.now = Nanos::ZERO + Span::secs(20);
        assert_eq!(b.remembered_kept(&mut *m), [1]);
        b.now.0 += 1;
        assert_eq!(send(&b, &mut m, 0), [0, 1]);
        assert_eq!(send(&b, &mut m, 0), [0]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut b = Bench::new(1);
        let mut s = Sessions { ttl: Span::FOREVER, ..Sessions::default() };
        for n in 0..MAX_SESSIONS + 5 {
            b.ask.session = format!("{n}").into();
            s.dispatched(&b.decision(), b.id(0));
        }
        assert_eq!((s.by_name.len(), s.by_use.len()), (MAX_SESSIONS, MAX_SESSIONS));
        assert!(!s.by_name.contains_key("4") && s.by_name.contains_key("5"));
        assert!(s.bindings.len() <= MAX_SESSIONS + 1);
        s.ttl = Span::ZERO;
        b.now = Nanos(1);
        b.ask.session = "last".into();
        s.dispatched(&b.decision(), b.id(0));
        assert_eq!(s.by_name.len(), 1);
    }

    #[test]
    fn a_source_is_a_header_or_a_known_attribute() {
        let source = |fields: &[(&'static str, &str)]| {
            object(&fields.iter().map(|&(n, v)| (n, text(v))).collect::<Vec<_>>())
        };
        for (s, good) in [
            (source(&[("header", "x-a")]), true),
            (source(&[("attribute", "SessionIDDataKey"), ("producer", "p")]), true),
            (source(&[("attribute", "agent-identity")]), true),
            (source(&[("attribute", "other")]), false),
            (source(&[("header", "x-a"), ("attribute", "agent-identity")]), false),
            (source(&[]), false),
        ] {
            assert_eq!(testing::build(&SCORER, &given(0.0, vec![s.clone()])).is_ok(), good, "{s:?}");
        }
    }
}
