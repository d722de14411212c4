//! Student's t and binomial probabilities, through the incomplete beta function.

use forebay_base::math::{exp, ln, ln_gamma};

/// The regularised incomplete beta function `I_x(a, b)` for positive `a`, `b`: the continued fraction
/// 8.17.22 of the NIST Digital Library of Mathematical Functions, evaluated by Lentz's method.
pub fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast left of the mean; 8.17.4 gives the other side.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = exp(a * ln(x) + b * ln(1.0 - x) - (ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b))) / a;
    front / beta_fraction(a, b, x)
}

/// `1 + d1/(1 + d2/(1 + …))` of 8.17.22.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let off_zero = |v: f64| if v.abs() < TINY { TINY } else { v };
    let (mut f, mut c, mut d) = (1.0, 1.0, 0.0);
    // The number of terms needed grows with the square root of the greater parameter.
    let most = 300 + (10.0 * a.max(b).sqrt()) as u32;
    for n in 1..most {
        let m = f64::from(n / 2);
        let term = if n % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / off_zero(1.0 + term * d);
        c = off_zero(1.0 + term / c);
        f *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    f
}

/// `P(B <= k)` for `B` binomial with `n` trials of probability `p` (8.17.5 of the same library).
pub fn binomial_cdf(k: u64, n: u64, p: f64) -> f64 {
    if k >= n { 1.0 } else { incomplete_beta((n - k) as f64, k as f64 + 1.0, 1.0 - p) }
}

/// `P(T <= t)` for Student's t with `df` degrees of freedom.
pub fn t_cdf(t: f64, df: f64) -> f64 {
    let tail = 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + t * t));
    if t > 0.0 { 1.0 - tail } else { tail }
}

/// The `p`-quantile of Student's t with `df` degrees of freedom, `p` in (0, 1), by bisection of its
/// distribution function down to neighbouring doubles.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    if p < 0.5 {
        return -t_quantile(1.0 - p, df);
    }
    let (mut low, mut high) = (0.0, 1.0);
    while t_cdf(high, df) < p && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let mid = 0.5 * (low + high);
        if mid <= low || mid >= high {
            break;
        }
        if t_cdf(mid, df) < p {
            low = mid;
        } else {
            high = mid;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_t_are_those_of_the_tables() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, three decimals.
        for (df, p, t) in [
            (1.0, 0.975, 12.706),
            (2.0, 0.975, 4.303),
            (9.0, 0.975, 2.262),
            (19.0, 0.975, 2.093),
            (30.0, 0.975, 2.042),
            (100.0, 0.975, 1.984),
            (10.0, 0.95, 1.812),
            (5.0, 0.995, 4.032),
        ] {
            assert!((t_quantile(p, df) - t).abs() < 0.0006, "{df} {p}: {}", t_quantile(p, df));
            assert!((t_cdf(t_quantile(p, df), df) - p).abs() < 1e-12);
            assert_eq!(t_quantile(1.0 - p, df), -t_quantile(1.0 - (1.0 - p), df));
        }
        // One degree of freedom is the Cauchy distribution: P(T <= 1) = 3/4.
        assert!((t_cdf(1.0, 1.0) - 0.75).abs() < 1e-14);
    }

    #[test]
    fn binomial_sums_are_those_by_hand() {
        // n = 4, p = 1/2: 1, 4, 6, 4, 1 sixteenths.
        for (k, sixteenths) in [(0, 1.0), (1, 5.0), (2, 11.0), (3, 15.0), (4, 16.0)] {
            assert!((binomial_cdf(k, 4, 0.5) - sixteenths / 16.0).abs() < 1e-14);
        }
        assert!((binomial_cdf(0, 368, 0.01) - 0.024_760_06).abs() < 1e-8, "0.99^368");
        // Large counts against the Edgeworth expansion: 1/2 + phi(0)/sigma * (1/2 + (1 - 2p)/6).
        assert!((binomial_cdf(990_000, 1_000_000, 0.99) - 0.501_35).abs() < 1e-5);
    }
}
