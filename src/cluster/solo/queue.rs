//! The queue of candidates: one locked file each, in the order of joining.
//!
//! A candidate's file is locked from its creation on. So the process of a file that is not locked is gone, and any
//! process that finds such a file removes it. Sequence numbers are assigned under the queue's lock (`queue.door`), so
//! that the name of a candidate is never used again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::state_dir::lock::{self, FileLock, Kind};
use cronkeeper_core::election::Candidate;
use cronkeeper_core::term::{CandidateName, NodeName};

#[derive(Clone, Debug)]
pub(super) struct Queue {
    directory: PathBuf,
    /// Serializes joining; its text is the newest sequence number.
    lock: PathBuf,
}

/// This process's position in the queue, held until dropped.
#[derive(Debug)]
pub(super) struct QueuePosition {
    entry: QueueEntry,
    lock: FileLock,
}

/// A candidate's entry, ordered by sequence number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueEntry {
    sequence: u64,
    pub(super) node: NodeName,
}

impl Queue {
    pub(super) fn new(directory: PathBuf, lock: PathBuf) -> Self {
        Self { directory, lock }
    }

    /// Runs `step` while holding the queue's lock.
    pub(super) fn with_lock<T>(&self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _lock = FileLock::take(&self.lock, Kind::Exclusive)?;
        step()
    }

    pub(super) fn join(&self, node: &NodeName) -> io::Result<QueuePosition> {
        let lock = FileLock::take(&self.lock, Kind::Exclusive)?;
        // The listing matters only if the lock file was removed, and the number in it is lost.
        let listed = self.entries()?.last().map_or(0, |entry| entry.sequence);
        let sequence = lock.text()?.trim().parse::<u64>().unwrap_or(0).max(listed).saturating_add(1);
        lock.set_text(&format!("{sequence:010}\n"))?;
        let entry = QueueEntry { sequence, node: node.clone() };
        let lock = FileLock::make(&self.path(&entry))?;
        Ok(QueuePosition { entry, lock })
    }

    /// The candidates whose processes are alive, in order. Removes the files of the others.
    pub(super) fn alive(&self) -> io::Result<Vec<QueueEntry>> {
        let mut alive = Vec::new();
        for entry in self.entries()? {
            if lock::is_held(&self.path(&entry))? {
                alive.push(entry);
            } else {
                remove(&self.path(&entry))?;
            }
        }
        Ok(alive)
    }

    pub(super) fn path(&self, entry: &QueueEntry) -> PathBuf {
        self.directory.join(entry.name().0)
    }

    fn entries(&self) -> io::Result<Vec<QueueEntry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.directory)? {
            entries.extend(file?.file_name().to_str().and_then(QueueEntry::parse));
        }
        entries.sort();
        Ok(entries)
    }
}

impl QueueEntry {
    fn parse(name: &str) -> Option<Self> {
        let (sequence, node) = name.split_once('@')?;
        Some(Self { sequence: sequence.parse().ok()?, node: NodeName::parse(node).ok()? })
    }

    pub(super) fn name(&self) -> CandidateName {
        CandidateName(format!("{:010}@{}", self.sequence, self.node))
    }

    pub(super) fn candidate(&self) -> Candidate {
        Candidate { candidate: self.name(), node: Some(self.node.clone()) }
    }
}

impl QueuePosition {
    pub(super) fn entry(&self) -> &QueueEntry {
        &self.entry
    }

    /// False if the file was removed by hand.
    pub(super) fn is_intact(&self) -> bool {
        self.lock.is_current()
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        if self.lock.is_current() {
            let _ = remove(self.lock.path()); // if it fails, the next process to list the queue removes the file
        }
    }
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn queue() -> (tempfile::TempDir, Queue) {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("queue");
        fs::create_dir(&directory).unwrap();
        let queue = Queue::new(directory, dir.path().join("door"));
        (dir, queue)
    }

    #[test]
    fn candidates_are_in_the_order_of_joining_whatever_their_names() {
        let (_dir, queue) = queue();
        let positions: Vec<_> = ["z", "a", "m"].iter().map(|node| queue.join(&NodeName::new(*node)).unwrap()).collect();
        let nodes = |queue: &Queue| queue.alive().unwrap().into_iter().map(|entry| entry.node).collect::<Vec<_>>();
        assert_eq!(nodes(&queue), [NodeName::new("z"), NodeName::new("a"), NodeName::new("m")]);
        drop(positions);
        assert!(nodes(&queue).is_empty());
    }

    #[test]
    fn a_name_is_never_used_again() {
        let (_dir, queue) = queue();
        let first = queue.join(&NodeName::new("a")).unwrap().entry().name();
        assert_ne!(queue.join(&NodeName::new("a")).unwrap().entry().name(), first);
    }

    #[test]
    fn a_sequence_number_at_its_maximum_does_not_change_the_order() {
        let (_dir, queue) = queue();
        let first = queue.join(&NodeName::new("a")).unwrap();
        fs::write(&queue.lock, u64::MAX.to_string()).unwrap();
        let last = queue.join(&NodeName::new("b")).unwrap();
        assert_eq!(queue.alive().unwrap(), [&first.entry, &last.entry].map(QueueEntry::clone));
    }

    #[test]
    fn the_file_of_a_dead_candidate_is_removed() {
        let (_dir, queue) = queue();
        let dead = queue.directory.join("0000000007@a");
        fs::write(&dead, "").unwrap();
        assert!(queue.alive().unwrap().is_empty());
        assert!(!dead.exists());
    }

    #[test]
    fn fuzz_names_of_candidates() {
        let words = &["@", "0000000007", "18446744073709551615", "+7", "a", "..", "host-a"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("solo-candidates", words) }.run(|input| {
            let read = QueueEntry::parse(&text(input));
            if let Some(entry) = &read {
                assert_eq!(QueueEntry::parse(&entry.name().0).as_ref(), Some(entry));
            }
            read.is_some()
        });
    }
}
