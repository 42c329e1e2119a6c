//! Wrong tokens: counted, logged once a minute and caller at most, and answered slowly once a caller has sent many.
//!
//! The right token is compared first and never has to wait, so that nobody keeps others behind the same address out.
//! What is kept is bounded: callers beyond [`MOST_CALLERS`] count as one.
//!
//! ```text
//!  first of a caller ─▶ logged ─▶ minute ─┬─ more came ─▶ logged with their number ─▶ next minute
//!                                         └─ none came ─▶ forgotten
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::api::caller::Caller;
use cronkeeper_core::log;

/// Wrong tokens of a caller in a minute that are answered at once.
const AT_ONCE: u64 = 10;
/// Most callers that are distinguished, and so most lines in a minute, less one.
const MOST_CALLERS: usize = 256;
const MINUTE: Duration = Duration::from_secs(60);

/// The wrong tokens that an address was sent.
#[derive(Debug, Default)]
pub struct WrongTokens {
    total: AtomicU64,
    minutes: Mutex<Minutes>,
}

/// What a wrong token is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    AtOnce,
    /// After a pause, because its caller has sent many.
    Late,
}

impl WrongTokens {
    /// Number of wrong tokens so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a wrong token, and logs it if it is its caller's first.
    pub(super) fn count(self: &Arc<Self>, caller: Caller) -> Answer {
        self.total.fetch_add(1, Ordering::Relaxed);
        let counted = self.minutes().count(caller);
        if counted.is_first {
            log(&counted.sender, 1);
            // There are as many of these tasks as callers that are distinguished.
            tokio::spawn(Arc::clone(self).log_each_minute(counted.sender));
        }
        if counted.in_minute > AT_ONCE { Answer::Late } else { Answer::AtOnce }
    }

    async fn log_each_minute(self: Arc<Self>, sender: Sender) {
        loop {
            sleep(MINUTE).await;
            let Some(count) = self.minutes().end(sender) else { return };
            log(&sender, count);
        }
    }

    fn minutes(&self) -> MutexGuard<'_, Minutes> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(sender: &Sender, count: u64) {
    log!(API_REFUSED, caller = %sender, count);
}

/// Whose wrong tokens are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sender {
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

/// The counts of those who have sent a wrong token in the last minute.
#[derive(Debug, Default)]
struct Minutes(HashMap<Sender, Minute>);

#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    count: u64,
    /// Those of them that were not logged yet.
    unlogged: u64,
}

#[derive(Debug)]
struct Counted {
    sender: Sender,
    /// None of this sender was counted, so a minute begins.
    is_first: bool,
    in_minute: u64,
}

impl Minutes {
    fn count(&mut self, caller: Caller) -> Counted {
        let one = Sender::One(caller);
        let sender = if self.0.contains_key(&one) || self.0.len() < MOST_CALLERS { one } else { Sender::Others };
        let is_first = !self.0.contains_key(&sender);
        let minute = self.0.entry(sender).or_default();
        minute.count += 1;
        minute.unlogged += u64::from(!is_first);
        Counted { sender, is_first, in_minute: minute.count }
    }

    /// Ends a sender's minute. Returns how many were not logged; `None` if it has sent no more and is forgotten.
    fn end(&mut self, sender: Sender) -> Option<u64> {
        let minute = self.0.get_mut(&sender)?;
        let unlogged = std::mem::take(minute).unlogged;
        if unlogged == 0 {
            self.0.remove(&sender);
            return None;
        }
        Some(unlogged)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caller(number: u16) -> Caller {
        let [high, low] = number.to_be_bytes();
        Caller::Remote([192, 0, high, low].into())
    }

    #[test]
    fn the_first_is_logged_at_once_and_the_rest_at_the_end_of_the_minute() {
        let mut minutes = Minutes::default();
        let first = minutes.count(caller(1));
        assert!(first.is_first && first.in_minute == 1);
        assert!((0..299).all(|_| !minutes.count(caller(1)).is_first));
        assert!(minutes.count(caller(2)).is_first, "another caller has a minute of its own");
        assert_eq!(minutes.end(first.sender), Some(299));
        assert_eq!(minutes.count(caller(1)).in_minute, 1, "another minute");
        assert_eq!((minutes.end(first.sender), minutes.end(first.sender)), (Some(1), None));
        assert!(minutes.count(caller(1)).is_first);
    }

    #[test]
    fn callers_beyond_the_table_count_as_one() {
        let mut minutes = Minutes::default();
        let senders: std::collections::HashSet<_> =
            (0..2_000).map(|number| minutes.count(caller(number)).sender).collect();
        assert_eq!((senders.len(), minutes.0.len()), (MOST_CALLERS + 1, MOST_CALLERS + 1));
        assert!(senders.contains(&Sender::Others));
        assert_eq!(minutes.count(caller(0)).in_minute, 2, "who is known stays so");
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        /// A step is a wrong token of a caller, or the end of its minute.
        #[test]
        fn each_is_logged_once(steps in prop::collection::vec((0_u16..400, any::<bool>()), 0..2_000)) {
            let mut minutes = Minutes::default();
            let (mut sent, mut logged) = (0, 0);
            for (number, is_end) in steps {
                if is_end {
                    logged += minutes.end(Sender::One(caller(number))).unwrap_or(0);
                } else {
                    sent += 1;
                    logged += u64::from(minutes.count(caller(number)).is_first);
                }
                prop_assert!(minutes.0.len() <= MOST_CALLERS + 1);
            }
            let senders: Vec<Sender> = minutes.0.keys().copied().collect();
            logged += senders.into_iter().filter_map(|sender| minutes.end(sender)).sum::<u64>();
            prop_assert_eq!(logged, sent);
        }
    }
}
