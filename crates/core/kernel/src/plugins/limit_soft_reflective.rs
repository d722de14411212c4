//! `soft-reflective-ceiling-policy`: the higher saturation and the lower the band, the rarer the cycles
//! in which the band may dispatch.
//!
//! With N bands, rank i and saturation S the nominal ceiling is `1 - i * S / (N - 1)`. A band whose
//! ceiling S has passed is not shut: it is open in every k-th cycle, `k = round(S / (1 - S))`, and shut
//! at S >= 1. Source of the rule: "From Simulation to Production Part II" and llm-d-router's plugin of
//! this name.
//!
//! One difference from llm-d-router: the ratio is rounded half up with a tolerance of 1e-9, as on paper,
//! so that 0.6 gives 2, 5/7 gives 3 and 7/9 gives 4; binary fractions and the guard term there give 1, 2
//! and 3. Those saturations are common: three waiting of a threshold of five is 0.6.

use crate::plugin::{Built, Descriptor, Kind, Stability};
use crate::policy::{CycleFacts, UsageLimit};
use forebay_base::math::round_ratio;
use std::sync::Arc;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "soft-reflective-ceiling-policy",
    aliases: &[],
    kinds: &[Kind::UsageLimitPolicy],
    summary: "Lower bands dispatch in every k-th cycle only, k growing with saturation; no parameters.",
    stability: Stability::Alpha,
    params: &[],
    ignores_parameters: false,
    needs: None,
    build: |_| Ok(Built { limit: Some(Arc::new(SoftReflective)), ..Built::default() }),
};

#[derive(Debug)]
struct SoftReflective;

/// Whether cycles alternate at this saturation. At 0.5 the lowest band's ceiling meets S.
fn alternates(s: f64) -> bool {
    s >= 1.0 - s && s < 1.0
}

fn period(s: f64) -> u64 {
    round_ratio(s / (1.0 - s)).max(1)
}

/// The ceiling of rank `i` among `n` bands.
fn reflected(s: f64, i: usize, n: usize) -> f64 {
    if n <= 1 { 1.0 } else { 1.0 - i as f64 * s / (n - 1) as f64 }
}

/// Cell 0 counts the ticks spent in the alternating regime.
impl UsageLimit for SoftReflective {
    fn cells(&self) -> usize {
        1
    }

    fn ceilings(&self, facts: &CycleFacts<'_>, cells: &mut [u64], out: &mut [f64]) {
        let (s, n) = (facts.saturation, out.len());
        // With a single band there is nothing to reflect, and the count stands still.
        if n <= 1 {
            out.fill(1.0);
            return;
        }
        let mut open = false;
        if alternates(s) {
            cells[0] = cells[0].wrapping_add(facts.ticks);
            open = cells[0].is_multiple_of(period(s));
        }
        for (i, c) in out.iter_mut().enumerate() {
            *c = match () {
                () if i == 0 || s < reflected(s, i, n) => 1.0,
                () if s >= 1.0 || !open => 0.0,
                () => 1.0,
            };
        }
    }

    fn nominal(&self, facts: &CycleFacts<'_>, out: &mut [f64]) {
        let n = out.len();
        for (i, c) in out.iter_mut().enumerate() {
            *c = reflected(facts.saturation, i, n).max(0.0);
        }
    }

    fn skip(&self, facts: &CycleFacts<'_>, ticks: u64, cells: &mut [u64]) {
        if facts.priorities.len() > 1 && alternates(facts.saturation) {
            cells[0] = cells[0].wrapping_add(ticks);
        }
    }

    fn steady(&self, facts: &CycleFacts<'_>, cells: &[u64]) -> u64 {
        if facts.priorities.len() <= 1 || !alternates(facts.saturation) {
            return u64::MAX;
        }
        match period(facts.saturation) {
            1 => u64::MAX,
            // The last call was open (0), or k - 1 - phase closed ones follow before the next open one.
            k => (k - 1).saturating_sub(cells[0] % k) * u64::from(!cells[0].is_multiple_of(k)),
        }
    }

    fn regime(&self, facts: &CycleFacts<'_>) -> &'static str {
        match facts.saturation {
            s if s >= 1.0 => "hard block",
            s if !alternates(s) => "no gating",
            s if period(s) == 1 => "boundary",
            _ => "proportional",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(s: f64, priorities: &[i32], cycles: u32) -> Vec<f64> {
        let mut cells = [0];
        let mut shut = vec![0u32; priorities.len()];
        let mut out = vec![1.0; priorities.len()];
        for _ in 0..cycles {
            out.fill(1.0);
            SoftReflective.ceilings(
                &CycleFacts { saturation: s, priorities, ticks: 1 },
                &mut cells,
                &mut out,
            );
            for (n, &c) in shut.iter_mut().zip(&out) {
                *n += u32::from(s >= c);
            }
            assert!(out.windows(2).all(|w| w[0] >= w[1]), "monotone: {out:?}");
        }
        shut.into_iter().map(|n| f64::from(n) / f64::from(cycles)).collect()
    }

    #[test]
    fn the_published_table_of_two_bands() {
        for (s, share) in [(0.2, 0.0), (0.5, 0.0), (0.6, 0.5), (0.75, 2.0 / 3.0), (0.9, 8.0 / 9.0)] {
            let b = blocked(s, &[100, -50], 9_000);
            assert_eq!(b[0], 0.0);
            assert!((b[1] - share).abs() < 1e-9, "at {s}: {b:?}");
        }
        assert_eq!(blocked(1.0, &[100, -50], 100)[1], 1.0);
    }

    #[test]
    fn exact_ratios_round_up_where_binary_fractions_would_not() {
        for (s, k) in [(0.6, 2), (5.0 / 7.0, 3), (7.0 / 9.0, 4), (0.5, 1), (0.599, 1), (0.95, 19), (0.99, 99)]
        {
            assert_eq!(period(s), k, "at {s}");
        }
    }

    #[test]
    fn middle_bands_enter_their_zone_later() {
        // Rank 1 of 3 reflects from S = 2/3 on.
        assert_eq!(blocked(0.66, &[2, 1, 0], 600)[1], 0.0);
        let b = blocked(0.7, &[2, 1, 0], 600);
        assert_eq!(b[1], 0.5);
        assert_eq!(b[2], 0.5);
    }

    #[test]
    fn one_band_or_none_is_never_gated() {
        assert_eq!(blocked(0.9, &[0], 10), [0.0]);
        SoftReflective.ceilings(
            &CycleFacts { saturation: 0.9, priorities: &[], ticks: 1 },
            &mut [0],
            &mut [],
        );
    }

    #[test]
    fn skipping_equals_calling_and_steady_is_a_promise() {
        let priorities = [10, 0];
        for s in [0.3, 0.5, 0.6, 0.75, 0.9, 0.99, 1.0, 1.7] {
            let facts = CycleFacts { saturation: s, priorities: &priorities, ticks: 1 };
            let (mut called, mut skipped) = ([0u64], [0u64]);
            let mut out = [1.0; 2];
            let mut promised = 0u64;
            let mut last = [0.0; 2];
            for n in 0..500u64 {
                SoftReflective.ceilings(&facts, &mut called, &mut out);
                if promised > 0 {
                    assert_eq!(out, last, "at {s}, cycle {n}");
                }
                promised = promised.saturating_sub(1).max(SoftReflective.steady(&facts, &called));
                last = out;
            }
            SoftReflective.skip(&facts, 500, &mut skipped);
            assert_eq!(called, skipped, "at {s}");
        }
    }
}
