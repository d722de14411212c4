//! Headers that plugins read: sessions, tokens of endpoints, identities of coding agents.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use forebay_config::Config;
use forebay_kernel::plugin::{Value, Values};
use http::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};

/// Headers in which coding agents send their session, in the order in which llm-d-router looks at them.
const AGENT_HEADERS: [&str; 4] =
    ["x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"];

/// Which headers the configured plugins read.
///
/// A request has one session and one token: the first that any of the sources of all session affinity
/// plugins gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Of `agent-identity`; empty without it.
    agent: Vec<HeaderName>,
    sessions: Vec<Source>,
    tokens: Vec<HeaderName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Header(HeaderName),
    Cookie(String),
    Agent,
}

/// A name that no request can carry is none.
fn name(text: &str) -> Option<HeaderName> {
    HeaderName::try_from(text.trim().to_ascii_lowercase()).ok()
}

fn value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    (!text.is_empty()).then_some(text)
}

impl Reads {
    /// What the plugins of a configuration read.
    pub fn of_config(config: &Config) -> Reads {
        let mut reads = Reads::default();
        let of = |kind: &'static str| config.plugins.iter().filter(move |i| i.descriptor.name == kind);
        for i in of("agent-identity") {
            let more = i.values.list("additionalSessionHeaders").iter().filter_map(|v| match v {
                Value::Text(t) => Some(t.as_str()),
                _ => None,
            });
            reads.agent.extend(more.chain(AGENT_HEADERS).filter_map(name));
        }
        let producers: Vec<(&str, &Values)> =
            of("session-id-producer").map(|i| (i.name.as_str(), &i.values)).collect();
        for i in of("session-affinity-filter").chain(of("session-affinity-scorer")) {
            reads.affinity(&i.values, &producers);
        }
        reads
    }

    fn affinity(&mut self, v: &Values, producers: &[(&str, &Values)]) {
        if v.text("strategy") != Some("session_id") {
            let header = v.object("encodedEndpointHeaderConfig").and_then(|c| c.text("header"));
            let header = name(header.filter(|h| !h.trim().is_empty()).unwrap_or("x-session-token"));
            self.tokens.extend(header.filter(|h| !self.tokens.contains(h)));
            return;
        }
        let listed = v.object("sessionIdConfig").map_or(&[][..], |c| c.list("sources"));
        let mut sources: Vec<Source> = Vec::new();
        for item in listed {
            let Value::Object(s) = item else { continue };
            match s.text("attribute").filter(|a| !a.is_empty()) {
                None => sources.extend(s.text("header").and_then(name).map(Source::Header)),
                Some("agent-identity") => sources.push(Source::Agent),
                Some(_) => {
                    let wanted = s.text("producer").filter(|p| !p.is_empty());
                    let which = producers.iter().filter(|(n, _)| wanted.is_none_or(|w| w == *n));
                    sources.extend(which.filter_map(|(_, v)| produced(v)));
                }
            }
        }
        if listed.is_empty() {
            sources.push(Source::Header(HeaderName::from_static("x-session-id")));
        }
        for s in sources {
            if !self.sessions.contains(&s) {
                self.sessions.push(s);
            }
        }
    }

    /// The coding agent's session, if that is asked for.
    pub(crate) fn agent<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        self.agent.iter().find_map(|h| value(headers, h))
    }

    /// The request's session.
    pub(crate) fn session<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        self.sessions.iter().find_map(|s| match s {
            Source::Header(h) => value(headers, h),
            Source::Cookie(name) => cookie(headers, name),
            Source::Agent => self.agent(headers),
        })
    }

    /// The endpoint's name in the request's token; a token that cannot be read is none.
    pub(crate) fn sticky(&self, headers: &HeaderMap) -> Option<String> {
        self.tokens.iter().find_map(|h| {
            let bytes = BASE64_STANDARD.decode(value(headers, h)?).ok()?;
            String::from_utf8(bytes).ok().filter(|n| !n.is_empty())
        })
    }

    /// Puts the token of this endpoint into an answer, if tokens are used.
    pub(crate) fn give_token(&self, endpoint: &str, out: &mut HeaderMap) {
        if self.tokens.is_empty() {
            return;
        }
        if let Ok(token) = HeaderValue::try_from(BASE64_STANDARD.encode(endpoint)) {
            for h in &self.tokens {
                out.insert(h, token.clone());
            }
        }
    }
}

fn produced(v: &Values) -> Option<Source> {
    let given = |name| v.text(name).map(str::trim).filter(|t| !t.is_empty());
    match given("headerName") {
        Some(h) => name(h).map(Source::Header),
        None => given("cookieName").map(|c| Source::Cookie(c.to_owned())),
    }
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    let mut pairs = all.flat_map(|v| v.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(n, _)| *n == name).map(|(_, v)| v.trim()).filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Options, load};

    fn reads(plugins: &str) -> Reads {
        let text = format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n{plugins}"
        );
        let catalogue: Vec<_> =
            forebay_kernel::plugins::ALL.iter().chain(forebay_live::plugins::ALL).copied().collect();
        let options = Options { allow_experimental: true, ..Options::default() };
        Reads::of_config(&load(&text, "test", &catalogue, options).unwrap())
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn without_plugins_nothing_is_read() {
        let r = reads("");
        let h = headers(&[("x-session-id", "s"), ("x-session-token", "ZTE="), ("session-id", "a")]);
        assert_eq!((r.agent(&h), r.session(&h), r.sticky(&h)), (None, None, None));
        let mut out = HeaderMap::new();
        r.give_token("e1", &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn agents_are_known_by_their_headers_in_order() {
        let r = reads(
            "- type: agent-identity\n  parameters: {additionalSessionHeaders: [X-Mine, 'no name', '']}\n",
        );
        assert_eq!(r.agent(&headers(&[("session_id", "d"), ("session-id", "c")])), Some("c"));
        let both = headers(&[("x-claude-code-session-id", "a"), ("x-mine", "m")]);
        assert_eq!(r.agent(&both), Some("m"));
        assert_eq!(r.agent(&headers(&[("x-mine", " "), ("x-session-affinity", "b")])), Some("b"));
        assert_eq!(r.agent(&headers(&[("x-other", "b")])), None);
    }

    #[test]
    fn tokens_name_endpoints_and_are_given_back() {
        let r = reads("- type: session-affinity-scorer\n");
        assert_eq!(r.sticky(&headers(&[("x-session-token", "ZTE=")])).as_deref(), Some("e1"));
        assert_eq!(r.sticky(&headers(&[("x-session-token", "%%%")])), None);
        assert_eq!(r.sticky(&headers(&[])), None);
        let mut out = HeaderMap::new();
        r.give_token("e1", &mut out);
        assert_eq!(out["x-session-token"], "ZTE=");
        let r = reads(
            "- type: session-affinity-filter\n  parameters: {encodedEndpointHeaderConfig: {header: ' X-T '}}\n",
        );
        assert_eq!(r.sticky(&headers(&[("x-t", "ZTE=")])).as_deref(), Some("e1"));
    }

    #[test]
    fn sessions_come_from_the_first_source_that_has_one() {
        let r = reads("- type: session-affinity-filter\n  parameters: {strategy: session_id}\n");
        assert_eq!(r.session(&headers(&[("x-session-id", " s ")])), Some("s"));
        let r = reads(
            "- type: session-affinity-filter
  parameters:
    strategy: session_id
    sessionIdConfig:
      sources:
      - header: X-First
      - {attribute: SessionIDDataKey, producer: jar}
      - {attribute: agent-identity}
- {type: session-id-producer, name: jar, parameters: {cookieName: sid}}
- {type: session-id-producer, name: other, parameters: {headerName: x-other}}
- type: agent-identity
",
        );
        let cookie = ("cookie", "a=1; sid=two ;b");
        assert_eq!(r.session(&headers(&[("x-first", "one"), cookie])), Some("one"));
        assert_eq!(r.session(&headers(&[cookie, ("session-id", "three")])), Some("two"));
        assert_eq!(r.session(&headers(&[("cookie", "sid="), ("session-id", "three")])), Some("three"));
        assert_eq!(r.session(&headers(&[("x-other", "x"), ("x-session-id", "x")])), None);
    }
}
