use super::*;
use crate::policies::Policy;
use forebay_base::Span;

/// Two minutes of traffic that fills two servers, as a list of rows without chance.
fn ask(seeds: u64, recorded: Option<Recorded>) -> Ask {
    let mut workload = Workload::preset("code").unwrap().with_rate(14.0);
    workload.mode.window = Span::secs(60);
    let cluster = Arc::new(
        Cluster::parse("2xh100", "qwen3-14b", "", |s| {
            s.max_num_seqs = Some(256);
            s.max_num_batched_tokens = Some(2048);
        })
        .unwrap(),
    );
    let priorities = Setup::priorities(&workload);
    let arm = |p: Policy| (p.name.clone(), p.plan(&priorities).unwrap());
    Ask {
        workload,
        cluster,
        arms: [arm(Policy::fixed()), arm(Policy::recommended())],
        seeds: (1..=seeds).collect(),
        recorded,
    }
}

#[test]
fn the_answer_does_not_depend_on_threads_and_a_policy_against_itself_changes_nothing() {
    let mut q = ask(3, None);
    q.arms[1] = q.arms[0].clone();
    let progress = Progress::new();
    let (one, two) = (answer(&q, 1, &progress), answer(&q, 2, &progress));
    assert_eq!(json(&one), json(&two));
    for c in &one.classes {
        for f in &c.figures {
            assert_eq!(f.means[0], f.means[1], "{:?} of {}", f.figure, c.name);
        }
        assert!(!c.sentence().contains("better") && !c.sentence().contains("worse"), "{}", c.sentence());
    }
    assert_eq!(progress.get().0, 2 * runs(&q));
}

#[test]
fn the_highest_class_gains_and_the_recording_is_set_beside() {
    let q = ask(10, None);
    let rows = Setup {
        plan: Arc::clone(&q.arms[0].1),
        cluster: Arc::clone(&q.cluster),
        workload: q.workload.clone(),
    }
    .run(3, Options::new(0))
    .rows;
    let q = Ask { recorded: Some(Recorded { rows, streamed: true }), ..q };
    let a = answer(&q, 2, &Progress::new());
    assert_eq!(a.classes[0].priority, a.classes.iter().map(|c| c.priority).max().unwrap());
    let ttft = a.classes[0].figure(Figure::Quantile(Metric::Ttft, 3)).unwrap();
    assert!(ttft.change.pairs >= 10 && ttft.recorded.is_some());
    let (median, _, n) = a.credibility().unwrap();
    assert!(n >= 8 && median < 40.0, "a run of the model is near the model: {median} over {n}");
    assert!(a.load().contains("too short"), "{}", a.load());
    let html = page(&a);
    assert!(html.contains("recorded") && html.contains("By class") && !html.contains("NaN"));
}

#[test]
fn load_is_told_by_the_last_step_that_holds() {
    let mut a = answer(&Ask { seeds: vec![1], ..ask(1, None) }, 2, &Progress::new());
    let ladder = |holds: usize| LADDER.iter().enumerate().map(|(i, f)| (*f, i < holds)).collect::<Vec<_>>();
    for (holds, part) in [(0, "half"), (2, "over capacity"), (5, "91 to 100 %"), (9, "under 50 %")] {
        a.ladder = ladder(holds);
        assert!(a.load().contains(part), "{}: {part}", a.load());
    }
    a.ladder = ladder(5);
    assert!(a.caveats().iter().any(|c| c.contains("knee")));
    a.ladder = ladder(8);
    assert!(!a.caveats().iter().any(|c| c.contains("knee")));
}
