//! What a usage limit policy does at a saturation, measured on the policy itself over many cycles.

use crate::policy::{CycleFacts, UsageLimit};

/// One saturation.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The saturation.
    pub saturation: f64,
    /// The policy's word for it.
    pub regime: &'static str,
    /// Per band, highest first.
    pub bands: Vec<Band>,
    /// Whether the pool as a whole stops here: no emitted ceiling lies above the saturation in any cycle.
    pub halted: bool,
}

/// One band at one saturation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// The ceiling the policy aims at.
    pub nominal: f64,
    /// Share of cycles, 0 to 1, in which the policy shut the band for the sake of the bands above: its
    /// emitted ceiling lies below what the highest band got, and the saturation has reached it.
    pub blocked: f64,
}

/// Runs the policy for `cycles` cycles at each saturation, with fresh cells each time.
pub fn rows(limit: &dyn UsageLimit, priorities: &[i32], saturations: &[f64], cycles: u32) -> Vec<Row> {
    let n = priorities.len();
    saturations
        .iter()
        .map(|&saturation| {
            let facts = CycleFacts { saturation, priorities, ticks: 1 };
            let mut cells = vec![0; limit.cells()];
            let mut nominal = vec![1.0; n];
            limit.nominal(&facts, &mut nominal);
            let (mut out, mut shut, mut open) = (vec![1.0; n], vec![0u32; n], 0u32);
            for _ in 0..cycles {
                out.fill(1.0);
                limit.ceilings(&facts, &mut cells, &mut out);
                // The first shut band ends the cycle, so those below it are shut with it.
                let first = out.iter().position(|&c| saturation >= c).unwrap_or(n);
                open += u32::from(first > 0);
                for (band, count) in shut.iter_mut().enumerate() {
                    let own = out[..=band].iter().any(|&c| c < out[0] && saturation >= c);
                    *count += u32::from(own && band >= first);
                }
            }
            let share = |count: u32| f64::from(count) / f64::from(cycles.max(1));
            let bands = nominal.iter().zip(&shut).map(|(&nominal, &s)| Band { nominal, blocked: share(s) });
            Row { saturation, regime: limit.regime(&facts), bands: bands.collect(), halted: open == 0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins;

    fn limit(name: &str) -> std::sync::Arc<dyn UsageLimit> {
        let d = plugins::find(name).unwrap();
        (d.build)(&d.presets()).unwrap().limit.unwrap()
    }

    #[test]
    fn soft_reflective_gives_the_published_rows() {
        let soft = limit("soft-reflective-ceiling-policy");
        let rows = rows(&*soft, &[100, -50], &[0.5, 0.6, 0.75, 0.9, 1.0], 10_000);
        let percent: Vec<_> = rows.iter().map(|r| (r.bands[1].blocked * 100.0).round()).collect();
        assert_eq!(percent, [0.0, 50.0, 67.0, 89.0, 100.0]);
        assert!(rows.iter().all(|r| r.bands[0].blocked == 0.0 && r.bands[0].nominal == 1.0));
        let nominal: Vec<_> = rows.iter().map(|r| (r.bands[1].nominal * 100.0).round()).collect();
        assert_eq!(nominal, [50.0, 40.0, 25.0, 10.0, 0.0]);
        assert_eq!(rows.iter().map(|r| r.halted).collect::<Vec<_>>(), [false, false, false, false, true]);
        assert_eq!(
            rows.iter().map(|r| r.regime).collect::<Vec<_>>(),
            ["boundary", "proportional", "proportional", "proportional", "hard block"]
        );
    }

    #[test]
    fn static_only_ever_halts_everybody() {
        let rows = rows(&*limit("static-usage-limit-policy"), &[1, 0], &[0.99, 1.0], 100);
        assert!(rows.iter().all(|r| r.bands.iter().all(|b| b.blocked == 0.0)));
        assert_eq!((rows[0].halted, rows[1].halted), (false, true));
    }
}
