//! What fails again and again: said once it has for some seconds, then after growing times, and shown for as long as it does.

use std::collections::BTreeMap;
use std::time::Duration;

use super::SessionLoop;
use crate::clock::{Clock, Uptime};
use crate::election::Event;
use crate::zookeeper::client::Connect;
use crate::zookeeper::damage::{Damage, News, Source};

/// What fails for no longer is the everyday life of a connection.
const TOLD_AFTER: Duration = Duration::from_secs(5);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// What a node asks of the servers, and asks again where it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Prepare,
    Enter,
    Join,
    Look,
    Open,
    WriteOpening,
    Withdraw,
    HandOver,
    Clear,
    Leave,
    Find,
    Verify,
    Publish,
    Survey,
    Renumber,
    Read,
    Listen,
    Watch,
    Renew,
}

impl Task {
    /// In words.
    fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "making its paths",
            Self::Enter => "becoming a member",
            Self::Join => "joining the queue",
            Self::Look => "looking up its place in the queue",
            Self::Open => "taking over",
            Self::WriteOpening => "writing down that it leads",
            Self::Withdraw | Self::Clear => "giving up its place in the queue",
            Self::HandOver => "handing leadership over",
            Self::Leave => "leaving",
            Self::Find => "looking up who is to lead",
            Self::Verify => "verifying its own entries",
            Self::Publish => "telling the others of itself",
            Self::Survey => "reading the queue and the members",
            Self::Renumber => "counting the triggers anew",
            Self::Read => "reading the ledger",
            Self::Listen => "reading what operators want",
            Self::Watch => "watching runs",
            Self::Renew => "renewing its lease",
        }
    }

    /// True for what a node needs to take part at all, and asks for first.
    pub(super) fn is_of_the_start(self) -> bool {
        matches!(self, Self::Prepare | Self::Enter | Self::Join)
    }

    /// True for a step to the next thing: whatever failed on the way there is over once one of them is done.
    fn is_step(self) -> bool {
        match self {
            Self::Prepare
            | Self::Enter
            | Self::Join
            | Self::Look
            | Self::Open
            | Self::WriteOpening
            | Self::Withdraw
            | Self::HandOver
            | Self::Clear
            | Self::Leave => true,
            Self::Find
            | Self::Verify
            | Self::Publish
            | Self::Survey
            | Self::Renumber
            | Self::Read
            | Self::Listen
            | Self::Watch
            | Self::Renew => false,
        }
    }
}

/// What fails now.
#[derive(Debug, Default)]
pub(super) struct Failing {
    tasks: BTreeMap<Task, Failed>,
    /// What was told last.
    told: Option<String>,
}

#[derive(Debug)]
struct Failed {
    since: Uptime,
    told_from: Uptime,
    silence: Duration,
    /// Absent until it is worth telling.
    told: Option<String>,
}

impl Failing {
    /// A task has failed again. True where it is time to say so.
    fn failed(&mut self, task: Task, now: Uptime, error: &str) -> bool {
        let failed = self.tasks.entry(task).or_insert_with(|| Failed {
            since: now,
            told_from: now + TOLD_AFTER,
            silence: TOLD_AFTER,
            told: None,
        });
        if now < failed.told_from {
            return false;
        }
        failed.silence = (failed.silence * 2).min(LONGEST_SILENCE);
        failed.told_from = now + failed.silence;
        let seconds = now.since(failed.since).as_secs();
        failed.told = Some(format!("{}, which has failed for {seconds} s: {error}", task.as_str()));
        true
    }

    fn done(&mut self, task: Task) {
        self.tasks.retain(|failed, _| *failed != task && !(failed.is_step() && task.is_step()));
    }

    /// What is to be told now: what fails first; `None` where that was told already.
    fn news(&mut self, is_due: bool) -> Option<Option<String>> {
        let now = self.tasks.values().find_map(|failed| failed.told.clone());
        (is_due || now != self.told).then(|| {
            self.told.clone_from(&now);
            now
        })
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    /// A task has failed and is tried again.
    pub(super) fn failed(&mut self, task: Task, error: &str) {
        // Without a connection everything fails, and that is told already.
        if !self.link.is_connected {
            return;
        }
        tracing::debug!(error, "{} is tried again", task.as_str());
        let is_due = self.housekeeping.failing.failed(task, self.supervisor.clock.now().up, error);
        self.tell_failing(is_due);
    }

    pub(super) fn succeeded(&mut self, task: Task) {
        if !self.housekeeping.failing.tasks.is_empty() {
            self.housekeeping.failing.done(task);
            self.tell_failing(false);
        }
    }

    /// The session, or its connection, is gone: what failed under it is no longer what is wrong.
    pub(super) fn forget_failures(&mut self) {
        self.housekeeping.failing.tasks.clear();
        self.tell_failing(false);
    }

    /// A session is over: what it was refused, another may be given.
    pub(super) fn forget_refusals(&mut self) {
        for source in [Source::Queue, Source::Writes, Source::Renewals] {
            self.found_damage(source, None);
        }
    }

    fn tell_failing(&mut self, is_due: bool) {
        if let Some(news) = self.housekeeping.failing.news(is_due) {
            self.supervisor.tell(Event::Stalled(news));
        }
    }

    /// All that is damaged, as `source` finds now.
    pub(super) fn found_damage(&mut self, source: Source, found: impl IntoIterator<Item = Damage>) {
        let news = self.supervisor.damages.found(source, found);
        self.tell_damage(news);
    }

    /// This node leads no more: what only a leader looks at again is the next one's to name.
    pub(super) fn forget_damage(&mut self) {
        for source in [Source::Ledger, Source::OperatorRequests, Source::Rights] {
            self.found_damage(source, None);
        }
        let refused: Vec<Damage> = self.committer.refusals().collect();
        self.found_damage(Source::Writes, refused);
    }

    /// One more path is damaged.
    pub(super) fn damaged(&mut self, source: Source, damage: Damage) {
        let news = self.supervisor.damages.add(source, damage);
        self.tell_damage(news);
    }

    pub(super) fn mended(&mut self, source: Source, path: &str) {
        let news = self.supervisor.damages.mend(source, path);
        self.tell_damage(news);
    }

    fn tell_damage(&self, news: Option<News>) {
        if let Some(News { all, new }) = news {
            self.supervisor.tell(Event::Damaged { all, new });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Uptime {
        Uptime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn what_fails_for_more_than_five_seconds_is_told_and_then_after_growing_times() {
        let mut failing = Failing::default();
        let told: Vec<u64> = (0..60).filter(|&now| failing.failed(Task::Open, at(now), "no")).collect();
        assert_eq!(told, [5, 15, 35]);
        assert_eq!(failing.news(true), Some(Some("taking over, which has failed for 35 s: no".to_owned())));
        failing.done(Task::Verify);
        assert_eq!(failing.news(false), None, "that is another task");
        failing.done(Task::Join);
        assert_eq!(failing.news(false), Some(None), "it has come to something else");
    }

    #[test]
    fn what_fails_now_and_then_is_not_told() {
        let mut failing = Failing::default();
        for now in 0..60 {
            assert!(!failing.failed(Task::Read, at(now), "no"));
            failing.done(Task::Read);
            assert_eq!(failing.news(false), None);
        }
    }
}
