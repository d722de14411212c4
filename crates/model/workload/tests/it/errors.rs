//! What is wrong with a file: all of it, each with its line and the nearest name.

use forebay_workload::Workload;
use proptest::prelude::*;

const EXAMPLE: &str = "version: 1
name: code_burst
mode: {kind: surge, window: 600s, warmup: 0s, drain: 3600s}
lengths: {in: {lognormal: [7.0659, 0.7033], clamp: [100, 10000]}, out: {lognormal: [5.2711, 1.2498], clamp: [50, 10000]}}
classes:
  critical:  {priority: 100, arrivals: {process: constant, rate: 4.8, phase: random}, input: in, output: out, slo: {ttft: 1s}, timeout: 3600s, retry: none}
  sheddable: {priority: -50, arrivals: {process: gamma, cv: 3, rate: 11.2}, input: in, output: out, flows: 8, prompts: {groups: 10, prefix: 512, pool: 100, order: shuffled-cycle}}
stages: [{for: 540s, scale: 1.0}, {for: 60s, scale: 2.0}]
";

fn found(text: &str) -> Vec<String> {
    let found = Workload::read(text, "w.yaml").expect_err("the file is wrong");
    found.0.iter().map(ToString::to_string).collect()
}

#[test]
fn the_shape_of_the_documentation_is_read() {
    let w = Workload::read(EXAMPLE, "w.yaml");
    let w = w.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((w.classes.len(), w.flows()), (2, 9));
    assert_eq!(w.classes[0].slo.ttft, Some(forebay_base::Span::secs(1)));
}

#[test]
fn all_mistakes_show_at_once() {
    assert_eq!(
        found(
            "version: 2
name: 5
mode: {kind: serge, window: 0s, drane: 1s}
lengths: {in: {lognormal: [7, 1], clap: [1, 2]}}
classes:
  a: {priority: 1, arrivals: {process: poison, rate: 4}, input: on, output: {uniform: [5, 1]}}
  b: {arrivals: {process: gamma, rate: -1}, input: in, output: {normal: 3, constant: 4}}
  c: {arrivals: {process: constant, rate: 1, cv: 2, phase: randm}, input: 5}
stages: [{for: 540s, scale: [1, 2, 3]}]
"
        ),
        [
            "error: w.yaml:1:10: version: found the number 2; expected 1",
            "error: w.yaml:2:7: name: found the number 5; expected a text, in quotes",
            "error: w.yaml:3:14: mode.kind: found the text \"serge\"; expected one of surge, steady; did you mean \
             \"surge\"?",
            "error: w.yaml:3:29: mode.window: found the text \"0s\"; expected a time greater than 0",
            "error: w.yaml:3:33: mode.drane: unknown field \"drane\"; expected one of kind, window, warmup, drain",
            "error: w.yaml:4:35: lengths.in.clap: unknown field \"clap\"; expected one of constant, uniform, normal, \
             lognormal, exponential, empirical, clamp; did you mean \"clamp\"?",
            "error: w.yaml:6:40: classes.a.arrivals.process: found the text \"poison\"; expected one of constant, \
             poisson, gamma, weibull, on-off, exact, closed, servegen; did you mean \"poisson\"?",
            "error: w.yaml:6:65: classes.a.input: no length has the name \"on\"; expected one of in, or a distribution; \
             did you mean \"in\"?",
            "error: w.yaml:6:87: classes.a.output.uniform: 1 is below 5; expected [least, greatest]",
            "error: w.yaml:7:17: classes.b.arrivals.cv: the field is missing",
            "error: w.yaml:7:40: classes.b.arrivals.rate: found the number -1; expected at least 0",
            "error: w.yaml:7:64: classes.b.output: constant and normal are given; expected one of constant, uniform, \
             normal, lognormal, exponential, empirical",
            "error: w.yaml:8:6: classes.c.output: the field is missing",
            "error: w.yaml:8:46: classes.c.arrivals.cv: unknown field \"cv\"; expected one of process, rate, phase",
            "error: w.yaml:8:60: classes.c.arrivals.phase: found the text \"randm\"; expected random, or a share of the \
             gap from 0 to 1; did you mean \"random\"?",
            "error: w.yaml:9:29: stages[0].scale: found a list; expected a factor, or two: at the start and at the end",
        ]
    );
}

/// What a class needs.
const OK: &str = "input: 1, output: 1, arrivals: {process: poisson, rate: 1}";

#[test]
fn what_cannot_be_is_refused() {
    let with = |class: &str| {
        found(&format!(
            "version: 1\nname: t\nmode: {{kind: steady, window: 1s}}\nclasses: {{c: {{{class}}}}}\n"
        ))
        .join("\n")
    };
    for (class, message) in [
        (
            "input: 1".to_owned(),
            "error: w.yaml:4:11: classes.c: the class has no requests; expected the field arrivals, or a trace that feeds it",
        ),
        (
            format!("{OK}, flows: 0"),
            "error: w.yaml:4:82: classes.c.flows: found the number 0; expected a number from 1 to 1000000",
        ),
        (
            format!("{OK}, repeat: true"),
            "error: w.yaml:4:75: classes.c.repeat: there are no stages beside it",
        ),
        (
            format!("{OK}, prompts: {{pool: 3, skew: 1}}"),
            "error: w.yaml:4:84: classes.c.prompts.skew: a cycle asks all prompts alike; expected the order random beside it",
        ),
        (
            format!("{OK}, slo: {{ttft: 1}}"),
            "error: w.yaml:4:87: classes.c.slo.ttft: found the number 1; expected a duration such as \"500ms\" or \"1m30s\"",
        ),
        (
            format!("{OK}, retry: {{attempts: 2}}"),
            "error: w.yaml:4:82: classes.c.retry.backoff: the field is missing",
        ),
        (
            "input: 1, output: 1, arrivals: {process: weibull, rate: 1}".to_owned(),
            "error: w.yaml:4:46: classes.c.arrivals: a Weibull process needs one of shape and cv",
        ),
        (
            "arrivals: {process: servegen, trace: x, dataset: y}".to_owned(),
            "error: w.yaml:4:52: classes.c.arrivals.trace: x: files are not read here\nerror: w.yaml:4:64: classes.c.arrivals.dataset: y: files are not read here",
        ),
        (
            "input: {empirical: {5: 0}}, output: 1, arrivals: {process: poisson, rate: 1}".to_owned(),
            "error: w.yaml:4:34: classes.c.input.empirical: no value has a weight; expected value: weight",
        ),
    ] {
        assert_eq!(with(&class), message);
    }
    assert_eq!(found("a: 1\n---\nb: 2\n"), ["error: w.yaml:3:1: the file has 2 documents; expected one"]);
    assert!(found("").len() == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written over a part of a file: it is read or refused, and what is read can be run.
    #[test]
    fn damaged_files_do_no_harm(at in 0..EXAMPLE.len(), len in 0..12usize, over in "[-a-z0-9.:{}\\[\\], \n\"']{0,6}") {
        let end = (at + len).min(EXAMPLE.len());
        let text = format!("{}{over}{}", &EXAMPLE[..at], &EXAMPLE[end..]);
        match Workload::read(&text, "w.yaml") {
            Ok(w) => {
                let mut arrivals = w.arrivals(1);
                for _ in 0..20 {
                    let Some(a) = arrivals.next() else { break };
                    prop_assert!(a.prompt_tokens >= 1 && a.output_tokens >= 1 && a.at < w.mode.arrivals_end());
                }
            }
            Err(found) => prop_assert!(found.has_errors() && found.0.iter().all(|d| d.file == "w.yaml")),
        }
    }
}
