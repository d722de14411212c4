//! A run as a trace for ui.perfetto.dev and chrome://tracing: the JSON form of the Trace Event Format
//! ("Trace Event Format", Google, 2016).
//!
//! One process for the router with counters of its queues, saturation and ceilings and the requests that
//! were never sent on; one per endpoint with its counters and its requests, a track set per class. A request
//! is a nestable asynchronous slice with its phases inside; a preemption is an instant in it.

use crate::about::About;
use forebay_base::Nanos;
use forebay_records::Row;
use forebay_sim::{Point, Preemption, Timeline};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Requests that a trace holds at most. The trace of so many has some 100 MB, about what a browser takes.
pub const MOST: usize = 100_000;

/// The router's process; endpoints follow. Number 0 is taken by the idle process of Linux traces.
const ROUTER: u64 = 1;

/// What a trace is made of.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// What was run.
    pub about: &'a About,
    /// Every request, by number.
    pub rows: &'a [Row],
    /// Who lost their blocks when.
    pub preemptions: &'a [Preemption],
    /// The system over time.
    pub timeline: &'a Timeline,
    /// What was still running ends here.
    pub ended_at: Nanos,
    /// The stretch of time that is wanted: what overlaps it is in the trace.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
}

/// What a trace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Requests in it.
    pub requests: usize,
    /// Requests of the stretch that were beyond [`MOST`].
    pub left_out: usize,
    /// The end of the trace: what was asked for, or the arrival of the first request left out.
    pub to: Nanos,
}

/// Microseconds; a double has room for the nanoseconds of a hundred days.
fn micros(at: Nanos) -> f64 {
    at.0 as f64 / 1000.0
}

struct Events<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
    fn counter(&mut self, pid: u64, at: Nanos, name: &str, args: &Value) -> io::Result<()> {
        self.event(&json!({"ph": "C", "pid": pid, "tid": pid, "ts": micros(at), "name": name, "args": args}))
    }
    /// An event of a request's track.
    fn step(
        &mut self,
        ph: &str,
        pid: u64,
        id: u64,
        at: Nanos,
        name: &str,
        args: Option<Value>,
    ) -> io::Result<()> {
        let mut e = json!({
            "ph": ph, "cat": "request", "pid": pid, "tid": pid, "id2": {"local": format!("0x{id:x}")},
            "ts": micros(at), "name": name,
        });
        if let (Some(args), Some(map)) = (args, e.as_object_mut()) {
            map.insert("args".to_owned(), args);
        }
        self.event(&e)
    }
}

impl Trace<'_> {
    /// Writes the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, mut out: impl Write) -> io::Result<Written> {
        let ends = |r: &Row| r.finished.unwrap_or(self.ended_at);
        let wanted = || self.rows.iter().filter(|r| r.arrived < self.to && ends(r) >= self.from);
        let left_out = wanted().count().saturating_sub(MOST);
        let to = wanted().nth(MOST).map_or(self.to.min(self.ended_at), |r| r.arrived);
        let requests = wanted().count().min(MOST);
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
        serde_json::to_writer(
            &mut out,
            &json!({
                "workload": self.about.workload, "cluster": self.about.cluster, "configuration": self.about.config,
                "seed": self.about.seed.map(|s| s.to_string()), "requests": requests.to_string(),
                "requests_left_out": left_out.to_string(),
            }),
        )?;
        out.write_all(b",\"traceEvents\":[\n")?;
        let mut events = Events { out, first: true };
        self.names(&mut events)?;
        let mut preemptions = self.preemptions.to_vec();
        preemptions.sort_by_key(|p| (p.number, p.at));
        for row in wanted().take(MOST) {
            let first = preemptions.partition_point(|p| p.number < row.number);
            let its = preemptions[first..].iter().take_while(|p| p.number == row.number);
            self.request(&mut events, row, &its)?;
        }
        let points = self.timeline.points.iter();
        for p in points.filter(|p| self.from <= p.at && p.at <= to) {
            self.point(&mut events, p)?;
        }
        events.out.write_all(b"\n]}\n")?;
        events.out.flush()?;
        Ok(Written { requests, left_out, to })
    }

    fn names(&self, events: &mut Events<impl Write>) -> io::Result<()> {
        let endpoints = self.about.endpoints.iter().enumerate();
        let all = endpoints.map(|(i, name)| (ROUTER + 1 + i as u64, format!("endpoint {name}")));
        for (pid, name) in [(ROUTER, "router".to_owned())].into_iter().chain(all) {
            let name_of = json!({"name": name});
            events.event(
                &json!({"ph": "M", "pid": pid, "tid": pid, "name": "process_name", "args": name_of}),
            )?;
            let place = json!({"sort_index": pid});
            events.event(
                &json!({"ph": "M", "pid": pid, "tid": pid, "name": "process_sort_index", "args": place}),
            )?;
        }
        Ok(())
    }

    fn request<'p>(
        &self,
        events: &mut Events<impl Write>,
        row: &Row,
        preemptions: &(impl Iterator<Item = &'p Preemption> + Clone),
    ) -> io::Result<()> {
        let pid = row.endpoint.map_or(ROUTER, |e| ROUTER + 1 + u64::from(e));
        let class = self.about.classes.get(usize::from(row.class)).map_or("request", |c| c.name.as_str());
        let end = row.finished.unwrap_or(self.ended_at).max(row.arrived);
        let args = json!({
            "number": row.number, "priority": row.priority, "flow": row.flow, "end": row.end.label(),
            "reason": row.end.reason(), "prompt_tokens": row.prompt_tokens, "cached_tokens": row.cached_tokens,
            "output_tokens": row.output_tokens, "preemptions": row.preemptions,
        });
        let id = row.number;
        events.step("b", pid, id, row.arrived, class, Some(args))?;
        let steps = [
            ("queued", Some(row.arrived)),
            ("network", row.dispatched),
            ("engine wait", row.engine_arrived),
            ("prefill", row.scheduled),
            ("decode", row.first_token),
        ];
        for (i, (name, from)) in steps.iter().enumerate() {
            let Some(from) = *from else { break };
            let to = steps.get(i + 1).and_then(|s| s.1).unwrap_or(end).min(end);
            if to > from {
                events.step("b", pid, id, from, name, None)?;
                // What an engine has scheduled it can preempt.
                let inside = preemptions.clone().filter(|p| i > 2 && from <= p.at && p.at < to);
                for p in inside {
                    events.step("n", pid, id, p.at, "preempted", Some(json!({"lost_tokens": p.lost})))?;
                }
                events.step("e", pid, id, to, name, None)?;
            }
        }
        events.step("e", pid, id, end, class, None)
    }

    fn point(&self, events: &mut Events<impl Write>, p: &Point) -> io::Result<()> {
        let by_band = |v: &dyn Fn(usize) -> Option<Value>| {
            let bands = self.timeline.bands.iter().enumerate();
            let all = bands.filter_map(|(i, b)| v(i).map(|v| (format!("band {b}"), v)));
            Value::Object(all.collect())
        };
        events.counter(ROUTER, p.at, "saturation", &json!({"value": p.saturation}))?;
        events.counter(ROUTER, p.at, "ceiling", &by_band(&|i| p.ceilings.get(i).map(|v| json!(v))))?;
        events.counter(ROUTER, p.at, "queued", &by_band(&|i| p.queued.get(i).map(|v| json!(v))))?;
        events.counter(ROUTER, p.at, "requests", &json!({"inside": p.live}))?;
        for (i, s) in p.servers.iter().enumerate() {
            let pid = ROUTER + 1 + i as u64;
            events.counter(pid, p.at, "requests", &json!({"waiting": s.waiting, "running": s.running}))?;
            events.counter(pid, p.at, "KV blocks", &json!({"used": s.kv}))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;
    use forebay_records::End;
    use forebay_sim::ServerPoint;
    use forebay_workload::{Kind, Mode};

    fn about() -> About {
        About {
            workload: "w".into(),
            cluster: "c".into(),
            config: "f".into(),
            config_text: String::new(),
            seed: Some(1),
            mode: Mode { kind: Kind::Surge, window: Span::secs(1), warmup: Span::ZERO, drain: Span::secs(1) },
            classes: Vec::new(),
            endpoints: vec!["a".into(), "b".into()],
            incidents: Vec::new(),
        }
    }

    fn row(number: u64) -> Row {
        let at = |ns| Some(Nanos(number * 100_000 + ns));
        Row {
            dispatched: at(1_000),
            engine_arrived: at(1_000),
            scheduled: at(2_500),
            first_token: at(5_000),
            finished: at(9_001),
            endpoint: Some(1),
            end: End::Finished,
            ..Row::arriving(number, 0, Nanos(number * 100_000))
        }
    }

    fn written(rows: &[Row], to: Nanos) -> (Written, Value) {
        let lost = |number, at| Preemption { at: Nanos(at), number, endpoint: 1, lost: 7 };
        let servers = vec![ServerPoint { waiting: 1, running: 2, kv: 0.5 }; 2];
        let point = Point {
            at: Nanos(0),
            saturation: 0.5,
            ceilings: vec![1.0],
            queued: vec![3],
            live: 4,
            servers,
            ready: 2,
        };
        let trace = Trace {
            about: &about(),
            rows,
            preemptions: &[lost(0, 6_000), lost(3, 306_000)],
            timeline: &Timeline { bands: vec![100], points: vec![point] },
            ended_at: Nanos(1_000_000),
            from: Nanos(0),
            to,
        };
        let mut out = Vec::new();
        let w = trace.write(&mut out).unwrap();
        (w, serde_json::from_slice(&out).unwrap())
    }

    /// What the format asks for: a stack of slices per track that is closed at the end, in the order of time.
    #[test]
    fn slices_nest_and_preemptions_lie_in_them() {
        let refused =
            Row { end: End::Rejected("full"), finished: Some(Nanos(400)), ..Row::arriving(1, 0, Nanos(300)) };
        let alive =
            Row { dispatched: None, endpoint: None, finished: None, ..Row::arriving(2, 0, Nanos(500)) };
        let (w, trace) = written(&[row(0), refused, alive, row(3)], Nanos::NEVER);
        assert_eq!((w.requests, w.left_out, w.to), (4, 0, Nanos(1_000_000)));
        let mut open: std::collections::BTreeMap<String, (f64, Vec<String>)> =
            std::collections::BTreeMap::new();
        let mut seen = Vec::new();
        for e in trace["traceEvents"].as_array().unwrap() {
            assert!(e["pid"].as_u64().unwrap() >= ROUTER && e["name"].is_string());
            let ph = e["ph"].as_str().unwrap();
            if ph == "M" || ph == "C" {
                continue;
            }
            let track = format!("{} {}", e["pid"], e["id2"]["local"].as_str().unwrap());
            let (last, stack) = open.entry(track).or_default();
            let (ts, name) = (e["ts"].as_f64().unwrap(), e["name"].as_str().unwrap().to_owned());
            assert!(ts >= *last, "{e}");
            *last = ts;
            match ph {
                "b" => stack.push(name),
                "e" => assert_eq!(stack.pop(), Some(name)),
                "n" => seen.push(format!("{name} in {} at {ts}", stack.join("/"))),
                other => panic!("{other}"),
            }
        }
        assert!(open.values().all(|(_, stack)| stack.is_empty()) && open.len() == 4);
        assert_eq!(seen, ["preempted in request/decode at 6", "preempted in request/decode at 306"]);
    }

    /// What the format asks of each phase of events, and what its readers need to name them.
    #[test]
    fn every_event_has_what_its_phase_needs() {
        let (_, trace) = written(&[row(0), row(3)], Nanos::NEVER);
        assert_eq!(trace["displayTimeUnit"], "ms");
        let events = trace["traceEvents"].as_array().unwrap();
        let named: std::collections::BTreeSet<u64> = events
            .iter()
            .filter(|e| e["name"] == "process_name" && e["args"]["name"].is_string())
            .map(|e| e["pid"].as_u64().unwrap())
            .collect();
        assert_eq!(named, [ROUTER, ROUTER + 1, ROUTER + 2].into());
        let mut phases = std::collections::BTreeMap::new();
        for e in events {
            let ph = e["ph"].as_str().unwrap();
            *phases.entry(ph.to_owned()).or_insert(0) += 1;
            assert!(named.contains(&e["pid"].as_u64().unwrap()) && e["tid"].is_u64(), "{e}");
            match ph {
                "M" => assert!(e.get("ts").is_none(), "{e}"),
                "C" => {
                    let values = e["args"].as_object().unwrap();
                    assert!(!values.is_empty() && values.values().all(Value::is_number), "{e}");
                }
                _ => assert!(
                    e["cat"] == "request" && e["id2"]["local"].as_str().unwrap().starts_with("0x"),
                    "{e}"
                ),
            }
            assert!(ph == "M" || e["ts"].as_f64().unwrap() >= 0.0, "{e}");
        }
        assert_eq!(phases["b"], phases["e"]);
        // Microseconds: request 3 arrives after 300 000 ns and ends 9 001 ns later.
        let of_3 = |ph: &str| {
            let times = events.iter().filter(|e| e["ph"] == ph && e["id2"]["local"] == "0x3");
            times.map(|e| e["ts"].as_f64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((of_3("b")[0], of_3("e").last().copied()), (300.0, Some(309.001)));
    }

    #[test]
    fn a_trace_is_bounded_and_a_stretch_of_time() {
        let (w, trace) = written(&[row(0), row(1), row(2)], Nanos(150_000));
        assert_eq!((w.requests, w.left_out, w.to), (2, 0, Nanos(150_000)));
        assert_eq!(trace["otherData"]["requests"], "2");
        let many: Vec<Row> = (0..MOST as u64 + 5).map(row).collect();
        let (w, _) = written(&many, Nanos::NEVER);
        assert_eq!((w.requests, w.left_out, w.to), (MOST, 5, Nanos(MOST as u64 * 100_000)));
    }
}
