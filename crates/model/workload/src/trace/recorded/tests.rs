use super::*;
use forebay_records::End;

fn head(start: u64, key: &str) -> String {
    format!(
        "{{\"format\":\"forebay-recording\",\"version\":1,\"started_unix_ns\":{start},\"started\":\"\",\"file\":1,\
         \"key\":\"{key}\",\"block_bytes\":256}}\n"
    )
}

fn entry(at: u64, priority: i32, blocks: &[u64]) -> Entry {
    let mut e = Entry {
        arrived_ns: at,
        priority,
        flow: "default-flow".into(),
        stream: true,
        request_bytes: 900,
        prompt_bytes: 256 * blocks.len() as u64,
        prompt_tokens: 64 * blocks.len() as u64,
        output_tokens: Some(10),
        end: "finished".into(),
        status: 200,
        dispatched_ns: Some(1_000),
        first_token_ns: Some(2_000),
        ended_ns: 5_000,
        ..Entry::default()
    };
    e.set_blocks(blocks.iter().copied());
    e
}

fn text(start: u64, key: &str, entries: &[Entry]) -> String {
    let lines = entries.iter().map(|e| serde_json::to_string(e).unwrap() + "\n");
    head(start, key) + &lines.collect::<String>()
}

fn read(files: &[String]) -> Recording {
    let files = files.iter().enumerate().map(|(i, t)| (format!("{i}.jsonl"), t.clone()));
    read_recording("rec", files).unwrap()
}

#[test]
fn requests_arrive_as_they_did_with_class_flow_and_prefix() {
    let critical = |at, blocks: &[u64]| Entry {
        objective: Some("critical".into()),
        flow: "tenant-1".into(),
        ..entry(at, 100, blocks)
    };
    // Written in the order of ends, in two files of two starts.
    let files = [
        text(5_000, "a", &[critical(2_000, &[1, 2, 3, 4]), entry(500, -50, &[1, 2, 9])]),
        text(1_000, "b", &[critical(0, &[7])]),
    ];
    let r = read(&files);
    assert_eq!((r.counts.files, r.counts.requests, r.counts.keys), (2, 3, 2));
    let names: Vec<_> = r.workload.classes.iter().map(|c| (c.name.as_str(), c.priority)).collect();
    assert_eq!(names, [("critical", 100), ("priority -50", -50)]);
    let mut arrivals = r.workload.arrivals(1);
    let all: Vec<_> = std::iter::from_fn(|| arrivals.next()).collect();
    let seen: Vec<_> =
        all.iter().map(|a| (a.at.0, a.class, a.prompt_tokens, a.output_tokens, a.bytes)).collect();
    assert_eq!(seen, [(0, 0, 64, 10, 900), (4_500, 1, 192, 10, 900), (6_000, 0, 256, 10, 900)]);
    let (b, c) = (&all[1], &all[2]);
    assert_eq!((b.prefix.len(), c.prefix.len()), (12, 16));
    assert_eq!(b.prefix[..8], c.prefix[..8], "two blocks of 64 tokens are alike");
    assert_ne!(b.prefix[8], c.prefix[8]);
    assert_eq!(r.workload.flow_name(c.flow), "tenant-1");
    assert_eq!(r.workload.flow_name(b.flow), "default-flow");
    assert_eq!(r.rows.len(), 3);
    assert_eq!(
        (r.rows[2].arrived.0, r.rows[2].ttft(), r.rows[2].e2e()),
        (6_000, Some(Span(2_000)), Some(Span(5_000)))
    );
    // The same under any seed: nothing is drawn.
    let mut again = r.workload.arrivals(2);
    assert_eq!(again.next().map(|a| a.at), Some(Nanos(0)));
}

#[test]
fn lengths_that_nobody_counted_are_estimated_alike() {
    let counted = Entry { prompt_bytes: 1_000, prompt_tokens: 200, ..entry(0, 0, &[1, 2, 3, 4]) };
    let guessed =
        Entry { prompt_estimated: true, prompt_bytes: 500, prompt_tokens: 125, ..entry(1, 0, &[1, 2]) };
    let refused = Entry {
        end: "refused".into(),
        reason: Some("rejected-saturated".into()),
        output_tokens: None,
        ..entry(2, 0, &[1])
    };
    let left = Entry { end: "cancelled".into(), output_tokens: Some(3), ..entry(3, 0, &[1]) };
    let r = read(&[text(0, "a", &[counted, guessed, refused, left])]);
    let rows = r.workload.traces[0].trace.rows();
    // 1000 bytes are 200 tokens: five bytes a token. (The others count 64 for 256 bytes.)
    let ratio = (1_000.0 + 512.0) / (200.0 + 128.0);
    assert_eq!(rows[1].prompt_tokens, (500.0f64 / ratio).round() as u32);
    assert_eq!((rows[2].output_tokens, rows[3].output_tokens), (10, 10));
    assert_eq!((r.counts.prompts_estimated, r.counts.outputs_borrowed), (1, 2));
    assert_eq!(r.rows[2].end, End::Rejected("rejected-saturated"));
    // The ratio is one for all: common blocks stay common whatever a prompt's own ratio is.
    let mut arrivals = r.workload.arrivals(1);
    let all: Vec<_> = std::iter::from_fn(|| arrivals.next()).collect();
    let common = (512.0 / ratio / 16.0) as usize;
    assert_eq!(all[0].prefix[..common], all[1].prefix[..common]);
}

#[test]
fn the_next_prompt_of_a_session_tells_what_was_answered() {
    let turn = |at, session: &str, blocks: &[u64], bytes| Entry {
        session: session.into(),
        prompt_bytes: bytes,
        prompt_tokens: bytes / 4,
        output_tokens: Some(128),
        ..entry(at, 0, blocks)
    };
    // 300 bytes: a full block and a short one, which the next prompt does not have.
    let first = turn(0, "s", &[1, 50], 300);
    let second = turn(10, "s", &[1, 2, 3, 4, 5], 1_200);
    let r = read(&[text(0, "a", &[first.clone(), second.clone()])]);
    let mut arrivals = r.workload.arrivals(1);
    let (a, b) = (arrivals.next().unwrap(), arrivals.next().unwrap());
    // 300 bytes and 128 tokens of 4 bytes are 812 bytes: three full blocks, and 203 tokens of 16 make 12.
    assert_eq!(a.prefix.len(), 12);
    assert_eq!(a.prefix[..12], b.prefix[..12]);
    assert_eq!((a.session, b.session), (Some(0), Some(0)));
    // Two sessions with one system prompt are not one conversation.
    let other = Entry { session: "t".into(), ..second };
    let r = read(&[text(0, "a", &[first, other])]);
    let mut arrivals = r.workload.arrivals(1);
    let (a, b) = (arrivals.next().unwrap(), arrivals.next().unwrap());
    assert_eq!((a.prefix[..4] == b.prefix[..4], a.prefix[4] == b.prefix[4]), (true, false));
}

#[test]
fn torn_lines_are_left_out_and_mistakes_have_their_place() {
    let good = text(0, "a", &[entry(0, 0, &[1]), entry(1, 0, &[1])]);
    let torn = good[..good.len() - 9].to_owned();
    let r = read(&[torn, head(9, "a")[..20].to_owned(), String::new()]);
    assert_eq!((r.counts.requests, r.counts.torn), (1, 3));
    let wrong = good.replace("\"finished\"", "\"done\"");
    let e = read_recording("rec", [("x.jsonl".to_owned(), wrong)]).unwrap_err().to_string();
    assert!(e.contains("x.jsonl:2:1") && e.contains("x.jsonl:3:1") && e.contains("expected finished"), "{e}");
    let e = read_recording("rec", [("y.jsonl".to_owned(), "{}\n".to_owned())]).unwrap_err().to_string();
    assert!(e.contains("y.jsonl:1:1"), "{e}");
    let e = read_recording("rec", []).unwrap_err().to_string();
    assert!(e.contains("rec") && e.contains("no request"), "{e}");
}

#[test]
fn a_hope_of_all_is_the_deadline_of_the_class() {
    let hoping = |at, ms: u64| Entry { slo_ttft_ns: Some(ms * 1_000_000), ..entry(at, 0, &[1]) };
    let class = |es: &[Entry]| read(&[text(0, "a", es)]).workload.classes[0].slo.ttft;
    assert_eq!(class(&[hoping(0, 500), hoping(1, 500)]), Some(Span::millis(500)));
    assert_eq!(class(&[hoping(0, 500), hoping(1, 600)]), None);
    assert_eq!(class(&[hoping(0, 500), entry(1, 0, &[1])]), None);
}
