//! The journal in a file: one line of JSON per entry, replayed at the next start.
//!
//! Each entry is appended by one write. Nothing is synced: an entry survives the death of the process, and no more is
//! needed. After a crash of the host the file may lack its last lines or all of them, but then none of its processes is
//! running either. The first line contains its [`BootScope`], so that process ids of another boot, or of another node,
//! are never mistaken for ours. A line that cannot be parsed, for example because a full disk cut it short, is skipped.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::boot_scope::BootScope;
use super::{StateDirError, file};
use cronkeeper_core::run::journal::{Journal, JournalEntry, JournalState, Recovered, RecoveredRun, Written};

/// No bound, because a run that is not read is one that this node does not know of. What the file has is bounded by the
/// runs in flight.
const UNBOUNDED: u64 = u64::MAX >> 1;
/// A file with fewer lines than this is not compacted.
const COMPACT_MIN_LINES: usize = 1024;

/// A journal in a file. Only one process writes to it.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    here: BootScope,
    file: File,
    state: JournalState,
    lines: usize,
    torn: bool,
}

#[derive(Serialize, Deserialize)]
struct Header {
    v: u32,
    #[serde(flatten)]
    made: BootScope,
}

impl FileJournal {
    /// Opens a journal, creating it if it does not exist; returns also what is open in it.
    ///
    /// # Errors
    /// If it cannot be read and written.
    pub fn open(path: &Path) -> Result<(Self, Recovered), StateDirError> {
        let unread = |source| StateDirError::Read { path: path.to_owned(), source };
        let here = boot_scope(path).map_err(unread)?;
        let mut state = read(path).map_err(unread)?;
        let recovered = state.recovered();
        // From now on, because the file is rewritten below.
        state.found(Written::Here);
        let file =
            rewrite(path, &here, &state).map_err(|source| StateDirError::Write { path: path.to_owned(), source })?;
        let lines = state.len();
        Ok((Self { path: path.to_owned(), here, file, state, lines, torn: false }, recovered))
    }

    fn append(&mut self, entry: &JournalEntry) -> io::Result<()> {
        // If the last write failed halfway, this entry starts on a line of its own.
        let mut line = if self.torn { b"\n".to_vec() } else { Vec::new() };
        serde_json::to_writer(&mut line, entry)?;
        line.push(b'\n');
        self.torn = true;
        self.file.write_all(&line)?;
        self.torn = false;
        self.lines += 1;
        Ok(())
    }

    /// If the file cannot be rewritten, the old one remains in use: a longer file does no harm.
    fn compact(&mut self) {
        if let Ok(file) = rewrite(&self.path, &self.here, &self.state) {
            self.file = file;
            self.torn = false;
        }
        self.lines = self.state.len();
    }
}

impl Journal for FileJournal {
    fn store(&mut self, entry: JournalEntry) -> io::Result<()> {
        self.append(&entry)?;
        self.state.take(entry);
        if self.lines > COMPACT_MIN_LINES && self.lines > 8 * self.state.len() {
            self.compact();
        }
        Ok(())
    }

    fn open_runs(&self) -> Vec<RecoveredRun> {
        self.state.recovered().runs
    }
}

/// Reads what is open in a journal. A missing file counts as an empty journal.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> io::Result<JournalState> {
    let Some(text) = file::read_bytes(path, UNBOUNDED)? else {
        let mut state = JournalState::default();
        state.found(Written::Nowhere);
        return Ok(state);
    };
    Ok(replay(&text, &boot_scope(path)?))
}

/// The scope of a journal that is written now.
fn boot_scope(path: &Path) -> io::Result<BootScope> {
    BootScope::here(path.parent().unwrap_or(Path::new("/")))
}

fn replay(text: &[u8], here: &BootScope) -> JournalState {
    let mut state = JournalState::default();
    let mut lines = text.split(|&byte| byte == b'\n');
    let header = lines.next().and_then(|line| serde_json::from_slice::<Header>(line).ok());
    lines.filter_map(|line| serde_json::from_slice(line).ok()).for_each(|entry| state.take(entry));
    // Without its first line, its origin is unknown.
    state.found(header.map_or(Written::Elsewhere, |header| header.made.seen_from(here)));
    state
}

fn rewrite(path: &Path, here: &BootScope, state: &JournalState) -> io::Result<File> {
    let mut text = serde_json::to_vec(&Header { v: 1, made: here.clone() })?;
    text.push(b'\n');
    for entry in state.entries() {
        serde_json::to_writer(&mut text, &entry)?;
        text.push(b'\n');
    }
    file::replace_to_append(path, &text)
}

#[cfg(test)]
mod tests {
    use super::super::boot_scope::boot_id;
    use super::*;
    use crate::fuzz::Fuzz;
    use crate::fuzz::LEDGER_WORDS;
    use crate::test_records::{NullJournal, record, success};
    use cronkeeper_core::run::{KnownBy, REMEMBERED, Traces, Version};
    use cronkeeper_core::term::NodeName;

    fn filled(path: &Path) -> FileJournal {
        let (mut journal, found) = FileJournal::open(path).unwrap();
        assert_eq!((found.runs.len(), found.written), (0, Written::Nowhere));
        for job in ["a", "b", "c"] {
            journal.begun(&record(job, 60, "s"), Version::FIRST, &Traces::default()).unwrap();
        }
        journal.started(&record("a", 60, "s").id(), 1, 4242, 7, &KnownBy::Environment).unwrap();
        journal.ended(&success(record("b", 60, "s")), Version::FIRST).unwrap();
        journal.settled(&record("c", 60, "s").id()).unwrap();
        journal
    }

    #[test]
    fn the_next_process_reads_what_was_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        drop(filled(&path));
        for _ in 0..2 {
            let runs = FileJournal::open(&path).unwrap().1.runs;
            let facts: Vec<_> = runs.iter().map(|run| (run.record.job.as_str(), run.pid, run.end.is_some())).collect();
            assert_eq!(facts, [("a", Some((4242, 7)), false), ("b", None, true)]);
        }
    }

    #[test]
    fn a_torn_last_line_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        drop(filled(&path));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let runs = FileJournal::open(&path).unwrap().1.runs;
        assert_eq!(runs.iter().map(|run| run.record.job.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn the_entry_after_a_torn_line_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = filled(&path);
        journal.file.write_all(b"{\"begun\":{\"rec").unwrap();
        journal.torn = true;
        journal.settled(&record("a", 60, "s").id()).unwrap();
        assert_eq!(read(&path).unwrap().recovered().runs.len(), 1);
    }

    #[test]
    fn processes_of_another_boot_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        drop(filled(&path));
        let text = std::fs::read_to_string(&path).unwrap().replace(&boot_id(), "another-boot");
        let found = replay(text.as_bytes(), &boot_scope(&path).unwrap()).recovered();
        assert_eq!((found.written, found.runs[0].pid), (Written::BeforeBoot, None));
    }

    #[test]
    fn processes_in_a_copied_journal_are_those_of_another_node() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, copy) = (dir.path().join("journal"), other.path().join("journal"));
        drop(filled(&path));
        std::fs::copy(&path, &copy).unwrap();
        let found = FileJournal::open(&copy).unwrap().1;
        assert_eq!((found.written, found.runs[0].pid), (Written::Elsewhere, None));
        assert_eq!(FileJournal::open(&path).unwrap().1.written, Written::Here);
    }

    #[test]
    fn a_long_journal_of_settled_runs_becomes_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = filled(&path);
        for second in 0..8 * REMEMBERED as i64 {
            journal.begun(&record("d", second, "s"), Version::FIRST, &Traces::default()).unwrap();
            journal.settled(&record("d", second, "s").id()).unwrap();
        }
        assert!(std::fs::read(&path).unwrap().split(|&byte| byte == b'\n').count() < 9 * REMEMBERED);
        assert_eq!(read(&path).unwrap(), journal.state);
    }

    /// Rewriting a journal does not change what is open in it.
    #[test]
    fn fuzz_journal() {
        Fuzz::of("journal", LEDGER_WORDS).run(|input| {
            let here = BootScope::here(Path::new("/")).unwrap();
            let state = replay(input, &here);
            let recovered = state.recovered();
            let _ = (recovered.noted(), recovered.ends());
            let mut text = serde_json::to_vec(&Header { v: 1, made: here.clone() }).unwrap();
            for entry in state.entries() {
                text.push(b'\n');
                serde_json::to_writer(&mut text, &entry).unwrap();
            }
            assert_eq!(replay(&text, &here).recovered().runs, recovered.runs);
            let mut own = recovered.clone();
            own.keep_own(&NodeName::new("n"), &mut NullJournal).unwrap();
            own.end_dead(&mut NullJournal, jiff::Timestamp::MAX).unwrap();
            !state.is_empty()
        });
    }
}
