//! The writer: text format 0.0.4, byte for byte as Python's `prometheus_client` writes it, which is what vLLM uses.

use std::fmt::Write as _;

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up only.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
    /// Quantiles, a sum and a count.
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// Builds an exposition. Labels are written sorted by name, as the Python client does.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    text: String,
}

impl Writer {
    /// What has been written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Hands the text over.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The `# HELP` and `# TYPE` lines of a family.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let _ = write!(self.text, "# HELP {name} ");
        for c in help.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                _ => self.text.push(c),
            }
        }
        let _ = writeln!(self.text, "\n# TYPE {name} {}", kind.name());
    }

    /// One sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.line(name, "", labels, None, value);
    }

    /// A family of one gauge.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, help, Kind::Gauge);
        self.sample(name, labels, value);
    }

    /// A counter family: `<base>_total`, then `<base>_created` with the time at which it began to count, in seconds
    /// since the epoch, as a gauge. Each series is its labels and its value.
    pub fn counter(&mut self, base: &str, help: &str, series: &[(&[(&str, &str)], f64)], created: f64) {
        let total = format!("{base}_total");
        self.family(&total, help, Kind::Counter);
        for (labels, value) in series {
            self.sample(&total, labels, *value);
        }
        self.created(base, help, series.iter().map(|(labels, _)| *labels), created);
    }

    /// One histogram family of one series. `buckets` are upper bounds and cumulative counts without the infinite
    /// bucket, which is `count`.
    pub fn histogram(&mut self, name: &str, help: &str, labels: &[(&str, &str)], data: &Buckets<'_>) {
        self.family(name, help, Kind::Histogram);
        for (bound, count) in data.buckets {
            self.line(name, "_bucket", labels, Some(*bound), *count as f64);
        }
        self.line(name, "_bucket", labels, Some(f64::INFINITY), data.count as f64);
        self.line(name, "_count", labels, None, data.count as f64);
        self.line(name, "_sum", labels, None, data.sum);
        self.created(name, help, std::iter::once(labels), data.created);
    }

    fn created<'l>(
        &mut self,
        base: &str,
        help: &str,
        series: impl Iterator<Item = &'l [(&'l str, &'l str)]>,
        created: f64,
    ) {
        let name = format!("{base}_created");
        self.family(&name, help, Kind::Gauge);
        for labels in series {
            self.sample(&name, labels, created);
        }
    }

    fn line(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], le: Option<f64>, value: f64) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        let le = le.map(number);
        let mut all: Vec<(&str, &str)> = labels.to_vec();
        all.extend(le.as_deref().map(|le| ("le", le)));
        all.sort_unstable();
        for (i, (label, text)) in all.iter().enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    _ => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !all.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {}", number(value));
    }
}

/// A histogram's counts.
#[derive(Clone, Copy, Debug)]
pub struct Buckets<'a> {
    /// Upper bounds, ascending and finite, with the number of values not above each.
    pub buckets: &'a [(f64, u64)],
    /// The number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// When it began to count, in seconds since the epoch.
    pub created: f64,
}

/// A number as Python's `prometheus_client` writes it: the shortest digits that read back as the same value, with
/// `.0` for whole numbers, an exponent for positive values from 1e6 (`1e+06`, with its customary `e+0`, also before
/// two digits) and below 1e-4 (`1e-05`).
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let exponent: i32 = scientific.rsplit_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        if value > 0.0 && exponent >= 6 {
            let mantissa = scientific.split('e').next().unwrap_or("");
            return format!("{mantissa}e+0{exponent}");
        }
        return format!("{value:?}");
    }
    let mantissa = scientific.split('e').next().unwrap_or("");
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (4.0, "4.0"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e-300, "1e-300"),
            (999_999.0, "999999.0"),
            (1_000_000.0, "1e+06"),
            (4_713_594_880.0, "4.71359488e+09"),
            (1_796_156_575.349_527_4, "1.7961565753495274e+09"),
            (12_345_678_901.0, "1.2345678901e+010"),
            (1e15, "1e+015"),
            (1e16, "1e+16"),
            (1e100, "1e+100"),
            (-1_000_000.0, "-1000000.0"),
            (-1.5e17, "-1.5e+17"),
            (0.976_377_952_755_905_6, "0.9763779527559056"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn families() {
        let mut w = Writer::default();
        let labels = [("model_name", "a\"\\\nb"), ("engine", "0")];
        w.gauge("vllm:num_requests_running", "Number of\nrequests \\.", &labels, 4.0);
        w.counter("vllm:x", "X.", &[(&labels[1..], 2.0)], 1.5);
        let buckets = Buckets { buckets: &[(0.5, 1), (1.0, 2)], count: 3, sum: 4.25, created: 9.0 };
        w.histogram("h", "H.", &[("z", "1"), ("a", "")], &buckets);
        w.sample("plain", &[], 1.0);
        assert_eq!(
            w.into_text(),
            r#"# HELP vllm:num_requests_running Number of\nrequests \\.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\"\\\nb"} 4.0
# HELP vllm:x_total X.
# TYPE vllm:x_total counter
vllm:x_total{engine="0"} 2.0
# HELP vllm:x_created X.
# TYPE vllm:x_created gauge
vllm:x_created{engine="0"} 1.5
# HELP h H.
# TYPE h histogram
h_bucket{a="",le="0.5",z="1"} 1.0
h_bucket{a="",le="1.0",z="1"} 2.0
h_bucket{a="",le="+Inf",z="1"} 3.0
h_count{a="",z="1"} 3.0
h_sum{a="",z="1"} 4.25
# HELP h_created H.
# TYPE h_created gauge
h_created{a="",z="1"} 9.0
plain 1.0
"#
        );
    }
}
