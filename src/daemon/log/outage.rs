//! What the log says of an outage: why the service is away, how that changes, and how long it was away once it is back.
//!
//! A reason is logged when it first occurs in an outage, then after growing pauses: the backend tries again, and reports,
//! far more often.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Event;
use cronkeeper_core::log;
use cronkeeper_core::run::millis;

const SECOND: Duration = Duration::from_secs(1);
/// The daemon's loop turns more often than that, unless the process is stopped.
const STANDSTILL: Duration = Duration::from_secs(3);
/// The first pause between two lines about the same reason. Each pause is twice as long as the one before.
const FIRST_SILENCE: Duration = Duration::from_secs(5);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);
/// If nothing was reported for so long, the next report is about another outage. The backend reports every minute.
const QUIET: Duration = Duration::from_secs(120);
/// Most reasons of one outage that are logged when they first occur.
const MOST_REASONS: usize = 8;

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Outage {
    since: Option<Uptime>,
    /// The newest turn of the loop.
    turned: Option<Uptime>,
    /// From when until when this process stood still last.
    stood: Option<(Uptime, Uptime)>,
    reasons: Option<Reasons>,
}

/// What was logged of the reasons of an outage.
#[derive(Debug)]
struct Reasons {
    logged: Vec<String>,
    reported_at: Uptime,
    /// From when on a known reason is logged again.
    from: Uptime,
    silence: Duration,
}

impl Reasons {
    fn begin(now: Uptime) -> Self {
        Self { logged: Vec::new(), reported_at: now, from: now, silence: FIRST_SILENCE }
    }

    /// Notes a reason. If it is to be logged, returns the time for which it is not logged again.
    fn note(&mut self, reason: &str, now: Uptime) -> Option<Duration> {
        self.reported_at = now;
        let is_new = self.logged.len() < MOST_REASONS && !self.logged.iter().any(|known| known == reason);
        if is_new {
            self.logged.push(reason.to_owned());
        }
        let is_due = now >= self.from;
        if is_due {
            self.from = now + self.silence;
            self.silence = (self.silence * 2).min(LONGEST_SILENCE);
        }
        (is_new || is_due).then(|| self.from.since(now))
    }
}

impl Outage {
    /// Notes a turn of the daemon's loop.
    pub fn turn(&mut self, now: Uptime) {
        let before = self.turned.replace(now);
        if let Some(before) = before.filter(|before| now.since(*before) > STANDSTILL) {
            self.stood = Some((before, now));
        }
    }

    /// When the connection was lost that is reported now: while this process stood still, nobody could notice.
    fn lost_at(&self, now: Uptime) -> Uptime {
        self.stood.filter(|(_, until)| now.since(*until) <= SECOND).map_or(now, |(from, _)| from)
    }

    /// Logs why the service is away, if there is something new to say, and the end of an outage in which the session was
    /// lost, or which lasted since the start; `coordination.resumed` tells of any other.
    pub fn follow(&mut self, now: Uptime, event: &Event) {
        let silence = reason(event).and_then(|reason| self.note(reason, now));
        if let (Event::Unreachable { retry, error }, Some(silence)) = (event, silence) {
            log!(COORDINATION_UNREACHABLE, retry_ms = millis(*retry), repeat_ms = millis(silence), error);
        }
        if let Some(away) = self.ended(now, event) {
            // Only a short time is worth its milliseconds.
            let away = if away < SECOND { away } else { Duration::from_secs(away.as_secs()) };
            log!(COORDINATION_RESTORED, away_ms = millis(away));
        }
    }

    /// Notes why the service is away. If that is to be logged, returns the time for which it is not logged again.
    fn note(&mut self, reason: &str, now: Uptime) -> Option<Duration> {
        self.reasons.take_if(|known| now.since(known.reported_at) > QUIET);
        self.reasons.get_or_insert_with(|| Reasons::begin(now)).note(reason, now)
    }

    fn ended(&mut self, now: Uptime, event: &Event) -> Option<Duration> {
        match event {
            Event::Suspended { .. } | Event::Expired { .. } | Event::Unreachable { .. } => {
                self.since = self.since.or_else(|| Some(self.lost_at(now)));
                None
            }
            Event::Resumed { .. } => {
                (self.since, self.reasons) = (None, None);
                None
            }
            Event::Session { .. } => {
                self.reasons = None;
                self.since.take().map(|since| now.since(since))
            }
            _ => None,
        }
    }
}

/// Why the service is away. `coordination.suspended` says it too.
fn reason(event: &Event) -> Option<&str> {
    match event {
        Event::Suspended { error, .. } => error.as_deref(),
        Event::Unreachable { error, .. } => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::term::SessionId;

    #[test]
    fn an_outage_lasts_from_the_lost_connection_to_the_next_session() {
        let at = |seconds| Uptime::ZERO + Duration::from_secs(seconds);
        let id = SessionId("0x1".into());
        let session = Event::Session { id: id.clone(), timeout: Duration::from_secs(10) };
        let mut outage = Outage::default();
        assert_eq!(outage.ended(at(1), &session), None, "the first session");
        outage.ended(at(10), &Event::Suspended { session: id.clone(), error: None });
        outage.ended(at(20), &Event::Expired { session: id.clone() });
        assert_eq!(outage.ended(at(190), &session), Some(Duration::from_secs(180)));
        outage.ended(at(200), &Event::Suspended { session: id.clone(), error: None });
        outage.ended(at(201), &Event::Resumed { session: id });
        assert_eq!(outage.ended(at(300), &session), None);
    }

    /// The seconds at which a reason is logged, if one is reported every second, and the pauses that are announced.
    fn logged(outage: &mut Outage, from: u64, reason: impl Fn(u64) -> String, seconds: u64) -> Vec<(u64, u64)> {
        let at = |second| Uptime::ZERO + Duration::from_secs(from + second);
        let note = |second| Some((second, outage.note(&reason(second), at(second))?.as_secs()));
        (0..seconds).filter_map(note).collect()
    }

    #[test]
    fn a_reason_that_lasts_is_logged_after_the_pauses_that_were_announced() {
        let mut outage = Outage::default();
        let full = |_| "full".to_owned();
        assert_eq!(logged(&mut outage, 0, full, 100), [(0, 5), (5, 10), (15, 20), (35, 40), (75, 80)]);
        assert_eq!(logged(&mut outage, 300, full, 6), [(0, 5), (5, 10)], "another outage");
        let pauses: Vec<_> = logged(&mut outage, 306, full, 7_200).into_iter().map(|(_, pause)| pause).collect();
        assert_eq!(pauses[..6], [20, 40, 80, 160, 320, 600]);
    }

    #[test]
    fn another_reason_is_logged_at_once_but_not_again_and_again() {
        let changing = |second| if second % 2 == 0 { "refused" } else { "no quorum" }.to_owned();
        let shown = logged(&mut Outage::default(), 0, changing, 60);
        assert_eq!(shown.into_iter().map(|(second, _)| second).collect::<Vec<_>>(), [0, 1, 5, 15, 35]);
        let ever_new = |second: u64| second.to_string();
        assert!(logged(&mut Outage::default(), 0, ever_new, 3_600).len() < 25);
    }

    #[test]
    fn an_outage_that_a_standstill_hid_began_with_it() {
        let at = |millis| Uptime::ZERO + Duration::from_millis(millis);
        let id = SessionId("0x1".into());
        let session = Event::Session { id: id.clone(), timeout: Duration::from_secs(10) };
        let mut outage = Outage::default();
        [0, 2_000, 24_000].into_iter().for_each(|millis| outage.turn(at(millis)));
        outage.ended(at(24_001), &Event::Suspended { session: id.clone(), error: None });
        outage.turn(at(24_020));
        outage.ended(at(24_020), &Event::Expired { session: id.clone() });
        assert_eq!(outage.ended(at(24_022), &session), Some(Duration::from_millis(22_022)));
        // The next one has nothing to do with it.
        outage.turn(at(26_000));
        outage.ended(at(26_000), &Event::Expired { session: id });
        assert_eq!(outage.ended(at(26_500), &session), Some(Duration::from_millis(500)));
    }
}
