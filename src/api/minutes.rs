//! Counts by caller and minute, of what must neither be forgotten nor fill the log.
//!
//! What is kept is bounded: callers beyond [`MOST_CALLERS`] count as one.
//!
//! ```text
//!  first ones of a caller ─▶ logged ─▶ minute ─┬─ more came ─▶ logged with their number ─▶ next minute
//!                                              └─ none came ─▶ forgotten
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::caller::Caller;
use cronkeeper_core::clock::{Uptime, system};

/// Most callers that are distinguished, and so most lines in a minute, less one.
const MOST_CALLERS: usize = 256;
const MINUTE: Duration = Duration::from_secs(60);

/// Who is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    One(Caller),
    Others,
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(caller) => caller.fmt(f),
            Self::Others => f.write_str("other addresses"),
        }
    }
}

/// [`Minutes`] that end by themselves.
#[derive(Debug)]
pub(super) struct LoggedMinutes {
    minutes: Mutex<Minutes>,
    /// Logs how many of a sender were not logged one by one in a minute.
    log: fn(&Sender, u64),
}

impl LoggedMinutes {
    pub fn new(minutes: Minutes, log: fn(&Sender, u64)) -> Arc<Self> {
        Arc::new(Self { minutes: Mutex::new(minutes), log })
    }

    /// Counts one of a caller, and has the log say at the end of each minute what it has not said by then.
    pub fn count(self: &Arc<Self>, caller: Caller) -> Counted {
        let counted = self.minutes().count(caller, system::uptime());
        // Without a runtime, the node is stopping.
        if let Some(runtime) = Handle::try_current().ok().filter(|_| counted.is_first) {
            // There are as many of these tasks as callers that are distinguished.
            runtime.spawn(Arc::clone(self).log_each_minute(counted.sender));
        }
        counted
    }

    async fn log_each_minute(self: Arc<Self>, sender: Sender) {
        loop {
            sleep(MINUTE).await;
            let Some(count) = self.minutes().end(sender, system::uptime()) else { return };
            (self.log)(&sender, count);
        }
    }

    fn minutes(&self) -> MutexGuard<'_, Minutes> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of those who were counted in the last minute.
#[derive(Debug)]
pub(super) struct Minutes {
    of: HashMap<Sender, Minute>,
    /// How many of a caller that was forgotten, or is new, are logged one by one.
    at_first: u64,
    /// The same in the minutes that follow.
    again: u64,
}

#[derive(Clone, Copy, Debug)]
struct Minute {
    begun: Uptime,
    count: u64,
    /// How many may still be logged one by one.
    single: u64,
    /// How many were not logged yet.
    unlogged: u64,
}

/// One that was counted.
#[derive(Debug)]
pub(super) struct Counted {
    pub sender: Sender,
    /// None of this sender was counted, so its first minute begins: [`Minutes::end`] must be called after each [`MINUTE`]
    /// until that says `None`.
    is_first: bool,
    /// It is to be logged by itself.
    pub is_logged: bool,
    pub in_minute: u64,
    /// How much of the minute is left, in whole seconds, at least one.
    pub seconds_left: u64,
}

impl Minute {
    fn new(begun: Uptime, single: u64) -> Self {
        Self { begun, count: 0, single, unlogged: 0 }
    }
}

impl Minutes {
    pub fn new(at_first: u64, again: u64) -> Self {
        Self { of: HashMap::new(), at_first, again }
    }

    fn count(&mut self, caller: Caller, now: Uptime) -> Counted {
        let one = Sender::One(caller);
        let sender = if self.of.contains_key(&one) || self.of.len() < MOST_CALLERS { one } else { Sender::Others };
        let is_first = !self.of.contains_key(&sender);
        let minute = self.of.entry(sender).or_insert(Minute::new(now, self.at_first));
        let is_logged = minute.single > 0;
        minute.single = minute.single.saturating_sub(1);
        minute.count += 1;
        minute.unlogged += u64::from(!is_logged);
        let left = (minute.begun + MINUTE).since(now);
        let seconds_left = (left.as_secs() + u64::from(left.subsec_nanos() > 0)).max(1);
        Counted { sender, is_first, is_logged, in_minute: minute.count, seconds_left }
    }

    /// Ends a sender's minute. Returns how many were not logged; `None` if all were, and it is forgotten.
    fn end(&mut self, sender: Sender, now: Uptime) -> Option<u64> {
        let minute = self.of.get_mut(&sender)?;
        let unlogged = std::mem::replace(minute, Minute::new(now, self.again)).unlogged;
        if unlogged == 0 {
            self.of.remove(&sender);
            return None;
        }
        Some(unlogged)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Uptime = Uptime::ZERO;

    fn caller(number: u16) -> Caller {
        let [high, low] = number.to_be_bytes();
        Caller::Remote([192, 0, high, low].into())
    }

    #[test]
    fn the_first_is_logged_at_once_and_the_rest_at_the_end_of_the_minute() {
        let mut minutes = Minutes::new(1, 0);
        let first = minutes.count(caller(1), T0);
        assert!(first.is_first && first.is_logged && first.in_minute == 1);
        assert!((0..299).all(|_| !minutes.count(caller(1), T0).is_logged));
        assert!(minutes.count(caller(2), T0).is_first, "another caller has a minute of its own");
        assert_eq!(minutes.end(first.sender, T0), Some(299));
        let next = minutes.count(caller(1), T0);
        assert!(next.in_minute == 1 && !next.is_logged && !next.is_first, "another minute");
        assert_eq!((minutes.end(first.sender, T0), minutes.end(first.sender, T0)), (Some(1), None));
        assert!(minutes.count(caller(1), T0).is_first);
    }

    #[test]
    fn a_minute_is_over_after_sixty_seconds() {
        let mut minutes = Minutes::new(1, 0);
        let mut left = |ms| minutes.count(caller(1), T0 + Duration::from_millis(ms)).seconds_left;
        assert_eq!([0, 1, 1_000, 1_001, 59_500, 61_000].map(&mut left), [60, 60, 59, 59, 1, 1]);
        let over = T0 + MINUTE;
        assert_eq!(minutes.end(Sender::One(caller(1)), over), Some(5));
        assert_eq!(minutes.count(caller(1), over).seconds_left, 60);
    }

    #[test]
    fn some_of_each_minute_can_be_logged_one_by_one() {
        let mut minutes = Minutes::new(3, 2);
        let mut logged = |count: usize| (0..count).filter(|_| minutes.count(caller(1), T0).is_logged).count();
        assert_eq!(logged(10), 3);
        assert_eq!(minutes.end(Sender::One(caller(1)), T0), Some(7));
        let mut logged = |count: usize| (0..count).filter(|_| minutes.count(caller(1), T0).is_logged).count();
        assert_eq!(logged(2), 2);
        assert_eq!(minutes.end(Sender::One(caller(1)), T0), None);
    }

    #[test]
    fn callers_beyond_the_table_count_as_one() {
        let mut minutes = Minutes::new(1, 0);
        let senders: std::collections::HashSet<_> =
            (0..10_000).map(|number| minutes.count(caller(number), T0).sender).collect();
        assert_eq!((senders.len(), minutes.of.len()), (MOST_CALLERS + 1, MOST_CALLERS + 1));
        assert!(senders.contains(&Sender::Others));
        assert_eq!(minutes.count(caller(0), T0).in_minute, 2, "who is known stays so");
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        /// A step is one of a caller, or the end of its minute.
        #[test]
        fn each_is_logged_once(
            (at_first, again) in (1_u64..4, 0_u64..4),
            steps in prop::collection::vec((0_u16..400, any::<bool>()), 0..2_000),
        ) {
            let mut minutes = Minutes::new(at_first, again);
            let (mut sent, mut logged) = (0, 0);
            for (number, is_end) in steps {
                if is_end {
                    logged += minutes.end(Sender::One(caller(number)), T0).unwrap_or(0);
                } else {
                    sent += 1;
                    logged += u64::from(minutes.count(caller(number), T0).is_logged);
                }
                prop_assert!(minutes.of.len() <= MOST_CALLERS + 1);
            }
            let senders: Vec<Sender> = minutes.of.keys().copied().collect();
            logged += senders.into_iter().filter_map(|sender| minutes.end(sender, T0)).sum::<u64>();
            prop_assert_eq!(logged, sent);
        }
    }
}
