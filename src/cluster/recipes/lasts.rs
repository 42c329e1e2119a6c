//! The last end of each job, kept up to date by reading only what has changed.
//!
//! A job's history is a folder with a record for each run, and the folder's metadata counts the records that were
//! created and removed. So one small read a job tells whether a run of it has ended since, and only then the records
//! are read. The metadata of all jobs is requested at once: with 10,000 jobs that takes a fraction of a second.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::context::{self, SessionError};
use super::reader;
use crate::paths;
use crate::tree::{Revision, Session, Stat};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::LastEnd;

/// The last end of each job with a history, as of the last [`refresh`](Self::refresh).
#[derive(Debug, Default)]
pub(super) struct KnownEnds(BTreeMap<JobName, KnownEnd>);

#[derive(Debug)]
struct KnownEnd {
    history: HistoryVersion,
    /// Absent if the history has skipped occurrences only.
    end: Option<LastEnd>,
}

/// Changes whenever a record is added to a history or removed, and when the history is removed and created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HistoryVersion {
    created: Revision,
    below: i64,
}

impl From<Stat> for HistoryVersion {
    fn from(stat: Stat) -> Self {
        Self { created: stat.created, below: stat.below }
    }
}

impl KnownEnds {
    /// Reads the histories that have changed, and forgets those that are gone.
    ///
    /// If this future is dropped or fails, what was read until then is kept: each entry is complete.
    pub async fn refresh<C: Session>(&mut self, client: &C) -> Result<(), SessionError> {
        let names = reader::jobs_with_history(client).await?;
        let names = names.iter().map(|job| job.as_str().to_owned()).collect();
        let found = context::stats(client, paths::HISTORY, names).await?;
        let found = found.into_iter().filter_map(|(name, stat)| Some((JobName::parse(&name).ok()?, stat.into())));
        let found: BTreeMap<JobName, HistoryVersion> = found.collect();
        self.0.retain(|job, _| found.contains_key(job));
        let is_changed = |job: &JobName, history| self.0.get(job).is_none_or(|known| known.history != history);
        let changed: Vec<_> = found.into_iter().filter(|(job, history)| is_changed(job, *history)).collect();
        let read = |(job, history)| async move {
            let end = reader::last_end(client, &job, |_| true).await?;
            Ok::<_, SessionError>((job, KnownEnd { history, end }))
        };
        let mut read = stream::iter(changed).map(read).buffer_unordered(reader::MOST_SEARCHES);
        while let Some((job, known)) = read.try_next().await? {
            self.0.insert(job, known);
        }
        Ok(())
    }

    pub fn ends(&self) -> impl Iterator<Item = (JobName, LastEnd)> {
        self.0.iter().filter_map(|(job, known)| Some((job.clone(), known.end.clone()?)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::Server;
    use crate::test_records::{record, success};
    use crate::tree::{AtVersion, Op};
    use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd};

    fn put(server: &Server, job: &str, second: i64, outcome: Outcome) {
        let end = RunEnd { outcome, ..success(record(job, second, "0x1")) };
        let mut tree = server.tree();
        tree.time_ms = end.ended_at.as_millisecond();
        tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
    }

    /// Refreshes, and returns the outcomes and the number of records that were read.
    fn refresh(known: &mut KnownEnds, server: &Server) -> (Vec<Outcome>, usize) {
        let before = server.tree().reads;
        known.refresh(server).now_or_never().expect("answered at once").expect("readable");
        (known.ends().map(|(_, end)| end.outcome).collect(), server.tree().reads - before)
    }

    #[test]
    fn only_the_histories_that_have_changed_are_read_again() {
        let (server, mut known) = (Server::default(), KnownEnds::default());
        for job in ["a", "b"] {
            (0..20).for_each(|second| put(&server, job, second, Outcome::Success));
        }
        let (outcomes, first) = refresh(&mut known, &server);
        assert_eq!(outcomes, [Outcome::Success, Outcome::Success]);
        let (_, unchanged) = refresh(&mut known, &server);
        put(&server, "b", 60, Outcome::Failure);
        let (outcomes, second) = refresh(&mut known, &server);
        assert_eq!(outcomes, [Outcome::Success, Outcome::Failure]);
        assert!(first - unchanged >= 40, "all are read at first: {first}, {unchanged}");
        assert_eq!(second - unchanged, 21, "only b is read again");
    }

    #[test]
    fn a_history_that_is_gone_is_forgotten_and_a_new_one_is_read() {
        let (server, mut known) = (Server::default(), KnownEnds::default());
        put(&server, "a", 1, Outcome::Success);
        assert_eq!(refresh(&mut known, &server).0, [Outcome::Success]);
        let (run, job) = (known.0.values().next().and_then(|known| known.end.clone()).expect("read").run, "a");
        let delete = |path: String| Op::Delete { path, at: AtVersion::Any };
        let gone = vec![delete(paths::history(&run)), delete(format!("{}/{job}", paths::HISTORY))];
        server.tree().apply(gone);
        assert_eq!(refresh(&mut known, &server).0, []);
        put(&server, "a", 1, Outcome::Failure);
        assert_eq!(refresh(&mut known, &server).0, [Outcome::Failure]);
    }
}
