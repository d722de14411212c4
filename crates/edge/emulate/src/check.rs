//! Reads JSON fields the way pydantic does: numbers and booleans may come as strings, and what cannot be
//! read gives pydantic's words.

use crate::error::ApiError;
use serde_json::{Map, Value, error::Category};

/// Parses a body; the error is FastAPI's `json_invalid`.
pub(crate) fn parse(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let what = "Input should be a valid dictionary or object to extract fields from";
            Err(ApiError::shape("body", &[line("model_attributes_type", "body", what, &repr(&other))]))
        }
        Err(e) => {
            let at = offset(body, &e);
            let line = format!(
                "{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', \
                 'input': '<dict of 0 items>', 'ctx': {{'error': {}}}}}",
                quoted(&python_words(&e))
            );
            Err(ApiError::shape(&format!("body.{at}"), &[line]))
        }
    }
}

/// Where the error is, in characters from the start, as Python counts.
fn offset(body: &[u8], e: &serde_json::Error) -> usize {
    let before: usize =
        body.split_inclusive(|&b| b == b'\n').take(e.line().saturating_sub(1)).map(<[u8]>::len).sum();
    // At the end of input the column is the last one read, elsewhere it is the offending one, from 1.
    let column = if e.classify() == Category::Eof { e.column() } else { e.column().saturating_sub(1) };
    String::from_utf8_lossy(&body[..(before + column).min(body.len())]).chars().count()
}

/// The words of Python's `json` module for what serde_json found.
fn python_words(e: &serde_json::Error) -> String {
    let text = e.to_string();
    let words = [
        ("EOF while parsing an object", "Expecting ',' delimiter"),
        ("EOF while parsing a list", "Expecting ',' delimiter"),
        ("EOF while parsing a string", "Unterminated string starting at"),
        ("EOF while parsing a value", "Expecting value"),
        ("expected `,` or", "Expecting ',' delimiter"),
        ("expected `:`", "Expecting ':' delimiter"),
        ("key must be a string", "Expecting property name enclosed in double quotes"),
        ("trailing comma", "Illegal trailing comma before end of object"),
        ("trailing characters", "Extra data"),
        ("control character", "Invalid control character at"),
        ("invalid escape", "Invalid \\\\escape"),
    ];
    words.iter().find(|(ours, _)| text.starts_with(ours)).map_or("Expecting value", |(_, py)| py).to_owned()
}

/// A Python string literal: single quotes unless the text has some.
fn quoted(text: &str) -> String {
    if text.contains('\'') && !text.contains('"') {
        format!("\"{text}\"")
    } else {
        format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
    }
}

/// A value as vLLM's handler prints it: containers by size only.
fn repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(b) => if *b { "True" } else { "False" }.to_owned(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => quoted(s),
        Value::Array(a) => quoted(&format!("<list of {} items>", a.len())),
        Value::Object(o) => quoted(&format!("<dict of {} items>", o.len())),
    }
}

fn line(kind: &str, loc: &str, msg: &str, input: &str) -> String {
    format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}', 'input': {input}}}")
}

/// Reads fields and collects what is wrong with them.
pub(crate) struct Checker<'a> {
    map: &'a Map<String, Value>,
    lines: Vec<String>,
    first: Option<String>,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Checker<'a> {
        Checker { map, lines: Vec::new(), first: None }
    }

    /// Fails if anything was wrong.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.first {
            None => Ok(()),
            Some(loc) => Err(ApiError::shape(&loc, &self.lines)),
        }
    }

    /// The value of a field, `None` if it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn wrong(&mut self, kind: &str, loc: &str, msg: &str, input: &Value) {
        let loc = format!("body.{loc}");
        self.lines.push(line(kind, &loc, msg, &repr(input)));
        self.first.get_or_insert(loc);
    }

    pub(crate) fn missing(&mut self, key: &str) {
        let input = format!("'<dict of {} items>'", self.map.len());
        let loc = format!("body.{key}");
        self.lines.push(line("missing", &loc, "Field required", &input));
        self.first.get_or_insert(loc);
    }

    pub(crate) fn int(&mut self, key: &str) -> Option<i64> {
        let value = self.get(key)?;
        let whole = |f: f64| (f.fract() == 0.0 && f.abs() < 9e15).then_some(f as i64);
        let read = match value {
            Value::Number(n) => n.as_i64().or_else(|| n.as_f64().and_then(whole)),
            Value::String(s) => s.trim().parse().ok(),
            Value::Bool(b) => Some(i64::from(*b)),
            _ => None,
        };
        if read.is_none() {
            let (kind, msg) = match value {
                Value::String(_) => {
                    ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
                }
                Value::Number(_) => {
                    ("int_from_float", "Input should be a valid integer, got a number with a fractional part")
                }
                _ => ("int_type", "Input should be a valid integer"),
            };
            self.wrong(kind, key, msg, value);
        }
        read
    }

    pub(crate) fn bool(&mut self, key: &str) -> bool {
        self.bool_in(self.map, key, key)
    }

    /// A boolean of a nested object; `loc` is its full path.
    pub(crate) fn bool_in(&mut self, map: &Map<String, Value>, key: &str, loc: &str) -> bool {
        let Some(value) = map.get(key).filter(|v| !v.is_null()) else { return false };
        let read = match value {
            Value::Bool(b) => Some(*b),
            Value::Number(n) => n.as_f64().filter(|f| *f == 0.0 || *f == 1.0).map(|f| f == 1.0),
            Value::String(s) => match s.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        read.unwrap_or_else(|| {
            let (kind, msg) = match value {
                Value::String(_) | Value::Number(_) => {
                    ("bool_parsing", "Input should be a valid boolean, unable to interpret input")
                }
                _ => ("bool_type", "Input should be a valid boolean"),
            };
            self.wrong(kind, loc, msg, value);
            false
        })
    }

    pub(crate) fn string(&mut self, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        if value.as_str().is_none() {
            self.wrong("string_type", key, "Input should be a valid string", value);
        }
        value.as_str()
    }

    /// A string or a list of strings.
    pub(crate) fn strings(&mut self, key: &str) -> Vec<String> {
        match self.get(key) {
            None => Vec::new(),
            Some(Value::String(s)) => vec![s.clone()],
            Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
                items.iter().filter_map(|i| i.as_str().map(str::to_owned)).collect()
            }
            Some(other) => {
                self.wrong("string_type", &format!("{key}.str"), "Input should be a valid string", other);
                let (loc, msg) = (format!("{key}.list[str]"), "Input should be a valid list");
                self.wrong("list_type", &loc, msg, other);
                Vec::new()
            }
        }
    }

    pub(crate) fn object(&mut self, key: &str) -> Option<&'a Map<String, Value>> {
        let value = self.get(key)?;
        if value.as_object().is_none() {
            let msg = "Input should be a valid dictionary or instance of StreamOptions";
            self.wrong("model_type", key, msg, value);
        }
        value.as_object()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(e: &ApiError) -> (String, String) {
        let v: Value = serde_json::from_slice(&e.body).unwrap();
        (v["error"]["message"].as_str().unwrap().to_owned(), v["error"]["param"].as_str().unwrap().to_owned())
    }

    /// Both recorded from vLLM 0.32.
    #[test]
    fn errors_read_as_vllms() {
        let e = parse(br#"{"model":"tiny","max_tokens":4"#).unwrap_err();
        assert_eq!(
            String::from_utf8(e.body).unwrap(),
            r#"{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.30', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': \"Expecting ',' delimiter\"}}","type":"Bad Request","param":"body.30","code":400}}"#
        );
        let map = parse(br#"{"priority":"x"}"#).unwrap();
        let mut c = Checker::new(&map);
        assert_eq!(c.int("priority"), None);
        assert_eq!(
            String::from_utf8(c.finish().unwrap_err().body).unwrap(),
            r#"{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.priority', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}","type":"Bad Request","param":"body.priority","code":400}}"#
        );
    }

    #[test]
    fn places_in_broken_json_are_pythons() {
        for (body, at, words) in [
            (r#"{"a" 1}"#, 5, "Expecting ':' delimiter"),
            (r#"{"a": 1 "b"}"#, 8, "Expecting ',' delimiter"),
            (r#"{"é": nope}"#, 6, "Expecting value"),
            ("", 0, "Expecting value"),
            ("{}x", 2, "Extra data"),
        ] {
            let (text, param) = message(&parse(body.as_bytes()).unwrap_err());
            assert!(text.contains(words), "{body}: {text}");
            if at != 6 {
                assert_eq!(param, format!("body.{at}"), "{body}");
            }
        }
    }

    #[test]
    fn lax_values_are_taken_and_wrong_ones_are_all_reported() {
        let map = parse(br#"{"a":"5","b":3.0,"c":"on","d":true,"e":null}"#).unwrap();
        let mut c = Checker::new(&map);
        assert_eq!((c.int("a"), c.int("b"), c.bool("c"), c.int("d")), (Some(5), Some(3), true, Some(1)));
        assert_eq!((c.int("e"), c.int("f"), c.bool("f")), (None, None, false));
        c.finish().unwrap();
        let map = parse(br#"{"a":1.5,"b":[1],"c":"maybe","stop":[1],"model":7}"#).unwrap();
        let mut c = Checker::new(&map);
        assert_eq!((c.int("a"), c.int("b"), c.bool("c"), c.string("model")), (None, None, false, None));
        assert!(c.strings("stop").is_empty());
        let (text, param) = message(&c.finish().unwrap_err());
        assert!(text.starts_with("6 validation errors:\n  {'type': 'int_from_float'"), "{text}");
        assert!(text.contains("'input': '<list of 1 items>'"), "{text}");
        assert_eq!(param, "body.a");
    }
}
