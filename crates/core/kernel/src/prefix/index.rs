//! The index itself.

use super::block_tokens;
use crate::plan::PrefixPlan;
use crate::pool::EndpointSet;
use forebay_base::IndexedHeap;
use std::collections::BTreeMap;

/// Tokens per block of an engine that does not say (vLLM's default).
const ENGINE_BLOCK_TOKENS: u32 = 16;

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

/// A node beside its run, children and holds. Nodes lie in a vector that grows by doubling, so up to two
/// places are taken for each; two blocks of the heap have a header each.
const NODE_BYTES: u64 = 2 * size_of::<Node>() as u64 + 32;
/// A hold and its entry at its node, both in vectors that grow by doubling.
const HOLD_BYTES: u64 = 2 * (size_of::<Hold>() + size_of::<(u32, u32)>()) as u64;
/// The first child of a node: a whole leaf of the tree map, 11 places of 12 bytes and its head.
const FIRST_CHILD_BYTES: u64 = 176;
/// A further child: leaves are at least 5 of 11 full.
const CHILD_BYTES: u64 = 32;

fn children_bytes(n: usize) -> u64 {
    match n as u64 {
        0 => 0,
        n => FIRST_CHILD_BYTES + (n - 1) * CHILD_BYTES,
    }
}

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
    /// Endpoints by the last use of their longest unused node.
    oldest: IndexedHeap<(u64, u32)>,
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
            oldest: IndexedHeap::default(),
            bytes: 0,
            clock: 0,
            path: Vec::new(),
        }
    }

    /// Estimated bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks held by all endpoints; one that several hold counts several times.
    pub fn all_blocks(&self) -> u64 {
        self.holders.iter().map(|h| h.blocks).sum()
    }

    /// Blocks held by an endpoint.
    pub fn blocks(&self, endpoint: u32) -> u64 {
        self.holders.get(endpoint as usize).map_or(0, |h| h.blocks)
    }

    /// The capacity of an endpoint, as its engine reports it in its own blocks; kept from its first report
    /// on. Without auto-tuning reports are ignored.
    pub fn report_capacity(&mut self, endpoint: u32, blocks: u32, engine_block_tokens: Option<u32>) {
        let known = self.holders.get(endpoint as usize).is_some_and(|h| h.capacity != 0);
        if self.plan.auto_tune && blocks > 0 && !known {
            // The engine counts its own blocks; the index counts those that prompts are hashed in.
            let engine = engine_block_tokens.unwrap_or(ENGINE_BLOCK_TOKENS).max(1);
            let own = block_tokens(&self.plan, engine_block_tokens);
            self.holder(endpoint).capacity = (u64::from(blocks) * u64::from(engine) / u64::from(own)).max(1);
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
            alive.iter().for_each(|e| {
                if let Some(m) = matched.get_mut(e as usize) {
                    *m += common as u32;
                }
            });
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
        self.refile(endpoint);
        self.evict(endpoint);
    }

    /// The endpoint is gone, or its cache is.
    pub fn forget(&mut self, endpoint: u32) {
        while let Some(h) = self.oldest_of(endpoint) {
            self.release(h);
        }
        self.refile(endpoint);
        if let Some(h) = self.holders.get_mut(endpoint as usize) {
            h.capacity = 0;
        }
    }

    fn oldest_of(&self, endpoint: u32) -> Option<u32> {
        self.holders.get(endpoint as usize).map(|h| h.oldest).filter(|&h| h != NONE)
    }

    /// Brings the heap of endpoints up to date after a change to this endpoint's list. A split changes other
    /// lists, too, but gives both parts the same last use.
    fn refile(&mut self, endpoint: u32) {
        match self.oldest_of(endpoint) {
            Some(h) => self.oldest.set(endpoint, (self.holds[h as usize].used, endpoint)),
            None => {
                self.oldest.remove(endpoint);
            }
        }
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
        let children = &mut self.nodes[parent as usize].children;
        let before = children.len();
        children.insert(first, i);
        self.bytes += children_bytes(children.len()) - children_bytes(before);
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
            let before = n.holders.words();
            n.holders.insert(endpoint);
            self.bytes += 8 * (n.holders.words() - before) as u64;
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
            let children = &mut self.nodes[n.parent as usize].children;
            let before = children.len();
            children.remove(&n.run[0]);
            self.bytes -= children_bytes(before) - children_bytes(children.len());
            self.bytes -= NODE_BYTES + 8 * (run + n.holders.words() as u64);
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
        self.refile(endpoint);
        while self.bytes > self.plan.max_bytes {
            let Some((_, endpoint)) = self.oldest.peek() else { return };
            let h = self.oldest_of(endpoint).expect("the heap has endpoints that hold something");
            self.release(h);
            self.refile(endpoint);
        }
    }
}

fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests;
