//! How often a failure that lasts is reported: at once, then after growing pauses, as on ZooKeeper.

use std::time::Duration;

use tokio::time::Instant;

use super::RETRY;

/// A failure is reported again after growing pauses, at most this long. If nothing has failed for that long, the next
/// failure is a new one.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// Most errors of one outage that are reported when they first occur.
const MOST_ERRORS: usize = 8;

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Ongoing>);

#[derive(Debug)]
struct Ongoing {
    failed_at: Instant,
    /// The errors that were reported.
    errors: Vec<String>,
    report_from: Instant,
    silence: Duration,
}

impl Outage {
    /// Notes a failure. Returns true if it is to be reported.
    pub(super) fn is_news(&mut self, error: &str, now: Instant) -> bool {
        let is_over = |ongoing: &mut Ongoing| now.duration_since(ongoing.failed_at) > LONGEST_SILENCE;
        self.0.take_if(is_over);
        let first = Ongoing { failed_at: now, errors: Vec::new(), report_from: now, silence: RETRY };
        let ongoing = self.0.get_or_insert(first);
        ongoing.failed_at = now;
        let is_new = ongoing.errors.len() < MOST_ERRORS && !ongoing.errors.iter().any(|known| known == error);
        if is_new {
            ongoing.errors.push(error.to_owned());
        }
        let is_due = now >= ongoing.report_from;
        if is_due {
            ongoing.report_from = now + ongoing.silence;
            ongoing.silence = (ongoing.silence * 2).min(LONGEST_SILENCE);
        }
        is_new || is_due
    }

    /// Notes that everything works again.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which the failure of each second is reported.
    fn reported(outage: &mut Outage, from: Instant, error: impl Fn(u64) -> String, seconds: u64) -> Vec<u64> {
        (0..seconds).filter(|&second| outage.is_news(&error(second), from + Duration::from_secs(second))).collect()
    }

    #[test]
    fn a_failure_that_lasts_is_reported_less_and_less_often() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let full = |_| "full".to_owned();
        assert_eq!(reported(&mut outage, start, full, 200), [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        outage.end();
        assert_eq!(reported(&mut outage, start + Duration::from_secs(200), full, 3), [0, 1]);
        assert_eq!(reported(&mut outage, start + Duration::from_secs(300), full, 3), [0, 1], "a minute without it");
    }

    #[test]
    fn another_error_is_reported_at_once_but_not_again_and_again() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let changing = |second| if second % 2 == 0 { "full" } else { "read-only" }.to_owned();
        assert_eq!(reported(&mut outage, start, changing, 60), [0, 1, 3, 7, 15, 31]);
        outage.end();
        let ever_new = |second: u64| second.to_string();
        assert!(reported(&mut outage, start, ever_new, 3_600).len() < 80);
    }
}
