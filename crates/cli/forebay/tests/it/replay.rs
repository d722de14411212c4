//! `forebay replay`: a log that the kernel wrote, unchanged and changed.

use crate::{Run, file, run};
use forebay_base::{Nanos, Span};
use forebay_config::{Manifests, Options, load};
use forebay_kernel::journal::Journal;
use forebay_kernel::{Ask, Effects, EndpointSpec, Kernel, Reading, Sample, plugins};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const ARTICLE: &str = include_str!("../../../../../examples/article.yaml");
const OBJECTIVES: &str = "\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: critical}
spec: {priority: 100}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: sheddable}
spec: {priority: -50}
";

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<String>>);

impl Journal for Shared {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap().line(line);
    }
}

/// Ten requests of each class at a saturation of 0.6, and whatever the kernel does within a second.
fn log() -> String {
    let config = load(ARTICLE, "", plugins::ALL, Options::default()).unwrap();
    let manifests = Manifests::read([("", OBJECTIVES)]).unwrap();
    let journal = Shared::default();
    let mut fx = Effects { journal: Some(Box::new(journal.clone())), ..Effects::new() };
    let plan = Arc::new(config.plan(&manifests.priorities()));
    let mut k = Kernel::new(plan, 42, Nanos::ZERO, &mut fx);
    let end = k.add_endpoint(Nanos::ZERO, EndpointSpec::named("a"), &mut fx);
    for ms in 0..1_000 {
        let now = Nanos::ZERO + Span::millis(ms);
        while let Some(wake) = k.next_wake().filter(|&w| w <= now) {
            k.wake(wake, &mut fx);
        }
        if ms % 50 == 0 {
            let sample = Sample {
                waiting: Reading::Value(3.0),
                running: Reading::Value(1.0),
                kv: Reading::Value(0.1),
                block_tokens: Some(16),
                blocks: Some(1000),
            };
            k.scraped(now, end, now, &sample, &mut fx);
        }
        if ms % 100 == 7 {
            for (flow, priority) in [("a", 100), ("b c", -50)] {
                let ask = Ask { flow, priority, bytes: 10, prompt_tokens: 3, ..Ask::default() };
                k.offer(now, &ask, &mut fx);
            }
        }
    }
    journal.0.lock().unwrap().clone()
}

fn replayed(name: &str, log: &str) -> (PathBuf, Run) {
    let objectives = file(&format!("{name}-objectives.yaml"), OBJECTIVES);
    let path = file(&format!("{name}.log"), log);
    let r = run(&[
        "replay",
        "--allow-experimental-plugins",
        "--config",
        "examples/article.yaml",
        "--objectives",
        objectives.to_str().unwrap(),
        path.to_str().unwrap(),
    ]);
    (path, r)
}

#[test]
fn a_log_replays_to_the_same_decisions() {
    let log = log();
    let (inputs, decisions) = log
        .lines()
        .skip(1)
        .fold((0, 0), |(i, d), l| if l.starts_with('>') { (i + 1, d) } else { (i, d + 1) });
    assert!(inputs > 40 && log.matches(" dispatch ").count() == 20, "{log}");
    let (_, r) = replayed("same", &log);
    let counts = format!("{inputs} inputs, {decisions} decisions, {} lines\n", log.lines().count());
    assert_eq!(r.good(), format!("{counts}every decision came out as logged\n"));
}

#[test]
fn the_first_line_that_differs_is_shown() {
    let log = log();
    let (at, dispatch) = log.lines().enumerate().find(|(_, l)| l.contains(" dispatch ")).unwrap();
    let changed = dispatch.replacen(" dispatch ", " end ", 1);
    let (path, r) = replayed("different", &log.replacen(dispatch, &changed, 1));
    assert_eq!(r.code, 1);
    assert_eq!(
        r.err,
        format!(
            "error: {}:{}: the replay differs from here on\n  logged:   {changed}\n  replayed: {dispatch}\n",
            path.display(),
            at + 1
        )
    );
}

#[test]
fn a_log_that_is_none_names_its_line() {
    let mut text = log();
    let lines = text.lines().count();
    text.push_str("> soon wake\n");
    let (path, r) = replayed("unreadable", &text);
    assert_eq!((r.code, r.out.as_str()), (64, ""));
    let place = format!("error: {}:{}:1: found \"soon\"; expected an instant", path.display(), lines + 1);
    assert!(r.err.starts_with(&place), "{}", r.err);
    let (path, r) = replayed("empty", "");
    assert_eq!(r.code, 64);
    assert!(r.err.starts_with(&format!("error: {}:1:1: the log is empty", path.display())), "{}", r.err);
}
