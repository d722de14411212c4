//! Samplers over counter-based draws: what comes out depends on (seed, name, purpose, number) alone.

use forebay_base::math::{exp, ln, ln_gamma, pow};
use forebay_base::{Draws, Purpose};

/// The draws of one class (or prompt set, or trace): its name is part of the seed, its place in the file
/// is not, so that another class beside it shifts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    draws: Draws,
}

const NAME: Purpose = Purpose::named("workload-stream");

impl Stream {
    /// The stream called `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Stream {
        Stream { draws: Draws::new(Draws::new(seed).bits(NAME, Purpose::named(name).0, 0)) }
    }

    /// 64 uniform bits.
    pub fn bits(self, purpose: Purpose, number: u64, lane: u64) -> u64 {
        self.draws.bits(purpose, number, lane)
    }

    /// Uniform in (0, 1).
    pub fn unit(self, purpose: Purpose, number: u64, lane: u64) -> f64 {
        self.draws.unit(purpose, number, lane)
    }

    /// Uniform in `0..n`.
    pub fn below(self, purpose: Purpose, number: u64, n: u64) -> u64 {
        self.draws.below(purpose, number, 0, n)
    }

    /// Exponential with mean 1, by inversion.
    pub fn exponential(self, purpose: Purpose, number: u64) -> f64 {
        -ln(self.unit(purpose, number, 0))
    }

    /// Standard normal, by inversion: one uniform per value keeps runs with other parameters paired.
    pub fn normal(self, purpose: Purpose, number: u64, lane: u64) -> f64 {
        normal_quantile(self.unit(purpose, number, lane))
    }

    /// Gamma with the given shape and mean `shape` (Marsaglia and Tsang, A Simple Method for Generating
    /// Gamma Variables, ACM TOMS 26(3), 2000; below shape 1 with their section 6).
    pub fn gamma(self, purpose: Purpose, number: u64, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = pow(self.unit(purpose, number, u64::MAX), 1.0 / shape);
            return self.gamma(purpose, number, shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        // More than 95 % of the attempts succeed at any shape; each has lanes of its own.
        let mut attempt = 0;
        loop {
            let x = self.normal(purpose, number, 2 * attempt);
            let root = 1.0 + c * x;
            let v = root * root * root;
            if v > 0.0 {
                let u = self.unit(purpose, number, 2 * attempt + 1);
                if ln(u) < 0.5 * x * x + d - d * v + d * ln(v) {
                    return d * v;
                }
            }
            attempt += 1;
        }
    }
}

/// The quantile function of the standard normal distribution, to about 1 part in 10^16 (algorithm AS 241,
/// PPND16: Wichura, Applied Statistics 37(3), 1988). `p` in (0, 1).
#[allow(clippy::too_many_lines, reason = "most of it is the table of coefficients")]
pub fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 8] = [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ];
    const B: [f64; 8] = [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_854,
    ];
    const C: [f64; 8] = [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        7.745_450_142_783_414e-4,
    ];
    const D: [f64; 8] = [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ];
    const E: [f64; 8] = [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ];
    const F: [f64; 8] = [
        1.0,
        0.599_832_206_555_887_9,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ];
    let ratio = |over: &[f64; 8], under: &[f64; 8], r: f64| {
        let of = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * r + c);
        of(over) / of(under)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(&A, &B, 0.180_625 - q * q);
    }
    let r = (-ln(if q < 0.0 { p } else { 1.0 - p })).sqrt();
    let tail = if r <= 5.0 { ratio(&C, &D, r - 1.6) } else { ratio(&E, &F, r - 5.0) };
    if q < 0.0 { -tail } else { tail }
}

/// Gaps between arrivals as multiples of their mean: what a renewal process repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gap {
    /// Always the mean.
    Constant,
    /// Exponential: a Poisson process.
    Exponential,
    /// Gamma with this shape, `1 / cv²`.
    Gamma(f64),
    /// Weibull with this shape and scale.
    Weibull {
        /// Greater than 1 is more even than Poisson.
        shape: f64,
        /// So that the mean is 1: `1 / Γ(1 + 1/shape)`.
        scale: f64,
    },
}

impl Gap {
    /// Gamma gaps with a coefficient of variation.
    pub fn gamma(cv: f64) -> Gap {
        Gap::Gamma(1.0 / (cv * cv))
    }

    /// Weibull gaps with a shape.
    pub fn weibull(shape: f64) -> Gap {
        Gap::Weibull { shape, scale: exp(-ln_gamma(1.0 + 1.0 / shape)) }
    }

    /// Weibull gaps with a coefficient of variation between 0.01 and 20, by bisection:
    /// `cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² - 1` falls with the shape `k`.
    pub fn weibull_cv(cv: f64) -> Gap {
        let cv_of = |k: f64| (exp(ln_gamma(1.0 + 2.0 / k) - 2.0 * ln_gamma(1.0 + 1.0 / k)) - 1.0).sqrt();
        let (mut low, mut high) = (0.1, 200.0);
        for _ in 0..100 {
            let mid = 0.5 * (low + high);
            if cv_of(mid) > cv {
                low = mid;
            } else {
                high = mid;
            }
        }
        Gap::weibull(0.5 * (low + high))
    }

    /// The gap with this number.
    pub fn draw(self, stream: Stream, purpose: Purpose, number: u64) -> f64 {
        match self {
            Gap::Constant => 1.0,
            Gap::Exponential => stream.exponential(purpose, number),
            Gap::Gamma(shape) => stream.gamma(purpose, number, shape) / shape,
            Gap::Weibull { shape, scale } => scale * pow(stream.exponential(purpose, number), 1.0 / shape),
        }
    }
}

/// One of `n` things, the first more often than the last: the `k`-th has weight `1 / k^skew`.
#[derive(Clone, Debug, PartialEq)]
pub struct Popularity {
    /// Running sums of the weights up to 1; empty if all are alike.
    sums: Vec<f64>,
    n: u64,
}

impl Popularity {
    /// Of `n` things; `skew` 0 makes all alike.
    pub fn new(n: u64, skew: f64) -> Popularity {
        let mut sums = Vec::new();
        if skew != 0.0 && n > 1 {
            let mut sum = 0.0;
            sums.extend((1..=n).map(|k| {
                sum += pow(k as f64, -skew);
                sum
            }));
            for s in &mut sums {
                *s /= sum;
            }
        }
        Popularity { sums, n }
    }

    /// Which one has the draw with this number.
    pub fn draw(&self, stream: Stream, purpose: Purpose, number: u64) -> u64 {
        if self.sums.is_empty() {
            return stream.below(purpose, number, self.n);
        }
        let u = stream.unit(purpose, number, 0);
        (self.sums.partition_point(|&s| s < u) as u64).min(self.n - 1)
    }
}
