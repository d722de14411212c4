//! Requests that were sent, as a trace: the same times and lengths, and the prompts' parts that a prefix cache
//! had.

use super::{Trace, TraceRow};
use crate::arrivals::BLOCK_TOKENS;
use crate::spec::{Class, Mode, Workload};
use forebay_base::Nanos;

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When, since the begin of the run.
    pub at: Nanos,
    /// Index of its class.
    pub class: u16,
    /// Tokens of its prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Of these, those that the prefix cache had.
    pub cached_tokens: u32,
    /// Tokens of its answer; 0 counts as 1.
    pub output_tokens: u32,
}

/// Ids of blocks that one request alone has.
const OWN: u64 = 1 << 63;

impl Workload {
    /// These requests again, in the order of their times, whatever became of them: arrivals of the same classes with
    /// the same lengths. What was shared by whom is not known of a request, only how much of its prompt was cached: so
    /// all cached beginnings are those of one text. The first request that reaches further into it than all before
    /// computes what it was the first to have.
    pub fn replay(name: &str, classes: Vec<Class>, mode: Mode, requests: &[Sent]) -> Workload {
        let mut sorted: Vec<&Sent> = requests.iter().collect();
        sorted.sort_by_key(|r| r.at);
        let labels = classes.iter().map(|c| c.name.clone()).collect();
        let mut trace = Trace { labels, block_tokens: BLOCK_TOKENS, ..Trace::default() };
        for (i, r) in sorted.iter().enumerate() {
            let first_block = trace.blocks.len() as u64;
            let cached = r.cached_tokens.min(r.prompt_tokens) / BLOCK_TOKENS;
            if cached > 0 {
                let own =
                    (cached..r.prompt_tokens / BLOCK_TOKENS).map(|k| OWN | ((i as u64) << 24) | u64::from(k));
                trace.blocks.extend((0..u64::from(cached)).chain(own));
            }
            trace.rows.push(TraceRow {
                at: r.at,
                prompt_tokens: r.prompt_tokens.max(1),
                output_tokens: r.output_tokens.max(1),
                label: u32::from(r.class),
                blocks: (trace.blocks.len() as u64 - first_block) as u32,
                first_block,
            });
        }
        let mut replayed = Workload::of_trace(trace, name);
        replayed.mode = mode;
        replayed.classes = classes;
        replayed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Kind;
    use forebay_base::Span;

    #[test]
    fn requests_come_again_as_they_were_and_share_what_was_cached() {
        let sent = |ms: u64, class, cached_tokens| Sent {
            at: Nanos::ZERO + Span::millis(ms),
            class,
            prompt_tokens: 100,
            cached_tokens,
            output_tokens: 7,
        };
        let classes = vec![Class { priority: 5, ..Class::fed("a") }, Class::fed("b")];
        let mode =
            Mode { kind: Kind::Surge, warmup: Span::secs(1), window: Span::secs(9), drain: Span::secs(60) };
        let requests = [sent(2000, 1, 48), sent(500, 0, 0), sent(3000, 0, 80), sent(9000, 0, 48)];
        let w = Workload::replay("r", classes, mode, &requests);
        let mut arrivals = w.arrivals(1);
        let all: Vec<_> = std::iter::from_fn(|| arrivals.next()).collect();
        let told: Vec<(u64, u16, i32, u32, u32)> = all
            .iter()
            .map(|a| (a.at.0 / 1_000_000, a.class, a.priority, a.prompt_tokens, a.output_tokens))
            .collect();
        assert_eq!(
            told,
            [(500, 0, 5, 100, 7), (2000, 1, 0, 100, 7), (3000, 0, 5, 100, 7), (9000, 0, 5, 100, 7)]
        );
        assert!(all[0].prefix.is_empty(), "nothing of it was cached");
        assert_eq!(all[1].prefix.len(), 6);
        assert_eq!(all[1].prefix[..3], all[2].prefix[..3]);
        assert!(all[1].prefix[3] != all[2].prefix[3] && all[1].prefix[3] != all[3].prefix[3]);
        assert_eq!((w.mode, w.class_names()), (mode, vec!["a".to_owned(), "b".to_owned()]));
    }
}
