//! The search for one GPU type's factors: one by one and all together, always the same way.

use crate::data::Experiment;
use crate::simulate;
use forebay_base::{Draws, Purpose, Span, math};
use forebay_engine::{Calibration, Factors, Hardware};

/// How to read and write one factor, and its bounds. Times in microseconds.
struct Knob {
    name: &'static str,
    get: fn(&Factors) -> f64,
    set: fn(&mut Factors, f64),
    low: f64,
    high: f64,
}

fn micros(s: Span) -> f64 {
    s.0 as f64 / 1e3
}

fn span(us: f64) -> Span {
    Span((us * 1e3).round() as u64)
}

macro_rules! share {
    ($field:ident, $low:expr, $high:expr) => {
        Knob {
            name: stringify!($field),
            get: |f| f.$field,
            set: |f, x| f.$field = (x * 1e4).round() / 1e4,
            low: $low,
            high: $high,
        }
    };
}

macro_rules! time {
    ($field:ident, $low:expr, $high:expr) => {
        Knob {
            name: stringify!($field),
            get: |f| micros(f.$field),
            set: |f, x| f.$field = span(x),
            low: $low,
            high: $high,
        }
    };
}

const KNOBS: &[Knob] = &[
    share!(bandwidth, 0.5, 0.95),
    time!(layer, 2.0, 80.0),
    time!(sequence, 0.5, 60.0),
    time!(sampling, 0.005, 0.5),
    share!(kv, 0.2, 0.95),
    share!(exposed, 0.02, 1.0),
    time!(request, 500.0, 15000.0),
    time!(step, 50.0, 5000.0),
    time!(mixed, 1.0, 100.0),
    share!(compute, 0.4, 0.95),
    time!(collective, 2.0, 40.0),
    time!(experts, 1.0, 150.0),
    share!(link, 0.3, 0.95),
];

/// Mean log ratio, near enough absolute, over runs and stages; tails and the time per token weigh less.
fn loss(experiments: &[Experiment], factors: Factors) -> Result<f64, String> {
    const WEIGHTS: [f64; 6] = [1.0, 0.25, 0.1, 0.5, 1.0, 0.25];
    let results = simulate::all(experiments, |_| factors)?;
    let (mut sum, mut weight) = (0.0, 0.0);
    for (e, r) in experiments.iter().zip(&results) {
        let (first, last) = if e.stages.len() > 2 { (1, e.stages.len()) } else { (0, 1) };
        for (got, want) in r.stages[first..last].iter().zip(&e.stages[first..last]) {
            for ((g, w), share) in got.values().into_iter().zip(want.values()).zip(WEIGHTS) {
                if let (Some(g), Some(w)) = (g, w) {
                    // Each run counts once, however many stages it has.
                    let share = share / (last - first) as f64;
                    let x = math::ln(g / w).abs();
                    // Quadratic near zero, so that the search does not stick in corners. A run that saturates
                    // here and not there is off by orders of magnitude and must not decide alone.
                    let x = x.min(0.3) + (x - 0.3).max(0.0) * 0.05;
                    sum += share * ((x * x + 0.03 * 0.03).sqrt() - 0.03);
                    weight += share;
                }
            }
        }
    }
    Ok(sum / weight)
}

pub(crate) fn fit(
    experiments: &[Experiment],
    hardware: &Hardware,
    start: Factors,
    without: Option<&str>,
    steps: u64,
) -> Result<(), String> {
    let used = |e: &&Experiment| {
        e.role == "fit"
            && Hardware::find(&e.gpu).is_ok_and(|h| h.name == hardware.name)
            && without != Some(e.model.as_str())
    };
    let chosen: Vec<Experiment> = experiments.iter().filter(used).map(|e| e.shortened(0.3)).collect();
    if chosen.is_empty() {
        return Err(format!("no run on {} is for fitting", hardware.name));
    }
    let mut best = start;
    let mut least = loss(&chosen, best)?;
    println!("# {} runs, loss {least:.5} at the start", chosen.len());
    descend(&chosen, &mut best, &mut least, &[1.2, 1.06])?;
    wander(&chosen, &mut best, &mut least, steps)?;
    descend(&chosen, &mut best, &mut least, &[1.03])?;
    for knob in KNOBS {
        println!("# {} {:.4}", knob.name, (knob.get)(&best));
    }
    print!("{}", Calibration::of(hardware, best).write());
    Ok(())
}

/// Factor by factor, in ever smaller steps.
fn descend(chosen: &[Experiment], best: &mut Factors, least: &mut f64, ratios: &[f64]) -> Result<(), String> {
    for &ratio in ratios {
        loop {
            let before = *least;
            for knob in KNOBS {
                for factor in [ratio, 1.0 / ratio] {
                    // On in the same direction as long as it helps.
                    loop {
                        let x = ((knob.get)(best) * factor).clamp(knob.low, knob.high);
                        let mut tried = *best;
                        (knob.set)(&mut tried, x);
                        if tried == *best {
                            break;
                        }
                        let now = loss(chosen, tried)?;
                        if now >= *least {
                            break;
                        }
                        (*best, *least) = (tried, now);
                    }
                }
            }
            println!("# ratio {ratio}: loss {least:.5}");
            if before - *least < 5e-4 {
                break;
            }
        }
    }
    Ok(())
}

/// All factors at once in random directions: several of them make up for each other, which a search along
/// the axes does not see. The step grows after a success and shrinks after a failure.
fn wander(chosen: &[Experiment], best: &mut Factors, least: &mut f64, steps: u64) -> Result<(), String> {
    let draws = Draws::new(7);
    let mut size: f64 = 0.15;
    for step in 0..steps {
        let mut tried = *best;
        for (lane, knob) in KNOBS.iter().enumerate() {
            let push = 2.0 * draws.unit(Purpose::named("wander"), step, lane as u64) - 1.0;
            let x = (knob.get)(best) * math::exp(size * push);
            (knob.set)(&mut tried, x.clamp(knob.low, knob.high));
        }
        let now = loss(chosen, tried)?;
        if now < *least {
            (*best, *least) = (tried, now);
            size = (size * 1.6).min(0.4);
        } else {
            size = (size * 0.95).max(0.01);
        }
    }
    println!("# wandered: loss {least:.5}");
    Ok(())
}
