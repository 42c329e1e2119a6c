//! Notifications: one for each fact, whatever is lost on the way, and no fact waits for one.

use super::*;
use crate::recipes::tests_support::Right;
use cronkeeper_core::job::NoticeKind;
use cronkeeper_core::run::{Notice, NoticeKey, RunEnd};

/// An end of a run of which a failure and a recovery are to be said.
fn noticed(job: &str, version: i32, second: i64, nonce: &str, outcome: Outcome) -> Change {
    let Change::End { at, end, as_leader } = end(job, version, second, nonce) else { unreachable!() };
    let notify = [NoticeKind::Failure, NoticeKind::Recovery].into();
    let run = RunRecord { notify, ..end.run };
    Change::End { at, end: RunEnd { run, outcome, ..end }, as_leader }
}

/// The notifications, by their records.
fn outbox(fixture: &Fixture) -> Vec<&'static str> {
    let tree = fixture.server.tree();
    let records =
        tree.names(paths::OUTBOX).into_iter().filter_map(|name| tree.data(&paths::under(paths::OUTBOX, &name)));
    let kinds = records.map(|data| serde_json::from_slice::<Notice>(&data).unwrap().kind.as_str());
    kinds.collect()
}

fn begun(fixture: &mut Fixture, version: i32, second: i64, nonce: &str) {
    assert_eq!(fixture.commit(begin("a", version, second, nonce)), Commit::Accepted);
}

#[test]
fn an_end_whose_answers_are_lost_is_said_once() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    begun(&mut fixture, 0, 60, "7-1");
    fixture.fates([Fate::AnswerLost, Fate::RequestLost, Fate::AnswerLost]);
    assert_eq!(fixture.commit(noticed("a", 0, 60, "7-1", Outcome::Failure)), Commit::Accepted);
    assert_eq!(outbox(&fixture), ["failure"]);
}

#[test]
fn a_notification_that_is_there_already_does_not_keep_an_end_or_another_one_from_being_written() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    begun(&mut fixture, 0, 60, "7-1");
    let end = noticed("a", 0, 60, "7-1", Outcome::Failure);
    let notice = end.notices(None).remove(0);
    fixture.put(paths::notice(NoticeKey::of(&notice)), &notice);
    assert_eq!(fixture.commit(end), Commit::Accepted);
    assert_eq!((outbox(&fixture), fixture.refused.len()), (vec!["failure"], 0));
    begun(&mut fixture, 1, 120, "7-2");
    fixture.commit(noticed("a", 0, 120, "7-2", Outcome::Failure));
    assert_eq!(outbox(&fixture), ["failure", "failure"]);
}

#[test]
fn the_commit_itself_finds_out_what_is_a_recovery() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    for (number, outcome) in
        [(0, Outcome::Success), (1, Outcome::Failure), (2, Outcome::Success), (3, Outcome::Success)]
    {
        let nonce = format!("7-{number}");
        begun(&mut fixture, number, 60 * i64::from(number + 1), &nonce);
        fixture.commit(noticed("a", 0, 60 * i64::from(number + 1), &nonce, outcome));
    }
    assert_eq!(outbox(&fixture), ["failure", "recovery"]);
}

#[test]
fn an_end_does_not_wait_for_an_outbox_that_is_closed() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    begun(&mut fixture, 0, 60, "7-1");
    fixture.server.tree().close(paths::OUTBOX, Right::Write);
    assert_eq!(fixture.commit(noticed("a", 0, 60, "7-1", Outcome::Failure)), Commit::Accepted);
    assert_eq!(outbox(&fixture), [""; 0]);
    assert_eq!(fixture.refused.iter().map(|damage| damage.path.as_str()).collect::<Vec<_>>(), [paths::OUTBOX]);
    fixture.server.tree().open(paths::OUTBOX, Right::Write);
    begun(&mut fixture, 1, 120, "7-2");
    fixture.commit(noticed("a", 0, 120, "7-2", Outcome::Failure));
    assert_eq!((outbox(&fixture), fixture.mended.as_slice()), (vec!["failure"], &[paths::OUTBOX.to_owned()][..]));
}
