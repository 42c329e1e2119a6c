//! Strays: what is in the folder of the runs and is no record of a run, or cannot be read.
//!
//! A new leader reads all runs. Later it learns of a run by its own commits and watches, so that what somebody else puts
//! there stays unseen. With each survey it therefore lists the folder, reads the names that it has not looked at, and
//! some of the others again. How much that takes is bounded, whatever the folder has.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::bounded::RUNS;
use super::context::{self, SessionError};
use super::damage::{self, Damage};
use super::snapshot;
use crate::paths;
use crate::tree::Session;
use cronkeeper_core::ledger::Event;

/// Most records that a survey reads because it has not looked at them before.
const MOST_NEW: usize = 1_000;
/// Most records that a survey reads again, of those that were records of runs.
const MOST_AGAIN: usize = 100;
/// Most strays that are named. The others are counted.
const MOST_NAMED: usize = 20;

/// What a leader knows of the names in the folder.
#[derive(Debug, Default)]
pub struct Strays {
    /// The names of runs.
    runs: BTreeSet<String>,
    strays: BTreeSet<String>,
    /// The last of the runs that were read again.
    behind: String,
}

/// What a look has found.
#[derive(Debug, Default)]
pub struct StraysFound {
    pub known: Strays,
    /// The strays, or some of them and a count.
    pub damaged: Vec<Damage>,
    /// Those that have become readable.
    pub mended: Vec<Event>,
}

impl Strays {
    /// Forgets what is gone, and returns the names to read.
    fn take(&mut self, names: &BTreeSet<String>) -> Vec<String> {
        self.runs.retain(|name| names.contains(name));
        self.strays.retain(|name| names.contains(name));
        let new = names.iter().filter(|name| !self.runs.contains(*name) && !self.strays.contains(*name));
        let new = new.take(MOST_NEW).cloned();
        let later = self.runs.range::<str, _>((Bound::Excluded(self.behind.as_str()), Bound::Unbounded));
        let again: Vec<String> = later.chain(&self.runs).take(MOST_AGAIN.min(self.runs.len())).cloned().collect();
        let read = self.strays.iter().take(MOST_NAMED).cloned().chain(new).chain(again.iter().cloned()).collect();
        self.behind = again.into_iter().next_back().unwrap_or_default();
        read
    }

    /// A name is that of a run from now on. Returns true if it was not before.
    fn is_run(&mut self, name: &str) -> bool {
        self.runs.insert(name.to_owned());
        self.strays.remove(name)
    }

    fn is_stray(&mut self, name: String) {
        self.runs.remove(&name);
        self.strays.insert(name);
    }
}

/// Looks for strays.
pub async fn look<C: Session>(client: &C, mut known: Strays) -> Result<StraysFound, SessionError> {
    let mut damaged = Vec::new();
    let names = context::names_or_damaged(client, paths::RUNNING, &mut damaged).await?;
    let read = known.take(&names.into_iter().collect());
    let (mut found, mut mended) = (Vec::new(), Vec::new());
    for names in read.chunks(RUNS.count) {
        let reads = context::get_small(client, paths::RUNNING, names.to_vec()).await?;
        for (name, error) in &reads.unread {
            found.push((name.clone(), Damage::unread(paths::under(paths::RUNNING, name), error)));
        }
        for (name, data, stat) in reads.found {
            match snapshot::run_record(&name, &data, &stat) {
                Ok((record, version)) if known.is_run(&name) => {
                    mended.push(Event::Run(record.id(), Some((record, version))));
                }
                Ok(_) => {}
                Err(why) => found.push((name.clone(), no_run(client, &name, &why))),
            }
        }
    }
    found.iter().for_each(|(name, _)| known.is_stray(name.clone()));
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let named = found.len().min(MOST_NAMED);
    damaged.extend(found.into_iter().take(MOST_NAMED).map(|(_, damage)| damage));
    let more = known.strays.len().saturating_sub(named);
    if more > 0 {
        damaged.push(Damage::new(paths::RUNNING, format_args!("{more} more records below it are no records of runs")));
    }
    Ok(StraysFound { known, damaged, mended })
}

/// A record that is not that of the run which its name says, and what to do about it.
pub fn no_run<C: Session>(client: &C, name: &str, why: &str) -> Damage {
    let path = paths::under(paths::RUNNING, name);
    let removal = client.removal(&path);
    let why = damage::reason(&why);
    Damage::to_delete(path, &format!("{why}; unless a newer version of cronkeeper has written it, delete it"), removal)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::{Right, Server};
    use crate::test_records::record;

    fn looked(server: &Server, known: Strays) -> StraysFound {
        look(server, known).now_or_never().expect("answered at once").expect("the server serves")
    }

    fn texts(found: &StraysFound) -> Vec<String> {
        found.damaged.iter().map(ToString::to_string).collect()
    }

    /// Puts the records of this many runs.
    fn with_runs(count: u32) -> Server {
        let server = Server::default();
        server.tree().put(paths::RUNNING, "");
        for second in 0..count {
            let run = record("backup", i64::from(second), "0x1");
            server.tree().put(&paths::running(&run.id()), json(&run));
        }
        server
    }

    #[test]
    fn what_is_no_run_is_named_with_the_command_that_removes_it_until_it_is_gone() {
        let server = with_runs(2);
        let found = looked(&server, Strays::default());
        assert_eq!((texts(&found), found.known.runs.len()), (vec![], 2));
        let closed = "/cronkeeper/running/backup.19700101T000000Z";
        for (path, data) in
            [("/cronkeeper/running/garbage", "boo"), ("/cronkeeper/running/backup.19700101T010000Z", "{")]
        {
            server.tree().put(path, data);
        }
        server.tree().close(closed, Right::Read);
        let found = looked(&server, found.known);
        let named = texts(&found);
        assert_eq!(named.len(), 3, "{named:#?}");
        assert_eq!(named[0], format!("{closed}: cannot be read: not authorized"));
        assert!(
            named[1].contains("T010000Z: ") && named[1].contains("delete it: `deleteall /cronkeeper/"),
            "{named:#?}"
        );
        assert!(
            named[2].starts_with("/cronkeeper/running/garbage: ") && named[2].contains("`deleteall "),
            "{named:#?}"
        );
        assert_eq!(texts(&looked(&server, found.known)), named);
    }

    #[test]
    fn a_record_that_was_overwritten_is_found_and_is_news_once_it_is_mended() {
        let server = with_runs(1);
        let run = record("backup", 0, "0x1");
        let path = paths::running(&run.id());
        let known = looked(&server, Strays::default()).known;
        server.tree().put(&path, "{");
        let found = looked(&server, known);
        assert_eq!((found.damaged.len(), found.mended.len()), (1, 0));
        server.tree().put(&path, json(&run));
        let found = looked(&server, found.known);
        assert_eq!(found.damaged.len(), 0);
        assert!(matches!(&found.mended[..], [Event::Run(id, Some((mended, _)))] if *id == run.id() && *mended == run));
        assert_eq!(looked(&server, found.known).mended.len(), 0);
    }

    #[test]
    fn of_many_strays_some_are_named_and_the_others_counted_and_not_read_again() {
        let server = with_runs(0);
        (0..500).for_each(|n| server.tree().put(&format!("/cronkeeper/running/stray-{n:03}"), "boo"));
        let found = looked(&server, Strays::default());
        assert_eq!(found.damaged.len(), MOST_NAMED + 1);
        let last = "/cronkeeper/running: 480 more records below it are no records of runs";
        assert_eq!(texts(&found).last().map(String::as_str), Some(last));
        let before = server.tree().reads;
        let again = looked(&server, found.known);
        assert_eq!(again.damaged.len(), MOST_NAMED + 1);
        assert_eq!(server.tree().reads - before, MOST_NAMED);
    }

    #[test]
    fn each_run_is_read_again_in_its_turn_and_no_survey_reads_more_than_its_part() {
        let count = u32::try_from(MOST_NEW + 50).unwrap();
        let server = with_runs(count);
        let mut known = Strays::default();
        let mut reads = || {
            let before = server.tree().reads;
            known = looked(&server, std::mem::take(&mut known)).known;
            server.tree().reads - before
        };
        assert_eq!([reads(), reads(), reads()], [MOST_NEW, 50 + MOST_AGAIN, MOST_AGAIN]);
        let last = record("backup", i64::from(count) - 1, "0x1");
        server.tree().put(&paths::running(&last.id()), "{");
        let surveys = (0..MOST_NEW).take_while(|_| {
            let found = looked(&server, std::mem::take(&mut known));
            known = found.known;
            found.damaged.is_empty()
        });
        assert!(surveys.count() <= count as usize / MOST_AGAIN);
    }
}
