//! A binary min-heap over small integer handles, with a position table so that any element can be
//! removed or moved in O(log n).
//!
//! One structure serves the queues (ordered by policy key), the bands (ordered by head) and the
//! deadlines. Handles are indices of the caller's own slab.

/// Where each handle stands in its heap, plus one; 0 is "in none". Several heaps may share one table as
/// long as a handle is in one of them at a time.
pub type Places = Vec<u32>;

/// A min-heap of `(key, handle)` whose table of places belongs to the caller. Equal keys are an error of
/// the caller, who puts a sequence number into the key where order matters.
#[derive(Clone, Debug)]
pub struct SharedHeap<K> {
    items: Vec<(K, u32)>,
}

impl<K> Default for SharedHeap<K> {
    fn default() -> Self {
        SharedHeap { items: Vec::new() }
    }
}

impl<K: Ord + Copy> SharedHeap<K> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The least element.
    pub fn peek(&self) -> Option<(K, u32)> {
        self.items.first().copied()
    }

    /// Inserts `handle`, or gives it a new key if it is there.
    pub fn set(&mut self, at: &mut Places, handle: u32, key: K) {
        let h = handle as usize;
        if h >= at.len() {
            at.resize(h + 1, 0);
        }
        if at[h] == 0 {
            self.items.push((key, handle));
            at[h] = self.items.len() as u32;
            self.up(at, self.items.len() - 1);
        } else {
            let p = at[h] as usize - 1;
            self.items[p].0 = key;
            let p = self.up(at, p);
            self.down(at, p);
        }
    }

    /// Removes `handle`; whether it was there.
    pub fn remove(&mut self, at: &mut Places, handle: u32) -> bool {
        let Some(p) = at.get(handle as usize).copied().filter(|&p| p != 0) else { return false };
        let p = p as usize - 1;
        at[handle as usize] = 0;
        let last = self.items.len() - 1;
        self.items.swap_remove(p);
        if p < last {
            at[self.items[p].1 as usize] = p as u32 + 1;
            let p = self.up(at, p);
            self.down(at, p);
        }
        true
    }

    /// All elements in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        self.items.iter().copied()
    }

    /// Gives every element a new key at once, in O(n).
    pub fn rekey(&mut self, at: &mut Places, mut key: impl FnMut(u32) -> K) {
        for item in &mut self.items {
            item.0 = key(item.1);
        }
        for p in (0..self.items.len() / 2).rev() {
            self.down(at, p);
        }
    }

    fn up(&mut self, at: &mut Places, mut p: usize) -> usize {
        let item = self.items[p];
        let start = p;
        while p > 0 {
            let parent = (p - 1) / 2;
            if self.items[parent].0 <= item.0 {
                break;
            }
            self.put(at, p, self.items[parent]);
            p = parent;
        }
        if p != start {
            self.put(at, p, item);
        }
        p
    }

    fn down(&mut self, at: &mut Places, mut p: usize) {
        let item = self.items[p];
        let start = p;
        loop {
            let left = 2 * p + 1;
            let Some(mut least) = self.items.get(left).copied() else { break };
            let mut child = left;
            if let Some(right) = self.items.get(left + 1).filter(|right| right.0 < least.0) {
                (child, least) = (left + 1, *right);
            }
            if item.0 <= least.0 {
                break;
            }
            self.put(at, p, least);
            p = child;
        }
        if p != start {
            self.put(at, p, item);
        }
    }

    /// An element comes to a place; what was there is held elsewhere.
    fn put(&mut self, at: &mut Places, p: usize, item: (K, u32)) {
        self.items[p] = item;
        at[item.1 as usize] = p as u32 + 1;
    }
}

/// A [`SharedHeap`] with a table of places of its own.
#[derive(Clone, Debug)]
pub struct IndexedHeap<K> {
    heap: SharedHeap<K>,
    at: Places,
}

impl<K> Default for IndexedHeap<K> {
    fn default() -> Self {
        IndexedHeap { heap: SharedHeap::default(), at: Places::new() }
    }
}

impl<K: Ord + Copy> IndexedHeap<K> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
    /// The least element.
    pub fn peek(&self) -> Option<(K, u32)> {
        self.heap.peek()
    }
    /// Whether `handle` is in the heap.
    pub fn contains(&self, handle: u32) -> bool {
        self.at.get(handle as usize).is_some_and(|&p| p != 0)
    }
    /// Inserts `handle`, or gives it a new key if it is there.
    pub fn set(&mut self, handle: u32, key: K) {
        self.heap.set(&mut self.at, handle, key);
    }
    /// Removes `handle`; whether it was there.
    pub fn remove(&mut self, handle: u32) -> bool {
        self.heap.remove(&mut self.at, handle)
    }
    /// Removes the least element.
    pub fn pop(&mut self) -> Option<(K, u32)> {
        let top = self.peek()?;
        self.remove(top.1);
        Some(top)
    }
    /// All elements in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        self.heap.iter()
    }
    /// Gives every element a new key at once, in O(n).
    pub fn rekey(&mut self, key: impl FnMut(u32) -> K) {
        self.heap.rekey(&mut self.at, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A random walk against an ordered map: same minimum, same membership after every step.
    #[test]
    fn agrees_with_an_ordered_map() {
        let draws = crate::Draws::new(1);
        let p = crate::Purpose::named("heap");
        let mut heap = IndexedHeap::default();
        let mut model: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for i in 0..20_000u64 {
            let handle = draws.below(p, i, 0, 64) as u32;
            match draws.below(p, i, 1, 4) {
                0 => {
                    assert_eq!(heap.remove(handle), model.remove(&handle).is_some());
                }
                1 if i % 50 == 0 => {
                    heap.rekey(|h| (draws.below(p, i, 3 + u64::from(h), 100), h));
                    for (h, k) in &mut model {
                        *k = (draws.below(p, i, 3 + u64::from(*h), 100), *h);
                    }
                }
                2 if i % 3 == 0 => {
                    let top = heap.pop();
                    let want = model.values().min().copied();
                    assert_eq!(top.map(|t| t.0), want);
                    if let Some((_, h)) = want {
                        model.remove(&h);
                    }
                }
                _ => {
                    let key = (draws.below(p, i, 2, 100), handle);
                    heap.set(handle, key);
                    model.insert(handle, key);
                }
            }
            assert_eq!(heap.peek().map(|t| t.0), model.values().min().copied());
            assert_eq!(heap.len(), model.len());
            assert_eq!(heap.contains(handle), model.contains_key(&handle));
        }
    }
}
