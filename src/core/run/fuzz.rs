//! Fuzz tests of the ledger's records and names.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::fuzz::{Fuzz, LEDGER_WORDS, is_read_back, text};

fn read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(json: &[u8]) -> Option<T> {
    let read = serde_json::from_slice(json).ok()?;
    is_read_back(&read);
    Some(read)
}

#[test]
fn fuzz_records() {
    Fuzz { longest: 32 << 10, ..Fuzz::of("records", LEDGER_WORDS) }.run(|json| {
        let run = read::<RunRecord>(json).inspect(follow).is_some();
        let history = read::<HistoryRecord>(json).inspect(look).is_some();
        let note = Note::read(json).inspect(|note| drop(note.clone().into_job())).is_ok();
        let others = [read::<JobRecord>(json).inspect(recount).is_some(), read::<ControlRecord>(json).is_some()];
        run || history || note || others.contains(&true)
    });
}

/// Calls the functions that nodes apply to a run they have read.
fn follow(run: &RunRecord) {
    let id = run.id();
    if let Ok(read) = RunId::parse(&id.to_string()) {
        assert!(read == id || run.scheduled_at.subsec_nanosecond() != 0, "{id}");
    }
    let _ = (run.ready(), run.unstarted_attempts(), run.has_past());
    for (outcome, at) in [(Outcome::Failure, Timestamp::MAX), (Outcome::Success, Timestamp::MIN)] {
        let end = RunEnd::unseen(run, outcome, Some(Reason::NodeDied), at);
        Link::of_end(&end).for_each(|link| drop(link.run()));
        let mut past = run.past.clone();
        past.note(&end);
        assert!(past.failures >= run.past.failures);
    }
}

/// Has the job recounted, whatever its record says.
fn recount(record: &JobRecord) {
    let _ = (record.count(), record.digested_at(), record.fresh_recount());
    for at in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        let request = RecountRequest { id: uuid::Uuid::nil(), by: "x".into(), at, history_limit: 20 };
        if let Ok((recounted, done)) = record.clone().recounted(&Decisions::default(), &request) {
            assert!(recounted.count() < record.count() && done.listed.len() <= MOST_LISTED, "{record:?}");
        }
    }
}

fn look(record: &HistoryRecord) {
    let _ = (record.at(), record.trigger(), record.id());
}

/// One name per line: of a run, a job, a node or a session.
#[test]
fn fuzz_names() {
    Fuzz { longest: 8 << 10, ..Fuzz::of("names", LEDGER_WORDS) }.run(|input| {
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
            drop(SessionId::try_from(name.to_owned()));
        }
        read
    });
}
