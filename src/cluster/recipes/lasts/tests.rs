//! Tests of reading the records, and of what is found where there are none yet.

use futures_util::FutureExt as _;

use super::*;
use crate::recipes::tests_support::{Right, Server};
use crate::recipes::transaction::tests::{at, name};
use crate::test_records::{record, skip, success};
use crate::tree::AtVersion;
use cronkeeper_core::clock::Now;
use cronkeeper_core::term::NodeName;

fn end(job: &str, second: i64, outcome: Outcome) -> RunEnd {
    RunEnd { outcome, ..success(record(job, second, "0x1")) }
}

fn moment(second: i64) -> Now {
    Now { wall: at(second), up: Uptime::ZERO }
}

/// Writes the record of a job whose runs have ended like this.
fn put(server: &Server, job: &str, ends: &[(i64, Outcome)]) {
    let last = ends.iter().fold(None, |last, &(second, outcome)| {
        Some(Last::after(last.as_ref(), &end(job, second, outcome), Timestamp::MAX))
    });
    server.tree().put(&paths::last(&name(job)), json(&last.unwrap()));
}

/// Writes the history of a job, as versions before these records did.
fn put_history(server: &Server, job: &str, ends: &[(i64, Outcome)]) {
    let mut tree = server.tree();
    tree.put(&paths::job_history(&name(job)), "");
    for &(second, outcome) in ends {
        let end = end(job, second, outcome);
        tree.time_ms = end.ended_at.as_millisecond();
        tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
    }
}

fn read_one(server: &Server, job: &str) -> ReadLast {
    let mut found = read(server, [name(job)]).now_or_never().expect("answered at once").expect("readable");
    found.remove(&name(job)).expect("each job has a result")
}

/// Refreshes, and returns the outcomes and the number of records that were read.
fn refresh(known: &mut AllLasts, server: &Server) -> (Vec<Outcome>, usize) {
    let before = server.tree().reads;
    known.refresh(server).now_or_never().expect("answered at once").expect("readable");
    (known.lasts().map(|(_, last)| last.end.outcome).collect(), server.tree().reads - before)
}

#[test]
fn only_the_records_that_have_changed_are_read_again() {
    let (server, mut known) = (Server::default(), AllLasts::default());
    for job in ["a", "b", "c"] {
        put(&server, job, &[(60, Outcome::Success)]);
    }
    assert_eq!(refresh(&mut known, &server), (vec![Outcome::Success; 3], 3));
    assert_eq!(refresh(&mut known, &server), (vec![Outcome::Success; 3], 0));
    put(&server, "b", &[(60, Outcome::Success), (120, Outcome::Failure)]);
    assert_eq!(refresh(&mut known, &server), (vec![Outcome::Success, Outcome::Failure, Outcome::Success], 1));
    server.tree().apply(vec![Op::Delete { path: paths::last(&name("a")), at: AtVersion::Any }]);
    assert_eq!(refresh(&mut known, &server), (vec![Outcome::Failure, Outcome::Success], 0));
}

#[test]
fn a_job_without_a_record_has_the_one_that_its_history_makes() {
    let (server, mut known) = (Server::default(), AllLasts::default());
    put_history(&server, "old", &[(60, Outcome::Success), (120, Outcome::Failure)]);
    put(&server, "new", &[(60, Outcome::Success)]);
    assert_eq!(refresh(&mut known, &server).0, [Outcome::Success, Outcome::Failure]);
    assert_eq!(refresh(&mut known, &server).1, 0);
    let found = read_one(&server, "old");
    let last = found.last.clone().unwrap();
    assert_eq!((found.at, found.success()), (None, LastSuccess::At(end("old", 60, Outcome::Success).ended_at)));
    assert_eq!((last.written.outcome, last.written.before), (Outcome::Failure, Some(Outcome::Success)));
    // An earlier version continues to write there.
    put_history(&server, "old", &[(180, Outcome::Killed)]);
    assert_eq!(refresh(&mut known, &server).0, [Outcome::Success, Outcome::Killed]);
}

#[test]
fn the_record_that_a_history_makes_is_written_unless_there_is_one() {
    let server = Server::default();
    let fill_in = |job: &str| fill_in(&server, &name(job)).now_or_never().unwrap().unwrap();
    put_history(&server, "old", &[(60, Outcome::Success), (120, Outcome::Failure)]);
    server.tree().put(&paths::job_history(&name("skipped")), "");
    let missed = HistoryRecord::Skip(skip("skipped", 60));
    server.tree().put(&paths::history(&missed.id()), json(&missed));
    fill_in("old");
    assert_eq!(read_one(&server, "old").at, Some(Version::FIRST));
    fill_in("old");
    assert_eq!(read_one(&server, "old").at, Some(Version::FIRST), "it is right");
    // An earlier version has written an end since, and none of a success.
    put_history(&server, "old", &[(180, Outcome::Killed)]);
    fill_in("old");
    let found = read_one(&server, "old");
    assert_eq!((found.at, found.last.unwrap().end.outcome), (Some(Version(1)), Outcome::Killed));
    server.tree().put("/cronkeeper/last/old", "{");
    fill_in("old");
    let found = read_one(&server, "old");
    assert!(found.damage.is_none() && found.last.unwrap().written.before == Some(Outcome::Failure), "it is mended");
    fill_in("skipped");
    assert!(!server.tree().has("/cronkeeper/last/skipped"), "no run of it has ended");
}

#[test]
fn the_records_of_ten_thousand_jobs_without_a_history_cost_few_requests_each() {
    let server = Server::default();
    let jobs: Vec<JobName> = (0..10_000).map(|job| name(&format!("job-{job}"))).collect();
    let found = read(&server, jobs).now_or_never().unwrap().unwrap();
    assert!(found.len() == 10_000 && found.values().all(|read| read.success() == LastSuccess::Never));
    assert_eq!(server.tree().reads, 0);
}

#[test]
fn what_cannot_be_a_record_of_the_job_is_damaged_and_is_written_anew_at_its_version() {
    let server = Server::default();
    put(&server, "other", &[(60, Outcome::Success)]);
    let others = server.tree().data("/cronkeeper/last/other").unwrap();
    for data in [b"{".to_vec(), others, vec![b'x'; 900_000]] {
        server.tree().put("/cronkeeper/last/backup", data);
        server.tree().touch("/cronkeeper/last/backup");
        let found = read_one(&server, "backup");
        let version = server.tree().stat("/cronkeeper/last/backup").map(|stat| Version(stat.version));
        assert!(found.damage.is_some() && found.last.is_none(), "{found:?}");
        assert!(found.at == version && version.is_some(), "{found:?}");
        assert_eq!(found.success(), LastSuccess::Unreadable);
    }
    server.tree().close("/cronkeeper/last/other", Right::Read);
    assert_eq!(read_one(&server, "other").success(), LastSuccess::Unreadable);
    let mut known = AllLasts::default();
    assert_eq!(refresh(&mut known, &server).0, []);
    put_history(&server, "backup", &[(60, Outcome::Success)]);
    put_history(&server, "other", &[(60, Outcome::Killed)]);
    assert!(matches!(read_one(&server, "backup").success(), LastSuccess::At(_)), "the history has it");
    assert_eq!(refresh(&mut known, &server).0, [], "until the record changes");
}

#[test]
fn a_success_behind_hundreds_of_failures_is_found() {
    let server = Server::default();
    put_history(&server, "old", &[(60, Outcome::Success)]);
    let failures: Vec<_> = (2..300).map(|minute| (minute * 60, Outcome::Failure)).collect();
    put_history(&server, "old", &failures);
    assert_eq!(read_one(&server, "old").success(), LastSuccess::At(end("old", 60, Outcome::Success).ended_at));
}

/// The shares of an occurrence may be many, and the one that failed the first to end.
#[test]
fn all_shares_of_the_newest_occurrence_are_found() {
    let server = Server::default();
    let put = |second, node: usize, outcome| {
        let mut end = end("old", second, outcome);
        end.run.on = Some(NodeName::new(format!("node-{node:02}")));
        let mut tree = server.tree();
        tree.time_ms += 1;
        tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
    };
    server.tree().put(&paths::job_history(&name("old")), "");
    put(60, 0, Outcome::Failure);
    put(120, 99, Outcome::Killed);
    (0..60).for_each(|node| put(120, node, Outcome::Success));
    let shares = read_one(&server, "old").last.and_then(|last| last.shares).expect("it runs on every node");
    let failed: Vec<&str> = shares.failed.iter().map(|failed| failed.node.as_str()).collect();
    assert_eq!((shares.ok.len(), shares.failed.len()), (60, 1), "{failed:?}");
}

#[test]
fn a_history_that_cannot_be_read_holds_up_nobody() {
    let server = Server::default();
    put_history(&server, "old", &[(60, Outcome::Success)]);
    server.tree().close("/cronkeeper/history/old", Right::Read);
    server.tree().close("/cronkeeper/history/old/old.19700101T000100Z", Right::Read);
    let found = read_one(&server, "old");
    assert_eq!((found.last, found.at), (None, None));
}

#[test]
fn several_ends_of_a_job_move_its_record_once_and_each_knows_the_one_before() {
    let mut known = KnownLasts::default();
    let server = Server::default();
    put(&server, "a", &[(60, Outcome::Killed)]);
    known.learn(read(&server, [name("a"), name("b")]).now_or_never().unwrap().unwrap());
    let ends = [end("a", 120, Outcome::Success), end("b", 60, Outcome::Failure), end("a", 180, Outcome::Timeout)];
    let numbered = (0..).map(CommitId).zip(&ends);
    let writes = known.writes(numbered, moment(1_000));
    let ops: Vec<Op> = writes.ops().collect();
    assert!(
        matches!(&ops[..], [Op::Set { path: a, at: AtVersion::Version(Version(0)), .. }, Op::Create { path: b, .. }]
        if a == "/cronkeeper/last/a" && b == "/cronkeeper/last/b"),
        "{ops:?}"
    );
    let before: Vec<_> = (0..3).map(|id| writes.before(CommitId(id))).collect();
    assert_eq!(before, [Some(Outcome::Killed), None, Some(Outcome::Success)]);
    known.written(writes);
    let next = known.writes([(CommitId(3), &end("b", 120, Outcome::Success))].into_iter(), moment(1_000));
    assert!(matches!(next.ops().next(), Some(Op::Set { at: AtVersion::Version(Version(0)), .. })));
    assert_eq!(next.before(CommitId(3)), Some(Outcome::Failure));
}
