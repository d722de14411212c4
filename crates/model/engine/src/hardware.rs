//! The hardware catalogue: vendor peaks (dense, no sparsity), and the efficiency factors that turn
//! peaks into times.

use forebay_base::{Diagnostic, Diagnostics, Position, Span};

/// What one GPU type reaches of its peaks, and the fixed costs of a step. Few numbers, shared by all models.
///
/// The fitted sets come from published measurements of vLLM 0.15.1 under steady load (inference-sim's
/// repositories `training` and `sim-to-real-accuracy-validation`), by the search in this crate's `accuracy`
/// example, on the runs set apart for fitting. Factors that the runs hardly tell apart (`compute`, `link`,
/// `experts` without a model of experts) say little by themselves.
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
    /// Cost of choosing one token, per thousand entries of the vocabulary: vLLM takes the sampling
    /// parameters of the model's own generation config, and top-p sorts the logits.
    pub sampling: Span,
    /// Extra cost of each layer in a step that carries prefill: its graphs are cut at every attention.
    pub mixed: Span,
    /// Time of a request outside the engine before the scheduler can see it: HTTP, tokenization, the way
    /// to the engine and the way of the first token back.
    pub request: Span,
}

impl Factors {
    /// Fitted to 17 runs on H100: eleven models, one to eight GPUs.
    pub const H100: Factors = Factors {
        compute: 0.82,
        bandwidth: 0.95,
        kv: 0.95,
        exposed: 0.58,
        link: 0.62,
        collective: Span(8_400),
        step: Span::micros(1016),
        layer: Span(27_600),
        experts: Span(47_800),
        sequence: Span(516),
        sampling: Span(65),
        mixed: Span(18_200),
        request: Span::micros(6750),
    };

    /// Fitted to two runs on A100: 8 and 34 billion weights, one and two GPUs.
    pub const A100: Factors = Factors {
        compute: 0.71,
        bandwidth: 0.795,
        kv: 0.65,
        exposed: 0.456,
        link: 0.65,
        collective: Span(2_240),
        step: Span::micros(327),
        layer: Span(44_300),
        experts: Span(48_600),
        sequence: Span(3_430),
        sampling: Span(256),
        mixed: Span(7_250),
        request: Span::micros(10425),
    };

    /// Fitted to one run on L40S at two rates: 8 billion weights, one GPU. Far fewer than the factors.
    pub const L40S: Factors = Factors {
        compute: 0.77,
        bandwidth: 0.869,
        kv: 0.737,
        exposed: 0.407,
        link: 0.71,
        collective: Span(7_400),
        step: Span::micros(343),
        layer: Span(74_400),
        experts: Span(44_000),
        sequence: Span(3_830),
        sampling: Span(104),
        mixed: Span(9_480),
        request: Span::micros(9900),
    };

    /// Starting values for vLLM's CPU backend without graphs: a step is mostly the interpreter's.
    pub const CPU: Factors = Factors {
        compute: 0.1,
        bandwidth: 0.3,
        kv: 0.3,
        exposed: 0.5,
        link: 0.5,
        collective: Span::micros(50),
        step: Span::millis(4),
        layer: Span::micros(500),
        experts: Span::micros(500),
        sequence: Span::micros(100),
        sampling: Span(1_000),
        mixed: Span::micros(100),
        request: Span::millis(10),
    };

    /// Starting values for hardware without measurements: those of H100 with less of the bandwidth.
    pub const START: Factors = Factors {
        compute: 0.75,
        bandwidth: 0.85,
        kv: 0.85,
        exposed: 0.55,
        link: 0.62,
        collective: Span(8_000),
        step: Span::micros(1000),
        layer: Span(28_000),
        experts: Span(48_000),
        sequence: Span(1_000),
        sampling: Span(70),
        mixed: Span(18_000),
        request: Span::micros(7000),
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
    /// Where the factors come from.
    pub calibration: &'static str,
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
        factors: Factors::H100,
        calibration: "fitted to 17 runs of vLLM 0.15.1",
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
        factors: Factors::H100,
        calibration: "those of H100: the same chip with faster memory",
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
        factors: Factors::A100,
        calibration: "fitted to 2 runs of vLLM 0.15.1",
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
        factors: Factors::L40S,
        calibration: "fitted to 1 run of vLLM 0.15.1",
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
        calibration: "not measured",
    },
    Hardware {
        name: "cpu",
        aliases: &["cpu-core"],
        product: "one x86-64 core, nominal",
        source: "no product: 2 GHz, two 256-bit FMA units (64 GFLOP/s in 32 bits), a channel of DDR4-3200",
        tflops: 0.064,
        tflops_fp8: 0.064,
        memory_tb_s: 0.0256,
        memory_gib: 16.0,
        link_gb_s: 10.0,
        factors: Factors::CPU,
        calibration: "not measured",
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
        calibration: "not measured",
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

    /// Whether it is vLLM's CPU backend: no captured graphs that steps are padded to, and no asynchronous
    /// scheduling (`check_and_update_config` of vLLM's `platforms/cpu`).
    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// `--max-num-seqs` of vLLM's API server where nothing is said: 1024 on [large](Hardware::large) GPUs, 128 on
    /// a CPU, else 256 (`get_batch_defaults` of vLLM's `arg_utils`).
    pub fn default_seqs(&self) -> u32 {
        match (self.is_cpu(), self.large()) {
            (true, _) => 128,
            (_, true) => 1024,
            _ => 256,
        }
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
        let seqs = ["h100", "l40s", "cpu"].map(|n| Hardware::find(n).unwrap().default_seqs());
        assert_eq!(seqs, [1024, 256, 128]);
    }
}
