//! What a simulated run's servers cost, and how their number changed.

use crate::layout::{self, right};
use comfy_table::Cell;
use forebay_sim::{ScaleEvent, ScaleMetric, Scaling};
use std::fmt::Write;

/// Changes of size that are printed; all of them are in the JSON.
const SHOWN: usize = 12;

/// A table of the groups, and the changes of their sizes.
pub(crate) fn table(s: &Scaling) -> String {
    let head = ["engines", "first", "least", "most", "last", "engine-s", "GPU-s", "starting-s"];
    let mut t = layout::table(
        head.iter()
            .enumerate()
            .map(|(i, h)| if i == 0 { Cell::new(h) } else { right(h) })
            .collect::<Vec<_>>(),
    );
    let seconds = |ns: u64| right(format!("{:.0}", ns as f64 / 1e9));
    for g in &s.groups {
        t.add_row(vec![
            Cell::new(&g.name),
            right(g.first),
            right(g.range.0),
            right(g.range.1),
            right(g.last),
            seconds(g.held_ns),
            seconds(g.gpu_ns),
            seconds(g.starting_ns),
        ]);
    }
    let mut out = layout::lines(&t);
    for e in s.events.iter().take(SHOWN) {
        let _ = writeln!(out, "{}", line(s, e));
    }
    if s.events.len() > SHOWN {
        let _ = writeln!(out, "and {} more changes of size", s.events.len() - SHOWN);
    }
    out
}

fn line(s: &Scaling, e: &ScaleEvent) -> String {
    let why = e.why.map_or("timeline", ScaleMetric::label);
    let name = &s.groups[e.group as usize].name;
    format!("{:>8.0} s  {name} from {} to {} ({why})", e.at.0 as f64 / 1e9, e.from, e.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Nanos, Span};
    use forebay_sim::GroupUse;

    #[test]
    fn groups_and_the_first_changes_are_shown() {
        let used = GroupUse {
            name: "pool".to_owned(),
            held_ns: 90_000_000_000,
            gpu_ns: 180_000_000_000,
            first: 1,
            range: (1, 3),
            last: 2,
            ..GroupUse::default()
        };
        let at = |s| Nanos::ZERO + Span::secs(s);
        let event = |s, why| ScaleEvent { at: at(s), group: 0, from: 1, to: 3, why };
        let mut events = vec![event(15, Some(ScaleMetric::InFlight))];
        events.extend((0..12).map(|i| event(20 + i, None)));
        let text = table(&Scaling { events, groups: vec![used] });
        assert!(text.contains("      15 s  pool from 1 to 3 (in-flight)\n"), "{text}");
        assert!(text.contains("90") && text.contains("180"), "{text}");
        assert!(text.ends_with("and 1 more changes of size\n"), "{text}");
    }
}
