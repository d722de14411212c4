//! A request's row in the recording: begun when it is known who it is, completed when it has ended.

use crate::door::Door;
use crate::identity::Identity;
use crate::record::{Record, cut};
use forebay_base::Span;
use forebay_kernel::prefix;
use forebay_live::recording::{BLOCK_TOKENS, Ended, MAX_BLOCKS};
use forebay_records::recording::Entry;
use forebay_wire::Peek;
use std::sync::Arc;
use std::time::Duration;

impl Door {
    /// What is known before the request is offered. `routed` is the chain that the kernel asks its index
    /// for, with its tokens per block: it serves if its blocks are the recording's.
    pub(crate) fn draft(&self, peeked: &Peek<'_>, who: &Identity, routed: (&Arc<[u64]>, u32)) -> Box<Ended> {
        let ns = |s: Option<Span>| s.map(|s| s.0);
        let text = |s: &str| cut(s).into_owned();
        let prompt_bytes = peeked.prompt.len() as u64;
        let entry = Entry {
            model: text(&who.model),
            target: if who.target == who.model { String::new() } else { text(&who.target) },
            adapter: self.router.models().is_adapter(&who.target),
            objective: who.objective.as_deref().map(text),
            priority: who.priority,
            flow: text(&who.flow),
            prompt_bytes,
            prompt_tokens: u64::from(peeked.prompt_tokens()),
            prompt_estimated: true,
            max_tokens: peeked.max_tokens,
            ttl_ns: ns(who.ttl),
            slo_ttft_ns: ns(who.slo_ttft),
            slo_tpot_ns: ns(who.slo_tpot),
            ..Entry::default()
        };
        let (chain, block_tokens) = routed;
        let blocks = prompt_bytes.div_ceil(u64::from(forebay_records::recording::BLOCK_BYTES));
        let same = block_tokens == BLOCK_TOKENS && chain.len() as u64 == blocks.min(u64::from(MAX_BLOCKS));
        let chain = if same {
            chain.clone()
        } else {
            let (salt, mut own) = (peeked.cache_salt.as_deref(), Vec::new());
            prefix::hash_chain(&who.target, salt, &peeked.prompt, BLOCK_TOKENS, Some(MAX_BLOCKS), &mut own);
            own.into()
        };
        Box::new(Ended { entry, session: who.session.clone(), chain })
    }
}

/// The row, with what became of the request: when it was decided on, had its first token and ended.
pub(crate) fn completed(
    mut draft: Box<Ended>,
    record: &Record,
    arrived_ns: u64,
    [decided, ttft]: [Option<Duration>; 2],
    total: Duration,
) -> Ended {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let e = &mut draft.entry;
    e.arrived_ns = arrived_ns;
    e.stream = record.stream;
    e.request_bytes = record.request_bytes;
    if let Some(counted) = record.prompt_tokens.filter(|n| *n > 0) {
        (e.prompt_tokens, e.prompt_estimated) = (counted, false);
    }
    e.cached_tokens = record.cached_tokens;
    (e.output_tokens, e.output_estimated) = (record.output_tokens, record.estimated);
    record.end.clone_into(&mut e.end);
    e.reason = record.reason.map(str::to_owned);
    e.status = record.status;
    e.endpoint.clone_from(&record.endpoint);
    e.dispatched_ns = decided.map(ns);
    e.first_token_ns = ttft.map(ns);
    e.ended_ns = ns(total);
    *draft
}
