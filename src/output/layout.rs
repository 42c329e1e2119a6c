//! Names and places of the files.
//!
//! ```text
//! output/live/<writer>.lock                          held while the writer, a daemon, is alive
//! output/live/<writer>/<run>.a<attempt>.jsonl        what an attempt has written so far
//! output/ended/<job>/<run>.a<attempt>.jsonl[.gz]     the same after its end
//! ```
//!
//! Names are made from checked job names and run ids only. A file with any other name is not ours: it is neither
//! counted, shown nor removed.

use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use cronkeeper_cluster::safe_path::{self, Refusal};
use cronkeeper_cluster::state_dir::lock::{self, FileLock};
use cronkeeper_core::run::RunId;

/// Identifies the output of one attempt of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutputKey {
    pub run: RunId,
    /// From 1.
    pub attempt: u32,
}

impl OutputKey {
    pub(super) fn file_name(&self) -> String {
        format!("{}.a{}.jsonl", self.run, self.attempt)
    }

    /// Parses a file's name. The second value is true if the file is compressed.
    pub(super) fn parse(name: &str) -> Option<(Self, bool)> {
        let plain = name.strip_suffix(".gz");
        let (run, attempt) = plain.unwrap_or(name).strip_suffix(".jsonl")?.rsplit_once(".a")?;
        let key = Self { run: RunId::parse(run).ok()?, attempt: attempt.parse().ok()? };
        let stem = plain.unwrap_or(name);
        (key.file_name() == stem).then_some((key, plain.is_some()))
    }
}

/// The directories of kept output.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
    /// This process's own directory of live files.
    own: PathBuf,
}

impl Layout {
    /// The directories below `root`, with a new directory for the live files of this process.
    pub fn new(root: &Path) -> Self {
        let own = root.join("live").join(Uuid::new_v4().simple().to_string());
        Self { root: root.to_owned(), own }
    }

    /// Creates the directories, so that no other user can write to them. Returns the lock that shows that this process
    /// is alive; it is there before the directory, so that no other process takes that for a dead one's.
    pub fn create(&self) -> io::Result<FileLock> {
        make_folder(&self.ended())?;
        make_folder(&self.root.join("live"))?;
        let lock = FileLock::make(&lock_of(&self.own))?;
        make_folder(&self.own)?;
        Ok(lock)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn own(&self) -> &Path {
        &self.own
    }

    pub fn ended(&self) -> PathBuf {
        self.root.join("ended")
    }

    pub fn own_live(&self, key: &OutputKey) -> PathBuf {
        self.own.join(key.file_name())
    }

    /// The directory of a job's ended attempts.
    pub fn of_job(&self, key: &OutputKey) -> PathBuf {
        self.ended().join(key.run.job().as_str())
    }

    pub fn ended_plain(&self, key: &OutputKey) -> PathBuf {
        self.of_job(key).join(key.file_name())
    }

    pub fn ended_compressed(&self, key: &OutputKey) -> PathBuf {
        self.of_job(key).join(format!("{}.gz", key.file_name()))
    }

    /// The directories of all writers, dead or alive.
    pub fn writers(&self) -> io::Result<Vec<PathBuf>> {
        folders(&self.root.join("live"))
    }
}

/// The lock file beside a writer's directory.
pub(super) fn lock_of(writer: &Path) -> PathBuf {
    writer.with_extension("lock")
}

/// True while the daemon that writes to this directory is alive. If that is unknown, it counts as alive.
pub(super) fn is_alive(writer: &Path) -> bool {
    lock::is_held(&lock_of(writer)).unwrap_or(true)
}

/// The directories in a directory; none if it does not exist.
pub(super) fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The entries of a directory; none if it does not exist.
pub(super) fn entries(path: &Path) -> io::Result<impl Iterator<Item = io::Result<std::fs::DirEntry>> + use<>> {
    let read = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read?),
    };
    Ok(read.into_iter().flatten())
}

/// Creates a directory that no other user can write to or replace.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    safe_path::make_folder(path).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => found.into(),
        Refusal::Io(error) => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    #[test]
    fn a_name_is_read_back_and_has_one_spelling() {
        for run in ["a.20261120T023000Z", "a.a1.jsonl.20261120T023000Z.m7"] {
            let key = OutputKey { run: RunId::parse(run).unwrap(), attempt: 12 };
            let name = key.file_name();
            assert_eq!(OutputKey::parse(&name), Some((key.clone(), false)));
            assert_eq!(OutputKey::parse(&format!("{name}.gz")), Some((key, true)));
        }
        for other in ["lock", "a.20261120T023000Z.a01.jsonl", "a.20261120T023000Z.a+1.jsonl", "../x.a1.jsonl", ".gz"] {
            assert_eq!(OutputKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn fuzz_names_of_output_files() {
        let words = &["load.20261120T023000Z", ".a1", ".jsonl", ".gz", ".m7", "..", "/", "lock"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("output-names", words) }.run(|input| {
            let parsed = OutputKey::parse(&text(input));
            if let Some((key, _)) = &parsed {
                let layout = Layout::new(Path::new("/state/output"));
                for path in [layout.own_live(key), layout.ended_plain(key), layout.ended_compressed(key)] {
                    assert!(path.starts_with("/state/output") && path.file_name().is_some(), "{path:?}");
                    assert!(path.components().all(|part| part.as_os_str() != ".."), "{path:?}");
                }
            }
            parsed.is_some()
        });
    }
}
