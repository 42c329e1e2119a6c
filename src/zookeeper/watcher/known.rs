//! A value and those who wait for the next one.
//!
//! Like tokio's `watch`, but those who wait are woken in the order in which they began to, so that the simulation repeats itself to the
//! letter: `watch` spreads them over several lists by chance.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The end that says what is known.
#[derive(Clone, Debug)]
pub struct Known<T>(Arc<Shared<T>>);

/// An end that hears of it.
#[derive(Debug)]
pub struct Hearer<T> {
    shared: Arc<Shared<T>>,
    /// How many values were said when it looked last.
    heard: u64,
}

#[derive(Debug)]
struct Shared<T> {
    value: Mutex<(T, u64)>,
    said: Notify,
}

impl<T: Clone> Known<T> {
    /// This is known from the start.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared { value: Mutex::new((value, 0)), said: Notify::new() }))
    }

    /// Says it to all, also if it is as before.
    pub fn say(&self, value: T) {
        let mut known = self.0.lock();
        *known = (value, known.1 + 1);
        drop(known);
        self.0.said.notify_waiters();
    }

    /// What is known now.
    pub fn value(&self) -> T {
        self.0.lock().0.clone()
    }

    /// One who has heard all so far.
    pub fn hearer(&self) -> Hearer<T> {
        Hearer { shared: Arc::clone(&self.0), heard: self.0.lock().1 }
    }
}

impl<T: Clone> Hearer<T> {
    /// What is known now, and counts as heard.
    pub fn hear(&mut self) -> T {
        let known = self.shared.lock();
        self.heard = known.1;
        known.0.clone()
    }

    /// Returns when something was said that was not heard. Cancel safe.
    pub async fn said(&mut self) {
        loop {
            // Made before the look: what is said after that wakes it.
            let said = self.shared.said.notified();
            if self.shared.lock().1 != self.heard {
                return;
            }
            said.await;
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, (T, u64)> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_is_said_while_nobody_waits_is_heard_by_the_next_wait_once() {
        let known = Known::new(0);
        let mut hearer = known.hearer();
        assert_eq!(hearer.said().now_or_never(), None);
        known.say(0);
        assert_eq!(hearer.said().now_or_never(), Some(()), "also what is as before");
        assert_eq!(hearer.hear(), 0);
        assert_eq!(hearer.said().now_or_never(), None);
    }
}
