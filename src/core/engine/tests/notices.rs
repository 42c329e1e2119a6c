//! Notifications: each is in the commit of its fact, and no other commit follows.

use std::time::Duration;

use super::fixture::*;
use crate::job::{AlarmLimits, ChannelName, Job, Misfire, NoticeKind, Notify};
use crate::ledger::{Change, LastSuccess};
use crate::process::Exit;
use crate::run::{Notice, Outcome};

fn noticed(kinds: &[NoticeKind], job: Job) -> Job {
    let channel = ChannelName::parse("ops").unwrap();
    Job { notify: Notify([(channel, Some(kinds.iter().copied().collect()))].into()), ..job }
}

fn once() -> Job {
    job("a", "1 0 10 * * *")
}

fn notices(changes: &[Change]) -> Vec<Notice> {
    changes.iter().flat_map(|change| change.notices(None)).collect()
}

#[test]
fn the_end_of_a_run_has_what_its_job_wants_said_of_it() {
    let (mut fixture, tree_id) = running_one(noticed(&[NoticeKind::Failure, NoticeKind::Late], once()));
    fixture.ended(tree_id, Exit::Code(3), None);
    let changes = fixture.accept_all();
    let said = notices(&changes);
    assert_eq!((said.len(), said[0].kind, said[0].exit_code), (1, NoticeKind::Failure, Some(3)));
    assert!(matches!(&changes[..], [Change::End { .. }]), "one commit: {changes:?}");
    fixture.pass(60);
    assert_eq!(notices(&fixture.accept_all()), [], "it is said once");
}

#[test]
fn a_success_is_said_only_after_another_outcome() {
    let (mut fixture, tree_id) = running_one(noticed(&[NoticeKind::Failure, NoticeKind::Recovery], once()));
    fixture.ended(tree_id, Exit::Code(0), None);
    let changes = fixture.accept_all();
    assert_eq!(notices(&changes), []);
    let again = changes[0].notices(Some(Outcome::Timeout));
    assert_eq!(again.iter().map(|notice| notice.kind).collect::<Vec<_>>(), [NoticeKind::Recovery]);
}

#[test]
fn a_job_that_nobody_wants_to_hear_of_writes_what_it_always_wrote() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(3), None);
    let changes = fixture.accept_all();
    let [Change::End { end, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert!(end.run.notify.is_empty());
    let json = serde_json::to_value(&end.run).unwrap();
    assert!(json.get("notify").is_none());
}

#[test]
fn an_alarm_is_said_in_the_commit_that_raises_it() {
    let alarms = AlarmLimits { stale_after: Some(Duration::from_secs(25)), ..AlarmLimits::default() };
    let job = noticed(&[NoticeKind::Stale], Job { alarms, ..job("a", "*/10 * * * * *") });
    let mut fixture = Fixture::settled("10:00:00", vec![job]);
    fixture.succeeded("a", LastSuccess::At(at("09:59:00")));
    fixture.pass(1);
    let mut said = Vec::new();
    for _ in 0..40 {
        for change in fixture.accept_all() {
            if let Change::Noticed { change, notices } = change {
                assert!(matches!(*change, Change::Advance { .. }), "{change:?}");
                said.extend(notices);
            }
        }
        fixture.pass(1);
    }
    assert_eq!((said.len(), said[0].kind, said[0].limit_ms), (1, NoticeKind::Stale, Some(25_000)));
}

#[test]
fn missed_occurrences_are_said_in_the_commit_that_skips_them() {
    let job = noticed(&[NoticeKind::Missed], Job { misfire: Misfire::Skip, ..job("a", "0 * * * * *") });
    let entries = [entry(&job, at("09:57:00"), 0)].into();
    let snapshot = crate::ledger::Snapshot { jobs: entries, ..crate::ledger::Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:30", set([job]), snapshot);
    let said = notices(&fixture.accept_all());
    assert_eq!((said.len(), said[0].kind, said[0].count), (1, NoticeKind::Missed, Some(3)));
    assert_eq!(said[0].run.as_ref().map(ToString::to_string).as_deref(), Some("a.20261120T095800Z"));
}
