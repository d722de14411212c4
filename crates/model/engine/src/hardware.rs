//! The hardware catalogue: vendor peaks (dense, no sparsity), and the efficiency factors that turn
//! peaks into times.

use forebay_base::{Diagnostic, Diagnostics, Position, Span};

/// What one GPU type reaches of its peaks, and the fixed costs of a step. Few numbers, shared by all models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Share of peak FLOP/s that matrix products reach, in (0, 1].
    pub compute: f64,
    /// Share of peak memory bandwidth that weight reads reach, in (0, 1].
    pub bandwidth: f64,
    /// Share of peak memory bandwidth that the reads of attention reach, in (0, 1].
    pub kv: f64,
    /// Compute and weight reads overlap; this share of the shorter of the two does not, in (0, 1].
    pub exposed: f64,
    /// Share of the interconnect's bandwidth that collectives reach, in (0, 1].
    pub link: f64,
    /// Fixed latency of one all-reduce between GPUs of one server.
    pub collective: Span,
    /// Cost of a step whatever it carries: sampling, copies, output handling.
    pub step: Span,
    /// Cost of each layer in a step beyond the roofline: small kernels and their launches.
    pub layer: Span,
    /// Cost of each layer with experts beyond that: routing, and sorting tokens by expert.
    pub experts: Span,
    /// Cost of each sequence in a step.
    pub sequence: Span,
    /// Extra cost of each layer in a step that carries prefill: its graphs are cut at every attention.
    pub mixed: Span,
    /// Time of a request outside the engine before the scheduler can see it: HTTP, tokenization, the way
    /// to the engine and the way of the first token back.
    pub request: Span,
}

impl Factors {
    /// Starting values for hardware without measurements.
    pub const START: Factors = Factors {
        compute: 0.70,
        bandwidth: 0.75,
        kv: 0.60,
        exposed: 0.5,
        link: 0.70,
        collective: Span::micros(8),
        step: Span::micros(500),
        layer: Span::micros(25),
        experts: Span::micros(20),
        sequence: Span::micros(8),
        mixed: Span::micros(8),
        request: Span::millis(4),
    };
}

/// One GPU type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Short name, the one the command line takes.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// The vendor's name.
    pub product: &'static str,
    /// Where the peaks come from.
    pub source: &'static str,
    /// 16-bit dense peak, in TFLOP/s.
    pub tflops: f64,
    /// 8-bit floating point dense peak, in TFLOP/s; that of 16 bits where there is no faster unit.
    pub tflops_fp8: f64,
    /// Memory bandwidth, in TB/s.
    pub memory_tb_s: f64,
    /// Memory a process can see, in GiB: one or two per cent under the nominal size.
    pub memory_gib: f64,
    /// GPU-to-GPU bandwidth in one direction, in GB/s (PCIe where there is no other link).
    pub link_gb_s: f64,
    /// Efficiency factors.
    pub factors: Factors,
}

/// The GPU types that ship.
pub const HARDWARE: &[Hardware] = &[
    Hardware {
        name: "h100",
        aliases: &["h100-sxm", "h100-80", "h100-sxm-80"],
        product: "NVIDIA H100 SXM5 80GB",
        source: "NVIDIA H100 Tensor Core GPU datasheet (SXM, dense = half of the sparse figure)",
        tflops: 989.5,
        tflops_fp8: 1979.0,
        memory_tb_s: 3.35,
        memory_gib: 79.2,
        link_gb_s: 450.0,
        factors: Factors::START,
    },
    Hardware {
        name: "h200",
        aliases: &["h200-sxm", "h200-141", "h200-sxm-141"],
        product: "NVIDIA H200 SXM 141GB",
        source: "NVIDIA H200 Tensor Core GPU datasheet (SXM)",
        tflops: 989.5,
        tflops_fp8: 1979.0,
        memory_tb_s: 4.8,
        memory_gib: 139.8,
        link_gb_s: 450.0,
        factors: Factors::START,
    },
    Hardware {
        name: "a100-80",
        aliases: &["a100", "a100-sxm", "a100-sxm-80"],
        product: "NVIDIA A100 SXM4 80GB",
        source: "NVIDIA A100 Tensor Core GPU datasheet (SXM 80 GB)",
        tflops: 312.0,
        tflops_fp8: 312.0,
        memory_tb_s: 2.039,
        memory_gib: 79.15,
        link_gb_s: 300.0,
        factors: Factors::START,
    },
    Hardware {
        name: "l40s",
        aliases: &["l40s-48"],
        product: "NVIDIA L40S 48GB",
        source: "NVIDIA L40S datasheet (no NVLink; PCIe gen 4 x16)",
        tflops: 362.05,
        tflops_fp8: 733.0,
        memory_tb_s: 0.864,
        memory_gib: 44.4,
        link_gb_s: 32.0,
        factors: Factors::START,
    },
    Hardware {
        name: "b200",
        aliases: &["b200-sxm", "b200-180", "b200-sxm-180"],
        product: "NVIDIA B200 SXM 180GB",
        source: "NVIDIA DGX B200 datasheet, divided by its eight GPUs",
        tflops: 2250.0,
        tflops_fp8: 4500.0,
        memory_tb_s: 8.0,
        memory_gib: 178.3,
        link_gb_s: 900.0,
        factors: Factors::START,
    },
    Hardware {
        name: "mi300x",
        aliases: &["mi300x-192", "mi300"],
        product: "AMD Instinct MI300X 192GB",
        source: "AMD Instinct MI300X datasheet (seven Infinity Fabric links of 64 GB/s each way)",
        tflops: 1307.4,
        tflops_fp8: 2614.9,
        memory_tb_s: 5.3,
        memory_gib: 191.5,
        link_gb_s: 448.0,
        factors: Factors::START,
    },
];

impl Hardware {
    /// Looks a GPU type up by name or alias, ignoring case; the error names the nearest.
    pub fn find(name: &str) -> Result<&'static Hardware, Diagnostics> {
        let is = |n: &str| n.eq_ignore_ascii_case(name);
        HARDWARE.iter().find(|h| is(h.name) || h.aliases.iter().any(|a| is(a))).ok_or_else(|| {
            let names: Vec<&str> = HARDWARE.iter().map(|h| h.name).collect();
            let what = format!("unknown hardware \"{name}\"");
            let d = Diagnostic::error(Position::default(), "hardware", what);
            Diagnostics(vec![d.expected(format!("one of {}", names.join(", "))).nearest_of(name, names)])
        })
    }

    /// Whether vLLM's API server starts with its large defaults (8192 tokens, 1024 sequences): at least
    /// 70 GiB and not an A100.
    pub fn large(&self) -> bool {
        self.memory_gib >= 70.0 && self.name != "a100-80"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_found_and_slips_are_pointed_out() {
        assert_eq!(Hardware::find("H100-SXM").unwrap().name, "h100");
        assert_eq!(Hardware::find("a100").unwrap().name, "a100-80");
        assert_eq!(Hardware::find("h10").unwrap_err().0[0].nearest.as_deref(), Some("h100"));
        assert!(Hardware::find("h100").unwrap().large());
        assert!(!Hardware::find("a100").unwrap().large());
        assert!(!Hardware::find("l40s").unwrap().large());
    }
}
