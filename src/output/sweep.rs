//! Removal of old output, the oldest first.
//!
//! Sweeping visits every file, so it happens at the start, once an hour, and when what was written since exceeds a
//! limit; it then removes a little more than necessary, so that the next sweep is not due at once. Memory is bounded:
//! a pass remembers only the oldest files.

use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::layout::{OutputKey, entries, folders};

/// Most files that one pass over the directories remembers and removes, besides those that are too old.
const REMEMBERED: usize = 2_000;
/// The least disk space that a file takes; it grows in multiples of this.
pub(super) const BLOCK: u64 = 4 << 10;

/// What the files of ended attempts take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Bytes on disk.
    pub bytes: u64,
    pub files: u64,
}

/// The most that may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Files that were last written before this are removed.
    pub not_before: SystemTime,
    pub usage: Usage,
}

/// The disk space of a file of this length.
pub(super) fn space(length: u64) -> u64 {
    length.div_ceil(BLOCK).max(1) * BLOCK
}

impl Usage {
    pub fn exceeds(&self, other: &Self) -> bool {
        self.bytes > other.bytes || self.files > other.files
    }

    pub fn add(&mut self, length: u64) {
        self.bytes += space(length);
        self.files += 1;
    }

    fn remove(&mut self, length: u64) {
        self.bytes = self.bytes.saturating_sub(space(length));
        self.files = self.files.saturating_sub(1);
    }

    /// A twentieth less.
    fn lowered(&self) -> Self {
        Self { bytes: self.bytes - self.bytes / 20, files: self.files - self.files / 20 }
    }
}

/// Removes files below `ended` until what is left is within the limits. Returns what is left.
///
/// # Errors
/// If the directory cannot be listed, or a file cannot be removed.
pub(super) fn sweep(ended: &Path, limits: &Limits) -> io::Result<Usage> {
    let mut pass = one_pass(ended, limits)?;
    if !pass.usage.exceeds(&limits.usage) {
        return Ok(pass.usage);
    }
    let wanted = limits.usage.lowered();
    while pass.usage.exceeds(&wanted) && !pass.oldest.is_empty() {
        remove_oldest(&mut pass, &wanted)?;
        if pass.usage.exceeds(&wanted) {
            pass = one_pass(ended, limits)?;
        }
    }
    Ok(pass.usage)
}

struct Pass {
    usage: Usage,
    /// The oldest files; the newest of them is on top.
    oldest: BinaryHeap<KeptFile>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KeptFile {
    written: SystemTime,
    path: PathBuf,
    length: u64,
}

/// Counts all files, and removes those that are too old, and directories that are empty.
fn one_pass(ended: &Path, limits: &Limits) -> io::Result<Pass> {
    let mut pass = Pass { usage: Usage::default(), oldest: BinaryHeap::new() };
    for folder in folders(ended)? {
        let mut is_empty = true;
        for entry in entries(&folder)? {
            let entry = entry?;
            is_empty = false;
            let Some(file) = kept_file(&entry)? else { continue };
            if file.written < limits.not_before {
                remove(&file.path)?;
                continue;
            }
            pass.usage.add(file.length);
            pass.oldest.push(file);
            if pass.oldest.len() > REMEMBERED {
                pass.oldest.pop();
            }
        }
        if is_empty {
            // Fails if a file was just put there.
            let _ = fs::remove_dir(&folder);
        }
    }
    Ok(pass)
}

/// The file of an entry; `None` if it is not ours, or gone by now.
fn kept_file(entry: &fs::DirEntry) -> io::Result<Option<KeptFile>> {
    if entry.file_name().to_str().and_then(OutputKey::parse).is_none() {
        return Ok(None);
    }
    match entry.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(facts) if !facts.is_file() => Ok(None),
        facts => {
            let facts = facts?;
            Ok(Some(KeptFile { written: facts.modified()?, path: entry.path(), length: facts.len() }))
        }
    }
}

fn remove_oldest(pass: &mut Pass, wanted: &Usage) -> io::Result<()> {
    for file in std::mem::take(&mut pass.oldest).into_sorted_vec() {
        if !pass.usage.exceeds(wanted) {
            return Ok(());
        }
        remove(&file.path)?;
        pass.usage.remove(file.length);
    }
    Ok(())
}

/// Removes a file. Another daemon of this host may have been faster.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The instant before which output is too old.
pub(super) fn before(now: SystemTime, age: Duration) -> SystemTime {
    now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { not_before: SystemTime::UNIX_EPOCH, usage: Usage { bytes: 1 << 30, files: 1_000_000 } };

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn put(ended: &Path, job: &str, second: u64, length: usize) {
        let folder = ended.join(job);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{job}.20261120T{:06}Z.a1.jsonl", second % 60 + second / 60 * 100));
        fs::write(&path, vec![b'x'; length]).unwrap();
        fs::File::options().append(true).open(path).unwrap().set_modified(at(second)).unwrap();
    }

    fn names(ended: &Path) -> Vec<String> {
        let files = folders(ended).unwrap().into_iter().flat_map(|folder| entries(&folder).unwrap());
        let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_too_old_goes_and_so_does_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a", 1, 10);
        put(dir.path(), "b", 5, 10);
        let limits = Limits { not_before: at(3), ..LIMITS };
        assert_eq!(sweep(dir.path(), &limits).unwrap(), Usage { bytes: BLOCK, files: 1 });
        assert_eq!(names(dir.path()), ["b.20261120T000005Z.a1.jsonl"]);
        assert_eq!(sweep(dir.path(), &limits).unwrap().files, 1);
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn beyond_the_size_the_oldest_go_first_whichever_job_they_are_of() {
        let dir = tempfile::tempdir().unwrap();
        (0..30).for_each(|second| put(dir.path(), if second % 2 == 0 { "a" } else { "b" }, second, 5_000));
        let usage = Usage { bytes: 20 * 2 * BLOCK, files: 1_000 };
        let left = sweep(dir.path(), &Limits { usage, ..LIMITS }).unwrap();
        assert_eq!(left, Usage { bytes: 19 * 2 * BLOCK, files: 19 });
        assert!(!names(dir.path()).iter().any(|name| name.contains("000010Z")), "{:?}", names(dir.path()));
        assert!(names(dir.path()).iter().any(|name| name.contains("000011Z")));
    }

    #[test]
    fn beyond_the_number_the_oldest_go_first_in_as_many_passes_as_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        (0..(REMEMBERED as u64 + 500)).for_each(|second| put(dir.path(), "a", second, 1));
        let usage = Usage { bytes: u64::MAX, files: 100 };
        let left = sweep(dir.path(), &Limits { usage, ..LIMITS }).unwrap();
        assert_eq!((left.files, names(dir.path()).len()), (95, 95));
        assert!(names(dir.path())[0].starts_with("a.20261120T004005Z"), "{}", names(dir.path())[0]);
    }

    #[test]
    fn files_of_others_are_neither_counted_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a", 1, 1);
        fs::write(dir.path().join("a/notes.txt"), "mine").unwrap();
        fs::write(dir.path().join("top"), "mine").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("etc")).unwrap();
        let limits = Limits { not_before: at(100), ..LIMITS };
        assert_eq!(sweep(dir.path(), &limits).unwrap(), Usage::default());
        assert!(dir.path().join("a/notes.txt").exists() && dir.path().join("top").exists());
    }
}
