//! What prompts have in common, as hashes of blocks.
//!
//! A prompt is the text of its group, then text of its own: of a prompt in a pool, or of a session, or of
//! nobody else. So what a block stands for is known from whose text it ends in, and no text is needed.

use crate::arrivals::BLOCK_TOKENS;
use crate::sample::{Popularity, Stream};
use crate::spec::{Class, Order, Prompts};
use forebay_base::Purpose;
use std::collections::BTreeMap;
use std::sync::Arc;

const GROUP: Purpose = Purpose::named("workload-group");
const PICK: Purpose = Purpose::named("workload-pick");
const PREFIX: Purpose = Purpose::named("workload-prefix");
const SHUFFLE: Purpose = Purpose::named("workload-shuffle");
const OWNER: Purpose = Purpose::named("workload-owner");
const BLOCK: Purpose = Purpose::named("workload-block");

/// Blocks kept of the texts of groups, so that a request need not hash them again: 64 MiB.
const KEPT_BLOCKS: usize = 8 << 20;

/// What was said before in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct History {
    /// Prompt and answer of the turn before.
    pub(crate) tokens: u32,
    /// What prompt and answer may have together.
    pub(crate) most: u32,
}

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) prompt_tokens: u32,
    /// `None` if nobody else has any of it.
    pub(crate) prefix: Option<Arc<[u64]>>,
}

/// The prompts of a class.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// Texts are named after the class, or after what classes share.
    texts: Stream,
    /// Which prompt comes next is the class's own.
    picks: Stream,
    prompts: Option<Arc<Prompts>>,
    groups: Popularity,
    history: bool,
    /// The order of the present round, and its number.
    order: Vec<u32>,
    round: u64,
    /// Texts of groups by (group, adapter): 0 for none.
    kept: BTreeMap<(u64, u32), Arc<[u64]>>,
    kept_blocks: usize,
}

/// Whose text a block ends in.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Group(u64),
    Pool(u64),
    Session(u64),
}

impl Content {
    pub(crate) fn new(class: &Class, seed: u64) -> Content {
        let prompts = class.prompts.clone().map(Arc::new);
        let name = prompts.as_ref().and_then(|p| p.name.clone());
        // A name of prompts is not the name of a class.
        let texts = name.map_or_else(|| class.name.clone(), |n| format!("prompts/{n}"));
        let (groups, skew) = prompts.as_ref().map_or((1, 0.0), |p| (u64::from(p.groups), p.skew));
        Content {
            texts: Stream::new(seed, &texts),
            picks: Stream::new(seed, &class.name),
            groups: Popularity::new(groups, skew),
            history: class.sessions.as_ref().is_some_and(|s| s.history),
            prompts,
            order: Vec::new(),
            round: u64::MAX,
            kept: BTreeMap::new(),
            kept_blocks: 0,
        }
    }

    /// The prompt of the request under `key` in `session`. `lengths` gives input and output tokens; the input
    /// by the number of the prompt if it comes from a pool.
    pub(crate) fn of(
        &mut self,
        key: u64,
        session: u64,
        history: History,
        lora: Option<u16>,
        lengths: impl Fn(u64) -> (u32, u32),
    ) -> Shared {
        let adapter = lora.map_or(0, |l| u32::from(l) + 1);
        let Some(p) = self.prompts.clone() else {
            let (input, output) = lengths(key);
            let own = if self.history { Some(Owner::Session(session)) } else { None };
            return self.blocks(0, None, input, output, own, history, adapter);
        };
        // A session stays in its group.
        let by = if self.history { session } else { key };
        let (group, entry) = self.pick(&p, by);
        let shared = p.prefix.as_ref().map_or(0, |d| d.tokens(self.texts, PREFIX, group));
        let (input, output) = lengths(entry.filter(|_| !self.history).unwrap_or(key));
        let own = match entry {
            _ if self.history => Some(Owner::Session(session)),
            Some(e) => Some(Owner::Pool(e)),
            None => None,
        };
        self.blocks(shared, Some(Owner::Group(group)), input, output, own, history, adapter)
    }

    /// Group and, with a pool, the number of the prompt over all groups.
    fn pick(&mut self, p: &Prompts, key: u64) -> (u64, Option<u64>) {
        let all = u64::from(p.groups) * u64::from(p.pool.max(1));
        let place = match p.order {
            Order::Random => {
                let group = self.groups.draw(self.picks, GROUP, key);
                group + u64::from(p.groups) * self.picks.below(PICK, key, u64::from(p.pool.max(1)))
            }
            Order::Cycle => key % all,
            Order::ShuffledCycle | Order::Reshuffled => {
                self.shuffle(if p.order == Order::Reshuffled { key / all } else { 0 }, all);
                u64::from(self.order[(key % all) as usize])
            }
        };
        (place % u64::from(p.groups), (p.pool > 0).then_some(place))
    }

    /// Fisher and Yates' shuffle, the same for the same round whatever was asked before.
    fn shuffle(&mut self, round: u64, all: u64) {
        if self.round == round {
            return;
        }
        self.round = round;
        self.order.clear();
        self.order.extend(0..all as u32);
        for i in (1..all).rev() {
            let j = (u128::from(self.picks.bits(SHUFFLE, round, i)) * u128::from(i + 1)) >> 64;
            self.order.swap(i as usize, j as usize);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one prompt, in one place")]
    fn blocks(
        &mut self,
        shared: u32,
        group: Option<Owner>,
        input: u32,
        output: u32,
        own: Option<Owner>,
        history: History,
        adapter: u32,
    ) -> Shared {
        // The text of the group is in the history already.
        let before = if history.tokens > 0 { history.tokens } else { shared };
        let mut prompt_tokens = before.saturating_add(input);
        if history.tokens > 0 {
            prompt_tokens = prompt_tokens.min(history.most.max(before.saturating_add(1)));
        }
        let in_group = shared / BLOCK_TOKENS;
        let hashed = match own {
            None => in_group,
            Some(Owner::Session(_)) => prompt_tokens.saturating_add(output) / BLOCK_TOKENS,
            Some(_) => prompt_tokens / BLOCK_TOKENS,
        };
        if hashed == 0 {
            return Shared { prompt_tokens, prefix: None };
        }
        let key = |o: Option<Owner>| self.owner(o, adapter);
        let (group_key, own_key) = (key(group), key(own));
        let hash = |k: u32| {
            let owner = if k < in_group { group_key } else { own_key };
            self.texts.bits(BLOCK, owner, u64::from(k))
        };
        let prefix = match (own, group) {
            (None, Some(Owner::Group(g))) => match self.kept.get(&(g, adapter)) {
                Some(kept) => Arc::clone(kept),
                None => self.keep((g, adapter), (0..hashed).map(hash).collect()),
            },
            _ => (0..hashed).map(hash).collect(),
        };
        Shared { prompt_tokens, prefix: Some(prefix) }
    }

    fn keep(&mut self, of: (u64, u32), blocks: Arc<[u64]>) -> Arc<[u64]> {
        if self.kept_blocks + blocks.len() <= KEPT_BLOCKS {
            self.kept_blocks += blocks.len();
            self.kept.insert(of, Arc::clone(&blocks));
        }
        blocks
    }

    /// A number for a text under an adapter: engines do not share blocks between adapters.
    fn owner(&self, owner: Option<Owner>, adapter: u32) -> u64 {
        let (kind, number) = match owner {
            None => (0, 0),
            Some(Owner::Group(n)) => (1, n),
            Some(Owner::Pool(n)) => (2, n),
            Some(Owner::Session(n)) => (3, n),
        };
        self.texts.bits(OWNER, number, (u64::from(adapter) << 8) | kind)
    }
}

/// 16-token blocks that are named by the longer block in which each ends.
pub(crate) fn of_ids(stream: Stream, ids: impl Iterator<Item = u64>) -> Arc<[u64]> {
    ids.enumerate().map(|(k, id)| stream.bits(BLOCK, id, k as u64)).collect()
}

/// The full 16-token blocks of a prompt whose longer blocks have ids.
pub(crate) fn of_blocks(
    stream: Stream,
    ids: &[u64],
    block_tokens: u32,
    prompt_tokens: u32,
    lora: Option<u16>,
) -> Arc<[u64]> {
    let per = u64::from(block_tokens / BLOCK_TOKENS);
    let full = prompt_tokens / BLOCK_TOKENS;
    let adapter = lora.map_or(0, |l| u64::from(l) + 1);
    (0..u64::from(full))
        .map(|k| {
            let id = ids.get((k / per) as usize).copied().unwrap_or(u64::MAX);
            stream.bits(BLOCK, id, (adapter << 32) | (k % per))
        })
        .collect()
}
