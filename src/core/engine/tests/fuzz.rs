//! Takeover of a ledger with arbitrary records: each line of the input is `PARENT/NAME RECORD`.

use serde::de::DeserializeOwned;

use super::fixture::*;
use crate::engine::Event;
use crate::fuzz::{Fuzz, LEDGER_WORDS, text};
use crate::job::{Condition, Due, Interrupted, Job, JobName, JobSet, OnLeaseEnd, Overlap, Retries};
use crate::ledger::{ControlEntry, JobEntry, OwnerState, Running, Snapshot, TriggerEntry};
use crate::run::{Note, RunRecord, TriggerSeq, Version};

/// One job of each kind, with the names that the corpus uses.
fn jobs() -> JobSet {
    let backup = Job { retries: Retries { limit: 3, ..Retries::default() }, ..job("backup", "* * * * *") };
    let load = Job { due: Due::After([(name("backup"), Condition::Always)].into()), ..job("load", "* * * * *") };
    let queued = Job { overlap: Overlap::Queue, ..job("queued", "*/10 * * * * *") };
    let replaced = Job { overlap: Overlap::Replace, ..job("replaced", "*/10 * * * * *") };
    let (interrupted, on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    let rerun = Job { interrupted, on_lease_end, overlap: Overlap::Allow, ..job("rerun", "0 0 1 1 *") };
    set([backup, load, queued, replaced, rerun])
}

fn read<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

fn put(snapshot: &mut Snapshot, line: &str) -> Option<()> {
    let (path, json) = line.split_once(' ')?;
    let (folder, key) = path.split_once('/')?;
    let version = Version(i32::try_from(json.len() % 3).ok()? - 1);
    match folder {
        "jobs" => drop(snapshot.jobs.insert(JobName::parse(key).ok()?, JobEntry { record: read(json), version })),
        "running" => {
            let record: RunRecord = read(json)?;
            let owner = [OwnerState::Alive, OwnerState::Gone, OwnerState::Dead][json.len() % 3];
            snapshot.running.push(Running { record, version, owner });
        }
        "control" => {
            let job = JobName::parse(key).ok()?;
            snapshot.requests.control.insert(job, ControlEntry { record: read(json)?, version });
        }
        "triggers" => {
            let seq = TriggerSeq(key.parse().ok()?);
            match Note::read(json.as_bytes()).ok()? {
                Note::Link(link) => drop(snapshot.requests.links.insert(seq, link)),
                Note::Trigger(record) => {
                    let entry = TriggerEntry { record, is_in_history: json.len() % 5 == 0 };
                    snapshot.requests.triggers.insert(seq, entry);
                }
            }
        }
        _ => return None,
    }
    Some(())
}

#[test]
fn fuzz_takeover() {
    Fuzz { longest: 8 << 10, ..Fuzz::of("ledger", LEDGER_WORDS) }.run(|input| {
        let mut snapshot = Snapshot::default();
        let read = text(input).lines().filter(|line| put(&mut snapshot, line).is_some()).count();
        let mut fixture = Fixture::new("10:00:00", jobs());
        fixture.join();
        fixture.elect(9, snapshot);
        fixture.start_all();
        for seconds in [1, 10, 4, 3_600] {
            fixture.pass(seconds);
            fixture.start_all();
            let _ = fixture.engine.wake(fixture.now);
        }
        fixture.handle(Event::Tick);
        read > 0
    });
}
