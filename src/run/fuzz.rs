//! Fuzz tests of the ledger's records and names.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::fuzz::{Fuzz, is_read_back, text};
use crate::status::{HistoryEntry, RunStatus};

/// Fragments of a ledger. The fuzz tests of other modules that read whole ledgers use them too.
pub(crate) const WORDS: &[&str] = &[
    "running/",
    "jobs/",
    "history/",
    "control/",
    "triggers/",
    "nodes/",
    "backup",
    "backup.20261120T095900Z",
    "backup.20261120T095900Z.m7",
    "0000000007",
    "\n",
    "{}",
    "null",
    "[]",
    "\"v\":1,",
    "\"job\":\"backup\",",
    "\"scheduled_at\":",
    "\"ready_at\":\"2026-11-20T10:00:00Z\",",
    "\"retry_at\":\"2026-11-20T10:00:05Z\",",
    "\"keep_until\":\"2026-11-20T10:00:05Z\",",
    "\"kill\":{\"reason\":\"operator\",\"by\":\"root\",\"at\":\"2026-11-20T10:00:00Z\",\"force\":true},",
    "\"dependents\":[\"load\"],",
    "\"past\":{\"failures\":4294967295,\"attempts\":[]},",
    "\"attempt\":4294967295,",
    "\"parameters\":{\"LD_PRELOAD\":\"/x\"},",
    "\"queued\"",
    "\"running\"",
    "\"retrying\"",
    "\"unstarted\"",
    "\"cut-off\"",
    "\"rerun\"",
    "\"interrupt\"",
    "\"failure\"",
    "\"timeout\"",
    "\"success\"",
    "\"otherwise\"",
    "\"not-begun\"",
    "\"upstream\":null,",
    "\"kind\":\"skip\",",
    "\"kind\":\"run\",",
    "-009999-01-02T01:59:59Z",
    "9999-12-30T22:00:00.999999999Z",
    "1969-12-31T23:59:59Z",
    "2026-11-20T10:00:00Z",
    "2026-11-20T10:00:01.5Z",
    "18446744073709551615",
    "-9223372036854775808",
    "4294967295",
    "\\ud800",
    "\\u0000",
    "..",
];

fn read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(json: &[u8]) -> Option<T> {
    let read = serde_json::from_slice(json).ok()?;
    is_read_back(&read);
    Some(read)
}

#[test]
fn fuzz_records() {
    Fuzz { longest: 32 << 10, ..Fuzz::of("records", WORDS) }.run(|json| {
        let run = read::<RunRecord>(json).inspect(follow).is_some();
        let history = read::<HistoryRecord>(json).inspect(show).is_some();
        let note = Note::read(json).inspect(|note| drop(note.clone().into_job())).is_ok();
        let others = [read::<JobRecord>(json).is_some(), read::<ControlRecord>(json).is_some()];
        run || history || note || others.contains(&true)
    });
}

/// Calls the functions that nodes apply to a run they have read.
fn follow(run: &RunRecord) {
    let id = run.id();
    if let Ok(read) = RunId::parse(&id.to_string()) {
        assert!(read == id || run.scheduled_at.subsec_nanosecond() != 0, "{id}");
    }
    let _ = (run.ready(), run.unstarted_attempts(), run.has_past(), RunStatus::from(run));
    for (outcome, at) in [(Outcome::Failure, Timestamp::MAX), (Outcome::Success, Timestamp::MIN)] {
        let end = RunEnd::unseen(run, outcome, Some(Reason::NodeDied), at);
        Link::of_end(&end).for_each(|link| drop(link.run()));
        let mut past = run.past.clone();
        past.note(&end);
        assert!(past.failures >= run.past.failures);
    }
}

fn show(record: &HistoryRecord) {
    let _ = (record.at(), record.trigger());
    // An id has whole seconds, and every occurrence is a whole second.
    if record.id().scheduled_at().subsec_nanosecond() == 0 {
        is_read_back(&HistoryEntry::from(record.clone()));
    }
}

/// One name per line: of a run, a job, a node or a session.
#[test]
fn fuzz_names() {
    Fuzz { longest: 8 << 10, ..Fuzz::of("names", WORDS) }.run(|input| {
        let mut read = false;
        for name in text(input).lines() {
            if let Ok(run) = RunId::parse(name) {
                assert_eq!(run.to_string(), name);
                read = true;
            }
            if let Ok(job) = JobName::parse(name) {
                assert_eq!((job.as_str(), name.is_ascii()), (name, true));
                read = true;
            }
            if let Ok(node) = NodeName::parse(name) {
                assert!(node.as_str() == name && !name.contains('/') && name != "..");
            }
            if let Ok(session) = SessionId::try_from(name.to_owned()) {
                let _ = crate::zookeeper::owner_of(&session);
            }
        }
        read
    });
}
