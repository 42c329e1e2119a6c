//! Splay: a delay that spreads the load of jobs due at once.
//!
//! The delay is fixed for each job. It is derived from the job's name, so it is the same on every host and after every
//! restart.

use std::time::Duration;

use crate::schedule::hash;

/// A delay in [0, `splay`), determined by the job's name. The default is no delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splay {
    within: Duration,
    delay: Duration,
}

impl Splay {
    /// A delay shorter than `within`, in whole milliseconds.
    pub fn new(within: Duration, job: &str) -> Self {
        let choices = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let delay = hash(job, "splay").checked_rem(choices).unwrap_or_default();
        Self { within, delay: Duration::from_millis(delay) }
    }

    /// The value of `splay` in the jobs file.
    pub fn within(self) -> Duration {
        self.within
    }

    /// The delay from an occurrence to its start.
    pub fn delay(self) -> Duration {
        self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changing one of these moves the jobs of everyone who uses `splay`.
    #[test]
    fn delays_never_change() {
        let delay = |within, job| Splay::new(Duration::from_secs(within), job).delay().as_millis();
        assert_eq!(delay(300, "nightly-backup"), 113_384);
        assert_eq!(delay(300, "report"), 156_491);
        assert_eq!(delay(86_400, "report"), 45_156_491);
        assert_ne!(delay(300, "backup-1-2"), delay(300, "backup-2-1"));
    }

    #[test]
    fn delays_are_shorter_than_the_splay_and_spread_over_it() {
        let minute = Duration::from_secs(60);
        let mut counts = [0_u32; 6];
        for job in 0..600 {
            let delay = Splay::new(minute, &format!("job-{job}")).delay();
            assert!(delay < minute, "{delay:?}");
            counts[usize::try_from(delay.as_secs() / 10).expect("small")] += 1;
        }
        assert!(counts.iter().all(|count| (60..=150).contains(count)), "{counts:?}");
    }

    #[test]
    fn no_splay_is_no_delay() {
        assert_eq!(Splay::new(Duration::ZERO, "job"), Splay::default());
        assert_eq!(Splay::new(Duration::from_millis(1), "job").delay(), Duration::ZERO);
    }
}
