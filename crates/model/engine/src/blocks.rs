//! KV blocks: counts, a free list in least-recently-used order, and the prefix cache.
//!
//! As in vLLM, a free block keeps its content and can be hit until it is handed out again; handing it out
//! evicts it. Several blocks may hold the same content (two requests that computed it at the same
//! time); the one that was filled first answers look-ups.
//!
//! Only a block whose content others may ask for has an identity here. The rest are counts: a block that
//! is not full, or that holds what one request alone can ask for (its output), is as good as another.
//! So an output of ten thousand tokens costs one entry of the free list when it ends, and handing out
//! many blocks costs no more than the cached ones among them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are hashes or small integers already: one multiplication spreads them over the table.
#[derive(Clone, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let x = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 32);
    }
}

/// A map that is only ever looked up, never iterated.
pub(crate) type FastMap<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

const NONE: u32 = u32::MAX;
/// The node that closes the free list.
const END: u32 = 0;

/// A block with an identity, or a run of free blocks without one.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Content hash of a named block.
    hash: u64,
    /// Requests that hold a named block.
    refs: u32,
    /// Blocks in a run; 1 for a named block.
    count: u32,
    /// Neighbours in the free list, `NONE` while held.
    prev: u32,
    next: u32,
    /// Ring of the named blocks with the same hash; itself if it is the only one.
    twin_prev: u32,
    twin_next: u32,
    /// The owner of a run that one owner can take back.
    owner: u32,
    named: bool,
}

const EMPTY: Node = Node {
    hash: 0,
    refs: 0,
    count: 0,
    prev: END,
    next: END,
    twin_prev: NONE,
    twin_next: NONE,
    owner: NONE,
    named: false,
};

/// The pool of blocks that requests can get (the null block is not among them).
#[derive(Clone, Debug)]
pub struct BlockPool {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    total: u32,
    free: u32,
    /// The first filled block of each hash.
    cache: FastMap<u32>,
    /// By owner: the run that it can take back, or `NONE`.
    kept: Vec<u32>,
}

impl BlockPool {
    /// `n` blocks, all free and empty.
    pub fn new(n: u32) -> BlockPool {
        let mut pool = BlockPool {
            nodes: vec![EMPTY],
            vacant: Vec::new(),
            total: n,
            free: 0,
            cache: FastMap::default(),
            kept: Vec::new(),
        };
        pool.release(n);
        pool
    }

    /// Blocks in the pool.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that no request holds, cached or not.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Whether no request holds the named block.
    pub fn is_free(&self, block: u32) -> bool {
        self.nodes[block as usize].refs == 0
    }

    /// Whether somebody holds the named block or one with the same content.
    pub(crate) fn can_be_held(&self, block: u32) -> bool {
        let node = &self.nodes[block as usize];
        node.refs > 0 || node.twin_next != block
    }

    /// How many requests hold the named block.
    pub fn refs(&self, block: u32) -> u32 {
        self.nodes[block as usize].refs
    }

    /// The named block that holds this content, if any does.
    pub fn lookup(&self, hash: u64) -> Option<u32> {
        self.cache.get(&hash).copied()
    }

    /// Holds a block that was found by [`BlockPool::lookup`] once more, taking it off the free list if
    /// it was idle.
    pub fn hold(&mut self, block: u32) {
        if self.nodes[block as usize].refs == 0 {
            self.unlink(block);
            self.free -= 1;
        }
        self.nodes[block as usize].refs += 1;
    }

    /// Hands out the `n` least recently freed blocks and evicts what they cached. Whether there were so
    /// many; if not, nothing happened.
    pub fn take(&mut self, n: u32) -> bool {
        if n > self.free {
            return false;
        }
        self.free -= n;
        let mut left = n;
        while left > 0 {
            let first = self.nodes[END as usize].next;
            let node = &mut self.nodes[first as usize];
            if !node.named && node.count > left {
                node.count -= left;
                return true;
            }
            left -= node.count;
            self.unlink(first);
            self.discard(first);
        }
        true
    }

    /// Gives back `n` blocks without a name, to the end of the free list.
    pub fn release(&mut self, n: u32) {
        if n == 0 {
            return;
        }
        let last = self.nodes[END as usize].prev;
        let tail = &mut self.nodes[last as usize];
        if last != END && !tail.named && tail.owner == NONE {
            tail.count += n;
            self.free += n;
        } else {
            let run = self.node(Node { count: n, ..EMPTY });
            self.append(run);
        }
    }

    /// Gives back `n` blocks without a name, to the front of the free list: they are handed out next.
    pub fn release_first(&mut self, n: u32) {
        if n == 0 {
            return;
        }
        let first = self.nodes[END as usize].next;
        let head = &mut self.nodes[first as usize];
        if first != END && !head.named && head.owner == NONE {
            head.count += n;
            self.free += n;
        } else {
            let run = self.node(Node { count: n, ..EMPTY });
            self.link(run, END, first);
        }
    }

    /// Gives one hold on a named block back; with the last one it goes to the end of the free list, still
    /// cached.
    pub fn release_named(&mut self, block: u32) {
        let node = &mut self.nodes[block as usize];
        debug_assert!(node.refs > 0, "block {block} is not held");
        node.refs -= 1;
        if node.refs == 0 {
            self.append(block);
        }
    }

    /// Gives back `n` full blocks that `owner` alone can ask for again, deepest first, until
    /// [`BlockPool::forget`]. An owner has one such run at most.
    pub fn keep(&mut self, owner: u32, n: u32) {
        if n == 0 {
            return;
        }
        let run = self.node(Node { count: n, owner, ..EMPTY });
        if self.kept.len() <= owner as usize {
            self.kept.resize(owner as usize + 1, NONE);
        }
        debug_assert_eq!(self.kept[owner as usize], NONE, "owner {owner} keeps two runs");
        self.kept[owner as usize] = run;
        self.append(run);
    }

    /// How many blocks of the owner's run are left, from the front of its content.
    pub fn kept(&self, owner: u32) -> u32 {
        match self.kept.get(owner as usize) {
            Some(&run) if run != NONE => self.nodes[run as usize].count,
            _ => 0,
        }
    }

    /// Takes the first `n` blocks of the owner's run back and forgets the rest.
    pub fn take_kept(&mut self, owner: u32, n: u32) {
        debug_assert!(n <= self.kept(owner), "owner {owner} keeps fewer than {n}");
        if n > 0 {
            let run = self.kept[owner as usize];
            self.nodes[run as usize].count -= n;
            self.free -= n;
            if self.nodes[run as usize].count == 0 {
                self.unlink(run);
                self.discard(run);
            }
        }
        self.forget(owner);
    }

    /// Nobody will ask for the owner's run again.
    pub fn forget(&mut self, owner: u32) {
        if let Some(run) = self.kept.get_mut(owner as usize)
            && *run != NONE
        {
            self.nodes[*run as usize].owner = NONE;
            *run = NONE;
        }
    }

    /// Gives one held block without a name its content. The block's name.
    pub fn fill(&mut self, hash: u64) -> u32 {
        let block = self.node(Node { hash, refs: 1, count: 1, prev: NONE, next: NONE, named: true, ..EMPTY });
        let first = *self.cache.entry(hash).or_insert(block);
        if first == block {
            self.nodes[block as usize].twin_prev = block;
            self.nodes[block as usize].twin_next = block;
        } else {
            // Behind the last of the ring, so that the ring stays in order of filling.
            let last = self.nodes[first as usize].twin_prev;
            self.nodes[block as usize].twin_prev = last;
            self.nodes[block as usize].twin_next = first;
            self.nodes[last as usize].twin_next = block;
            self.nodes[first as usize].twin_prev = block;
        }
        block
    }

    fn node(&mut self, node: Node) -> u32 {
        if let Some(i) = self.vacant.pop() {
            self.nodes[i as usize] = node;
            i
        } else {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        }
    }

    /// Ends a node that is off the free list: a named block leaves the prefix cache, a kept run its owner.
    fn discard(&mut self, index: u32) {
        let node = self.nodes[index as usize];
        if node.named {
            if node.twin_next == index {
                self.cache.remove(&node.hash);
            } else {
                self.nodes[node.twin_prev as usize].twin_next = node.twin_next;
                self.nodes[node.twin_next as usize].twin_prev = node.twin_prev;
                if self.cache.get(&node.hash) == Some(&index) {
                    self.cache.insert(node.hash, node.twin_next);
                }
            }
        } else if node.owner != NONE {
            self.kept[node.owner as usize] = NONE;
        }
        self.vacant.push(index);
    }

    /// To the end of the free list.
    fn append(&mut self, index: u32) {
        self.link(index, self.nodes[END as usize].prev, END);
    }

    /// Into the free list between two neighbours.
    fn link(&mut self, index: u32, prev: u32, next: u32) {
        self.nodes[index as usize].prev = prev;
        self.nodes[index as usize].next = next;
        self.nodes[prev as usize].next = index;
        self.nodes[next as usize].prev = index;
        self.free += self.nodes[index as usize].count;
    }

    fn unlink(&mut self, index: u32) {
        let Node { prev, next, .. } = self.nodes[index as usize];
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Draws, Purpose};
    use std::collections::{BTreeMap, VecDeque};

    #[test]
    fn idle_blocks_are_hit_until_they_are_handed_out() {
        let mut pool = BlockPool::new(2);
        assert!(pool.take(1));
        let a = pool.fill(77);
        pool.release_named(a);
        assert_eq!((pool.lookup(77), pool.free()), (Some(a), 2));
        pool.hold(a);
        assert_eq!((pool.refs(a), pool.free()), (1, 1));
        pool.release_named(a);
        assert!(pool.take(1), "the empty block was freed before");
        assert_eq!(pool.lookup(77), Some(a));
        assert!(pool.take(1));
        assert_eq!(pool.lookup(77), None);
        assert!(!pool.take(1));
    }

    #[test]
    fn twins_take_over_in_the_order_of_filling() {
        let mut pool = BlockPool::new(3);
        assert!(pool.take(3));
        let twins = [5; 3].map(|hash| pool.fill(hash));
        assert_eq!(pool.lookup(5), Some(twins[0]));
        pool.release_named(twins[0]);
        assert!(pool.take(1));
        assert_eq!(pool.lookup(5), Some(twins[1]));
        pool.release_named(twins[2]);
        assert!(pool.take(1));
        pool.release_named(twins[1]);
        assert!(pool.take(1));
        assert_eq!(pool.lookup(5), None);
    }

    #[test]
    fn an_owner_finds_the_front_of_its_run() {
        let mut pool = BlockPool::new(10);
        assert!(pool.take(8));
        pool.keep(3, 6);
        pool.release(2);
        assert_eq!((pool.kept(3), pool.kept(4), pool.free()), (6, 0, 10));
        // Two empty ones, then the two deepest of the run.
        assert!(pool.take(4));
        assert_eq!(pool.kept(3), 4);
        pool.take_kept(3, 3);
        assert_eq!((pool.kept(3), pool.free()), (0, 3));
        pool.keep(3, 1);
        assert!(pool.take(4));
        assert_eq!((pool.kept(3), pool.free()), (0, 0));
    }

    /// A free block of the direct model.
    #[derive(Clone, Copy, PartialEq)]
    enum Free {
        Blank,
        Named(u32),
        Kept(u32, u32),
    }

    /// The pool as a deque of single blocks, a map of lists and counts.
    struct Model {
        free: VecDeque<Free>,
        blank: u32,
        named: BTreeMap<u32, (u64, u32)>,
        cache: BTreeMap<u64, Vec<u32>>,
    }

    impl Model {
        fn take(&mut self, n: u32) -> bool {
            if n as usize > self.free.len() {
                return false;
            }
            self.blank += n;
            for f in self.free.drain(..n as usize) {
                if let Free::Named(b) = f {
                    let (hash, _) = self.named.remove(&b).unwrap();
                    self.cache.get_mut(&hash).unwrap().retain(|&x| x != b);
                }
            }
            true
        }

        fn release_named(&mut self, block: u32) {
            let refs = &mut self.named.get_mut(&block).unwrap().1;
            *refs -= 1;
            if *refs == 0 {
                self.free.push_back(Free::Named(block));
            }
        }

        fn kept(&self, owner: u32) -> u32 {
            self.free.iter().filter(|f| matches!(f, Free::Kept(o, _) if *o == owner)).count() as u32
        }

        fn take_kept(&mut self, owner: u32, n: u32) {
            self.blank += n;
            self.free.retain(|f| !matches!(f, Free::Kept(o, depth) if *o == owner && *depth < n));
            for f in &mut self.free {
                if matches!(f, Free::Kept(o, _) if *o == owner) {
                    *f = Free::Blank;
                }
            }
        }
    }

    #[test]
    fn a_random_walk_agrees_with_a_direct_model() {
        let draws = Draws::new(9);
        let p = Purpose::named("blocks");
        let n = 24u32;
        let mut pool = BlockPool::new(n);
        let free = (0..n).map(|_| Free::Blank).collect();
        let mut model = Model { free, blank: 0, named: BTreeMap::new(), cache: BTreeMap::new() };
        for i in 0..50_000u64 {
            let hash = draws.below(p, i, 2, 6);
            let some = draws.below(p, i, 1, 5) as u32;
            let owner = draws.below(p, i, 3, 3) as u32;
            let held: Vec<u32> = model.named.iter().filter(|(_, v)| v.1 > 0).map(|(&b, _)| b).collect();
            match draws.below(p, i, 0, 8) {
                0 => assert_eq!(pool.take(some), model.take(some)),
                1 if model.blank >= some => {
                    model.blank -= some;
                    model.free.extend((0..some).map(|_| Free::Blank));
                    pool.release(some);
                }
                2 if !held.is_empty() => {
                    let b = held[some as usize % held.len()];
                    model.release_named(b);
                    pool.release_named(b);
                }
                3 if model.blank > 0 => {
                    model.blank -= 1;
                    let b = pool.fill(hash);
                    assert!(model.named.insert(b, (hash, 1)).is_none());
                    model.cache.entry(hash).or_default().push(b);
                }
                4 => {
                    if let Some(b) = pool.lookup(hash) {
                        model.named.get_mut(&b).unwrap().1 += 1;
                        model.free.retain(|f| *f != Free::Named(b));
                        pool.hold(b);
                    }
                }
                5 if model.blank >= some && model.kept(owner) == 0 => {
                    model.blank -= some;
                    model.free.extend((0..some).rev().map(|depth| Free::Kept(owner, depth)));
                    pool.keep(owner, some);
                }
                7 if model.blank >= some => {
                    model.blank -= some;
                    (0..some).for_each(|_| model.free.push_front(Free::Blank));
                    pool.release_first(some);
                }
                6 if some <= model.kept(owner) => {
                    model.take_kept(owner, some);
                    pool.take_kept(owner, some);
                }
                _ => {}
            }
            assert_eq!(pool.kept(owner), model.kept(owner));
            assert_eq!(pool.lookup(hash), model.cache.get(&hash).and_then(|v| v.first().copied()));
            assert_eq!(pool.free() as usize, model.free.len());
            assert!(model.named.iter().all(|(&b, v)| pool.refs(b) == v.1));
        }
    }
}
