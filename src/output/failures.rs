//! What the log says when output cannot be kept, moved or removed: at once, then rarely, and when it is kept again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use cronkeeper_core::log;

/// Time before a failure of the same kind is logged again.
const QUIET: Duration = Duration::from_secs(600);
/// Output is kept again once something was written and nothing was lost for this long. Otherwise a disk on the verge of
/// being full would fill the log.
const CALM: Duration = Duration::from_secs(10);

/// What the store could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failed {
    Keep,
    Move,
    Read,
    Remove,
}

impl Failed {
    fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Move => "move",
            Self::Read => "read",
            Self::Remove => "remove",
        }
    }
}

/// The failures that were logged.
#[derive(Debug, Default)]
pub(super) struct LoggedFailures {
    logged: BTreeMap<Failed, Instant>,
    /// When output was last lost, if it is not kept again.
    lost_at: Option<Instant>,
}

impl LoggedFailures {
    /// Logs a failure in the directory `root`, unless one of its kind was logged a short while ago.
    pub fn log(&mut self, what: Failed, root: &Path, error: &io::Error) {
        if self.is_news(what, Instant::now()) {
            let (path, word) = (root.display(), what.word());
            log!(WARN OUTPUT_FAILED, %path, %error, "{word}");
        }
    }

    /// Notes that output was written, and that none waits to be reported as lost.
    pub fn kept(&mut self, root: &Path) {
        if self.is_over(Instant::now()) {
            log!(OUTPUT_RECOVERED, path = %root.display());
        }
    }

    fn is_news(&mut self, what: Failed, now: Instant) -> bool {
        if what == Failed::Keep {
            self.lost_at = Some(now);
        }
        let is_news = self.logged.get(&what).is_none_or(|&at| now.duration_since(at) > QUIET);
        if is_news {
            self.logged.insert(what, now);
        }
        is_news
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let is_over = self.lost_at.take_if(|at| now.duration_since(*at) >= CALM).is_some();
        if is_over {
            self.logged.remove(&Failed::Keep);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_is_logged_once_and_again_after_ten_minutes() {
        let (mut failures, start) = (LoggedFailures::default(), Instant::now());
        let is_news =
            |failures: &mut LoggedFailures, what, second| failures.is_news(what, start + Duration::from_secs(second));
        let keep: Vec<u64> = (0..1_500).filter(|&second| is_news(&mut failures, Failed::Keep, second)).collect();
        assert_eq!(keep, [0, 601, 1_202]);
        assert!(is_news(&mut failures, Failed::Remove, 1_500) && !is_news(&mut failures, Failed::Remove, 1_501));
    }

    #[test]
    fn output_is_kept_again_when_none_was_lost_for_a_while() {
        let (mut failures, start) = (LoggedFailures::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert!(!failures.is_over(at(0)), "nothing was lost");
        assert!(failures.is_news(Failed::Keep, at(0)));
        // Every other second something is lost.
        assert!((1..60).all(|second| match second % 2 {
            0 => !failures.is_news(Failed::Keep, at(second)),
            _ => !failures.is_over(at(second)),
        }));
        assert!(failures.is_over(at(70)) && !failures.is_over(at(90)), "said once");
        assert!(failures.is_news(Failed::Keep, at(91)), "the next one is new");
        failures.is_news(Failed::Remove, at(100));
        assert!(failures.is_over(at(200)) && !failures.is_news(Failed::Remove, at(201)));
    }
}
