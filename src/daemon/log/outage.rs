//! How long the coordination service was away, to be logged once it is back.

use std::time::Duration;

use tracing::info;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Event;
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::run::millis;

const SECOND: Duration = Duration::from_secs(1);

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Outage {
    since: Option<Uptime>,
}

impl Outage {
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
                self.since.get_or_insert(now);
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
        outage.ended(at(10), &Event::Suspended { session: id.clone() });
        outage.ended(at(20), &Event::Expired { session: id.clone() });
        assert_eq!(outage.ended(at(190), &session), Some(Duration::from_secs(180)));
        outage.ended(at(200), &Event::Suspended { session: id.clone() });
        outage.ended(at(201), &Event::Resumed { session: id });
        assert_eq!(outage.ended(at(300), &session), None);
    }
}
