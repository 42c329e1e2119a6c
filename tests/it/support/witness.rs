//! Witness of the jobs in tests: records their runs, and checks that no promise was broken.
//!
//! A job runs the witness, a shell script that appends a line to a file at its start and at its end. It uses O_APPEND
//! and one write per line, so the order of lines is the order of writes. The processes of the job's tree hold a lock
//! that the kernel releases with the last of them, so that overlaps are detected with certainty, even after a SIGKILL.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::scratch::Scratch;
use super::until;

const SCRIPT: &str = include_str!("witness/witness.sh");

/// The script and its file.
#[derive(Debug)]
pub struct Witness {
    dir: Scratch,
}

/// The event that a line records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// An attempt began.
    Start,
    /// An attempt ended by itself.
    End,
    /// An attempt began while a process of another attempt of the job was alive, or of the same node's share of it.
    Overlap,
}

/// A line of the witness's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mark: Mark,
    /// CRONKEEPER_JOB.
    pub job: String,
    /// CRONKEEPER_RUN_ID.
    pub run: String,
    /// CRONKEEPER_ATTEMPT.
    pub attempt: u32,
    /// CRONKEEPER_SCHEDULED_AT.
    pub scheduled_at: String,
    /// CRONKEEPER_NODE.
    pub node: String,
    /// CRONKEEPER_FENCING_TOKEN.
    pub token: i64,
    /// PID of the main process.
    pub pid: u32,
    /// Realtime clock, in nanoseconds since the epoch.
    pub at_ns: i128,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One attempt of a run began twice.
    Twice(Entry),
    /// Two attempts of a job ran at the same time.
    Overlap(Entry),
    /// An attempt of an older leader began after one of a newer leader.
    TokenWentBack {
        /// The newest token seen before.
        newest: i64,
        /// The older token of the late attempt.
        late: Entry,
    },
}

impl Witness {
    /// Creates a witness with an empty file.
    pub fn new() -> Self {
        let dir = Scratch::new("witness");
        dir.write("witness.sh", SCRIPT);
        dir.write("seen", "");
        Self { dir }
    }

    /// The `command` of a job, as one line of YAML: the witness runs `command`, an argv, or nothing if it is empty.
    pub fn command(&self, command: &[&str]) -> String {
        let script = self.dir.path().join("witness.sh").display().to_string();
        let file = self.file().display().to_string();
        let own = ["sh", &script, &file];
        // JSON is YAML.
        serde_json::to_string(&own.iter().chain(command).collect::<Vec<_>>()).expect("texts are JSON")
    }

    /// Waits until so many more lines are there.
    pub fn await_more(&self, count: usize) {
        let seen = self.entries().len();
        until("jobs run", || self.entries().len() >= seen + count);
    }

    /// All lines so far.
    pub fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(self.file()).expect("the file is there");
        text.lines().map(|line| Entry::parse(line).unwrap_or_else(|| panic!("the witness wrote `{line}`"))).collect()
    }

    /// Fails the test if a promise was broken. The argument lists jobs with `overlap: allow`.
    pub fn assert_fine(&self, may_overlap: &[&str]) {
        let faults = faults(&self.entries(), may_overlap);
        assert!(faults.is_empty(), "the jobs saw broken promises: {faults:#?}");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("seen")
    }
}

impl Entry {
    /// The job, and the node whose share of it this is.
    fn sequence(&self) -> (&str, Option<&str>) {
        (&self.job, self.run.split_once('@').map(|(_, node)| node))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next().map(str::to_owned);
        let mark = match next()?.as_str() {
            "start" => Mark::Start,
            "end" => Mark::End,
            "overlap" => Mark::Overlap,
            _ => return None,
        };
        Some(Self {
            mark,
            job: next()?,
            run: next()?,
            attempt: next()?.parse().ok()?,
            scheduled_at: next()?,
            node: next()?,
            token: next()?.parse().ok()?,
            pid: next()?.parse().ok()?,
            at_ns: next()?.parse().ok()?,
        })
    }
}

/// The violations in these lines.
///
/// Tokens are compared within a job only, and within a node's share of it: after a resignation, a line of the old leader's last run of one job may come
/// after one of the new leader's first run of another.
pub fn faults(entries: &[Entry], may_overlap: &[&str]) -> Vec<Fault> {
    let mut begun = BTreeSet::new();
    let mut newest = BTreeMap::<(&str, Option<&str>), i64>::new();
    let mut faults = Vec::new();
    for entry in entries {
        let overlaps = !may_overlap.contains(&entry.job.as_str());
        match entry.mark {
            Mark::End => {}
            Mark::Overlap if overlaps => faults.push(Fault::Overlap(entry.clone())),
            Mark::Overlap => {}
            Mark::Start => {
                if !begun.insert((&entry.run, entry.attempt)) {
                    faults.push(Fault::Twice(entry.clone()));
                }
                let newest = newest.entry(entry.sequence()).or_insert(entry.token);
                if entry.token < *newest {
                    faults.push(Fault::TokenWentBack { newest: *newest, late: entry.clone() });
                }
                *newest = entry.token.max(*newest);
            }
        }
    }
    faults
}
