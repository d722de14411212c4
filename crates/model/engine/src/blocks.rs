//! KV blocks: reference counts, a free list in least-recently-used order, and the prefix cache.
//!
//! As in vLLM, a free block keeps its hash and can be hit until it is handed out again; handing it out
//! evicts it. Several blocks may hold the same content (two requests that computed it at the same
//! time); the one that was filled first answers look-ups.

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

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Content hash; meaningful only while `cached`.
    hash: u64,
    /// Requests that hold the block.
    refs: u32,
    /// Neighbours in the free list, `NONE` while held.
    prev: u32,
    next: u32,
    /// Ring of the blocks with the same hash; itself if it is the only one.
    twin_prev: u32,
    twin_next: u32,
    cached: bool,
}

/// The pool of blocks that requests can get (the null block is not among them).
#[derive(Clone, Debug)]
pub struct BlockPool {
    /// The blocks, and a sentinel at the end that closes the free list.
    blocks: Vec<Block>,
    free: u32,
    /// The first filled block of each hash.
    cache: FastMap<u32>,
}

impl BlockPool {
    /// `n` blocks, all free and empty; the first to be handed out is block 0.
    pub fn new(n: u32) -> BlockPool {
        let blocks = (0..=n)
            .map(|i| Block {
                hash: 0,
                refs: 0,
                prev: if i == 0 { n } else { i - 1 },
                next: if i == n { 0 } else { i + 1 },
                twin_prev: i,
                twin_next: i,
                cached: false,
            })
            .collect();
        BlockPool { blocks, free: n, cache: FastMap::default() }
    }

    /// Blocks in the pool.
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Blocks that no request holds, cached or not.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Whether no request holds `block`.
    pub fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].refs == 0
    }

    /// How many requests hold `block`.
    pub fn refs(&self, block: u32) -> u32 {
        self.blocks[block as usize].refs
    }

    /// The block that holds this content, if any does.
    pub fn lookup(&self, hash: u64) -> Option<u32> {
        self.cache.get(&hash).copied()
    }

    /// Holds a block that was found by [`BlockPool::lookup`] once more, taking it off the free list if
    /// it was idle.
    pub fn hold(&mut self, block: u32) {
        if self.blocks[block as usize].refs == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Hands out the least recently freed block and evicts what it cached; `None` if all are held.
    pub fn take(&mut self) -> Option<u32> {
        let sentinel = self.total();
        let block = self.blocks[sentinel as usize].next;
        if block == sentinel {
            return None;
        }
        self.unlink(block);
        self.evict(block);
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    /// Gives one hold back; with the last one the block goes to the end of the free list, still cached.
    pub fn release(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        debug_assert!(b.refs > 0, "block {block} is not held");
        b.refs -= 1;
        if b.refs == 0 {
            let sentinel = self.total();
            let last = self.blocks[sentinel as usize].prev;
            self.blocks[block as usize].prev = last;
            self.blocks[block as usize].next = sentinel;
            self.blocks[last as usize].next = block;
            self.blocks[sentinel as usize].prev = block;
            self.free += 1;
        }
    }

    /// Registers the content of a full block that is held and not yet cached.
    pub fn fill(&mut self, block: u32, hash: u64) {
        debug_assert!(!self.blocks[block as usize].cached, "block {block} is filled twice");
        self.blocks[block as usize].hash = hash;
        self.blocks[block as usize].cached = true;
        match self.cache.get(&hash).copied() {
            None => {
                self.cache.insert(hash, block);
            }
            Some(first) => {
                // Behind the last of the ring, so that the ring stays in order of filling.
                let last = self.blocks[first as usize].twin_prev;
                self.blocks[block as usize].twin_prev = last;
                self.blocks[block as usize].twin_next = first;
                self.blocks[last as usize].twin_next = block;
                self.blocks[first as usize].twin_prev = block;
            }
        }
    }

    /// Takes a block out of the prefix cache, if it is in it.
    fn evict(&mut self, block: u32) {
        let b = self.blocks[block as usize];
        if !b.cached {
            return;
        }
        if b.twin_next == block {
            self.cache.remove(&b.hash);
        } else {
            self.blocks[b.twin_prev as usize].twin_next = b.twin_next;
            self.blocks[b.twin_next as usize].twin_prev = b.twin_prev;
            if self.cache.get(&b.hash) == Some(&block) {
                self.cache.insert(b.hash, b.twin_next);
            }
        }
        let b = &mut self.blocks[block as usize];
        b.cached = false;
        b.twin_prev = block;
        b.twin_next = block;
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
        self.blocks[block as usize].prev = NONE;
        self.blocks[block as usize].next = NONE;
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Draws, Purpose};
    use std::collections::{BTreeMap, VecDeque};

    #[test]
    fn the_least_recently_freed_block_goes_first() {
        let mut pool = BlockPool::new(3);
        let taken: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(pool.take(), None);
        for b in [1, 2, 0] {
            pool.release(b);
        }
        assert_eq!(pool.take(), Some(1));
    }

    #[test]
    fn idle_blocks_are_hit_until_they_are_handed_out() {
        let mut pool = BlockPool::new(2);
        let a = pool.take().unwrap();
        pool.fill(a, 77);
        pool.release(a);
        assert_eq!((pool.lookup(77), pool.free()), (Some(a), 2));
        pool.hold(a);
        assert_eq!((pool.refs(a), pool.free()), (1, 1));
        pool.release(a);
        pool.take();
        pool.take();
        assert_eq!(pool.lookup(77), None);
    }

    #[test]
    fn twins_take_over_in_the_order_of_filling() {
        let mut pool = BlockPool::new(3);
        for _ in 0..3 {
            let b = pool.take().unwrap();
            pool.fill(b, 5);
        }
        assert_eq!(pool.lookup(5), Some(0));
        pool.release(0);
        pool.take();
        assert_eq!(pool.lookup(5), Some(1));
        pool.release(2);
        pool.take();
        pool.release(1);
        pool.take();
        assert_eq!(pool.lookup(5), None);
    }

    /// A random walk against a direct model with a deque, a map of lists and counts.
    #[test]
    fn agrees_with_a_direct_model() {
        let draws = Draws::new(9);
        let p = Purpose::named("blocks");
        let n = 12u32;
        let mut pool = BlockPool::new(n);
        let mut free: VecDeque<u32> = (0..n).collect();
        let mut refs = vec![0u32; n as usize];
        let mut hashes: Vec<Option<u64>> = vec![None; n as usize];
        let mut cache: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for i in 0..50_000u64 {
            let b = draws.below(p, i, 1, u64::from(n)) as u32;
            let hash = draws.below(p, i, 2, 6);
            match draws.below(p, i, 0, 4) {
                0 => {
                    let want = free.pop_front();
                    if let Some(b) = want {
                        if let Some(h) = hashes[b as usize].take() {
                            cache.get_mut(&h).unwrap().retain(|&x| x != b);
                        }
                        refs[b as usize] = 1;
                    }
                    assert_eq!(pool.take(), want);
                }
                1 if refs[b as usize] > 0 => {
                    refs[b as usize] -= 1;
                    if refs[b as usize] == 0 {
                        free.push_back(b);
                    }
                    pool.release(b);
                }
                2 if refs[b as usize] > 0 && hashes[b as usize].is_none() => {
                    hashes[b as usize] = Some(hash);
                    cache.entry(hash).or_default().push(b);
                    pool.fill(b, hash);
                }
                3 => {
                    if let Some(b) = pool.lookup(hash) {
                        if refs[b as usize] == 0 {
                            free.retain(|&x| x != b);
                        }
                        refs[b as usize] += 1;
                        pool.hold(b);
                    }
                }
                _ => {}
            }
            assert_eq!(pool.lookup(hash), cache.get(&hash).and_then(|v| v.first().copied()));
            assert_eq!(pool.free() as usize, free.len());
            assert_eq!(pool.refs(b), refs[b as usize]);
        }
    }
}
