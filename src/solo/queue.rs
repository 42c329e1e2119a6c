//! The queue: one locked file for each candidate, in the order of joining.
//!
//! A candidate's file appears locked, so a file that is not locked is one whose process is gone; whoever comes upon it
//! removes it. The sequence is counted at the door, so that no candidate's name is ever used again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::election::Candidate;
use crate::state_dir::lock::{self, FileLock, Kind};
use crate::term::{CandidateName, NodeName};

#[derive(Clone, Debug)]
pub(super) struct Queue {
    folder: PathBuf,
    lock: PathBuf,
}

/// The own place in the queue, until dropped.
#[derive(Debug)]
pub(super) struct Place {
    entry: Entry,
    lock: FileLock,
}

/// A candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    sequence: u64,
    pub(super) node: NodeName,
}

impl Queue {
    pub(super) fn new(folder: PathBuf, lock: PathBuf) -> Self {
        Self { folder, lock }
    }

    /// Runs `step` while no other process of this directory is in such a step.
    pub(super) fn at_the_door<T>(&self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _door = FileLock::take(&self.lock, Kind::Exclusive)?;
        step()
    }

    pub(super) fn join(&self, node: &NodeName) -> io::Result<Place> {
        let lock = FileLock::take(&self.lock, Kind::Exclusive)?;
        // The listing matters only where the door's file was removed.
        let listed = self.entries()?.last().map_or(0, |entry| entry.sequence);
        let sequence = lock.text()?.trim().parse::<u64>().unwrap_or(0).max(listed).saturating_add(1);
        lock.set_text(&format!("{sequence:010}\n"))?;
        let entry = Entry { sequence, node: node.clone() };
        let lock = FileLock::make(&self.path(&entry))?;
        Ok(Place { entry, lock })
    }

    /// The candidates that live, in order.
    pub(super) fn living(&self) -> io::Result<Vec<Entry>> {
        let mut living = Vec::new();
        for entry in self.entries()? {
            if lock::is_held(&self.path(&entry))? {
                living.push(entry);
            } else {
                remove(&self.path(&entry))?;
            }
        }
        Ok(living)
    }

    pub(super) fn path(&self, entry: &Entry) -> PathBuf {
        self.folder.join(entry.name().0)
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            entries.extend(file?.file_name().to_str().and_then(Entry::parse));
        }
        entries.sort();
        Ok(entries)
    }
}

impl Entry {
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

impl Place {
    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// False where the file was removed by hand.
    pub(super) fn stands(&self) -> bool {
        self.lock.is_current()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.lock.is_current() {
            let _ = remove(self.lock.path()); // left unlocked it counts as gone, and the next to list removes it
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
        let folder = dir.path().join("queue");
        fs::create_dir(&folder).unwrap();
        let queue = Queue::new(folder, dir.path().join("door"));
        (dir, queue)
    }

    #[test]
    fn candidates_stand_in_the_order_of_joining_whatever_their_names() {
        let (_dir, queue) = queue();
        let places: Vec<_> = ["z", "a", "m"].iter().map(|node| queue.join(&NodeName::new(*node)).unwrap()).collect();
        let nodes = |queue: &Queue| queue.living().unwrap().into_iter().map(|entry| entry.node).collect::<Vec<_>>();
        assert_eq!(nodes(&queue), [NodeName::new("z"), NodeName::new("a"), NodeName::new("m")]);
        drop(places);
        assert!(nodes(&queue).is_empty());
    }

    #[test]
    fn a_name_is_never_used_again() {
        let (_dir, queue) = queue();
        let first = queue.join(&NodeName::new("a")).unwrap().entry().name();
        assert_ne!(queue.join(&NodeName::new("a")).unwrap().entry().name(), first);
    }

    #[test]
    fn nobody_overtakes_by_a_count_that_is_at_its_end() {
        let (_dir, queue) = queue();
        let first = queue.join(&NodeName::new("a")).unwrap();
        fs::write(&queue.lock, u64::MAX.to_string()).unwrap();
        let last = queue.join(&NodeName::new("b")).unwrap();
        assert_eq!(queue.living().unwrap(), [&first.entry, &last.entry].map(Entry::clone));
    }

    #[test]
    fn the_file_of_a_dead_candidate_is_removed() {
        let (_dir, queue) = queue();
        let dead = queue.folder.join("0000000007@a");
        fs::write(&dead, "").unwrap();
        assert!(queue.living().unwrap().is_empty());
        assert!(!dead.exists());
    }

    #[test]
    fn fuzz_names_of_candidates() {
        let words = &["@", "0000000007", "18446744073709551615", "+7", "a", "..", "host-a"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("solo-candidates", words) }.run(|input| {
            let read = Entry::parse(&text(input));
            if let Some(entry) = &read {
                assert_eq!(Entry::parse(&entry.name().0).as_ref(), Some(entry));
            }
            read.is_some()
        });
    }
}
