//! The approximate prefix index: which beginnings of prompts were sent to which endpoint.
//!
//! A prompt is a chain of block hashes in which each hash stands for the block and all before it, so
//! chains that share a beginning share hashes. The index is a radix tree whose nodes are runs of hashes;
//! every node knows which endpoints hold all of its run, and an endpoint that holds a node holds its
//! parents. A look-up compares runs and intersects holder sets: what an endpoint matches is contiguous
//! from the first block.
//!
//! Each endpoint has a list of its nodes by last use, and forgets from the far end, deepest blocks
//! first, when it passes its capacity; the index as a whole forgets the longest unused when it passes
//! its bound in bytes.

use crate::plan::PrefixPlan;
use crate::plugins::MIN_BLOCK_TOKENS;
use crate::pool::EndpointSet;
use std::collections::BTreeMap;
use xxhash_rust::xxh64::xxh64;

/// Bytes of estimated text per token: prompts are not tokenized, four bytes count as one token (as
/// llm-d-router's estimate does).
pub const BYTES_PER_TOKEN: usize = 4;

/// Chained hashes of a prompt's blocks: `h[n] = xxh64(xxh64(block n) ‖ h[n-1])`, little-endian, starting
/// from the hash of the model's name and, if given, the cache salt. A partial last block is hashed too.
/// Same construction as llm-d-router's approximate prefix producer. `max_tokens` of 0 is unlimited.
pub fn hash_chain(
    model: &str,
    salt: Option<&str>,
    prompt: &[u8],
    block_tokens: u32,
    max_tokens: u32,
    out: &mut Vec<u64>,
) {
    out.clear();
    let block = (block_tokens.max(1) as usize) * BYTES_PER_TOKEN;
    let limit = if max_tokens == 0 { usize::MAX } else { max_tokens as usize * BYTES_PER_TOKEN };
    let prompt = &prompt[..prompt.len().min(limit)];
    let mut previous = xxh64(model.as_bytes(), 0);
    if let Some(salt) = salt {
        previous = link(xxh64(salt.as_bytes(), 0), previous);
    }
    out.reserve(prompt.len().div_ceil(block));
    for b in prompt.chunks(block) {
        previous = link(xxh64(b, 0), previous);
        out.push(previous);
    }
}

fn link(block: u64, previous: u64) -> u64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..].copy_from_slice(&previous.to_le_bytes());
    xxh64(&bytes, 0)
}

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// One endpoint's hold on one node, a link in the endpoint's list by last use.
#[derive(Clone, Copy, Debug)]
struct Hold {
    node: u32,
    endpoint: u32,
    /// Towards more recent use.
    newer: u32,
    /// Towards longer unused.
    older: u32,
    used: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    parent: u32,
    run: Vec<u64>,
    /// By the first hash of the child's run.
    children: BTreeMap<u64, u32>,
    /// (endpoint, hold), sorted by endpoint.
    holds: Vec<(u32, u32)>,
    holders: EndpointSet,
}

/// Rough size of a node and its place in its parent's children, beside runs and holds.
const NODE_BYTES: u64 = 192;
const HOLD_BYTES: u64 = 40;

#[derive(Clone, Copy, Debug)]
struct Holder {
    newest: u32,
    oldest: u32,
    blocks: u64,
    capacity: u64,
}

/// The index.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    plan: PrefixPlan,
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    holds: Vec<Hold>,
    free_holds: Vec<u32>,
    holders: Vec<Holder>,
    bytes: u64,
    clock: u64,
    /// Walked by `insert`; kept to save the allocation.
    path: Vec<u32>,
}

impl PrefixIndex {
    /// An empty index.
    pub fn new(plan: PrefixPlan) -> PrefixIndex {
        PrefixIndex {
            plan,
            nodes: vec![Node { parent: NONE, ..Node::default() }],
            free_nodes: Vec::new(),
            holds: Vec::new(),
            free_holds: Vec::new(),
            holders: Vec::new(),
            bytes: 0,
            clock: 0,
            path: Vec::new(),
        }
    }

    /// Estimated bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks held by an endpoint.
    pub fn blocks(&self, endpoint: u32) -> u64 {
        self.holders.get(endpoint as usize).map_or(0, |h| h.blocks)
    }

    /// The capacity of an endpoint, as its engine reports it; kept from its first report on. Without
    /// auto-tuning reports are ignored.
    pub fn report_capacity(&mut self, endpoint: u32, blocks: u32, engine_block_tokens: u32) {
        let known = self.holders.get(endpoint as usize).is_some_and(|h| h.capacity != 0);
        if self.plan.auto_tune && blocks > 0 && !known {
            // The engine counts its own blocks; the index counts larger ones.
            let tokens = u64::from(blocks) * u64::from(engine_block_tokens.max(1));
            self.holder(endpoint).capacity = (tokens / u64::from(self.plan.block_tokens)).max(1);
        }
    }

    fn holder(&mut self, endpoint: u32) -> &mut Holder {
        let i = endpoint as usize;
        if i >= self.holders.len() {
            self.holders.resize(i + 1, Holder { newest: NONE, oldest: NONE, blocks: 0, capacity: 0 });
        }
        &mut self.holders[i]
    }

    /// Leading blocks of `chain` that each endpoint holds, added into `matched` by endpoint index;
    /// `matched` comes filled with zeros and covers all endpoints.
    pub fn lookup(&self, chain: &[u64], alive: &mut EndpointSet, matched: &mut [u32]) {
        let (mut node, mut at) = (ROOT, 0usize);
        let mut first = true;
        while at < chain.len() {
            let Some(&child) = self.nodes[node as usize].children.get(&chain[at]) else { return };
            let n = &self.nodes[child as usize];
            if first {
                alive.clone_from(&n.holders);
                first = false;
            } else {
                alive.intersect(&n.holders);
            }
            let common = common(&n.run, &chain[at..]);
            for e in alive.iter() {
                if let Some(m) = matched.get_mut(e as usize) {
                    *m += common as u32;
                }
            }
            at += common;
            if common < n.run.len() || alive.is_empty() {
                return;
            }
            node = child;
        }
    }

    /// The endpoint has been sent this chain and is believed to hold all of it.
    pub fn insert(&mut self, endpoint: u32, chain: &[u64]) {
        if chain.is_empty() {
            return;
        }
        self.clock += 1;
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let (mut node, mut at) = (ROOT, 0usize);
        while at < chain.len() {
            let found = self.nodes[node as usize].children.get(&chain[at]).copied();
            let child = if let Some(child) = found {
                let common = common(&self.nodes[child as usize].run, &chain[at..]);
                self.split(child, common);
                at += common;
                child
            } else {
                let rest = chain[at..].to_vec();
                at = chain.len();
                self.new_node(node, rest)
            };
            path.push(child);
            node = child;
        }
        // Deepest first, so that parents are always more recently used than their children.
        for &n in path.iter().rev() {
            self.touch(endpoint, n);
        }
        self.path = path;
        self.evict(endpoint);
    }

    /// The endpoint is gone, or its cache is.
    pub fn forget(&mut self, endpoint: u32) {
        while let Some(h) = self.oldest_of(endpoint) {
            self.release(h);
        }
        if let Some(h) = self.holders.get_mut(endpoint as usize) {
            h.capacity = 0;
        }
    }

    fn oldest_of(&self, endpoint: u32) -> Option<u32> {
        self.holders.get(endpoint as usize).map(|h| h.oldest).filter(|&h| h != NONE)
    }

    fn new_node(&mut self, parent: u32, run: Vec<u64>) -> u32 {
        self.bytes += NODE_BYTES + 8 * run.len() as u64;
        let first = run[0];
        let node = Node { parent, run, ..Node::default() };
        let i = if let Some(i) = self.free_nodes.pop() {
            self.nodes[i as usize] = node;
            i
        } else {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        self.nodes[parent as usize].children.insert(first, i);
        i
    }

    /// Cuts a node's run after `keep` hashes; the rest becomes its only child, with the same holders.
    fn split(&mut self, node: u32, keep: usize) {
        let n = &mut self.nodes[node as usize];
        if keep == 0 || keep >= n.run.len() {
            return;
        }
        let tail = n.run.split_off(keep);
        n.run.shrink_to_fit();
        let children = std::mem::take(&mut n.children);
        let holds = n.holds.clone();
        self.bytes -= 8 * tail.len() as u64;
        let child = self.new_node(node, tail);
        for &c in children.values() {
            self.nodes[c as usize].parent = child;
        }
        self.nodes[child as usize].children = children;
        for (endpoint, hold) in holds {
            // The child's hold goes next to the parent's, on the less recent side.
            let used = self.holds[hold as usize].used;
            let h = self.new_hold(Hold { node: child, endpoint, newer: NONE, older: NONE, used });
            self.link_older(h, hold);
            self.add_hold(child, endpoint, h);
        }
    }

    fn new_hold(&mut self, hold: Hold) -> u32 {
        self.bytes += HOLD_BYTES;
        if let Some(i) = self.free_holds.pop() {
            self.holds[i as usize] = hold;
            i
        } else {
            self.holds.push(hold);
            self.holds.len() as u32 - 1
        }
    }

    fn add_hold(&mut self, node: u32, endpoint: u32, hold: u32) {
        let n = &mut self.nodes[node as usize];
        if let Err(at) = n.holds.binary_search_by_key(&endpoint, |h| h.0) {
            n.holds.insert(at, (endpoint, hold));
            n.holders.insert(endpoint);
        }
    }

    /// Puts `h` right behind `beside` in the list of its endpoint.
    fn link_older(&mut self, h: u32, beside: u32) {
        let older = self.holds[beside as usize].older;
        self.holds[h as usize].newer = beside;
        self.holds[h as usize].older = older;
        self.holds[beside as usize].older = h;
        if older == NONE {
            let e = self.holds[h as usize].endpoint;
            self.holder(e).oldest = h;
        } else {
            self.holds[older as usize].newer = h;
        }
    }

    fn unlink(&mut self, h: u32) {
        let Hold { endpoint, newer, older, .. } = self.holds[h as usize];
        if newer == NONE {
            self.holder(endpoint).newest = older;
        } else {
            self.holds[newer as usize].older = older;
        }
        if older == NONE {
            self.holder(endpoint).oldest = newer;
        } else {
            self.holds[older as usize].newer = newer;
        }
    }

    fn push_newest(&mut self, h: u32) {
        let e = self.holds[h as usize].endpoint;
        let newest = self.holder(e).newest;
        self.holds[h as usize].newer = NONE;
        self.holds[h as usize].older = newest;
        if newest == NONE {
            self.holder(e).oldest = h;
        } else {
            self.holds[newest as usize].newer = h;
        }
        self.holder(e).newest = h;
    }

    /// The endpoint uses the node now.
    fn touch(&mut self, endpoint: u32, node: u32) {
        let used = self.clock;
        let found = self.nodes[node as usize].holds.binary_search_by_key(&endpoint, |h| h.0);
        if let Ok(at) = found {
            let h = self.nodes[node as usize].holds[at].1;
            self.unlink(h);
            self.holds[h as usize].used = used;
            self.push_newest(h);
        } else {
            let h = self.new_hold(Hold { node, endpoint, newer: NONE, older: NONE, used });
            self.add_hold(node, endpoint, h);
            self.push_newest(h);
            let blocks = self.nodes[node as usize].run.len() as u64;
            self.holder(endpoint).blocks += blocks;
        }
    }

    /// Ends one hold, and the node with its last one.
    fn release(&mut self, h: u32) {
        let Hold { node, endpoint, .. } = self.holds[h as usize];
        self.unlink(h);
        self.free_holds.push(h);
        self.bytes -= HOLD_BYTES;
        let n = &mut self.nodes[node as usize];
        if let Ok(at) = n.holds.binary_search_by_key(&endpoint, |x| x.0) {
            n.holds.remove(at);
        }
        n.holders.remove(endpoint);
        let (run, last) = (n.run.len() as u64, n.holds.is_empty());
        self.holder(endpoint).blocks -= run;
        if last {
            let n = std::mem::take(&mut self.nodes[node as usize]);
            debug_assert!(n.children.is_empty(), "children are held only by holders of their parent");
            self.nodes[n.parent as usize].children.remove(&n.run[0]);
            self.bytes -= NODE_BYTES + 8 * run;
            self.free_nodes.push(node);
        }
    }

    /// Gives up the far end of an endpoint's list until at most `excess` blocks less are held.
    fn shorten(&mut self, endpoint: u32, excess: u64) {
        let Some(h) = self.oldest_of(endpoint) else { return };
        let node = self.holds[h as usize].node;
        let run = self.nodes[node as usize].run.len() as u64;
        if run > excess {
            self.split(node, (run - excess) as usize);
        }
        let h = self.oldest_of(endpoint).expect("the list was not empty");
        self.release(h);
    }

    fn evict(&mut self, endpoint: u32) {
        let capacity = match self.holder(endpoint).capacity {
            0 => u64::from(self.plan.blocks_per_endpoint),
            n => n,
        };
        while self.holder(endpoint).blocks > capacity {
            let excess = self.holder(endpoint).blocks - capacity;
            self.shorten(endpoint, excess);
        }
        while self.bytes > self.plan.max_bytes {
            let oldest = (0..self.holders.len() as u32)
                .filter_map(|e| self.oldest_of(e))
                .min_by_key(|&h| self.holds[h as usize].used);
            let Some(h) = oldest else { return };
            self.release(h);
        }
    }
}

fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The block size to hash prompts with: what the engines report, if they agree on something and tuning
/// is on, but never below [`MIN_BLOCK_TOKENS`].
pub fn block_tokens(plan: &PrefixPlan, reported: Option<u32>) -> u32 {
    match reported {
        Some(b) if plan.auto_tune => b.max(MIN_BLOCK_TOKENS),
        _ => plan.block_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Draws, Purpose};
    use std::collections::HashSet;

    fn plan(blocks: u32, max_bytes: u64) -> PrefixPlan {
        PrefixPlan {
            auto_tune: true,
            block_tokens: 64,
            max_tokens: 131_072,
            blocks_per_endpoint: blocks,
            max_bytes,
        }
    }

    fn matched(index: &PrefixIndex, chain: &[u64], endpoints: usize) -> Vec<u32> {
        let mut out = vec![0; endpoints];
        index.lookup(chain, &mut EndpointSet::default(), &mut out);
        out
    }

    fn chain(text: &str) -> Vec<u64> {
        let mut out = Vec::new();
        hash_chain("m", None, text.as_bytes(), 1, 0, &mut out);
        out
    }

    #[test]
    fn chains_share_hashes_as_long_as_they_share_text() {
        let (a, b) = (chain("aaaabbbbcccc"), chain("aaaabbbbdd"));
        assert_eq!((a.len(), b.len()), (3, 3));
        assert_eq!(a[..2], b[..2]);
        assert_ne!(a[2], b[2]);
        // The same block elsewhere is another hash.
        let c = chain("bbbbaaaa");
        assert_ne!(c[1], a[0]);
        let mut salted = Vec::new();
        hash_chain("m", Some("s"), b"aaaa", 1, 0, &mut salted);
        assert_ne!(salted[0], a[0]);
        hash_chain("m", None, b"aaaabbbbcccc", 1, 2, &mut salted);
        assert_eq!(salted, a[..2]);
        hash_chain("m", None, b"", 1, 2, &mut salted);
        assert!(salted.is_empty());
    }

    #[test]
    fn matches_are_contiguous_from_the_first_block() {
        let mut i = PrefixIndex::new(plan(100, 1 << 20));
        i.insert(0, &chain("aaaabbbbcccc"));
        i.insert(1, &chain("aaaaxxxx"));
        assert_eq!(matched(&i, &chain("aaaabbbbccccdddd"), 3), [3, 1, 0]);
        assert_eq!(matched(&i, &chain("aaaaxxxxcccc"), 3), [1, 2, 0]);
        assert_eq!(matched(&i, &chain("zzzz"), 3), [0, 0, 0]);
        i.forget(0);
        assert_eq!(matched(&i, &chain("aaaabbbbcccc"), 3), [0, 1, 0]);
        i.forget(1);
        assert_eq!(i.bytes(), 0);
    }

    #[test]
    fn an_endpoint_forgets_its_longest_unused_deepest_blocks() {
        let mut i = PrefixIndex::new(plan(3, 1 << 20));
        i.insert(0, &chain("aaaabbbbcccc"));
        i.insert(0, &chain("aaaaxxxx"));
        // Four blocks wanted, three kept: the deepest of the older chain went.
        assert_eq!(i.blocks(0), 3);
        assert_eq!(matched(&i, &chain("aaaabbbbcccc"), 1), [2]);
        assert_eq!(matched(&i, &chain("aaaaxxxx"), 1), [2]);
        // A chain longer than the capacity keeps its beginning.
        i.insert(0, &chain("qqqqwwwweeeerrrrtttt"));
        assert_eq!(matched(&i, &chain("qqqqwwwweeeerrrrtttt"), 1), [3]);
        assert_eq!(i.blocks(0), 3);
    }

    #[test]
    fn the_bound_in_bytes_holds() {
        let mut i = PrefixIndex::new(plan(1_000_000, 20_000));
        for n in 0..2_000u64 {
            let c: Vec<u64> = (0..10).map(|k| n * 100 + k).collect();
            i.insert((n % 3) as u32, &c);
            assert!(i.bytes() <= 20_000);
        }
        assert!(i.blocks(0) > 0);
    }

    #[test]
    fn reported_capacity_counts_in_index_blocks() {
        let mut i = PrefixIndex::new(plan(31_250, 1 << 30));
        i.report_capacity(0, 16, 16);
        i.insert(0, &(0..10).collect::<Vec<_>>());
        assert_eq!(i.blocks(0), 4, "256 tokens are four blocks of 64");
    }

    /// Against a plain map from each endpoint to the set of hashes it holds, without eviction.
    #[test]
    fn agrees_with_a_plain_model() {
        let d = Draws::new(3);
        let p = Purpose::named("prefix");
        let mut index = PrefixIndex::new(plan(1 << 30, 1 << 40));
        let mut model: HashSet<(u32, u64)> = HashSet::new();
        for n in 0..3_000u64 {
            // Chains over a small alphabet, so that they share beginnings of all lengths.
            let len = 1 + d.below(p, n, 0, 12) as usize;
            let text: Vec<u8> =
                (0..len).flat_map(|k| [b'a' + d.below(p, n, 1 + k as u64, 2) as u8; 4]).collect();
            let mut c = Vec::new();
            hash_chain("m", None, &text, 1, 0, &mut c);
            let e = d.below(p, n, 99, 5) as u32;
            let want: Vec<u32> =
                (0..5).map(|e| c.iter().take_while(|h| model.contains(&(e, **h))).count() as u32).collect();
            assert_eq!(matched(&index, &c, 5), want, "request {n}");
            if n % 17 == 0 {
                index.forget(e);
                model.retain(|k| k.0 != e);
            } else {
                index.insert(e, &c);
                model.extend(c.iter().map(|&h| (e, h)));
            }
            for e in 0..5u32 {
                assert_eq!(index.blocks(e), model.iter().filter(|k| k.0 == e).count() as u64);
            }
        }
    }
}
