use super::*;
use crate::prefix::hash_chain;
use forebay_base::{Draws, Purpose};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

fn plan(blocks: u32, max_bytes: u64) -> PrefixPlan {
    PrefixPlan {
        auto_tune: true,
        block_tokens: 64,
        max_tokens: 131_072,
        max_blocks: 0,
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
    hash_chain("m", None, text.as_bytes(), 1, None, &mut out);
    out
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
    for (e, (blocks, engine, want)) in
        [(16, Some(16), 4), (16, None, 4), (4, Some(256), 4), (2, Some(64), 2)].into_iter().enumerate()
    {
        i.report_capacity(e as u32, blocks, engine);
        i.insert(e as u32, &(0..10).collect::<Vec<_>>());
        assert_eq!(i.blocks(e as u32), want, "{blocks} blocks of {engine:?} tokens");
    }
    // The first report stays, and one that comes after requests counts from the next request on.
    i.report_capacity(0, 1000, Some(16));
    i.insert(0, &(20..40).collect::<Vec<_>>());
    assert_eq!(i.blocks(0), 4);
    i.insert(9, &(0..10).collect::<Vec<_>>());
    i.report_capacity(9, 8, Some(16));
    i.insert(9, &(0..1).collect::<Vec<_>>());
    assert_eq!(i.blocks(9), 2);
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
        let text: Vec<u8> = (0..len).flat_map(|k| [b'a' + d.below(p, n, 1 + k as u64, 2) as u8; 4]).collect();
        let mut c = Vec::new();
        hash_chain("m", None, &text, 1, None, &mut c);
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

impl PrefixIndex {
    /// The nodes that can be reached, root first, children after their parents.
    fn reachable(&self) -> Vec<u32> {
        let mut all = vec![ROOT];
        let mut at = 0;
        while let Some(&n) = all.get(at) {
            for (first, &c) in &self.nodes[n as usize].children {
                assert_eq!(self.nodes[c as usize].parent, n);
                assert_eq!(self.nodes[c as usize].run[0], *first);
                all.push(c);
            }
            at += 1;
        }
        all
    }

    /// The holds of an endpoint, newest first.
    fn listed(&self, endpoint: u32) -> Vec<u32> {
        let Some(holder) = self.holders.get(endpoint as usize) else { return Vec::new() };
        let (mut out, mut h, mut newer) = (Vec::new(), holder.newest, NONE);
        while h != NONE {
            assert_eq!(self.holds[h as usize].newer, newer);
            assert_eq!(self.holds[h as usize].endpoint, endpoint);
            out.push(h);
            (newer, h) = (h, self.holds[h as usize].older);
        }
        assert_eq!(holder.oldest, newer);
        out
    }

    /// Everything that must hold between calls.
    fn check(&self) {
        let nodes = self.reachable();
        let mut bytes = 0;
        for &n in &nodes {
            let node = &self.nodes[n as usize];
            bytes += children_bytes(node.children.len()) + 8 * node.holders.words() as u64;
            assert_eq!(
                node.holders.iter().collect::<Vec<_>>(),
                node.holds.iter().map(|h| h.0).collect::<Vec<_>>()
            );
            if n != ROOT {
                bytes += NODE_BYTES + 8 * node.run.len() as u64 + HOLD_BYTES * node.holds.len() as u64;
                assert!(!node.holds.is_empty(), "a node that nobody holds is gone");
            }
            for &(e, h) in &node.holds {
                assert_eq!((self.holds[h as usize].node, self.holds[h as usize].endpoint), (n, e));
            }
        }
        assert_eq!(self.bytes, bytes);
        assert_eq!(self.nodes.len(), nodes.len() + self.free_nodes.len());
        let mut held = 0;
        for e in 0..self.holders.len() as u32 {
            let list = self.listed(e);
            held += list.len();
            let place: BTreeMap<u32, usize> =
                list.iter().enumerate().map(|(k, &h)| (self.holds[h as usize].node, k)).collect();
            let mut blocks = 0;
            for (k, &h) in list.iter().enumerate() {
                let Hold { node, used, .. } = self.holds[h as usize];
                blocks += self.nodes[node as usize].run.len() as u64;
                assert!(
                    k == 0 || used <= self.holds[list[k - 1] as usize].used,
                    "the list falls by last use"
                );
                let parent = self.nodes[node as usize].parent;
                assert!(
                    parent == ROOT || place[&parent] < k,
                    "a parent is held, and used after its children"
                );
            }
            assert_eq!(self.blocks(e), blocks);
            let oldest = list.last().map(|&h| self.holds[h as usize].used);
            let filed = self.oldest.iter().find(|(_, handle)| *handle == e).map(|((used, _), _)| used);
            assert_eq!(filed, oldest);
        }
        assert_eq!(self.holds.len(), held + self.free_holds.len());
    }
}

/// What the index should remember, block by block: per endpoint the last use and the depth of each.
#[derive(Default)]
struct Plain(BTreeMap<u32, BTreeMap<u64, (u64, usize)>>);

impl Plain {
    fn matched(&self, endpoint: u32, chain: &[u64]) -> u32 {
        let held = self.0.get(&endpoint);
        chain.iter().take_while(|h| held.is_some_and(|m| m.contains_key(h))).count() as u32
    }
    fn insert(&mut self, endpoint: u32, chain: &[u64], clock: u64, capacity: usize) {
        let held = self.0.entry(endpoint).or_default();
        held.extend(chain.iter().enumerate().map(|(depth, &h)| (h, (clock, depth))));
        while held.len() > capacity {
            let first = |(_, (used, depth)): &(&u64, &(u64, usize))| (*used, std::cmp::Reverse(*depth));
            let gone = *held.iter().min_by_key(first).unwrap().0;
            held.remove(&gone);
        }
    }
}

/// Chains over a small alphabet, so that they share beginnings of all lengths.
fn chains() -> impl Strategy<Value = Vec<(u8, u32, Vec<u64>)>> {
    let chain = prop::collection::vec(0u8..2, 1..12).prop_map(|letters| {
        let text: Vec<u8> = letters.iter().flat_map(|l| [b'a' + l; 4]).collect();
        let mut out = Vec::new();
        hash_chain("m", None, &text, 1, None, &mut out);
        out
    });
    // Endpoint 70 stands in the second word of a set.
    let endpoint = prop::sample::select(vec![0u32, 1, 2, 70]);
    prop::collection::vec((0u8..20, endpoint, chain), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn capacity_forgets_block_by_block_what_was_longest_unused(steps in chains(), capacity in 1u32..25) {
        let mut index = PrefixIndex::new(plan(capacity, 1 << 40));
        let mut plain = Plain::default();
        for (clock, (what, e, chain)) in steps.iter().enumerate() {
            if *what == 0 {
                index.forget(*e);
                plain.0.remove(e);
            } else {
                index.insert(*e, chain);
                plain.insert(*e, chain, clock as u64, capacity as usize);
            }
            index.check();
            let want: Vec<u32> = (0..71).map(|e| plain.matched(e, chain)).collect();
            prop_assert_eq!(matched(&index, chain, 71), want);
            for e in [0, 1, 2, 70] {
                prop_assert_eq!(index.blocks(e), plain.0.get(&e).map_or(0, |m| m.len() as u64));
            }
        }
    }

    #[test]
    fn the_bound_in_bytes_holds_whatever_is_shared_and_forgotten(
        steps in chains(), capacity in 4u32..40, max_bytes in 0u64..12_000,
    ) {
        let mut index = PrefixIndex::new(plan(capacity, max_bytes));
        let mut sent: BTreeSet<(u32, u64)> = BTreeSet::new();
        for (what, e, chain) in &steps {
            if *what == 0 {
                index.forget(*e);
                sent.retain(|k| k.0 != *e);
            } else {
                index.insert(*e, chain);
                sent.extend(chain.iter().map(|&h| (*e, h)));
            }
            index.check();
            prop_assert!(index.bytes() <= max_bytes, "{} bytes", index.bytes());
            prop_assert!(index.blocks(*e) <= u64::from(capacity));
            for (e, &blocks) in matched(&index, chain, 71).iter().enumerate() {
                let most = chain.iter().take_while(|&&h| sent.contains(&(e as u32, h))).count();
                prop_assert!(blocks as usize <= most, "endpoint {e} never got that");
            }
        }
    }
}
