//! Bounded least squares by Levenberg and Marquardt's method, with derivatives from differences.
//!
//! Points are evaluated in batches, so that whoever evaluates them can do it in parallel; the result does not
//! depend on how.

/// Derivatives are taken over so far that what depends most on a coordinate changes by this much. What is evaluated has
/// jumps: over short distances they are all there is to see, and would pass for information.
const CHANGE: f64 = 0.07;
/// Bounds of that distance; coordinates are logarithms.
const DISTANCE: (f64, f64) = (0.05, 0.7);
/// Shares of the distance that are tried one after the other when a search comes to rest.
const SHARES: [f64; 3] = [1.0, 0.5, 0.2];
/// The longest step of a coordinate.
const FAR: f64 = 1.5;
/// A fall of the sum by less than this share is none.
const FLAT: f64 = 1e-3;
/// The most steps.
pub(crate) const MOST_STEPS: usize = 60;
/// Dampings that are tried at once, as factors on the last one that was good.
const DAMPING: [f64; 6] = [0.01, 0.1, 1.0, 10.0, 100.0, 1e4];

/// Residuals at each of some points.
pub(crate) type Evaluate<'e> = dyn FnMut(&[Vec<f64>]) -> Vec<Vec<f64>> + 'e;

/// Where the search ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Solution {
    /// Coordinates.
    pub(crate) x: Vec<f64>,
    /// Residuals there.
    pub(crate) residuals: Vec<f64>,
    /// Derivatives of each residual by each coordinate.
    pub(crate) jacobian: Vec<Vec<f64>>,
    /// Steps that were taken.
    pub(crate) steps: usize,
    /// Whether it ended because nothing got better.
    pub(crate) converged: bool,
}

impl Solution {
    /// The sum of squares.
    pub(crate) fn sum(&self) -> f64 {
        squares(&self.residuals)
    }
}

fn squares(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum()
}

/// Where and how derivatives are taken.
pub(crate) struct Space<'s> {
    /// Bounds of the coordinates.
    pub(crate) bounds: &'s [(f64, f64)],
    /// The unit of each residual: what a residual of 1 is a change of.
    pub(crate) units: &'s [f64],
}

impl Space<'_> {
    /// The derivatives at a point: slopes of straight lines through four points on either side of it, as far as these are
    /// within the bounds. Distances are adapted to the slopes, which are then taken again.
    pub(crate) fn jacobian(&self, x: &[f64], share: f64, evaluate: &mut Evaluate<'_>) -> Vec<Vec<f64>> {
        let first = self.slopes(x, &vec![0.2; x.len()], evaluate);
        let distance = |j: usize| {
            let most = first.iter().zip(self.units).map(|(row, u)| (row[j] * u).abs()).fold(1e-9, f64::max);
            share * (CHANGE / most).clamp(DISTANCE.0, DISTANCE.1)
        };
        let distances: Vec<f64> = (0..x.len()).map(distance).collect();
        self.slopes(x, &distances, evaluate)
    }

    fn slopes(&self, x: &[f64], distances: &[f64], evaluate: &mut Evaluate<'_>) -> Vec<Vec<f64>> {
        /// Places of the points, as shares of the distance.
        const PLACES: [f64; 4] = [-1.0, -0.5, 0.5, 1.0];
        let moved = |j: usize, share: f64| {
            let mut y = x.to_vec();
            y[j] = (y[j] + share * distances[j]).clamp(self.bounds[j].0, self.bounds[j].1);
            y
        };
        let points: Vec<Vec<f64>> = (0..x.len()).flat_map(|j| PLACES.map(|share| moved(j, share))).collect();
        let values = evaluate(&points);
        let rows = values.first().map_or(0, Vec::len);
        let mut out = vec![vec![0.0; x.len()]; rows];
        for j in 0..x.len() {
            let mine = PLACES.len() * j..PLACES.len() * (j + 1);
            let at: Vec<f64> = points[mine.clone()].iter().map(|p| p[j] - x[j]).collect();
            let mean = at.iter().sum::<f64>() / at.len() as f64;
            let squares: f64 = at.iter().map(|t| (t - mean) * (t - mean)).sum();
            if squares > 0.0 {
                for (row, out) in out.iter_mut().enumerate() {
                    let sum: f64 =
                        at.iter().zip(&values[mine.clone()]).map(|(t, v)| (t - mean) * v[row]).sum();
                    out[j] = sum / squares;
                }
            }
        }
        out
    }
}

/// Searches from `start`. With no coordinates it evaluates once.
pub(crate) fn solve(start: &[f64], space: &Space<'_>, evaluate: &mut Evaluate<'_>) -> Solution {
    let bounds = space.bounds;
    let mut x: Vec<f64> = start.iter().zip(bounds).map(|(x, (low, high))| x.clamp(*low, *high)).collect();
    let mut residuals = evaluate(std::slice::from_ref(&x)).pop().unwrap_or_default();
    let mut damping = 1e-2;
    let (mut steps, mut rested) = (0, 0);
    while !x.is_empty() && rested < SHARES.len() && steps < MOST_STEPS {
        steps += 1;
        let slopes = space.jacobian(&x, SHARES[rested], evaluate);
        let tried: Vec<Vec<f64>> =
            DAMPING.iter().map(|d| step(&x, bounds, &slopes, &residuals, damping * d)).collect();
        let values = evaluate(&tried);
        let sums: Vec<f64> = values.iter().map(|v| squares(v)).collect();
        let best = (0..sums.len()).min_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
        let before = squares(&residuals);
        if sums[best] >= before * (1.0 - FLAT) {
            rested += 1;
        }
        if sums[best] < before {
            damping = (damping * DAMPING[best]).clamp(1e-6, 1e6);
            x.clone_from(&tried[best]);
            residuals.clone_from(&values[best]);
        }
    }
    let converged = x.is_empty() || rested == SHARES.len();
    let slopes =
        if x.is_empty() { vec![Vec::new(); residuals.len()] } else { space.jacobian(&x, 1.0, evaluate) };
    Solution { x, residuals, jacobian: slopes, steps, converged }
}

/// One damped step. Coordinates at a bound that the gradient pushes outwards stay there.
fn step(x: &[f64], bounds: &[(f64, f64)], slopes: &[Vec<f64>], r: &[f64], damping: f64) -> Vec<f64> {
    let n = x.len();
    let down: Vec<f64> =
        (0..n).map(|j| -slopes.iter().zip(r).map(|(row, r)| row[j] * r).sum::<f64>()).collect();
    let free: Vec<usize> = (0..n)
        .filter(|&j| !(x[j] <= bounds[j].0 && down[j] < 0.0 || x[j] >= bounds[j].1 && down[j] > 0.0))
        .collect();
    let mut normal = normal_matrix(slopes, &free);
    let scale: f64 = (0..free.len()).map(|i| normal[i][i]).fold(0.0, f64::max);
    for (i, row) in normal.iter_mut().enumerate() {
        row[i] += damping * row[i].max(1e-9 * scale).max(1e-30);
    }
    let right: Vec<f64> = free.iter().map(|&j| down[j]).collect();
    let mut y = x.to_vec();
    if let Some(inverse) = invert(&normal) {
        for (i, &j) in free.iter().enumerate() {
            let by: f64 = inverse[i].iter().zip(&right).map(|(a, b)| a * b).sum();
            y[j] = (y[j] + by.clamp(-FAR, FAR)).clamp(bounds[j].0, bounds[j].1);
        }
    }
    y
}

/// `JᵀJ` over some columns.
pub(crate) fn normal_matrix(slopes: &[Vec<f64>], columns: &[usize]) -> Vec<Vec<f64>> {
    let product = |a: usize, b: usize| slopes.iter().map(|row| row[a] * row[b]).sum::<f64>();
    columns.iter().map(|&a| columns.iter().map(|&b| product(a, b)).collect()).collect()
}

/// The inverse of a symmetric positive definite matrix, scaled to a unit diagonal first (Gauss and Jordan with
/// pivots from the diagonal); `None` if it is singular to the precision of the numbers.
pub(crate) fn invert(m: &[Vec<f64>]) -> Option<Vec<Vec<f64>>> {
    let n = m.len();
    let scale: Vec<f64> = (0..n).map(|i| m[i][i].sqrt()).collect();
    if scale.iter().any(|s| !(s.is_finite() && *s > 0.0)) {
        return None;
    }
    let mut a: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let unit = (0..n).map(|j| f64::from(u8::from(i == j)));
            (0..n).map(|j| m[i][j] / scale[i] / scale[j]).chain(unit).collect()
        })
        .collect();
    for k in 0..n {
        let pivot = a[k][k];
        if pivot < 1e-12 {
            return None;
        }
        a[k].iter_mut().for_each(|v| *v /= pivot);
        let row = a[k].clone();
        for (i, other) in a.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let times = other[k];
            debug_assert!(i != k);
            other.iter_mut().zip(&row).for_each(|(v, r)| *v -= times * r);
        }
    }
    Some((0..n).map(|i| (0..n).map(|j| a[i][n + j] / scale[i] / scale[j]).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(f: impl Fn(&[f64]) -> Vec<f64>) -> impl FnMut(&[Vec<f64>]) -> Vec<Vec<f64>> {
        move |points| points.iter().map(|p| f(p)).collect()
    }

    #[test]
    fn the_minimum_of_a_curved_valley_is_found() {
        // Rosenbrock's function as a sum of squares: minimum 0 at (1, 1).
        let mut f = each(|p| vec![10.0 * (p[1] - p[0] * p[0]), 1.0 - p[0]]);
        let s = solve(&[-1.2, 1.0], &Space { bounds: &[(-5.0, 5.0); 2], units: &[1.0; 2] }, &mut f);
        assert!(s.sum() < 1e-4 && (s.x[0] - 1.0).abs() < 1e-2 && (s.x[1] - 1.0).abs() < 2e-2, "{s:?}");
        assert!(s.converged);
    }

    #[test]
    fn a_bound_holds_and_the_rest_is_found_beside_it() {
        // Unbounded minimum at (3, 2); with x <= 1 the sum (x-3)² + (x+y-5)² is least at y = 4.
        let mut f = each(|p| vec![p[0] - 3.0, p[0] + p[1] - 5.0]);
        let s = solve(&[0.0, 0.0], &Space { bounds: &[(-1.0, 1.0), (-9.0, 9.0)], units: &[1.0; 2] }, &mut f);
        assert!((s.x[0] - 1.0).abs() < 1e-9 && (s.x[1] - 4.0).abs() < 1e-3, "{s:?}");
    }

    #[test]
    fn slopes_are_told_from_jumps() {
        // A slope of 0.05 under jumps of 0.01 at every hundredth.
        let jump = |x: f64| if (100.0 * x).floor().rem_euclid(2.0) == 0.0 { 0.005 } else { -0.005 };
        let mut f = each(|p| vec![0.05 * p[0] + jump(p[0])]);
        let space = Space { bounds: &[(-9.0, 9.0)], units: &[1.0] };
        let slope = space.jacobian(&[0.3], 1.0, &mut f)[0][0];
        assert!((0.04..0.06).contains(&slope), "{slope}");
    }

    #[test]
    fn nothing_to_search_evaluates_once() {
        let s = solve(&[], &Space { bounds: &[], units: &[1.0; 2] }, &mut each(|_| vec![2.0, 1.0]));
        assert_eq!((s.sum(), s.steps, s.converged, s.jacobian.len()), (5.0, 0, true, 2));
    }

    #[test]
    fn matrices_are_inverted_unless_singular() {
        let m = vec![vec![4.0, 2.0, 0.0], vec![2.0, 3.0, 1.0], vec![0.0, 1.0, 5e6]];
        let inverse = invert(&m).unwrap();
        for (i, row) in m.iter().enumerate() {
            let product = |j: usize| row.iter().zip(&inverse).map(|(a, b)| a * b[j]).sum::<f64>();
            for j in 0..3 {
                assert!((product(j) - f64::from(u8::from(i == j))).abs() < 1e-9, "{i} {j} {}", product(j));
            }
        }
        assert_eq!(invert(&[vec![1.0, 2.0], vec![2.0, 4.0]]), None);
        assert_eq!(invert(&[vec![0.0]]), None);
        assert_eq!(normal_matrix(&[vec![1.0, 2.0], vec![3.0, 0.0]], &[0, 1]), [[10.0, 2.0], [2.0, 4.0]]);
    }
}
