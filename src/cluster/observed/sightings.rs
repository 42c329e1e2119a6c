//! Which sessions have been silent for how long, as one observer sees it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::store::Meta;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::Version;
use cronkeeper_core::term::SessionId;

/// The name of a session: an observer must know its timeout without reading the record.
pub fn name(uuid: Uuid, timeout: Duration) -> SessionId {
    SessionId(format!("{uuid}-{}", timeout.as_millis()))
}

/// The timeout in a session's name; `None` for any other name.
fn timeout(name: &str) -> Option<Duration> {
    let (uuid, millis) = name.rsplit_once('-')?;
    Uuid::parse_str(uuid).ok()?;
    millis.parse().ok().map(Duration::from_millis)
}

/// The sessions that an observer has seen.
#[derive(Debug, Default)]
pub struct Sightings {
    /// The version of each session's record, and since when it has had that version.
    seen: BTreeMap<String, (Version, Uptime)>,
    /// When the store answered last.
    answered: Option<Uptime>,
}

impl Sightings {
    /// Takes the records of all sessions, as the store has answered at this time. Returns those that have been silent for
    /// their timeout, each with the version that it still has.
    ///
    /// After half of a session's timeout without an answer, its silence counts again from zero: perhaps nobody could
    /// write.
    pub fn see<'a>(
        &mut self,
        sessions: impl Iterator<Item = (&'a str, &'a Meta)>,
        answered: Uptime,
    ) -> Vec<(SessionId, Version)> {
        let unseen = self.answered.replace(answered).map(|before| answered.since(before));
        let before = std::mem::take(&mut self.seen);
        let mut silent = Vec::new();
        for (name, meta) in sessions {
            let Some(timeout) = timeout(name) else { continue };
            let was_away = unseen.is_none_or(|unseen| unseen > timeout / 2);
            let since = match before.get(name) {
                Some(&(version, since)) if version == meta.version && !was_away => since,
                _ => answered,
            };
            if answered.since(since) >= timeout {
                silent.push((SessionId(name.to_owned()), meta.version));
            }
            self.seen.insert(name.to_owned(), (meta.version, since));
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(4);

    /// The sessions that are silent when the store answers `at` this time, in milliseconds, that this one has this version.
    fn see(sightings: &mut Sightings, at: u64, version: i32) -> usize {
        let name = name(Uuid::nil(), T);
        let meta = Meta { version: Version(version), ..Meta::default() };
        let at = Uptime::ZERO + Duration::from_millis(at);
        sightings.see([(name.0.as_str(), &meta)].into_iter(), at).len()
    }

    #[test]
    fn a_session_is_silent_once_it_has_had_one_version_for_its_timeout() {
        let mut sightings = Sightings::default();
        for at in (10_000..14_000).step_by(200) {
            assert_eq!(see(&mut sightings, at, 7), 0, "{at}");
        }
        assert_eq!(see(&mut sightings, 14_000, 7), 1);
        assert_eq!(see(&mut sightings, 14_200, 8), 0, "it has written");
        for at in (14_400..18_200).step_by(200) {
            assert_eq!(see(&mut sightings, at, 8), 0, "{at}");
        }
        assert_eq!(see(&mut sightings, 18_200, 8), 1);
    }

    #[test]
    fn while_the_store_answers_nobody_nobodys_time_runs() {
        let mut sightings = Sightings::default();
        assert_eq!((see(&mut sightings, 10_000, 7), see(&mut sightings, 60_000, 7)), (0, 0));
        for at in (60_200..64_000).step_by(200) {
            assert_eq!(see(&mut sightings, at, 7), 0, "{at}");
        }
        assert_eq!(see(&mut sightings, 64_000, 7), 1);
    }

    #[test]
    fn what_is_not_a_sessions_name_is_left_alone() {
        let mut sightings = Sightings::default();
        let meta = Meta::default();
        for at in (0..10_000).step_by(500) {
            let at = Uptime::ZERO + Duration::from_millis(at);
            let names = ["x", "", "-1", "a-b", "00000000-0000-0000-0000-000000000000-x"];
            assert_eq!(sightings.see(names.iter().map(|name| (*name, &meta)), at), []);
        }
    }
}
