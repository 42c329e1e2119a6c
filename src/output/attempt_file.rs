//! The files of live attempts. A bounded number of them is open.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::layout::OutputKey;
use cronkeeper_cluster::safe_path::{Access, open_own};

/// Most files that are open at a time. Beyond them, the one that was written to least recently is closed.
const MOST_OPEN: usize = 128;

/// The open files. Only one process writes to each of them.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    open: BTreeMap<OutputKey, OpenFile>,
    /// Counts the writes, to know which file was used least recently.
    turn: u64,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    used: u64,
}

impl OpenFiles {
    /// Appends to the file of an attempt, which is created if it does not exist.
    ///
    /// If this fails, the file may end with a part of `bytes`.
    pub fn append(&mut self, key: &OutputKey, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.turn += 1;
        let turn = self.turn;
        if !self.open.contains_key(key) {
            self.make_room();
            let mut file = open_own(path, Access::ReadWrite)?;
            file.seek(SeekFrom::End(0))?;
            self.open.insert(key.clone(), OpenFile { file, used: turn });
        }
        let Some(open) = self.open.get_mut(key) else { return Ok(()) };
        open.used = turn;
        open.file.write_all(bytes)
    }

    pub fn close(&mut self, key: &OutputKey) {
        self.open.remove(key);
    }

    fn make_room(&mut self) {
        while self.open.len() >= MOST_OPEN {
            let Some(oldest) = self.open.iter().min_by_key(|(_, open)| open.used).map(|(key, _)| key.clone()) else {
                return;
            };
            self.open.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::run::RunId;

    #[test]
    fn any_number_of_attempts_is_written_with_few_files_open() {
        let dir = tempfile::tempdir().unwrap();
        let key = |attempt| OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt };
        let path = |attempt: u32| dir.path().join(attempt.to_string());
        let mut files = OpenFiles::default();
        for text in ["one\n", "two\n"] {
            for attempt in 0..300 {
                files.append(&key(attempt), &path(attempt), text.as_bytes()).unwrap();
            }
        }
        assert_eq!(files.open.len(), MOST_OPEN);
        assert!((0..300).all(|attempt| std::fs::read_to_string(path(attempt)).unwrap() == "one\ntwo\n"));
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join("link")).unwrap();
        let key = OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt: 1 };
        assert!(OpenFiles::default().append(&key, &dir.path().join("link"), b"x").is_err());
        assert_eq!(std::fs::read_to_string(target).unwrap(), "mine");
    }
}
