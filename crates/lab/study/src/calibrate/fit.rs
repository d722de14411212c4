//! The search, and what the runs can tell apart.

use super::solve::{self, Solution, Space, invert, normal_matrix};
use super::{Ask, Bench, Fitted, Outcome, Seen, figures};
use forebay_base::math;
use forebay_engine::{Factor, Factors};
use forebay_records::stats::student::t_quantile;

/// A factor whose 95 % interval would reach further than to its half and its double is not told by the runs.
const WIDEST: f64 = core::f64::consts::LN_2;
/// A factor that moves no figure by more than this share when it grows by e, enlarged as it is, has no effect.
const NOTHING: f64 = 1e-3;
/// What a fitted factor moves figures by, at most, if what it stands for is too small to be told from nothing.
const VANISHING: f64 = 5e-3;
/// The sum of squares, in units of its mean, has to fall by this much before a factor counts as told (the 95 %
/// quantile of chi squared with one degree of freedom).
const TOLD: f64 = 3.84;
/// Nothing is known better than to this share: steps are whole picoseconds and factors are rounded.
const ROUNDING: f64 = 1e-3;

/// What was found.
pub(crate) struct Found {
    pub(crate) factors: Factors,
    pub(crate) outcomes: Vec<Fitted>,
    pub(crate) squares: (f64, f64, usize),
    pub(crate) steps: usize,
    pub(crate) converged: bool,
}

/// The runs that a fit takes, roughly.
pub(crate) fn expected(ask: &Ask) -> u64 {
    let p = ask.factors.len() as u64;
    ask.fitted.len() as u64 * ROUNDS as u64 * (3 + 16 * p + 9 * (8 * p + 6))
        + (ask.fitted.len() + ask.held_back.len()) as u64
}

/// Where a factor is searched: shares from a thousandth of the peak to all of it, times from nothing worth
/// mentioning to what no server takes.
fn bounds(factor: Factor) -> (f64, f64) {
    let (low, high) = match factor.name() {
        _ if factor.is_share() => (1e-3, 1.0),
        "request" => (1e3, 1e10),
        "step" => (1e2, 1e9),
        "layer" | "experts" | "mixed" | "collective" => (1e1, 1e8),
        // Thousandths of the vocabulary.
        "sampling" => (1.0, 1e6),
        _ => (1.0, 1e8),
    };
    (math::ln(low), math::ln(high))
}

/// The fit of some of the factors.
struct Search<'a> {
    bench: &'a Bench<'a>,
    runs: Vec<&'a Seen>,
    /// All that may be fitted.
    factors: &'a [Factor],
    /// Errors of the figures, by run.
    errors: Vec<Vec<f64>>,
}

impl<'a> Search<'a> {
    fn new(bench: &'a Bench<'a>, at: &Factors) -> Search<'a> {
        let runs: Vec<&Seen> = bench.ask.fitted.iter().collect();
        let mut search = Search { bench, runs, factors: &bench.ask.factors, errors: Vec::new() };
        let ratios = search.ratios(at);
        search.errors =
            search.runs.iter().zip(&ratios).map(|(s, r)| figures::errors(r, s.figures.len())).collect();
        search
    }

    /// Paired resamples of the figures, by run.
    fn ratios(&self, at: &Factors) -> Vec<Vec<Vec<f64>>> {
        let times = self.bench.all(&self.runs, std::slice::from_ref(at)).pop().unwrap_or_default();
        let of = |(seen, times): (&&Seen, &Vec<figures::Times>)| {
            figures::ratios(&seen.figures, &seen.times, times, seen.block)
        };
        self.runs.iter().zip(&times).map(of).collect()
    }

    /// The place of a factor's value.
    fn place(factor: Factor, factors: &Factors) -> f64 {
        let (low, high) = bounds(factor);
        // A time of zero has no logarithm.
        math::ln(factor.get(factors).max(1e-9)).clamp(low, high)
    }

    /// The factors of a point; the rest keep their values.
    fn at(&self, which: &[usize], x: &[f64]) -> Factors {
        let mut factors = self.bench.ask.hardware.factors;
        for (&i, x) in which.iter().zip(x) {
            self.factors[i].set(&mut factors, math::exp(*x));
        }
        factors
    }

    fn residuals(&self, which: &[usize], points: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let sets: Vec<Factors> = points.iter().map(|x| self.at(which, x)).collect();
        let all = self.bench.all(&self.runs, &sets);
        let of = |runs: &Vec<Vec<figures::Times>>| {
            let mut out = Vec::new();
            for ((seen, times), errors) in self.runs.iter().zip(runs).zip(&self.errors) {
                out.extend(Bench::logs(seen, times).iter().zip(errors).map(|(r, e)| r / e));
            }
            out
        };
        all.iter().map(of).collect()
    }

    fn solve(&self, which: &[usize], from: &[f64]) -> Solution {
        let limits: Vec<(f64, f64)> = which.iter().map(|&i| bounds(self.factors[i])).collect();
        let space = Space { bounds: &limits, units: &self.units() };
        solve::solve(from, &space, &mut |points| self.residuals(which, points))
    }

    /// The error of each residual.
    fn units(&self) -> Vec<f64> {
        self.errors.iter().flatten().copied().collect()
    }

    /// The greatest share by which a factor moves a figure when it grows by e.
    fn effect(&self, slopes: &[Vec<f64>], column: usize) -> f64 {
        let errors = self.errors.iter().flatten();
        slopes.iter().zip(errors).map(|(row, e)| (row[column] * e).abs()).fold(0.0, f64::max)
    }
}

/// By how much a column's variance may be inflated by the others before it is not worth trying to fit it beside
/// them. Columns are as exact as differences of simulations, a few hundredths at worst, so that the same effect twice
/// still comes out above this.
const HOPELESS: f64 = 1000.0;
/// The same for what has been fitted: then it is tried whether the fit is as good without it.
const INFLATED: f64 = 100.0;

/// Half the 95 % interval of each column if residuals had their sampling error and nothing else; infinite where
/// others inflate its variance by more than `inflated`.
fn widths(slopes: &[Vec<f64>], columns: &[usize], inflated: f64) -> Vec<f64> {
    let normal = normal_matrix(slopes, columns);
    let Some(inverse) = invert(&normal) else { return vec![f64::INFINITY; columns.len()] };
    let of = |i: usize| {
        let over = inverse[i][i] * normal[i][i] > inflated;
        if over { f64::INFINITY } else { 1.96 * inverse[i][i].max(0.0).sqrt() }
    };
    (0..columns.len()).map(of).collect()
}

/// Of the columns whose width is over a limit the place of the one with the least effect, the last of equal ones. Of
/// factors that make up for each other the one that matters most is left.
fn least(widths: &[f64], limit: f64, columns: &[usize], effects: &[f64]) -> Option<usize> {
    let candidates = (0..columns.len()).rev().filter(|&i| widths[i] > limit);
    candidates.min_by(|a, b| effects[columns[*a]].total_cmp(&effects[columns[*b]]))
}

/// The effect of each column, in units of the errors.
fn lengths(slopes: &[Vec<f64>]) -> Vec<f64> {
    let columns = slopes.first().map_or(0, Vec::len);
    (0..columns).map(|j| slopes.iter().map(|row| row[j] * row[j]).sum::<f64>().sqrt()).collect()
}

/// Rounds of the fit: what counts as an error of a figure depends on the factors, and so does what is told.
const ROUNDS: usize = 2;

pub(crate) fn fit(bench: &Bench<'_>) -> Found {
    let ask = bench.ask;
    let mut factors = ask.hardware.factors;
    let mut steps = 0;
    let (mut last, mut effects) = (None, Vec::new());
    for _ in 0..ROUNDS {
        let search = Search::new(bench, &factors);
        let mut outcomes: Vec<Option<Outcome>> = vec![None; ask.factors.len()];
        let (mut which, from) = tell_apart(&search, &factors, &mut effects, &mut outcomes);
        let mut best = search.solve(&which, &from);
        steps += best.steps + drop_what_is_not_told(&search, &effects, &mut which, &mut best, &mut outcomes);
        factors = search.at(&which, &best.x);
        last = Some((search, which, best, outcomes));
    }
    let Some((search, which, best, mut outcomes)) = last else { unreachable!("there is a round") };
    intervals(&search, &which, &best, &factors, &mut outcomes);
    let outcome = |(f, o): (&Factor, &Option<Outcome>)| Fitted {
        factor: *f,
        before: f.get(&ask.hardware.factors),
        after: f.get(&factors),
        outcome: o.unwrap_or(Outcome::NoEffect),
    };
    let before = search.residuals(&[], &[Vec::new()]).pop().unwrap_or_default();
    Found {
        factors,
        outcomes: ask.factors.iter().zip(&outcomes).map(outcome).collect(),
        squares: (before.iter().map(|r| r * r).sum(), best.sum(), best.residuals.len()),
        steps,
        converged: best.converged,
    }
}

/// Leaves out factors without which the fit is as good. Asked are those whose interval is too wide where the search
/// ended. Gives the steps that it took.
fn drop_what_is_not_told(
    search: &Search<'_>,
    effects: &[f64],
    which: &mut Vec<usize>,
    best: &mut Solution,
    outcomes: &mut [Option<Outcome>],
) -> usize {
    let mut steps = 0;
    let mut needed: Vec<usize> = Vec::new();
    loop {
        let all: Vec<usize> = (0..which.len()).collect();
        let mut wide = widths(&best.jacobian, &all, INFLATED);
        for (w, i) in wide.iter_mut().zip(which.iter()) {
            if needed.contains(i) {
                *w = 0.0;
            }
        }
        let Some(worst) = least(&wide, WIDEST, which, effects) else { return steps };
        let mut fewer = which.clone();
        let left_out = fewer.remove(worst);
        let from: Vec<f64> = (0..which.len()).filter(|&k| k != worst).map(|k| best.x[k]).collect();
        let without = search.solve(&fewer, &from);
        steps += without.steps;
        let freedom = best.residuals.len().saturating_sub(which.len()).max(1) as f64;
        let unit = (best.sum() / freedom).max(1.0);
        if without.sum() - best.sum() < TOLD * unit {
            outcomes[left_out] = Some(Outcome::Confounded);
            (*which, *best) = (fewer, without);
        } else {
            needed.push(left_out);
        }
    }
}

/// The effect that a factor is given before it is judged: what costs next to nothing where the search begins may
/// cost much in truth, and has to be seen.
const SEEN: f64 = 0.1;
/// The most by which a factor is enlarged to be seen.
const LIFT: f64 = 30.0;

/// The factors that the runs tell apart near a point, and where to begin with them. `effects` are those of the values
/// before the fit, and are set in the first round.
fn tell_apart(
    search: &Search<'_>,
    at: &Factors,
    effects: &mut Vec<f64>,
    outcomes: &mut [Option<Outcome>],
) -> (Vec<usize>, Vec<f64>) {
    let all: Vec<usize> = (0..search.factors.len()).collect();
    // What a round before has taken to next to nothing begins where it was.
    let begin = |f: &Factor| {
        let (now, first) = (Search::place(*f, at), Search::place(*f, &search.bench.ask.hardware.factors));
        if !f.is_share() && now < first - math::ln(LIFT) { first } else { now }
    };
    let mut x: Vec<f64> = search.factors.iter().map(begin).collect();
    let limits: Vec<(f64, f64)> = search.factors.iter().map(|f| bounds(*f)).collect();
    let space = Space { bounds: &limits, units: &search.units() };
    let here = space.jacobian(&x, 1.0, &mut |points| search.residuals(&all, points));
    for &i in &all {
        let effect = search.effect(&here, i).max(1e-9);
        let lift = math::ln((SEEN / effect).clamp(1.0, LIFT));
        let towards = if search.factors[i].is_share() { -lift } else { lift };
        x[i] = (x[i] + towards).clamp(limits[i].0, limits[i].1);
    }
    let slopes = space.jacobian(&x, 1.0, &mut |points| search.residuals(&all, points));
    if effects.is_empty() {
        *effects = lengths(&here);
    }
    let mut which: Vec<usize> = Vec::new();
    for i in all {
        if search.effect(&slopes, i) < NOTHING {
            outcomes[i] = Some(Outcome::NoEffect);
        } else {
            which.push(i);
        }
    }
    // A fit needs more figures than factors.
    loop {
        let too_many = which.len() >= slopes.len();
        let wide = widths(&slopes, &which, HOPELESS);
        let limit = if too_many { -1.0 } else { f64::MAX };
        let Some(worst) = least(&wide, limit, &which, effects) else { break };
        outcomes[which[worst]] = Some(Outcome::Confounded);
        which.remove(worst);
    }
    let from = which.iter().map(|&i| x[i]).collect();
    (which, from)
}

/// Intervals of what was fitted: from the paired resamples of all runs, carried through the linearised fit, and from what
/// the fit leaves unexplained.
fn intervals(
    search: &Search<'_>,
    which: &[usize],
    best: &Solution,
    factors: &Factors,
    outcomes: &mut [Option<Outcome>],
) {
    let mut columns = Vec::new();
    for (k, &i) in which.iter().enumerate() {
        let (low, high) = bounds(search.factors[i]);
        let vanished = best.x[k] <= low && !search.factors[i].is_share();
        if vanished || search.effect(&best.jacobian, k) < VANISHING {
            outcomes[i] = Some(Outcome::Small);
        } else if best.x[k] <= low || best.x[k] >= high {
            outcomes[i] = Some(Outcome::AtBound);
        } else {
            columns.push(k);
        }
    }
    let Some(inverse) = invert(&normal_matrix(&best.jacobian, &columns)) else { return };
    let freedom = best.residuals.len().saturating_sub(columns.len()).max(1) as f64;
    let left = best.sum() / freedom;
    let resampled = resampled(search, factors, best);
    // By how much each column moves with each residual.
    let gain = |c: usize, row: &[f64]| -> f64 {
        columns.iter().enumerate().map(|(d, &k)| inverse[c][d] * row[k]).sum()
    };
    for (c, &k) in columns.iter().enumerate() {
        let gains: Vec<f64> = best.jacobian.iter().map(|row| gain(c, row)).collect();
        let moves: Vec<f64> =
            resampled.iter().map(|r| r.iter().zip(&gains).map(|(r, g)| r * g).sum()).collect();
        let n = moves.len().max(2) as f64;
        let mean = moves.iter().sum::<f64>() / n;
        let sampling = moves.iter().map(|m| (m - mean) * (m - mean)).sum::<f64>() / (n - 1.0);
        let error = (sampling + left * inverse[c][c]).sqrt();
        let half = t_quantile(0.975, freedom) * error + ROUNDING;
        let ends = (math::exp(best.x[k] - half), math::exp(best.x[k] + half));
        outcomes[which[k]] = Some(Outcome::Fitted(ends.0, ends.1));
    }
}

/// Residuals under the paired resamples, less those of the fit.
fn resampled(search: &Search<'_>, factors: &Factors, best: &Solution) -> Vec<Vec<f64>> {
    let mut out: Vec<Vec<f64>> = Vec::new();
    for (ratios, errors) in search.ratios(factors).iter().zip(&search.errors) {
        out.resize_with(ratios.len(), Vec::new);
        for (all, ratios) in out.iter_mut().zip(ratios) {
            all.extend(ratios.iter().zip(errors).map(|(r, e)| if r.is_finite() { r / e } else { 0.0 }));
        }
    }
    for residuals in &mut out {
        residuals.iter_mut().zip(&best.residuals).for_each(|(r, b)| *r -= b);
    }
    out
}
