//! What happens next: events in the order of their virtual instants, those of one instant in the order they were made.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use cronkeeper::clock::Uptime;

/// Virtual time, and what is to happen in it.
pub struct Queue<E> {
    now: Uptime,
    made: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
}

struct Entry<E> {
    at: Uptime,
    order: u64,
    event: E,
}

impl<E> Queue<E> {
    /// Nothing to happen yet. Time starts a while after boot, so that instants before now can be named.
    pub fn new() -> Self {
        Self { now: Uptime::ZERO + Duration::from_secs(1000), made: 0, heap: BinaryHeap::new() }
    }

    pub fn now(&self) -> Uptime {
        self.now
    }

    /// Lets `event` happen at `at`, now at the earliest.
    pub fn at(&mut self, at: Uptime, event: E) {
        self.made += 1;
        self.heap.push(Reverse(Entry { at: at.max(self.now), order: self.made, event }));
    }

    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Takes the next event not later than `limit` and moves time to it; without one, moves time to `limit`.
    pub fn pop(&mut self, limit: Uptime) -> Option<E> {
        if self.heap.peek().is_some_and(|Reverse(next)| next.at <= limit) {
            let Reverse(entry) = self.heap.pop()?;
            self.now = entry.at;
            return Some(entry.event);
        }
        self.now = self.now.max(limit);
        None
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Entry<E> {}
