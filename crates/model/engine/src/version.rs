//! Behaviour versions: the defaults and rules of vLLM releases that change results, pinned.
//!
//! Where each rule came in was read off the released packages, from 0.11.0 to 0.32.0.

use forebay_base::{Diagnostic, Diagnostics, Position};
use std::fmt;

/// What holds in one release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Version {
    /// Minor number and patch level; without a patch level the last of its line is meant.
    release: (u32, Option<u32>),
    /// Default of `--gpu-memory-utilization`.
    pub gpu_memory_utilization: f64,
    /// Whether the next step is put together while one runs, by default.
    pub async_scheduling: bool,
    /// Whether a request is admitted only if its whole prompt fits, by default; `None` in releases without
    /// `--scheduler-reserve-full-isl`, which look at the first chunk.
    pub reserve_full_prompt: Option<bool>,
    /// Whether there is `--watermark`.
    pub has_watermark: bool,
    /// Whether a request that is alone ignores `--long-prefill-token-threshold`.
    pub sole_prefill_whole: bool,
    /// Whether blocks that cannot be hit go to the front of the free list when they are freed, so that all
    /// cached ones outlast them; to its end otherwise.
    pub blank_blocks_first: bool,
    /// Distance of the captured CUDA graph sizes above 256 tokens.
    pub capture_step: u32,
}

/// Minor numbers of the first and the last release known.
const KNOWN: (u32, u32) = (11, 32);

impl Version {
    /// The newest release known.
    pub const NEWEST: Version = Version::of(KNOWN.1, None);

    /// The rules of 0.`minor`.`patch`. Default token budgets and sequence limits are the same in all.
    const fn of(minor: u32, patch: Option<u32>) -> Version {
        let first_of_all = minor == 11 && matches!(patch, Some(0));
        Version {
            release: (minor, patch),
            gpu_memory_utilization: if minor >= 20 { 0.92 } else { 0.9 },
            async_scheduling: minor >= 14,
            reserve_full_prompt: if minor >= 19 { Some(true) } else { None },
            has_watermark: minor >= 24,
            sole_prefill_whole: minor >= 31,
            blank_blocks_first: minor >= 28,
            capture_step: if first_of_all { 8 } else { 16 },
        }
    }

    /// Looks a release up: `0.15`, `v0.15` or `0.15.1`; the error names those known.
    pub fn find(name: &str) -> Result<Version, Diagnostics> {
        let plain = name.strip_prefix('v').unwrap_or(name);
        let numbers: Vec<Option<u32>> = plain.split('.').map(|n| n.parse().ok()).collect();
        let found = match numbers.as_slice() {
            [Some(0), Some(minor)] => Some((*minor, None)),
            [Some(0), Some(minor), Some(patch)] => Some((*minor, Some(*patch))),
            _ => None,
        };
        match found {
            Some((minor, patch)) if (KNOWN.0..=KNOWN.1).contains(&minor) => Ok(Version::of(minor, patch)),
            _ => {
                let message = format!("unknown vLLM release \"{name}\"");
                let d = Diagnostic::error(Position::default(), "vllm-version", message);
                let (first, last) = KNOWN;
                Err(Diagnostics(vec![d.expected(format!("0.{first} to 0.{last}, such as 0.15 or 0.15.1"))]))
            }
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minor, patch) = self.release;
        write!(f, "0.{minor}")?;
        patch.map_or(Ok(()), |p| write!(f, ".{p}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_found_with_and_without_patch_level() {
        for name in ["0.15", "v0.15", "0.15.1"] {
            let v = Version::find(name).unwrap();
            assert_eq!((v.async_scheduling, v.reserve_full_prompt), (true, None), "{name}");
            assert_eq!(v.to_string(), name.trim_start_matches('v'));
        }
        assert_eq!(Version::find("0.32").unwrap(), Version::NEWEST);
        for wrong in ["0.10", "0.33", "1.0", "0.15.", "0.15.1.2", "", "newest"] {
            let e = Version::find(wrong).unwrap_err();
            assert!(e.to_string().contains("0.11 to 0.32"), "{wrong}: {e}");
        }
    }

    #[test]
    fn rules_change_where_the_packages_changed() {
        let v = |name| Version::find(name).unwrap();
        assert_eq!((v("0.11.0").capture_step, v("0.11.1").capture_step, v("0.11").capture_step), (8, 16, 16));
        assert!(!v("0.13").async_scheduling && v("0.14.0").async_scheduling);
        assert_eq!((v("0.18").reserve_full_prompt, v("0.19").reserve_full_prompt), (None, Some(true)));
        assert_eq!((v("0.19").gpu_memory_utilization, v("0.20").gpu_memory_utilization), (0.9, 0.92));
        assert!(!v("0.23").has_watermark && v("0.24").has_watermark);
        assert!(!v("0.27").blank_blocks_first && v("0.28").blank_blocks_first);
        assert!(!v("0.30").sole_prefill_whole && v("0.31").sole_prefill_whole);
    }
}
