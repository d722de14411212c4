use super::*;
use forebay_records::{End, Live};

fn workload() -> Workload {
    let text = "version: 1\nname: t\nmode: {kind: surge, window: 100s}\nclasses:\n  a: {arrivals: {process: constant, rate: 10}, input: 20, output: 8, slo: {ttft: 50ms}}\n  b: {arrivals: {process: constant, rate: 10}, input: 20, output: 8}\n";
    Workload::read(text, "t").unwrap()
}

/// One request of class a each 10 ms: sent 1 ms late, first token 40 ms after its time, two tokens per chunk.
fn records(n: u64, fail: impl Fn(u64) -> bool) -> Vec<Record> {
    let one = |number| {
        let at = Nanos(number * 10_000_000);
        let mut row = Row::arriving(number, 0, at);
        let mut live = Live {
            sent: Some(at + Span::millis(1)),
            asked_prompt_tokens: 20,
            asked_output_tokens: 8,
            ..Live::default()
        };
        if fail(number) {
            (row.end, row.finished, live.error) =
                (End::Failed, Some(at + Span::millis(2)), Some("broke-off"));
            return Record { row, live };
        }
        row = Row {
            first_token: Some(at + Span::millis(40)),
            finished: Some(at + Span::millis(100)),
            end: End::Finished,
            prompt_tokens: 22,
            output_tokens: 8,
            first_tokens: 2,
            ..row
        };
        live.first_output = Some(at + Span::millis(60));
        live.closed = Some(at + Span::millis(105));
        live.chunks = 4;
        live.counted = Counted::Server;
        Record { row, live }
    };
    (0..n).map(one).collect()
}

#[test]
fn figures_count_from_the_schedule_and_service_times_from_the_sending() {
    let all = records(4000, |_| false);
    let mut gaps = vec![Gaps::default(), Gaps::default()];
    gaps[0].chunk.record_many(20_000, 12_000);
    gaps[0].token.record_many(10_000, 24_000);
    (gaps[0].of, gaps[0].told) = (4000, 0);
    let o = Observed::of_records(&all, &gaps, &workload(), Nanos(41_000_000_000));
    let p99 = |f: &Figures| f.quantiles[3].value;
    let (s, l) = (&o.summary.classes[0], &o.classes[0]);
    assert_eq!(p99(s.figure(Metric::Ttft)), Some(40_000_000));
    assert_eq!(p99(s.figure(Metric::Tpot)), Some(10_000_000), "six tokens after the first two in 60 ms");
    assert_eq!(p99(s.figure(Metric::Itl)), Some(10_000));
    assert_eq!(p99(l.figure(LiveMetric::ChunkGap)), Some(20_000));
    assert_eq!(p99(l.figure(LiveMetric::Ttfo)), Some(60_000_000));
    assert_eq!(p99(l.figure(LiveMetric::ServiceTtft)), Some(39_000_000));
    assert_eq!(p99(l.figure(LiveMetric::ToClose)), Some(105_000_000));
    assert_eq!(p99(l.figure(LiveMetric::Lag)), Some(1_000_000));
    assert_eq!(
        (l.counted, l.tokens_per_chunk, l.other_length, l.prompt_ratio),
        ((4000, 4000), Some(2.0), 0, Some(1.1))
    );
    assert_eq!(s.goodput.unwrap().attained, 4000);
    assert_eq!(o.metrics(), [Metric::Ttft, Metric::Tpot, Metric::Itl, Metric::E2e]);
    let json = o.json();
    assert_eq!(json["classes"][0]["live"]["latencies"]["lag"]["p99_ns"]["value"], 1_000_000);
    assert_eq!((&json["schedule"]["valid"], &json["schedule"]["offered"]), (&json!(true), &json!(4000)));
    assert!(json.get("counters").is_none(), "a client knows no engine steps");
}

#[test]
fn goals_are_judged_by_the_rules_of_percentiles() {
    let goal =
        |ms| Goal { class: Some("a".into()), metric: "ttft".into(), quantile: 0.99, limit: Span::millis(ms) };
    let judge = |n, ms, fail: &dyn Fn(u64) -> bool| {
        let all = records(n, fail);
        let w = workload();
        let o = Observed::of_records(&all, &[], &w, Nanos(1));
        goal(ms).attained(&goal(ms).quantile_of(&o, &all, &w))
    };
    assert_eq!(judge(4000, 41, &|_| false), Attained::Yes);
    assert_eq!(judge(4000, 40, &|_| false), Attained::No);
    assert_eq!(judge(100, 41, &|_| false), Attained::Likely, "too few for an interval");
    assert_eq!(judge(4000, 41, &|n| n % 100 == 0), Attained::No, "1 % failed: undetermined");
}
