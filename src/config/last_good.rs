//! The copy of the last good jobs: what a node starts with when its jobs file is wrong or missing.
//!
//! It is kept once a set of jobs was accepted, and says which path it was read from. Only the user of the state
//! directory can read or write it: environments may hold secrets, and who writes it decides what runs. Replicas of the
//! solo backend share it, so the last one to load jobs has written it; one that has its jobs at another path does not
//! take it.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::{Content, LARGEST};
use cronkeeper_cluster::safe_path::{self, Access, Refusal, open_own};
use cronkeeper_cluster::state_dir::{StateDirError, file};
use cronkeeper_core::job::Digest;

/// Most bytes of jobs that are copied: a directory may have many files, but no node runs that many jobs.
const MOST_BYTES: usize = 4 * LARGEST;
/// Maximum size of the copy. Escaping at most doubles a text.
const LARGEST_COPY: usize = 3 * MOST_BYTES;

/// Where the copy is, and what it has to be a copy of.
#[derive(Clone, Debug)]
pub struct LastGood {
    file: PathBuf,
    /// The absolute path of the jobs file or directory.
    jobs: PathBuf,
}

/// A copy that can be used.
#[derive(Debug)]
pub struct Copy {
    pub content: Content,
    /// When the copy was made.
    pub at: Timestamp,
}

/// Why there is no copy to use.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// No jobs were ever accepted here.
    #[error("there are no last good jobs in `{}`", .0.display())]
    Missing(PathBuf),
    #[error("`{}` cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It is not what this program wrote.
    #[error("`{}` is damaged", .0.display())]
    Damaged(PathBuf),
    #[error("`{}` has the jobs of `{}`, and not those of `{}`", path.display(), of.display(), wanted.display())]
    OtherJobs { path: PathBuf, of: PathBuf, wanted: PathBuf },
}

/// The file's format.
#[derive(Serialize, Deserialize)]
struct Document {
    v: u32,
    at: Timestamp,
    /// The jobs path.
    of: PathBuf,
    /// Of the files, to detect damage.
    digest: Digest,
    files: Vec<CopiedFile>,
    /// The calendars that the files name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calendars: Vec<CopiedFile>,
}

#[derive(Serialize, Deserialize)]
struct CopiedFile {
    path: PathBuf,
    text: String,
}

impl LastGood {
    /// The copy in a state directory, for a node with its jobs at this path.
    pub fn new(state_dir: &Path, jobs: &Path) -> Self {
        let jobs = std::path::absolute(jobs).unwrap_or_else(|_| jobs.to_owned());
        Self { file: state_dir.join("last-good.json"), jobs }
    }

    /// Replaces the copy by jobs that were accepted.
    ///
    /// If that fails, there is no copy any more: an older one would bring back jobs that were changed or removed since.
    ///
    /// # Errors
    /// If it cannot be written, or is larger than what is kept.
    pub fn keep(&self, content: &Content, at: Timestamp) -> Result<(), StateDirError> {
        let kept = self.write(content, at);
        if kept.is_err() {
            // What prevents the new copy need not prevent this.
            let _ = fs::remove_file(&self.file);
        }
        kept
    }

    fn write(&self, content: &Content, at: Timestamp) -> Result<(), StateDirError> {
        let failed = |source| StateDirError::Write { path: self.file.clone(), source };
        let size: usize = content.files().chain(content.calendars()).map(|(_, bytes)| bytes.len()).sum();
        if size > MOST_BYTES {
            let why = format!("the jobs files have more than {} MiB", MOST_BYTES >> 20);
            return Err(failed(io::Error::new(ErrorKind::FileTooLarge, why)));
        }
        // What was accepted is UTF-8.
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let copy = |(path, bytes): (&Path, &[u8])| CopiedFile { path: path.to_owned(), text: text(bytes) };
        let (files, calendars) = (content.files().map(copy).collect(), content.calendars().map(copy).collect());
        let document = Document { v: 1, at, of: self.jobs.clone(), digest: content.digest(), files, calendars };
        file::replace(&self.file, &document)
    }

    /// Reads the copy, for a start without valid jobs.
    ///
    /// # Errors
    /// If there is none, or if it is not one that this node made of its own jobs.
    pub fn read(&self) -> Result<Copy, CopyError> {
        let document = self.document()?;
        if document.of != self.jobs {
            let (path, wanted) = (self.file.clone(), self.jobs.clone());
            return Err(CopyError::OtherJobs { path, of: document.of, wanted });
        }
        let original = |file: CopiedFile| (file.path, file.text.into_bytes());
        let content = Content::of_files(&self.jobs, document.files.into_iter().map(original));
        let content = content.with_calendars(document.calendars.into_iter().map(original));
        match document.v == 1 && content.digest() == document.digest {
            true => Ok(Copy { content, at: document.at }),
            false => Err(CopyError::Damaged(self.file.clone())),
        }
    }

    fn document(&self) -> Result<Document, CopyError> {
        let bytes = self.bytes().map_err(|error| match error.kind() {
            ErrorKind::NotFound => CopyError::Missing(self.file.clone()),
            _ => CopyError::Unreadable { path: self.file.clone(), source: error },
        })?;
        let damaged = || CopyError::Damaged(self.file.clone());
        if bytes.len() > LARGEST_COPY {
            return Err(damaged());
        }
        serde_json::from_slice(&bytes).map_err(|_| damaged())
    }

    /// At a start, the directory is not open yet, so it is checked here.
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        safe_path::check_folder(directory).map_err(|refusal| match refusal {
            Refusal::Unsafe(why) => why.into(),
            Refusal::Io(error) => error,
        })?;
        let mut bytes = Vec::new();
        open_own(&self.file, Access::Read)?.take(LARGEST_COPY as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::fuzz::Fuzz;

    const AT: Timestamp = Timestamp::UNIX_EPOCH;

    fn content(text: &str) -> Content {
        Content::of_files(Path::new("/etc/jobs"), [("/etc/jobs/a.yaml".into(), text.as_bytes().to_owned())])
    }

    fn kept(text: &str) -> (tempfile::TempDir, LastGood) {
        let dir = tempfile::tempdir().unwrap();
        let copy = LastGood::new(dir.path(), Path::new("/etc/jobs"));
        copy.keep(&content(text), AT).unwrap();
        (dir, copy)
    }

    #[test]
    fn a_copy_is_read_as_it_was_kept_and_only_its_owner_can_read_it() {
        let text = "\u{feff}jobs: {}\r\n# \"ä\"\n";
        let (_dir, copy) = kept(text);
        let read = copy.read().unwrap();
        assert_eq!((read.at, read.content.digest()), (AT, content(text).digest()));
        assert_eq!(read.content.files().collect::<Vec<_>>(), content(text).files().collect::<Vec<_>>());
        assert_eq!(fs::metadata(&copy.file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_calendars_are_kept_with_the_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let copy = LastGood::new(dir.path(), Path::new("/etc/jobs"));
        let text = "jobs: {a: {schedule: '@daily', command: x, calendar: {exclude: x.txt}}}";
        let calendar = ("/etc/jobs/x.txt".into(), b"12-25 Christmas\n".to_vec());
        let content = content(text).with_calendars([calendar]);
        copy.keep(&content, AT).unwrap();
        let read = copy.read().unwrap().content;
        assert_eq!(read.digest(), content.digest());
        assert_eq!(read.load_for_any_host().unwrap().set, content.load_for_any_host().unwrap().set);
        let good = fs::read_to_string(&copy.file).unwrap();
        fs::write(&copy.file, good.replace("12-25", "12-26")).unwrap();
        assert!(matches!(copy.read(), Err(CopyError::Damaged(_))));
    }

    #[test]
    fn a_copy_of_other_jobs_is_not_taken() {
        let (dir, _) = kept("jobs: {}");
        let other = LastGood::new(dir.path(), Path::new("/etc/other")).read().unwrap_err();
        assert!(matches!(&other, CopyError::OtherJobs { .. }), "{other}");
        assert!(other.to_string().ends_with("has the jobs of `/etc/jobs`, and not those of `/etc/other`"), "{other}");
    }

    #[test]
    fn a_missing_damaged_or_foreign_copy_is_not_taken() {
        let (_dir, copy) = kept("jobs: {a: {schedule: '@daily', command: x}}");
        let good = fs::read_to_string(&copy.file).unwrap();
        for bad in
            ["", "{}", &good[..good.len() / 2], &good.replace("@daily", "@hourly"), &good.replace("\"v\":1", "\"v\":2")]
        {
            fs::write(&copy.file, bad).unwrap();
            assert!(matches!(copy.read(), Err(CopyError::Damaged(_))), "{bad}");
        }
        fs::remove_file(&copy.file).unwrap();
        assert!(matches!(copy.read(), Err(CopyError::Missing(_))));
        std::os::unix::fs::symlink("/etc/passwd", &copy.file).unwrap();
        assert!(matches!(copy.read(), Err(CopyError::Unreadable { .. })));
    }

    #[test]
    fn a_copy_in_a_directory_that_others_may_write_to_is_not_taken() {
        let (dir, copy) = kept("jobs: {}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(copy.read(), Err(CopyError::Unreadable { .. })));
    }

    #[test]
    fn jobs_that_cannot_be_kept_leave_no_older_copy() {
        let (_dir, copy) = kept("jobs: {}");
        let large = format!("jobs: {{}}\n#{}", "x".repeat(MOST_BYTES));
        let refused = copy.keep(&content(&large), AT).unwrap_err();
        assert!(matches!(refused, StateDirError::Write { .. }), "{refused}");
        assert!(matches!(copy.read(), Err(CopyError::Missing(_))));
    }

    #[test]
    fn fuzz_copies() {
        let words = &["\"jobs\":\"/j\"", "\"files\":[]", "\"at\":\"2026-11-20T10:00:00Z\"", "jobs: {}", "{}", "null"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("last-good", words) }.run(|input| {
            thread_local!(static DIR: tempfile::TempDir = tempfile::tempdir().unwrap());
            let copy = LastGood::new(DIR.with(|dir| dir.path().to_owned()).as_path(), Path::new("/j"));
            fs::write(&copy.file, input).unwrap();
            if let Err(error) = copy.read() {
                assert!(error.to_string().contains(&*copy.file.to_string_lossy()), "{error}");
            }
            copy.document().is_ok()
        });
    }
}
