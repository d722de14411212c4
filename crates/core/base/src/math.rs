//! Transcendental functions with the same bits everywhere (`libm`, pure Rust), where the standard
//! library's would call whatever the platform ships.

/// Natural logarithm.
pub fn ln(x: f64) -> f64 {
    libm::log(x)
}
/// e to the power `x`.
pub fn exp(x: f64) -> f64 {
    libm::exp(x)
}
/// `x` to the power `y`.
pub fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// Natural logarithm of the gamma function of a positive `x`.
pub fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Rounds a non-negative ratio to the nearest integer, half up, where a value within 1e-9 below a half
/// counts as the half: ratios such as 0.6 / 0.4 are exactly 1.5 on paper and 1.4999999999999998 in
/// binary.
pub fn round_ratio(x: f64) -> u64 {
    (x + 0.5 + 1e-9).floor().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_up_despite_binary_fractions() {
        for (s, period) in [(0.6, 2), (5.0 / 7.0, 3), (7.0 / 9.0, 4), (0.5, 1), (0.75, 3), (0.9, 9)] {
            assert_eq!(round_ratio(s / (1.0 - s)), period, "at {s}");
        }
        assert_eq!(round_ratio(1.49), 1);
    }

    #[test]
    fn known_values() {
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(pow(2.0, 10.0), 1024.0);
        assert_eq!(ln_gamma(1.0), 0.0);
        assert!((exp(ln_gamma(6.0)) - 120.0).abs() < 1e-9);
        assert_eq!(ln(10.0).to_bits(), 0x4002_6bb1_bbb5_5516);
    }
}
