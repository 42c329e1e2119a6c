//! The event queue: ordered by virtual instant, then by insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use cronkeeper_core::clock::Uptime;

/// Virtual time, and the events to come.
pub struct Queue<E> {
    now: Uptime,
    made: u64,
    heap: BinaryHeap<Reverse<Entry>>,
    /// The events stay in place while the heap moves only their keys.
    events: Vec<Option<E>>,
    free: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Uptime,
    order: u64,
    place: usize,
}

impl<E> Queue<E> {
    /// An empty queue. Time starts a while after boot, so that instants before now can be expressed.
    pub fn new() -> Self {
        let now = Uptime::ZERO + Duration::from_secs(1000);
        Self { now, made: 0, heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new() }
    }

    pub fn now(&self) -> Uptime {
        self.now
    }

    /// Schedules `event` at `at`, or now if that is past.
    pub fn at(&mut self, at: Uptime, event: E) {
        self.made += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.heap.push(Reverse(Entry { at: at.max(self.now), order: self.made, place }));
    }

    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Takes the next event not later than `limit` and advances time to it; if there is none, advances time to `limit`.
    pub fn pop(&mut self, limit: Uptime) -> Option<E> {
        if self.heap.peek().is_some_and(|Reverse(next)| next.at <= limit) {
            let Reverse(entry) = self.heap.pop()?;
            self.now = entry.at;
            self.free.push(entry.place);
            return self.events[entry.place].take();
        }
        self.now = self.now.max(limit);
        None
    }
}
