//! The files behind a jobs path: which they are, whether they can be trusted, and their bytes.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{LoadError, Problem};
use crate::config::source::LARGEST;

const GROUP_WRITABLE: u32 = 0o020;
const WORLD_WRITABLE: u32 = 0o002;

/// One file as it was read.
pub(super) struct Source {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

/// All that was found at a path.
#[derive(Default)]
pub(super) struct Found {
    pub sources: Vec<Source>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

/// Reads a file, or the `*.yaml` and `*.yml` of a folder in the order of their names.
pub(super) fn read(path: &Path) -> Result<Found, LoadError> {
    let mut found = Found::default();
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Unreadable { path, source }
    };
    let file = open(path).map_err(unreadable(path))?;
    let metadata = file.metadata().map_err(unreadable(path))?;
    found.judge(path, &metadata);
    if !metadata.is_dir() {
        found.take(path, file, &metadata).map_err(unreadable(path))?;
        return Ok(found);
    }
    let names = job_files(path).map_err(unreadable(path))?;
    if names.is_empty() {
        found.problems.push(Problem::of_file(path, "the folder has no `*.yaml` or `*.yml`"));
    }
    for path in names {
        let file = open(&path).map_err(unreadable(&path))?;
        let metadata = file.metadata().map_err(unreadable(&path))?;
        found.judge(&path, &metadata);
        found.take(&path, file, &metadata).map_err(unreadable(&path))?;
    }
    Ok(found)
}

/// Never waits: opening a FIFO without a writer would.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits();
    fs::OpenOptions::new().read(true).custom_flags(i32::try_from(nonblocking).unwrap_or(0)).open(path)
}

fn job_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let bytes = name.as_bytes();
        let is_hidden = bytes.starts_with(b".");
        if !is_hidden && (bytes.ends_with(b".yaml") || bytes.ends_with(b".yml")) {
            paths.push(folder.join(name));
        }
    }
    paths.sort();
    Ok(paths)
}

impl Found {
    /// Whoever can write the file decides what runs here, as this user.
    fn judge(&mut self, path: &Path, metadata: &Metadata) {
        let (uid, me) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if uid != 0 && uid != me {
            let message = format!("belongs to user {uid}, who is neither root nor the user of this process ({me})");
            self.problems.push(Problem::of_file(path, message));
        }
        let mode = metadata.mode() & 0o7777;
        if mode & WORLD_WRITABLE != 0 {
            let message = format!("anybody may write here (mode {mode:04o}); take that away with `chmod o-w`");
            self.problems.push(Problem::of_file(path, message));
        }
        if mode & GROUP_WRITABLE != 0 {
            let message = format!("the group may write here (mode {mode:04o}), and so decides what runs");
            self.warnings.push(Problem::of_file(path, message));
        }
    }

    fn take(&mut self, path: &Path, file: File, metadata: &Metadata) -> io::Result<()> {
        if !metadata.is_file() {
            self.problems.push(Problem::of_file(path, "is not a regular file"));
            return Ok(());
        }
        let mut bytes = Vec::new();
        // One byte more than allowed shows that there is more, whatever the metadata say.
        file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        self.sources.push(Source { path: path.to_owned(), bytes });
        Ok(())
    }
}
