//! The latest of a sequence of values, with subscribers that wait for the next.
//!
//! Like tokio's `watch`, except that waiting subscribers are woken in the order in which they began to wait, so that
//! the simulation is repeatable: `watch` spreads its waiters over several lists at random.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The publisher's end.
#[derive(Clone, Debug)]
pub struct Latest<T>(Arc<Shared<T>>);

/// A subscriber's end.
#[derive(Debug)]
pub struct Subscriber<T> {
    shared: Arc<Shared<T>>,
    /// Number of values published when this end last read.
    seen: u64,
}

#[derive(Debug)]
struct Shared<T> {
    value: Mutex<(T, u64)>,
    published: Notify,
}

impl<T: Clone> Latest<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared { value: Mutex::new((value, 0)), published: Notify::new() }))
    }

    /// Publishes a value to all subscribers, even if it is the same as before.
    pub fn publish(&self, value: T) {
        let mut latest = self.0.lock();
        *latest = (value, latest.1 + 1);
        drop(latest);
        self.0.published.notify_waiters();
    }

    pub fn value(&self) -> T {
        self.0.lock().0.clone()
    }

    /// A new subscriber, which waits for values published from now on.
    pub fn subscribe(&self) -> Subscriber<T> {
        Subscriber { shared: Arc::clone(&self.0), seen: self.0.lock().1 }
    }
}

impl<T: Clone> Subscriber<T> {
    /// Returns the latest value and marks it as seen.
    pub fn read(&mut self) -> T {
        let latest = self.shared.lock();
        self.seen = latest.1;
        latest.0.clone()
    }

    /// Returns once a value was published that was not read. Cancel safe.
    pub async fn changed(&mut self) {
        loop {
            // Created before the check, so that a value published after the check wakes it.
            let published = self.shared.published.notified();
            if self.shared.lock().1 != self.seen {
                return;
            }
            published.await;
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
    fn a_value_published_while_nobody_waits_ends_the_next_wait_once() {
        let latest = Latest::new(0);
        let mut subscriber = latest.subscribe();
        assert_eq!(subscriber.changed().now_or_never(), None);
        latest.publish(0);
        assert_eq!(subscriber.changed().now_or_never(), Some(()), "also an unchanged value");
        assert_eq!(subscriber.read(), 0);
        assert_eq!(subscriber.changed().now_or_never(), None);
    }
}
