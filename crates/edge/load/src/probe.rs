//! What is asked of a server before a run.

use crate::error::LoadError;
use crate::prompt::Calibration;
use crate::target::{Api, Shape, Style, Url};
use crate::words::Words;
use bytes::{Bytes, BytesMut};
use forebay_base::Span;
use forebay_net::{Client, ClientOptions};
use forebay_wire::Usage;
use forebay_workload::{Kind, Mode, Workload};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use serde_json::Value;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// How long an answer to a question may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// The most bytes of such an answer.
const MOST_BYTES: usize = 4 << 20;
/// Words of the short and the long probe.
const SHORT: u64 = 32;
const LONG: u64 = 512;

/// A server that answers.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it is.
    pub url: Url,
    /// The same as an address.
    pub address: String,
    /// How requests look.
    pub style: Style,
    /// Whom they ask.
    pub model: String,
    /// Tokens of the longest sequence, if it tells.
    pub max_model_len: Option<u32>,
    /// What prompts are made of.
    pub words: Words,
    /// How these become tokens.
    pub calibration: Calibration,
}

impl Server {
    /// Looks the address up and, without a `model`, asks for the first that is served.
    ///
    /// # Errors
    /// If the address leads nowhere, or nobody there says what model is served.
    pub fn find(url: Url, style: Style, model: Option<&str>, words: Words) -> Result<Server, LoadError> {
        let address = resolve(&url.authority)?;
        let mut server = Server {
            url,
            address,
            style,
            model: model.unwrap_or_default().to_owned(),
            max_model_len: None,
            words,
            calibration: Calibration::default(),
        };
        match server.models() {
            Ok(models) => {
                let chosen = match model {
                    None => models.first(),
                    Some(name) => models.iter().find(|(id, _)| id == name),
                };
                if let Some((id, length)) = chosen {
                    server.model.clone_from(id);
                    server.max_model_len = *length;
                } else if model.is_none() {
                    let (what, message) = ("GET /v1/models".into(), "no model is served; say --model".into());
                    return Err(LoadError::Probe { what, message });
                }
            }
            Err(e) if model.is_none() => return Err(e),
            // A server need not list its models to whoever knows them.
            Err(_) => {}
        }
        Ok(server)
    }

    /// The path that requests go to.
    pub(crate) fn uri(&self) -> Uri {
        path(&self.url, self.style.api.path())
    }

    /// The models that are served, with their longest sequence.
    fn models(&self) -> Result<Vec<(String, Option<u32>)>, LoadError> {
        let headers = Shape::new(&nothing(), &self.url, "", &self.style, 0).probe_headers();
        let uri = path(&self.url, "/v1/models");
        let body = self.ask(Method::GET, &uri, headers, Bytes::new())?;
        let wrong = |message: String| LoadError::Probe { what: format!("GET {uri}"), message };
        let json: Value = serde_json::from_slice(&body).map_err(|e| wrong(e.to_string()))?;
        let list = json["data"].as_array().ok_or_else(|| wrong("the answer has no list `data`".into()))?;
        let one = |m: &Value| {
            let length = m["max_model_len"].as_u64().and_then(|n| u32::try_from(n).ok());
            Some((m["id"].as_str()?.to_owned(), length))
        };
        Ok(list.iter().filter_map(one).collect())
    }

    /// Asks the server how many tokens its prompts have: twice for texts of different lengths, and once for a
    /// conversation if `sessions`. Texts differ under different salts.
    ///
    /// # Errors
    /// If the server does not answer. Without usage in its answers a word is taken for a token.
    pub fn calibrate(&mut self, sessions: bool, salt: u64) -> Result<(), LoadError> {
        let shape = Shape::new(&nothing(), &self.url, &self.model, &self.style, salt);
        let long = self.max_model_len.map_or(LONG, |most| LONG.min(u64::from(most) / 4)).max(SHORT + 1);
        let count = |number, said: &[(String, String)], words| {
            let body = shape.probe(said, &self.words.say(salt.wrapping_add(number), words));
            let answer = self.ask(Method::POST, &self.uri(), shape.probe_headers(), body.into())?;
            Ok::<_, LoadError>(Usage::of_body(&answer).and_then(|u| u.prompt).map(|n| n as f64))
        };
        let (Some(a), Some(b)) = (count(0, &[], SHORT)?, count(1, &[], long)?) else {
            return Ok(());
        };
        let per_word = ((b - a) / (long - SHORT) as f64).max(0.01);
        let overhead = (a - per_word * SHORT as f64).max(0.0);
        let mut per_turn = 0.0;
        if sessions && self.style.api == Api::Chat {
            let said =
                [(self.words.say(salt.wrapping_add(2), SHORT), self.words.say(salt.wrapping_add(3), SHORT))];
            if let Some(c) = count(4, &said, SHORT)? {
                per_turn = (c - overhead - 3.0 * per_word * SHORT as f64).max(0.0);
            }
        }
        self.calibration = Calibration { per_word, overhead, per_turn, measured: true };
        Ok(())
    }

    fn ask(&self, method: Method, uri: &Uri, headers: HeaderMap, body: Bytes) -> Result<Bytes, LoadError> {
        let what = format!("{method} {uri}");
        let fail = |message: String| LoadError::Probe { what: what.clone(), message };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut request = Request::new(body);
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri.clone(), headers);
        let work = async {
            let client = Client::new(ClientOptions::default());
            let answer = client.send(&self.address, request).await.map_err(|e| fail(causes(&e)))?;
            let (head, mut body) = answer.into_parts();
            let mut whole = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|e| fail(e.to_string()))?;
                if let Some(data) = frame.data_ref().filter(|d| whole.len() + d.len() <= MOST_BYTES) {
                    whole.extend_from_slice(data);
                }
            }
            if head.status == StatusCode::OK {
                return Ok(whole.freeze());
            }
            let said: String = String::from_utf8_lossy(&whole).chars().take(300).collect();
            Err(fail(format!("status {}: {}", head.status, said.trim())))
        };
        let timed = async { tokio::time::timeout(PATIENCE, work).await };
        runtime.block_on(timed).unwrap_or_else(|_| Err(fail(format!("no answer within {PATIENCE:?}"))))
    }
}

/// A workload of no classes, for requests of no class.
fn nothing() -> Workload {
    let mode = Mode { kind: Kind::Surge, window: Span::ZERO, warmup: Span::ZERO, drain: Span::ZERO };
    let (classes, traces) = (Vec::new(), Vec::new());
    Workload { name: String::new(), mode, classes, traces, bytes_per_token: 4.0 }
}

/// An error with its causes.
fn causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

fn path(url: &Url, path: &str) -> Uri {
    let text = format!("{}{path}", url.base);
    // The base was checked to have no query; a base with blanks is the only thing that is left to fail.
    text.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

/// The address of a host and port; the same on every run, whatever the resolver's order.
fn resolve(authority: &str) -> Result<String, LoadError> {
    let fail = |message: String| LoadError::Address { authority: authority.to_owned(), message };
    let mut all: Vec<SocketAddr> = authority.to_socket_addrs().map_err(|e| fail(e.to_string()))?.collect();
    all.sort();
    all.first().map(ToString::to_string).ok_or_else(|| fail("no address".to_owned()))
}
