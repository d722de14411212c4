//! What a calibration says, in sentences and as JSON.

use super::{Answer, Fitted, Outcome, RunReport};
use forebay_engine::Factor;
use serde_json::{Value, json};

impl Outcome {
    /// A word for files.
    pub const fn key(&self) -> &'static str {
        match self {
            Outcome::Fitted(..) => "fitted",
            Outcome::Small => "small",
            Outcome::AtBound => "at_bound",
            Outcome::NoEffect => "no_effect",
            Outcome::Confounded => "confounded",
        }
    }

    /// Whether the value is that of the fit.
    pub const fn is_fitted(&self) -> bool {
        matches!(self, Outcome::Fitted(..) | Outcome::Small | Outcome::AtBound)
    }

    /// What has to be said beside the value.
    pub const fn remark(&self) -> &'static str {
        match self {
            Outcome::Fitted(..) => "",
            Outcome::Small => "too small to be told from nothing",
            Outcome::AtBound => "at its bound: the form does not fit",
            Outcome::NoEffect => "kept: no figure depends on it",
            Outcome::Confounded => "kept: not told from the others",
        }
    }
}

impl Fitted {
    /// A value for people: a share, or a time.
    pub fn shown(factor: Factor, value: f64) -> String {
        if factor.is_share() { format!("{value:.3}") } else { crate::text::time(value) }
    }
}

/// The middle one of the absolute errors, and the greatest, as shares; `None` without any.
fn spread(errors: impl Iterator<Item = f64>) -> Option<(f64, f64, usize)> {
    let mut v: Vec<f64> = errors.map(f64::abs).collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    Some((f64::midpoint(*v.get(n.checked_sub(1)? / 2)?, v[n / 2]), v[n - 1], n))
}

/// How it was done, in a sentence.
pub fn method(a: &Answer) -> String {
    let fitted = a.runs.iter().filter(|r| r.fitted).count();
    format!(
        "Bounded least squares (Levenberg-Marquardt) on the logarithms of simulated over observed figures, each in units \
         of its sampling error: {} figures of {fitted} {}, {} steps, mean square {} -> {}{}.",
        a.squares.2,
        if fitted == 1 { "run" } else { "runs" },
        a.steps,
        crate::text::three(a.squares.0 / a.squares.2.max(1) as f64),
        crate::text::three(a.squares.1 / a.squares.2.max(1) as f64),
        if a.converged { "" } else { "; the search was cut off before it came to rest" }
    )
}

/// How large the errors are, by kind of run, in sentences.
pub fn summary(a: &Answer) -> Vec<String> {
    let said = |fitted: bool, what: &str| {
        let of = || a.runs.iter().filter(move |r| r.fitted == fitted).flat_map(|r| &r.figures);
        let (before, ..) = spread(of().map(super::Compared::error_before))?;
        let (after, most, n) = spread(of().map(super::Compared::error))?;
        Some(format!(
            "{what}: median absolute error {:.1} %, greatest {:.1} %, over {n} figures; {:.1} % with the values before.",
            100.0 * after,
            100.0 * most,
            100.0 * before
        ))
    };
    [said(true, "Fitted runs"), said(false, "Held-back runs")].into_iter().flatten().collect()
}

/// What has to be kept in mind, in sentences.
pub fn caveats(a: &Answer) -> Vec<String> {
    let mut out = Vec::new();
    for r in &a.runs {
        out.extend(r.remarks.iter().map(|s| format!("{}: {s}", r.name)));
    }
    if !a.runs.iter().any(|r| !r.fitted) {
        out.push(
            "No run was held back: these are errors of the fit, not of a prediction. Give one with --hold-back."
                .to_owned(),
        );
    }
    let rates = |fitted: bool| a.runs.iter().filter(move |r| r.fitted == fitted).map(|r| r.rate);
    let (low, high) = rates(true).fold((f64::INFINITY, 0.0f64), |(l, h), r| (l.min(r), h.max(r)));
    for r in a.runs.iter().filter(|r| !r.fitted && (r.rate > 1.05 * high || r.rate < 0.95 * low)) {
        out.push(format!("{}: its rate is outside those of the fitted runs.", r.name));
    }
    let kept: Vec<&str> =
        a.factors.iter().filter(|f| !f.outcome.is_fitted()).map(|f| f.factor.name()).collect();
    if !kept.is_empty() {
        out.push(format!(
            "Kept at the values before, because these runs do not tell them: {}. Traffic or a model that depends on them is \
             not predicted by this calibration.",
            kept.join(", ")
        ));
    }
    let bound: Vec<&str> =
        a.factors.iter().filter(|f| f.outcome == Outcome::AtBound).map(|f| f.factor.name()).collect();
    if !bound.is_empty() {
        out.push(format!(
            "At its bound: {}. The runs ask for more than the factor can give; something else differs from the cluster \
             file.",
            bound.join(", ")
        ));
    }
    out
}

fn factor(f: &Fitted) -> Value {
    let interval = match f.outcome {
        Outcome::Fitted(low, high) => json!([low, high]),
        _ => Value::Null,
    };
    json!({
        "name": f.factor.name(), "unit": if f.factor.is_share() { "share" } else { "ns" }, "before": f.before,
        "after": f.after, "interval": interval, "outcome": f.outcome.key(),
    })
}

fn run(r: &RunReport) -> Value {
    let figures = r.figures.iter().map(|c| {
        json!({
            "figure": c.figure.key(), "label": c.figure.label(), "observed_ns": c.observed, "before_ns": c.before,
            "after_ns": c.after, "error_before": c.error_before(), "error": c.error(),
            "error_interval": [c.interval.0, c.interval.1], "residual": c.residual,
        })
    });
    json!({
        "name": r.name, "role": if r.fitted { "fitted" } else { "held_back" }, "requests": r.requests,
        "requests_per_second": r.rate, "near_the_knee": r.near, "remarks": r.remarks,
        "cached_share": {"observed": r.cached.0, "simulated": r.cached.1}, "figures": figures.collect::<Vec<_>>(),
    })
}

/// All of it.
pub fn json(a: &Answer) -> Value {
    let factors: Vec<Value> = a.factors.iter().map(factor).collect();
    let runs: Vec<Value> = a.runs.iter().map(run).collect();
    json!({
        "cluster": a.cluster, "hardware": a.hardware, "factors": factors, "runs": runs,
        "fit": {
            "method": "bounded least squares (Levenberg-Marquardt) on logarithms of quantile ratios",
            "figures": a.squares.2, "sum_of_squares_before": a.squares.0, "sum_of_squares": a.squares.1,
            "steps": a.steps, "converged": a.converged,
        },
        "summary": summary(a), "caveats": caveats(a),
    })
}
