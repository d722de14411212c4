//! Results as JSON: integers in nanoseconds, keys in a fixed order.

use crate::about::{About, ClassInfo, EndpointSummary};
use crate::asked::Stated;
use crate::capacity::{Answer, Found, Question, Usage};
use crate::compare::{ArmResult, ClassResult, Comparison, Measure, PlaceResult, Published};
use crate::plan;
use crate::summary::{ClassSummary, Figures, Metric, QUANTILES, Summary};
use crate::sweep::Sweep;
use forebay_records::stats::{Paired, Quantile, Standing, Throughput, Verdict};
use forebay_sim::{Counters, GroupUse, HISTOGRAM_BINS, ScaleEvent, ScaleMetric, Scaling, Timeline};
use forebay_workload::Kind;
use serde_json::{Value, json};

fn standing(s: Standing) -> &'static str {
    match s {
        Standing::Empty => "empty",
        Standing::Undetermined => "undetermined",
        Standing::AtLeast => "at_least",
        Standing::Claim => "claim",
    }
}

fn quantile(q: &Quantile) -> Value {
    json!({
        "value": q.value, "low": q.low, "high": q.high, "at_least": q.at_least,
        "standing": standing(q.standing), "count": q.count, "infinite": q.infinite,
    })
}

pub(crate) fn figures(f: &Figures) -> Value {
    let mut out = serde_json::Map::new();
    out.insert("mean_ns".to_owned(), json!(f.mean.map(f64::round)));
    for (q, value) in QUANTILES.iter().zip(&f.quantiles) {
        out.insert(format!("p{:.0}_ns", q * 100.0), quantile(value));
    }
    Value::Object(out)
}

fn throughput(t: &Throughput) -> Value {
    json!({
        "requests": t.requests, "output_tokens": t.output_tokens, "prompt_tokens": t.prompt_tokens,
        "seconds": t.seconds, "requests_per_second": t.requests_per_second(),
        "output_tokens_per_second": t.output_tokens_per_second(),
    })
}

pub(crate) fn class(c: &ClassSummary, metrics: &[Metric]) -> Value {
    let latencies: serde_json::Map<String, Value> =
        metrics.iter().map(|m| (m.key().to_owned(), figures(c.figure(*m)))).collect();
    json!({
        "name": c.name, "priority": c.priority, "offered": c.offered, "finished": c.finished,
        "rejected": c.rejected, "timed_out": c.timed_out, "failed": c.failed, "censored": c.censored,
        "latencies": latencies,
        "throughput": throughput(&c.throughput), "throughput_with_drain": throughput(&c.with_drain),
        "goodput": c.goodput.map(|g| json!({
            "offered": g.offered, "attained": g.attained, "share": g.share(), "per_second": g.per_second(),
        })),
        "prompt_tokens_served": c.prompt_tokens.0, "prompt_tokens_cached": c.prompt_tokens.1,
    })
}

fn counters(c: &Counters) -> Value {
    let bins: Vec<Value> = (0..HISTOGRAM_BINS)
        .map(|i| json!({"from": i as f64 / 20.0, "seconds": c.saturation[i] as f64 / 1e9}))
        .collect();
    json!({
        "arrived": c.arrived, "dispatched": c.dispatched, "peak_live": c.peak_live,
        "longest_engine_queue": c.longest_engine_queue, "longest_gateway_queue": c.longest_gateway_queue,
        "disaggregated": c.disaggregated, "transferred_tokens": c.transferred_tokens,
        "preemptions": c.preemptions, "lost_tokens": c.lost_tokens, "computed_tokens": c.computed_tokens,
        "recompute_share": c.recompute_share(), "steps": c.steps, "cycles": c.cycles, "events": c.events,
        "saturation": bins,
    })
}

fn scaling(s: &Scaling) -> Value {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let group = |g: &GroupUse| {
        json!({
            "name": g.name, "engine_seconds": seconds(g.held_ns), "gpu_seconds": seconds(g.gpu_ns),
            "starting_seconds": seconds(g.starting_ns), "first": g.first, "least": g.range.0,
            "most": g.range.1, "last": g.last,
        })
    };
    let event = |e: &ScaleEvent| {
        json!({
            "at_ns": e.at.0, "engines": s.groups[e.group as usize].name, "from": e.from, "to": e.to,
            "metric": e.why.map(ScaleMetric::label),
        })
    };
    json!({
        "groups": s.groups.iter().map(group).collect::<Vec<_>>(),
        "events": s.events.iter().map(event).collect::<Vec<_>>(),
    })
}

fn class_info(c: &ClassInfo) -> Value {
    json!({
        "name": c.name, "priority": c.priority, "slo_ttft_ns": c.slo.ttft.map(|s| s.0),
        "slo_tpot_ns": c.slo.tpot.map(|s| s.0), "slo_e2e_ns": c.slo.e2e.map(|s| s.0),
    })
}

fn about(a: &About) -> Value {
    json!({
        "workload": a.workload, "cluster": a.cluster, "configuration": a.config, "seed": a.seed,
        "mode": match a.mode.kind { Kind::Surge => "surge", Kind::Steady => "steady" },
        "warmup_ns": a.mode.warmup.0, "window_ns": a.mode.window.0, "drain_ns": a.mode.drain.0,
        "classes": a.classes.iter().map(class_info).collect::<Vec<_>>(),
        "endpoints": a.endpoints,
    })
}

fn endpoint(a: &About, e: &EndpointSummary) -> Value {
    let mut waits = serde_json::Map::new();
    for (q, value) in QUANTILES.iter().zip(&e.engine_wait) {
        waits.insert(format!("p{:.0}_ns", q * 100.0), quantile(value));
    }
    json!({
        "index": e.index, "name": a.endpoint(e.index), "dispatched": e.dispatched, "finished": e.finished,
        "prompt_tokens": e.prompt_tokens, "cached_tokens": e.cached_tokens,
        "output_tokens": e.output_tokens, "preemptions": e.preemptions, "engine_wait": waits,
    })
}

/// A run with what it was: the content of `summary.json`.
pub fn run(a: &About, s: &Summary, endpoints: &[EndpointSummary]) -> Value {
    let mut out = summary(s);
    if let Some(map) = out.as_object_mut() {
        map.insert("format".to_owned(), json!("forebay-summary"));
        map.insert("version".to_owned(), json!(1));
        map.insert("run".to_owned(), about(a));
        map.insert("endpoints".to_owned(), endpoints.iter().map(|e| endpoint(a, e)).collect());
    }
    out
}

pub(crate) fn backlog(s: &Summary) -> Value {
    let slope = s.backlog.slope();
    json!({
        "means": s.backlog.means, "step_seconds": s.backlog.step,
        "slope_per_second": slope.map(|s| s.per_second),
        "slope_half_width": slope.map(|s| s.half_width),
        "arrivals_per_second": s.backlog.arrivals,
    })
}

/// The figures of a run.
pub fn summary(s: &Summary) -> Value {
    json!({
        "classes": s.classes.iter().map(|c| class(c, &Metric::ALL)).collect::<Vec<_>>(),
        "total": class(&s.total, &Metric::ALL),
        "load": s.load.label(),
        "backlog": backlog(s),
        "counters": counters(&s.counters),
        "scaling": scaling(&s.scaling),
        "ended_at_ns": s.ended_at.0,
    })
}

/// Points over time.
pub fn timeline(t: &Timeline) -> Value {
    let points = t.points.iter().map(|p| {
        json!({
            "at_ns": p.at.0, "saturation": p.saturation, "ceilings": p.ceilings, "queued": p.queued,
            "live": p.live, "ready": p.ready,
            "servers": p.servers.iter().map(|s| json!({
                "waiting": s.waiting, "running": s.running, "kv": s.kv,
            })).collect::<Vec<_>>(),
        })
    });
    json!({"bands": t.bands, "points": points.collect::<Vec<_>>()})
}

fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

fn improvement(p: &Paired) -> Value {
    json!({
        "improvement_percent": number(p.improvement),
        "interval": [number(p.interval.0), number(p.interval.1)],
        "bootstrap": [number(p.bootstrap.0), number(p.bootstrap.1)],
        "pairs": p.pairs, "unusable": p.unusable,
        "verdict": match p.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifference => "no difference",
            Verdict::TooFew => "too few pairs",
        },
    })
}

/// A comparison. Latencies are in nanoseconds; what is undetermined is null.
pub fn comparison(c: &Comparison) -> Value {
    let class = |k: &ClassResult| {
        let measures: serde_json::Map<String, Value> = Measure::ALL
            .iter()
            .enumerate()
            .map(|(i, m)| {
                let value = json!({
                    "by_seed": k.values[i].iter().map(|v| number(*v)).collect::<Vec<_>>(),
                    "mean": number(k.mean(*m)),
                    "against_baseline": k.against(*m).map(improvement),
                });
                (m.label().to_owned(), value)
            })
            .collect();
        json!({
            "name": k.name, "offered": k.offered, "finished": k.finished, "rejected": k.rejected,
            "attained": k.attained,
            "measures": measures, "pooled_ttft_p99": quantile(&k.pooled_ttft_p99()),
        })
    };
    let arm = |a: &ArmResult| {
        json!({
            "policy": c.policies[a.policy].name,
            "classes": a.classes.iter().map(class).collect::<Vec<_>>(),
            "longest_engine_queue": a.longest_engine_queue, "preemptions_per_run": a.preemptions,
            "recompute_share": a.recompute,
            "runs": {"stable": a.loads[0], "near": a.loads[1], "overloaded": a.loads[2]},
            "saturation_seconds": a.saturation.iter().map(|n| *n as f64 / 1e9).collect::<Vec<_>>(),
        })
    };
    let place = |p: &PlaceResult| {
        let published = |q: &Published| {
            let ours = p.arms.get(1).and_then(|a| a.classes[p.top_class()].against(q.measure));
            json!({
                "measure": q.measure.label(), "improvement_percent": number(q.improvement),
                "source": q.source, "agrees": ours.map(|o| q.agrees(o)),
            })
        };
        json!({
            "workload": p.place.workload.name, "rate": p.rate(), "cluster": p.place.cluster.name,
            "rate_over_capacity": p.place.load,
            "published": p.place.published.iter().map(published).collect::<Vec<_>>(),
            "policies": p.arms.iter().map(arm).collect::<Vec<_>>(),
            "highest_priority_alone": p.alone.as_ref().map(arm),
        })
    };
    let policies = c.policies.iter().map(|p| json!({"name": p.name, "what": p.what, "config": p.config}));
    json!({
        "policies": policies.collect::<Vec<_>>(),
        "seeds": c.seeds,
        "places": c.places.iter().map(place).collect::<Vec<_>>(),
    })
}

fn found(f: &Found, seed: u64) -> Value {
    let trials = f.trials.iter().map(|t| {
        json!({
            "rate": t.rate, "holds": t.holds, "backlog_growth_per_second": t.growth,
            "backlog_growth_half_width": t.half_width, "lost_share": t.lost,
        })
    });
    json!({
        "seed": seed, "capacity": f.low, "bracket_high": number(f.high),
        "full_runs": trials.collect::<Vec<_>>(),
    })
}

fn usage(u: &Usage) -> Value {
    let busy = u.busy.map(|b| {
        json!({
            "prefill_compute": b.prefill_compute, "decode_compute": b.decode_compute,
            "weights": b.weights, "kv": b.kv, "host": b.host,
        })
    });
    json!({
        "rate": u.rate, "busy": busy, "kv_blocks_mean": u.kv, "kv_blocks_p95": u.kv_p95,
        "sequences_mean": u.sequences, "sequences_p95": u.sequences_p95, "waiting_mean": u.waiting,
        "limited_by": u.limit.label(),
    })
}

/// Capacities in requests per second; a bracket without an upper end has null there.
pub fn capacity(q: &Question, answers: &[Vec<Answer>]) -> Value {
    let answer = |name: &str, a: &Answer| {
        json!({
            "configuration": name, "capacity": a.mean(), "interval": a.interval().map(|(l, h)| [l, h]),
            "by_seed": q.seeds.iter().zip(&a.by_seed).map(|(s, f)| found(f, *s)).collect::<Vec<_>>(),
            "servers": a.usage.as_ref().map(usage),
        })
    };
    let workloads = q.workloads.iter().zip(answers).map(|(w, answers)| {
        let all = q.arms.iter().zip(answers).map(|(arm, a)| answer(&arm.name, a));
        json!({"workload": w.name, "configurations": all.collect::<Vec<_>>()})
    });
    json!({
        "cluster": q.cluster.name, "seeds": q.seeds,
        "search": {
            "warmup_ns": q.search.warmup.0, "window_ns": q.search.window.0, "precision": q.search.precision,
        },
        "workloads": workloads.collect::<Vec<_>>(),
    })
}

fn stated(s: &Stated) -> Value {
    json!({
        "value": number(s.value), "interval": s.interval.map(|(l, h)| [l, h]),
        "standing": standing(s.standing), "at_least": number(s.at_least),
        "by_seed": s.by_seed.iter().map(|v| number(*v)).collect::<Vec<_>>(), "count": s.count,
    })
}

/// A sweep. Latencies are in nanoseconds, shares from 0 to 1; what is undetermined is null.
pub fn sweep(s: &Sweep) -> Value {
    let axes = s.axes.iter().map(|a| {
        json!({"field": a.name(), "values": a.values.iter().map(|v| v.text.as_str()).collect::<Vec<_>>()})
    });
    let points = s.points.iter().zip(&s.rows).map(|(point, row)| {
        let set: serde_json::Map<String, Value> = s
            .axes
            .iter()
            .zip(point)
            .map(|(a, i)| (a.name(), Value::String(a.values[*i].text.clone())))
            .collect();
        let figures: serde_json::Map<String, Value> =
            s.asked.iter().zip(&row.figures).map(|(a, f)| (a.to_string(), stated(f))).collect();
        json!({
            "set": set, "rate": row.rate, "figures": figures, "problem": row.problem,
            "runs": {"stable": row.loads[0], "near": row.loads[1], "overloaded": row.loads[2]},
        })
    });
    json!({
        "axes": axes.collect::<Vec<_>>(), "seeds": s.seeds, "points": points.collect::<Vec<_>>(),
    })
}

fn plan_size(goals: &[plan::Goal], s: &plan::Size) -> Value {
    let figures: serde_json::Map<String, Value> =
        goals.iter().zip(&s.figures).map(|(g, f)| (g.asked.to_string(), stated(f))).collect();
    let fails = s.fails.iter().map(|f| match *f {
        plan::Fail::Grows(share) => json!({"backlog_growth_share": share}),
        plan::Fail::Loses(share) => json!({"lost_share": share}),
        plan::Fail::Goal(i) => json!({"slo": goals[i].asked.to_string()}),
    });
    json!({
        "endpoints": s.endpoints, "holds": s.holds(), "fails": fails.collect::<Vec<_>>(), "figures": figures,
        "output_tokens_per_second": number(s.tokens), "long_enough_for_steady": s.steady,
    })
}

/// A plan. Latencies are in nanoseconds, shares from 0 to 1; costs are in the unit of the prices, which are by
/// kind of endpoint and of one GPU for an hour.
pub fn plan(q: &plan::Question, answers: &[plan::Answer], prices: &[Option<f64>]) -> Value {
    let goals = q.goals.iter().map(|g| {
        json!({"figure": g.asked.to_string(), "limit": g.limit, "from": if g.own { "workload" } else { "slo" }})
    });
    let answer = |(i, a): (usize, &plan::Answer)| {
        let kind = &q.kinds[i];
        let (outcome, sizes) = match a.outcome {
            plan::Outcome::Endpoints(n) => ("endpoints", vec![n]),
            plan::Outcome::NoSize(small, large) => ("no number holds", vec![small, large]),
            plan::Outcome::Beyond(n) => ("more than allowed", vec![n]),
            plan::Outcome::Unfit => ("no such endpoint", vec![]),
        };
        let at = a.endpoints().and_then(|n| a.size(n));
        let neighbour = |n: Option<u32>| n.and_then(|n| a.size(n)).map(plan::Size::holds);
        let cost = plan::Cost::of(kind, a, prices[i]);
        json!({
            "hardware": kind.name, "gpus_per_endpoint": kind.gpus(), "unfit": kind.engine.as_ref().err(),
            "endpoints": a.endpoints(), "outcome": outcome, "outcome_at": sizes,
            "by_seed": a.by_seed, "least_median_most": a.counts().map(|(l, m, h)| json!([l, m, h])),
            "nearest_slo": at.and_then(|s| s.nearest(&q.goals)).map(|i| q.goals[i].asked.to_string()),
            "one_less_holds": neighbour(a.endpoints().and_then(|n| n.checked_sub(1))),
            "one_more_holds": neighbour(a.endpoints().map(|n| n + 1)),
            "warmup_ns": a.times.warmup.0, "window_ns": a.times.window.0,
            "capacity_of_one": number(a.one),
            "capacity": a.capacity.as_ref().map(|f| json!({"low": f.low, "high": number(f.high)})),
            "rate_over_capacity": a.load(q.workload.rate()).map(number),
            "servers_at_capacity": a.usage.as_ref().map(usage),
            "price_per_gpu_hour": prices[i],
            "cost": cost.map(|c| json!({
                "per_hour": c.hour, "per_hour_by_seed": c.by_seed.map(|(l, h)| [l, h]),
                "per_million_output_tokens": number(c.million),
            })),
            "sizes": a.sizes.iter().map(|s| plan_size(&q.goals, s)).collect::<Vec<_>>(),
        })
    };
    json!({
        "workload": q.workload.name, "rate": q.workload.rate(), "mode": "steady", "seeds": q.seeds,
        "slos": goals.collect::<Vec<_>>(), "max": q.max,
        "hardware": answers.iter().enumerate().map(answer).collect::<Vec<_>>(),
    })
}
