//! Against the emulator: lengths, caches, sessions, retries.

use crate::{checked, run, server, workload};
use forebay_base::Span;
use forebay_emulate::{Emulator, Faults, Options as Emulation};
use forebay_engine::EngineSpec;
use forebay_load::{Api, Options, Style, Watch, observe};
use forebay_records::{Counted, End};

/// An emulator with steps of about 0.2 ms, on a runtime of its own.
struct Emulated {
    emulator: Option<Emulator>,
    runtime: tokio::runtime::Runtime,
}

impl Emulated {
    fn start(faults: Faults) -> Emulated {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut spec = EngineSpec::named("tiny", "h100").unwrap();
        spec.hardware.factors.step = Span::micros(200);
        spec.hardware.factors.mixed = Span::ZERO;
        let options = Emulation { faults, ..Emulation::new(&spec.model) };
        let emulator = Some(runtime.block_on(Emulator::start(&spec, options)).unwrap());
        Emulated { emulator, runtime }
    }
    fn address(&self) -> String {
        self.emulator.as_ref().unwrap().addr().to_string()
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let emulator = self.emulator.take();
        let _inside = self.runtime.enter();
        drop(emulator);
    }
}

fn calibrated(e: &Emulated, style: Style) -> forebay_load::Server {
    let mut s = server(&e.address(), style).unwrap();
    s.calibrate(true, 99).unwrap();
    s
}

#[test]
fn lengths_are_the_workloads_in_chat_and_completions() {
    let e = Emulated::start(Faults::default());
    let class =
        "arrivals: {process: poisson, rate: 100}, input: {uniform: [30, 400]}, output: {uniform: [1, 20]}";
    let w = workload("window: 1s, drain: 10s", class);
    for (api, stream, overhead) in
        [(Api::Chat, true, 5.0), (Api::Completions, true, 0.0), (Api::Chat, false, 5.0)]
    {
        let s = calibrated(&e, Style { api, stream, ..Style::new(&w) });
        assert!(s.calibration.measured && s.calibration.per_word == 1.0, "{:?}", s.calibration);
        assert!(s.calibration.overhead >= overhead, "{:?}", s.calibration);
        assert_eq!(s.model, "tiny");
        let o = run(&w, &s);
        assert!(o.records.len() > 50);
        for r in &o.records {
            let asked = (r.live.asked_prompt_tokens, r.live.asked_output_tokens);
            assert_eq!((r.row.prompt_tokens, r.row.output_tokens), asked, "{r:?} {:?}", o.troubles);
            assert_eq!((r.row.end, r.live.counted), (End::Finished, Counted::Server));
        }
    }
}

#[test]
fn groups_pools_and_sessions_hit_the_prefix_cache() {
    let e = Emulated::start(Faults::default());
    for (class, least) in [
        ("prompts: {groups: 1, prefix: 320}, input: 32", 0.8),
        ("prompts: {groups: 2, pool: 2}, input: 320", 0.8),
        ("input: 160, sessions: {turns: 4, think: 0s}", 0.5),
        ("input: 320", 0.0),
    ] {
        let w = workload(
            "window: 2s, drain: 10s",
            &format!("arrivals: {{process: poisson, rate: 40}}, output: 32, {class}"),
        );
        for api in [Api::Chat, Api::Completions] {
            let o = run(&w, &calibrated(&e, Style { api, ..Style::new(&w) }));
            let (all, hit) = o.rows().fold((0, 0), |(a, h), r| (a + r.prompt_tokens, h + r.cached_tokens));
            let share = f64::from(hit) / f64::from(all);
            assert!(o.rows().all(forebay_records::Row::is_finished), "{:?}", o.troubles);
            assert!(share >= least && (least > 0.0 || share < 0.05), "{class} {api:?}: {share}");
            if class.contains("sessions") {
                let later = o.records.iter().filter(|r| r.live.asked_prompt_tokens > 160).count();
                assert!(later * 2 > o.records.len(), "{later} of {} are later turns", o.records.len());
                for r in &o.records {
                    let off = r.row.prompt_tokens.abs_diff(r.live.asked_prompt_tokens);
                    assert!(off <= 2, "{off} tokens off: {r:?}");
                }
            }
        }
    }
}

#[test]
fn refused_requests_come_again_and_each_send_is_a_record() {
    let faults =
        Faults { startup_duration_ms: 0, refuse: forebay_emulate::Refuse::Unavailable, ..Faults::default() };
    let e = Emulated::start(faults);
    let w = workload(
        "window: 500ms, drain: 5s",
        "arrivals: {process: constant, phase: 0, rate: 20}, input: 20, output: 3, retry: {attempts: 3, backoff: 10ms}",
    );
    let s = forebay_load::Server::find(
        forebay_load::Url::parse(&format!("http://{}", e.address())).unwrap(),
        Style::new(&w),
        Some("tiny"),
        forebay_load::Words::default(),
    );
    let o = run(&w, &s.unwrap());
    let attempts = |n| o.records.iter().filter(|r| r.live.attempt == n).count();
    assert_eq!((attempts(0), attempts(1), attempts(2), o.records.len()), (10, 10, 10, 30));
    assert!(o.records.iter().all(|r| r.row.end == End::Failed && r.live.error == Some("status-503")));
    assert_eq!(o.troubles["status-503"].count, 30);
}

#[test]
fn a_stop_ends_in_a_whole_record() {
    let e = Emulated::start(Faults::default());
    let w = workload(
        "window: 60s, drain: 60s",
        "arrivals: {process: constant, phase: 0, rate: 50}, input: 20, output: 3",
    );
    let s = server(&e.address(), Style::new(&w)).unwrap();
    let watch = Watch::new();
    let seen = std::thread::scope(|scope| {
        let run = scope.spawn(|| observe(&w, &s, &Options::new(1, 1), &watch).unwrap());
        // Once twenty have ended, the run is stopped.
        while watch.look().is_none_or(|v| v.finished < 20) {
            std::thread::yield_now();
        }
        watch.stop();
        checked(run.join().unwrap())
    });
    assert!(seen.stopped && seen.records.len() >= 20 && seen.records.len() < 2000);
    assert!(seen.workload.mode.window < Span::secs(30));
    assert!(seen.rows().all(forebay_records::Row::is_finished), "what was out came to its end");
    assert!(watch.look().is_none());
}
