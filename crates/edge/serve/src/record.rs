//! The access log: one JSON line per request, whatever became of it.

use forebay_base::{Draws, Purpose};
use forebay_live::lines::Lines;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Longer client values are cut.
const MAX_TEXT: usize = 256;

/// Where access lines go; lines that the file does not keep up with are counted.
pub(crate) struct AccessLog {
    lines: Option<Lines>,
    /// The share of finished requests that get a line, 0 to 1; all others always get theirs.
    sample: f64,
    draws: Draws,
    numbers: AtomicU64,
    dropped: AtomicU64,
}

impl AccessLog {
    pub(crate) fn new(lines: Option<Lines>, sample: f64, seed: u64) -> AccessLog {
        let (numbers, dropped) = Default::default();
        AccessLog { lines, sample, draws: Draws::new(seed), numbers, dropped }
    }

    /// Whether anybody reads what is written.
    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    fn is_left_out(&self, record: &Record) -> bool {
        if self.sample >= 1.0 || record.end != "finished" {
            return false;
        }
        let n = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.draws.unit(Purpose::named("access-log"), n, 0) >= self.sample
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, record: &Record) {
        let Some(lines) = &self.lines else { return };
        if self.is_left_out(record) {
            return;
        }
        let pushed = serde_json::to_string(record).is_ok_and(|line| lines.push(&line));
        if !pushed {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One request. Times are in milliseconds since its arrival.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    /// When it arrived, RFC 3339 with milliseconds.
    #[serde(serialize_with = "rfc3339")]
    pub(crate) time: SystemTime,
    #[serde(serialize_with = "capped")]
    pub(crate) request_id: String,
    pub(crate) method: String,
    #[serde(serialize_with = "capped")]
    pub(crate) path: String,
    #[serde(serialize_with = "capped", skip_serializing_if = "String::is_empty")]
    pub(crate) model: String,
    #[serde(serialize_with = "capped", skip_serializing_if = "String::is_empty")]
    pub(crate) target_model: String,
    #[serde(serialize_with = "capped_option", skip_serializing_if = "Option::is_none")]
    pub(crate) objective: Option<String>,
    #[serde(serialize_with = "capped", skip_serializing_if = "String::is_empty")]
    pub(crate) fairness_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
    /// The status sent; 0 if the client left before one was.
    pub(crate) status: u16,
    /// finished, failed, refused or cancelled.
    pub(crate) end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) endpoint: String,
    /// Its name in the decision log; empty for what was refused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) decision: String,
    pub(crate) stream: bool,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) total_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_tokens: Option<u64>,
    /// Output tokens are the events that carried output, because no usage was sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) estimated: bool,
}

impl Default for Record {
    fn default() -> Record {
        Record {
            time: SystemTime::UNIX_EPOCH,
            request_id: String::new(),
            method: String::new(),
            path: String::new(),
            model: String::new(),
            target_model: String::new(),
            objective: None,
            fairness_id: String::new(),
            priority: None,
            status: 0,
            end: "cancelled",
            reason: None,
            error: None,
            endpoint: String::new(),
            decision: String::new(),
            stream: false,
            request_bytes: 0,
            response_bytes: 0,
            queue_ms: None,
            ttft_ms: None,
            total_ms: 0.0,
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            estimated: false,
        }
    }
}

impl Record {
    pub(crate) fn new(method: &str, path: &str) -> Record {
        let time = SystemTime::now();
        Record { time, method: method.to_owned(), path: path.to_owned(), ..Record::default() }
    }
}

fn rfc3339<S: Serializer>(time: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_rfc3339_millis(*time))
}

pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return Cow::Borrowed(text);
    }
    let mut end = MAX_TEXT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}…", &text[..end]))
}

fn capped<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&cut(text))
}

#[allow(clippy::ref_option, reason = "the signature that serde calls")]
fn capped_option<S: Serializer>(text: &Option<String>, s: S) -> Result<S::Ok, S::Error> {
    match text {
        Some(t) => s.serialize_str(&cut(t)),
        None => s.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_leaves_out_only_what_went_well() {
        let log = |sample| AccessLog::new(None, sample, 1);
        let mut r = Record::new("GET", "/");
        r.end = "finished";
        let kept = |log: &AccessLog, r: &Record| (0..1000).filter(|_| !log.is_left_out(r)).count();
        assert!((60..140).contains(&kept(&log(0.1), &r)));
        assert_eq!((kept(&log(0.0), &r), kept(&log(1.0), &r)), (0, 1000));
        for end in ["failed", "refused", "cancelled"] {
            r.end = end;
            assert_eq!(kept(&log(0.0), &r), 1000, "{end}");
        }
    }

    #[test]
    fn lines_are_json_and_client_values_are_escaped_and_cut() {
        let mut r = Record::new("POST", "/v1/completions");
        r.request_id = "a\"b\nc\u{1b}".into();
        r.model = "é".repeat(1000);
        r.objective = Some("x".repeat(300));
        r.queue_ms = Some(1.5);
        let line = serde_json::to_string(&r).unwrap();
        assert!(!line.contains('\n') && !line.contains('\u{1b}'));
        let v: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(v["request_id"], "a\"b\nc\u{1b}");
        assert!(v["model"].as_str().unwrap().ends_with('…'));
        assert!(v["objective"].as_str().unwrap().len() < 300);
        assert_eq!(v["end"], "cancelled");
        assert!(v.get("reason").is_none() && v.get("estimated").is_none());
        assert!(v["time"].as_str().unwrap().ends_with('Z'));
    }
}
