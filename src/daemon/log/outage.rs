//! How long the coordination service was away, to be logged once it is back.

use std::time::Duration;

use tracing::info;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Event;
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::millis;

const SECOND: Duration = Duration::from_secs(1);
/// The daemon's loop turns more often than that, unless the process is stopped.
const STANDSTILL: Duration = Duration::from_secs(3);

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Outage {
    since: Option<Uptime>,
    /// The newest turn of the loop.
    turned: Option<Uptime>,
    /// From when until when this process stood still last.
    stood: Option<(Uptime, Uptime)>,
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

    /// Notes an event of the election. Logs the end of an outage in which the session was lost, or which lasted since
    /// the start; `coordination.resumed` tells of any other.
    pub fn follow(&mut self, now: Uptime, event: &Event) {
        if let Some(away) = self.ended(now, event) {
            let text = cronkeeper_core::duration::format(if away < SECOND {
                away
            } else {
                Duration::from_secs(away.as_secs())
            });
            let away_ms = millis(away);
            info!(
                target: TARGET,
                event = log_event::COORDINATION_RESTORED,
                away_ms,
                "the coordination service is back after {text}",
            );
        }
    }

    fn ended(&mut self, now: Uptime, event: &Event) -> Option<Duration> {
        match event {
            Event::Suspended { .. } | Event::Expired { .. } | Event::Unreachable { .. } => {
                self.since = self.since.or_else(|| Some(self.lost_at(now)));
                None
            }
            Event::Resumed { .. } => {
                self.since = None;
                None
            }
            Event::Session { .. } => self.since.take().map(|since| now.since(since)),
            _ => None,
        }
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
