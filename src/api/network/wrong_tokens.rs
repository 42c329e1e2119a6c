//! Wrong tokens: counted, logged once a minute and caller at most, and refused slowly once a caller has sent many.
//!
//! A right token is compared first and never has to wait, so that nobody keeps others behind the same address out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::caller::Caller;
use crate::api::minutes::{LoggedMinutes, Minutes, Sender};
use cronkeeper_core::log;

/// Wrong tokens of a caller in a minute that are answered at once.
const AT_ONCE: u64 = 10;

/// The wrong tokens that an address was sent.
#[derive(Debug)]
pub struct WrongTokens {
    total: AtomicU64,
    minutes: Arc<LoggedMinutes>,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { total: AtomicU64::new(0), minutes: LoggedMinutes::new(Minutes::new(1, 0), log) }
    }
}

/// What a wrong token is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    AtOnce,
    /// After a pause, because its caller has sent many; its minute ends after this many seconds, at least one.
    Late {
        seconds: u64,
    },
}

impl WrongTokens {
    /// Number of wrong tokens so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a wrong token, and logs it if it is its caller's first.
    pub(super) fn count(&self, caller: Caller) -> Answer {
        self.total.fetch_add(1, Ordering::Relaxed);
        let counted = self.minutes.count(caller);
        if counted.is_logged {
            log(&counted.sender, 1);
        }
        answer(counted.in_minute, counted.seconds_left)
    }
}

fn answer(in_minute: u64, seconds: u64) -> Answer {
    if in_minute > AT_ONCE { Answer::Late { seconds } } else { Answer::AtOnce }
}

fn log(sender: &Sender, count: u64) {
    log!(API_REFUSED, caller = %sender, count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_the_eleventh_on_a_caller_waits_until_its_minute_is_over() {
        assert_eq!([1, 10].map(|count| answer(count, 59)), [Answer::AtOnce; 2]);
        assert_eq!([11, 400].map(|count| answer(count, 59)), [Answer::Late { seconds: 59 }; 2]);
    }
}
