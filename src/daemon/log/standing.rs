//! A cluster in which nobody may lead: each node says so.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Member;
use cronkeeper_core::log;

/// Interval of the warning that all are drained, which an operator can undo at once.
const SAY_EVERY: Duration = Duration::from_secs(600);
/// While a cluster starts, the nodes that never lead may be there first.
const WAIT: Duration = Duration::from_secs(10);

/// Why nobody may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Every node is drained.
    AllDrained,
    /// Those that are not drained never lead.
    NoneMayLead,
}

impl Lack {
    fn of(members: &[Member]) -> Option<Self> {
        if members.is_empty() || members.iter().any(|member| member.published.may_lead()) {
            return None;
        }
        let is_all_drained = members.iter().all(|member| member.published.drained);
        Some(if is_all_drained { Self::AllDrained } else { Self::NoneMayLead })
    }
}

/// When a warning is due.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Leaderless {
    /// What is lacking, and since when.
    since: Option<(Lack, Uptime)>,
    said_at: Option<Uptime>,
}

impl Leaderless {
    /// Warns if nobody may lead: if all are drained, at once and then every [`SAY_EVERY`]; if the others never lead, once
    /// that has lasted for [`WAIT`].
    pub fn follow(&mut self, now: Uptime, members: &[Member]) {
        let nodes = members.len();
        match self.due(now, members) {
            Some(Lack::AllDrained) => log!(ELECTION_ALL_DRAINED, nodes),
            Some(Lack::NoneMayLead) => log!(ELECTION_NOBODY_MAY_LEAD, nodes),
            None => {}
        }
    }

    fn due(&mut self, now: Uptime, members: &[Member]) -> Option<Lack> {
        let lack = Lack::of(members);
        if lack != self.since.map(|(lack, _)| lack) {
            (self.since, self.said_at) = (lack.map(|lack| (lack, now)), None);
        }
        let (lack, since) = self.since?;
        let is_due = match (lack, self.said_at) {
            (Lack::AllDrained, None) => true,
            (Lack::AllDrained, Some(at)) => now >= at + SAY_EVERY,
            (Lack::NoneMayLead, said) => said.is_none() && now >= since + WAIT,
        };
        if is_due {
            self.said_at = Some(now);
        }
        is_due.then_some(lack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_said_at_once_and_every_ten_minutes_while_all_are_drained() {
        let (mut said, mut members) = (Leaderless::default(), sample::queue().members);
        members[0].published.drained = true;
        assert_eq!(said.due(at(0), &members), None, "one may still lead");
        members[1].published.drained = true;
        let said_at: Vec<u64> = (1..1300).filter(|&second| said.due(at(second), &members).is_some()).collect();
        assert_eq!(said_at, [1, 601, 1201]);
        assert_eq!(said.due(at(1300), &members[..0]), None);
        assert_eq!(said.due(at(1301), &members), Some(Lack::AllDrained));
    }

    #[test]
    fn it_is_said_once_that_those_that_are_there_never_lead() {
        let (mut said, mut members) = (Leaderless::default(), sample::queue().members);
        members[0].published.never_leads = true;
        assert_eq!(said.due(at(0), &members), None, "one may still lead");
        members[1].published.drained = true;
        let said_at: Vec<u64> = (1..1300).filter(|&second| said.due(at(second), &members).is_some()).collect();
        assert_eq!(said_at, [11]);
        members[1].published.drained = false;
        assert_eq!(said.due(at(1300), &members), None);
        assert_eq!(
            (said.due(at(1301), &members[..1]), said.due(at(1311), &members[..1])),
            (None, Some(Lack::NoneMayLead))
        );
    }
}
