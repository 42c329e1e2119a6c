//! That something has not worked for a while: what is short is not worth a word. Pure.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;

/// How long something must have failed before it is said: a leader without its ledger does not lead for so long.
const LASTING: Duration = Duration::from_secs(120);

/// For how long something has not worked.
#[derive(Debug, Default)]
pub(super) enum Trouble {
    #[default]
    None,
    /// It has failed each time since then.
    Since(Uptime),
    /// It still fails, and that is said.
    Said,
}

impl Trouble {
    /// Takes a failure. True if it is to be said now, which is so once.
    pub fn failed(&mut self, now: Uptime) -> bool {
        match *self {
            Self::None => *self = Self::Since(now),
            Self::Since(since) if now >= since + LASTING => {
                *self = Self::Said;
                return true;
            }
            Self::Since(_) | Self::Said => {}
        }
        false
    }

    /// It works. True if it was said that it does not.
    pub fn ended(&mut self) -> bool {
        matches!(std::mem::take(self), Self::Said)
    }

    pub fn is_said(&self) -> bool {
        matches!(self, Self::Said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_said_once_and_what_is_short_never() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        let mut trouble = Trouble::default();
        assert_eq!([0, 60, 119].map(|seconds| trouble.failed(at(seconds))), [false; 3]);
        assert!(!trouble.ended());
        assert_eq!([200, 319, 320, 900].map(|seconds| trouble.failed(at(seconds))), [false, false, true, false]);
        assert_eq!((trouble.is_said(), trouble.ended(), trouble.is_said()), (true, true, false));
        assert!(!trouble.failed(at(1_000)));
    }
}
