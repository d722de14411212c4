//! `forebay policy`: what a usage limit policy does, measured on the policy itself.

use crate::catalogue::{catalogue, find};
use crate::input::Unusable;
use crate::layout::{lines, right, table};
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{Cell, ContentArrangement};
use forebay_base::{Diagnostics, Position};
use forebay_config::{Options, load};
use forebay_kernel::plugin::Kind;
use forebay_kernel::policy::UsageLimit;
use forebay_kernel::regime::{Row, rows};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// Look at usage limit policies
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    Table(PolicyTable),
}

impl Policy {
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        match self {
            Policy::Table(t) => t.run(out),
        }
    }
}

/// Show how often a policy shuts each band, by saturation
///
/// Runs the policy that the router runs, for many cycles at each saturation. Per band: the ceiling that
/// the policy aims at, and the share of cycles in which it shut the band for the sake of the bands above.
/// The last column says whether the pool as a whole still dispatches; at saturation 1 it does not.
#[derive(Debug, Args)]
pub(crate) struct PolicyTable {
    /// The usage limit policy; `forebay plugins` lists them
    #[arg(long, value_name = "NAME", default_value = "soft-reflective-ceiling-policy")]
    policy: String,
    /// The number of priority bands, from critical (100) down to sheddable (-50)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    bands: u8,
    /// The priorities of the bands instead, such as 100,0,-50
    #[arg(
        long,
        value_name = "P,P,...",
        value_delimiter = ',',
        allow_hyphen_values = true,
        conflicts_with = "bands"
    )]
    priorities: Vec<i32>,
    /// Cycles at each saturation
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    cycles: u32,
    /// A parameter of the policy, its value as in the configuration; can be repeated
    #[arg(long = "param", value_name = "KEY=VALUE")]
    params: Vec<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// One line per saturation and band
    Csv,
    /// One object
    Json,
}

/// Where the article's regimes begin and end, and points between.
const SATURATIONS: [f64; 11] = [0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0];

/// A band of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: String,
    priority: i32,
}

impl PolicyTable {
    fn run(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let limit = self.limit()?;
        let columns = if self.priorities.is_empty() {
            columns(&priorities(usize::from(self.bands)))
        } else {
            let mut sorted = self.priorities.clone();
            sorted.sort_unstable_by_key(|&p| std::cmp::Reverse(p));
            sorted.dedup();
            columns(&sorted)
        };
        let priorities: Vec<i32> = columns.iter().map(|c| c.priority).collect();
        let rows = rows(&*limit, &priorities, &SATURATIONS, self.cycles);
        match self.format {
            Format::Table => write!(out, "{}", self.table(&columns, &rows))?,
            Format::Csv => write!(out, "{}", csv(&columns, &rows))?,
            Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&self.json(&columns, &rows))?)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The policy, built by the configuration loader, so that parameters are checked as in a file.
    fn limit(&self) -> anyhow::Result<Arc<dyn UsageLimit>> {
        let policy = find(&self.policy, Some(Kind::UsageLimitPolicy), "--policy")?;
        let mut params = Vec::new();
        for param in &self.params {
            let (key, value) = param
                .split_once('=')
                .filter(|(key, _)| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric()))
                .filter(|(_, value)| !value.contains(['\n', '\r']))
                .ok_or_else(|| Unusable(format!("--param {param:?}; expected KEY=VALUE on one line")))?;
            params.push((key, value));
        }
        let text = configuration(policy.name, &params);
        let options = Options { allow_experimental: true, ..Options::default() };
        let config =
            load(&text, "", &catalogue(), options).map_err(|found| on_the_command_line(found, &params))?;
        let flow = config.plan(&[]).flow.expect("the text opens the feature gate of flow control");
        Ok(flow.limit)
    }

    fn table(&self, columns: &[Column], rows: &[Row]) -> String {
        let mut head = vec![Cell::new("\nsaturation"), Cell::new("\nregime")];
        for c in columns {
            head.extend([right(format!("{}\nceiling", c.name)), right(format!("({})\nblocked", c.priority))]);
        }
        head.push(Cell::new("\npool"));
        let mut t = table(head);
        // Numbers do not wrap: many bands make wide lines.
        t.set_content_arrangement(ContentArrangement::Disabled);
        for row in rows {
            let mut cells = vec![right(format!("{:.2}", row.saturation)), Cell::new(row.regime)];
            for band in &row.bands {
                cells.extend([
                    right(format!("{:.2}", band.nominal)),
                    right(format!("{:.0} %", band.blocked * 100.0)),
                ]);
            }
            cells.push(Cell::new(if row.halted { "halted" } else { "runs" }));
            t.add_row(cells);
        }
        format!("{}, {} cycles at each saturation\n\n{}", self.policy, self.cycles, lines(&t))
    }

    fn json<'a>(&'a self, columns: &'a [Column], rows: &'a [Row]) -> Json<'a> {
        let band = |(c, b): (&'a Column, &forebay_kernel::regime::Band)| JsonBand {
            name: &c.name,
            priority: c.priority,
            ceiling: rounded(b.nominal),
            blocked: rounded(b.blocked),
        };
        let row = |r: &'a Row| JsonRow {
            saturation: r.saturation,
            regime: r.regime,
            bands: columns.iter().zip(&r.bands).map(band).collect(),
            halted: r.halted,
        };
        Json { policy: &self.policy, cycles: self.cycles, rows: rows.iter().map(row).collect() }
    }
}

/// The least configuration that holds the policy; parameters stand one a line from [`FIRST_PARAM`] on.
fn configuration(policy: &str, params: &[(&str, &str)]) -> String {
    let mut text = format!(
        "apiVersion: {}\nkind: {}\nfeatureGates: [flowControl]\n\
         flowControl: {{usageLimitPolicyPluginRef: {policy}}}\nplugins:\n- type: {policy}\n",
        forebay_config::fields::API_VERSION,
        forebay_config::fields::KIND
    );
    if !params.is_empty() {
        text.push_str("  parameters:\n");
    }
    for (key, value) in params {
        let _ = writeln!(text, "    {key}: {value}");
    }
    text
}

/// The line of the first parameter in [`configuration`].
const FIRST_PARAM: u32 = 8;

/// Turns places in [`configuration`] into the flags they came from.
fn on_the_command_line(mut found: Diagnostics, params: &[(&str, &str)]) -> Diagnostics {
    for d in &mut found.0 {
        let param = d.at.line.checked_sub(FIRST_PARAM).and_then(|i| params.get(i as usize));
        d.path = match param {
            Some((key, value)) => format!("--param {key}={value}"),
            None => d.path.strip_prefix("plugins[0].parameters.").map_or_else(
                || "--policy".to_owned(),
                // Nothing was given for it.
                |key| format!("--param {key}=..."),
            ),
        };
        d.at = Position::default();
    }
    found
}

/// From 100 down to -50: the highest, evenly spaced ones down to 0, and one that may be shed.
fn priorities(bands: usize) -> Vec<i32> {
    let Some(upper) = bands.checked_sub(1).filter(|&n| n > 0) else { return vec![100] };
    let mut out: Vec<i32> = (0..upper).map(|i| (100 - 100 * i / (upper - 1).max(1)) as i32).collect();
    out.push(-50);
    out
}

fn columns(priorities: &[i32]) -> Vec<Column> {
    let named = |&priority: &i32| Column {
        priority,
        name: match priority {
            100 => "critical".to_owned(),
            0 => "standard".to_owned(),
            -50 => "sheddable".to_owned(),
            _ => "band".to_owned(),
        },
    };
    priorities.iter().map(named).collect()
}

/// To nine decimals: what lies beyond is binary fractions, not the policy.
fn rounded(x: f64) -> f64 {
    (x * 1e9).round() / 1e9
}

/// One line per saturation and band; shares from 0 to 1.
fn csv(columns: &[Column], rows: &[Row]) -> String {
    let mut out = String::from("saturation,regime,band,priority,ceiling,blocked,pool_halted\n");
    for row in rows {
        for (c, b) in columns.iter().zip(&row.bands) {
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{}",
                row.saturation,
                row.regime,
                c.name,
                c.priority,
                rounded(b.nominal),
                rounded(b.blocked),
                row.halted
            );
        }
    }
    out
}

#[derive(Debug, Serialize)]
struct Json<'a> {
    policy: &'a str,
    cycles: u32,
    rows: Vec<JsonRow<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonRow<'a> {
    saturation: f64,
    regime: &'a str,
    bands: Vec<JsonBand<'a>>,
    halted: bool,
}

#[derive(Debug, Serialize)]
struct JsonBand<'a> {
    name: &'a str,
    priority: i32,
    ceiling: f64,
    blocked: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_fall_from_critical_to_sheddable() {
        assert_eq!(priorities(1), [100]);
        assert_eq!(priorities(2), [100, -50]);
        assert_eq!(priorities(3), [100, 0, -50]);
        assert_eq!(priorities(5), [100, 67, 34, 0, -50]);
        for n in 1..=16 {
            let all = priorities(n);
            assert!(all.len() == n && all.windows(2).all(|w| w[0] > w[1]), "{all:?}");
        }
    }

    #[test]
    fn parameters_stand_where_their_errors_are_looked_for() {
        let text = configuration("p", &[("a", "1"), ("b", "2")]);
        let line = text.lines().position(|l| l == "    a: 1").map(|i| i as u32 + 1);
        assert_eq!(line, Some(FIRST_PARAM));
    }
}
