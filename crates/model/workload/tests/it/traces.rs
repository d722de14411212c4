//! Traces in their published forms. The rows here are made up.

use crate::all;
use forebay_base::Span;
use forebay_workload::{Format, Trace, Workload};
use std::sync::Arc;

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [7, 8, 9]}
{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [10]}
{"timestamp": 3000, "input_length": 40, "output_length": 2, "hash_ids": [11]}
"#;
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens
2020-01-01 23:59:59.9000000,10,20
2020-01-02 00:00:00.4000000,30,40";
const BURST: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,100,10,110,Conversation log
7,GPT-4,0,0,0,API log
9,GPT-4,300,30,330,API log
9,ChatGPT,50,5,55,API log
";
const BURST_3: &str =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,12,1.25,GPT-4,100,10,110,Conversation log
";
const ACCESS: &str = r#"{"time":"2026-12-01T00:00:02.500Z","request_id":"b","model":"m","objective":"critical","status":200,"end":"finished","request_bytes":400,"prompt_tokens":90,"output_tokens":20}
{"time":"2026-12-01T00:00:01.000Z","request_id":"a","model":"m","objective":"batch","status":200,"end":"finished","request_bytes":4000,"output_tokens":50,"estimated":true}
{"time":"2026-12-01T00:00:03.000Z","request_id":"c","model":"m","objective":"batch","status":429,"end":"refused","request_bytes":8000}
{"time":"2026-12-01T00:00:03.500Z","request_id":"d","status":200,"end":"finished","request_bytes":0}
"#;

fn read(text: &str, format: Format) -> Arc<Trace> {
    assert_eq!(Format::guess(text), Some(format));
    assert_eq!(Format::guess_of(&text.into()).expect("a text"), Some(format));
    Arc::new(Trace::read(text, "t", format).unwrap_or_else(|found| panic!("{found}")))
}

fn owned(text: &str, format: Format) -> Trace {
    Arc::unwrap_or_clone(read(text, format))
}

/// Milliseconds, prompt, answer, label.
fn rows(t: &Arc<Trace>) -> Vec<(u64, u32, u32, &str)> {
    let walk = t.walk(Span::ZERO).map(|w| w.row);
    walk.map(|r| (r.at.0 / 1_000_000, r.prompt_tokens, r.output_tokens, t.label(&r))).collect()
}

#[test]
fn each_format_is_read_in_its_own_units() {
    let t = read(MOONCAKE, Format::Mooncake);
    assert_eq!(rows(&t), [(0, 600, 5, ""), (0, 1100, 6, ""), (0, 512, 1, ""), (3000, 40, 2, "")]);
    assert_eq!((t.block_tokens, t.walk(Span::ZERO).nth(1).unwrap().blocks), (512, vec![7, 8, 9]));
    let t = read(AZURE, Format::Azure);
    assert_eq!(rows(&t), [(0, 10, 20, ""), (500, 30, 40, "")]);
    assert_eq!((t.rate(), t.span().as_secs_f64()), (2.0, 0.5));
    let t = read(BURST, Format::BurstGpt);
    assert_eq!(rows(&t), [(0, 100, 10, "ChatGPT"), (4000, 300, 30, "GPT-4"), (4000, 50, 5, "ChatGPT")]);
    assert_eq!((t.skipped, t.labels().len()), (1, 2));
    let t = read(BURST_3, Format::BurstGpt);
    assert_eq!(rows(&t), [(0, 100, 10, "GPT-4")], "columns are found by name");
    // Sorted by arrival; a refused request keeps its place, with the prompt its body had and an answer of its
    // own class; what is no generation is left out.
    let t = read(ACCESS, Format::AccessLog);
    assert_eq!(rows(&t), [(0, 1000, 50, "batch"), (1500, 90, 20, "critical"), (2000, 2000, 50, "batch")]);
    assert_eq!((t.filled, t.skipped), (1, 1));
}

fn workload(trace: &str, feed: &str) -> Result<Workload, String> {
    let yaml = format!(
        "version: 1\nname: t\nmode: {{kind: surge, window: 1h}}\nclasses: {{a: {{priority: 1}}, b: {{priority: 2}}}}\n\
         traces:\n  - {{file: x, {feed}}}\n"
    );
    let mut files = |name: &str| if name == "x" { Ok(trace.into()) } else { Err("is missing".into()) };
    Workload::read_with(&yaml, "w", &mut files).map_err(|found| found.to_string())
}

#[test]
fn rows_go_to_their_classes_at_their_times() {
    let w = workload(BURST, "labels: {GPT-4: b}, class: a, rateScale: 2").unwrap();
    let seen: Vec<_> =
        all(&w, 1).iter().map(|a| (a.at.0 / 1_000_000, a.class, a.priority, a.prompt_tokens)).collect();
    assert_eq!(
        seen,
        [(0, 0, 1, 100), (2000, 1, 2, 300), (2000, 0, 1, 50)],
        "rows of one stamp keep their order"
    );
    assert!((w.rate() - 1.0).abs() < 1e-12, "2 gaps in 2 s");
    assert!((w.with_rate(4.0).rate() - 4.0).abs() < 1e-12);
}

#[test]
fn a_trace_alone_is_a_workload() {
    let w = Workload::of_trace(owned(BURST, Format::BurstGpt), "burst.csv");
    let names: Vec<&str> = w.classes.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["ChatGPT", "GPT-4"]);
    let a = all(&w, 1);
    assert_eq!(
        a.iter().map(|a| (a.class, a.prompt_tokens)).collect::<Vec<_>>(),
        [(0, 100), (1, 300), (0, 50)]
    );
    assert_eq!(all(&w.with_limit(2), 1).len(), 2);
    assert!((w.with_limit(2).rate() - 0.25).abs() < 1e-12);
    assert_eq!(Workload::of_trace(owned(AZURE, Format::Azure), "a").classes[0].name, "requests");
}

#[test]
fn rows_have_no_sessions() {
    let yaml = "version: 1\nname: t\nmode: {kind: surge, window: 1h}\nclasses: {a: {sessions: {turns: 2}}, b: {}}\n\
                traces: [{file: x, class: a}]\n";
    let found = Workload::read_with(yaml, "w", &mut |_| Ok(AZURE.into())).unwrap_err().to_string();
    assert_eq!(
        found,
        "error: w:4:11: classes.a: rows of a trace have no sessions and no retries; expected the field arrivals\n\
         error: w:4:38: classes.b: the class has no requests; expected the field arrivals, or a trace that feeds it"
    );
}

#[test]
fn shares_hold_over_many_rows() {
    use std::fmt::Write as _;
    let mut trace = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    for i in 0..3000 {
        let _ = writeln!(trace, "2020-01-01 00:{:02}:{:02}.0,10,20", i / 60, i % 60);
    }
    let w = workload(&trace, "shares: {a: 3, b: 1}").unwrap();
    let a = all(&w, 1);
    assert_eq!(a.len(), 3000);
    let share = a.iter().filter(|a| a.class == 0).count();
    assert!((2150..2350).contains(&share), "{share}");
    assert_eq!(all(&workload(&trace, "shares: {a: 3, b: 1}, limit: 7").unwrap(), 1).len(), 7);
}

#[test]
fn blocks_of_512_become_blocks_of_16() {
    let w = workload(MOONCAKE, "shares: {a: 1, b: 1}").unwrap();
    let a = all(&w, 1);
    let of = |prompt: u32| a.iter().find(|a| a.prompt_tokens == prompt).unwrap();
    let (x, y, z) = (of(600), of(1100), of(512));
    assert_eq!((x.prefix.len(), y.prefix.len(), z.prefix.len()), (37, 68, 32));
    assert_eq!(x.prefix[..], y.prefix[..37], "two ids in common");
    assert!(x.prefix.iter().all(|h| !z.prefix.contains(h)));
    let unique: std::collections::BTreeSet<_> = y.prefix.iter().collect();
    assert_eq!(unique.len(), 68);
}

#[test]
fn rows_of_one_stamp_may_be_spread() {
    let w = workload(MOONCAKE, "shares: {a: 1, b: 1}, spread: 1500ms").unwrap();
    let at: Vec<u64> = all(&w, 1).iter().map(|a| a.at.0 / 1_000_000).collect();
    assert_eq!(at, [0, 500, 1000, 3000]);
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (text, format, message) in [
        (
            MOONCAKE.replace("[7, 8, 9]", "[7, 8]"),
            Format::Mooncake,
            "error: t:2:1: hash_ids: 2 ids for 1100 tokens, where blocks of 512 make 3",
        ),
        (AZURE.replace("30", "x"), Format::Azure, "error: t:3:1: ContextTokens: \"x\" is no count"),
        (
            AZURE.replace("2020-01-02", "yesterday"),
            Format::Azure,
            "error: t:3:1: TIMESTAMP: \"yesterday 00:00:00.4000000\" is no date",
        ),
        (
            BURST.replace("Request tokens", "Requests tokens"),
            Format::BurstGpt,
            "error: t:1:1: Request tokens: the column is missing; did you mean \"Requests tokens\"?",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens".into(),
            Format::Azure,
            "error: t: the trace has no requests",
        ),
        ("{\n".into(), Format::Mooncake, "error: t:1:1: EOF while parsing an object at line 1 column 1"),
    ] {
        let found = Trace::read(&text, "t", format).unwrap_err().to_string();
        assert_eq!(found, message);
    }
    assert_eq!(
        workload(AZURE, "class: c").unwrap_err(),
        "error: w:6:22: traces[0].class: there is no class \"c\"; did you mean \"a\"?"
    );
    assert_eq!(
        workload(AZURE, "class: a, shares: {b: 1}").unwrap_err().lines().next(),
        Some(
            "error: w:6:5: traces[0]: which class the rows go to is not given, or twice; expected class or shares, and \
             labels beside it if some rows differ"
        )
    );
}

/// A client with an idle hour between two windows, and lengths that change.
#[test]
fn servegen_clients_have_their_windows() {
    let windows = "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n1200,5,2,Weibull,0.7,0.1\n1800,1,1,Exp,1,1\n";
    let lengths = r#"{"0": {"input_tokens": "{}", "output_tokens": "{}"},
        "21600": {"input_tokens": "{100: 0.5, 200.0: 5e-1}", "output_tokens": "{7: 1}"}}"#;
    let read = |windows: &str, start: &str| {
        let mut files = |name: &str| match name {
            "w" => Ok(windows.into()),
            "l" => Ok(lengths.into()),
            _ => Err("is missing".to_owned()),
        };
        let yaml = format!(
            "version: 1\nname: t\nmode: {{kind: surge, window: 2h}}\nclasses:\n  \
             c: {{arrivals: {{process: servegen, trace: w, dataset: l{start}}}}}\n"
        );
        Workload::read_with(&yaml, "t", &mut files).map_err(|found| found.to_string())
    };
    assert_eq!(
        read(windows, "").unwrap_err(),
        "error: w:4:1: \"Exp\" with the shape Some(\"1\"); expected Gamma or Weibull with a positive shape"
    );
    let windows = &windows[..windows.len() - "1800,1,1,Exp,1,1\n".len()];
    let w = read(windows, "").unwrap();
    let a = all(&w, 1);
    let count =
        |from: u64, to: u64| a.iter().filter(|a| (from..to).contains(&(a.at.0 / 1_000_000_000))).count();
    assert_eq!((count(0, 600), count(600, 1200), count(1200, 1800), a.len()), (1200, 0, 3000, 4200));
    assert!(a.iter().all(|a| (a.prompt_tokens == 100 || a.prompt_tokens == 200) && a.output_tokens == 7));
    let later = all(&read(windows, ", start: 20m, scale: 2").unwrap(), 1);
    assert_eq!(later.len(), 6000);
    assert!(later.iter().all(|a| a.at.0 < 600_000_000_000));
}
