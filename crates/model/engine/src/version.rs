//! Behaviour versions: the defaults and rules of vLLM releases that change results, pinned.

use forebay_base::{Diagnostic, Diagnostics, Position};

/// What holds from a release on, until the next one listed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Version {
    /// The release, as `major.minor`.
    pub name: &'static str,
    /// Default of `--gpu-memory-utilization`.
    pub gpu_memory_utilization: f64,
    /// Whether the next step is put together while one runs, by default.
    pub async_scheduling: bool,
    /// Whether a request is admitted only if its whole prompt fits (`--scheduler-reserve-full-isl`), by
    /// default.
    pub reserve_full_prompt: bool,
    /// Distance of the captured CUDA graph sizes above 256 tokens.
    pub capture_step: u32,
}

/// The releases known, ascending. Default token budgets and sequence limits are the same in all of them.
pub const VERSIONS: &[Version] = &[
    Version {
        name: "0.11",
        gpu_memory_utilization: 0.9,
        async_scheduling: false,
        reserve_full_prompt: false,
        capture_step: 8,
    },
    Version {
        name: "0.15",
        gpu_memory_utilization: 0.9,
        async_scheduling: true,
        reserve_full_prompt: false,
        capture_step: 16,
    },
    Version::NEWEST,
];

impl Version {
    /// The newest release known.
    pub const NEWEST: Version = Version {
        name: "0.32",
        gpu_memory_utilization: 0.92,
        async_scheduling: true,
        reserve_full_prompt: true,
        capture_step: 16,
    };

    /// Looks a release up: `0.15`, `v0.15` or `0.15.1`; the error names those known.
    pub fn find(name: &str) -> Result<Version, Diagnostics> {
        let plain = name.strip_prefix('v').unwrap_or(name);
        let is = |v: &&Version| {
            plain.strip_prefix(v.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        VERSIONS.iter().find(is).copied().ok_or_else(|| {
            let names: Vec<&str> = VERSIONS.iter().map(|v| v.name).collect();
            let d =
                Diagnostic::error(Position::default(), "version", format!("unknown vLLM release \"{name}\""));
            Diagnostics(vec![d.expected(format!("one of {}", names.join(", "))).nearest_of(name, names)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_found_with_and_without_patch_level() {
        for name in ["0.15", "v0.15", "0.15.1"] {
            assert_eq!(Version::find(name).unwrap().name, "0.15");
        }
        assert_eq!(Version::find("0.32.0").unwrap(), Version::NEWEST);
        let e = Version::find("0.155").unwrap_err();
        assert!(e.to_string().contains("0.11, 0.15, 0.32"), "{e}");
    }
}
