//! The files behind a jobs path: which they are, whether they can be trusted, and their bytes.
//!
//! Whoever can write a file, or put another one in its place, decides what runs here as this user. Of what is not safe from that nothing
//! is read: what is wrong with a file is told with words of it, and by a link it might be any file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{LoadError, Problem};
use crate::config::source::LARGEST;
use crate::safe_path::{self, Opened, Refusal, Wanted};

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
}

/// Reads a file, or the `*.yaml` and `*.yml` of a folder in the order of their names.
pub(super) fn read(path: &Path) -> Result<Found, LoadError> {
    let mut found = Found::default();
    match found.judged(path, safe_path::open(path))? {
        Some(Opened::File(file)) => found.take(path, file)?,
        Some(Opened::Folder(folder)) => found.take_all(path, &folder)?,
        None => {}
    }
    Ok(found)
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::Unreadable { path, source }
}

fn job_files(path: &Path, folder: impl AsFd) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_hidden = name.starts_with(b".");
        if !is_hidden && (name.ends_with(b".yaml") || name.ends_with(b".yml")) {
            paths.push(path.join(std::ffi::OsStr::from_bytes(name)));
        }
    }
    paths.sort();
    Ok(paths)
}

impl Found {
    /// What is not safe is a problem of the file, like those in it.
    fn judged<T>(&mut self, path: &Path, opened: Result<T, Refusal>) -> Result<Option<T>, LoadError> {
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(Refusal::Unsafe(found)) => {
                self.problems.push(Problem::of_file(path, found.to_string()));
                Ok(None)
            }
            Err(Refusal::Io(source)) => Err(unreadable(path)(source)),
        }
    }

    fn take_all(&mut self, folder: &Path, opened: impl AsFd) -> Result<(), LoadError> {
        let paths = job_files(folder, opened).map_err(unreadable(folder))?;
        if paths.is_empty() {
            self.problems.push(Problem::of_file(folder, "the folder has no `*.yaml` or `*.yml`"));
        }
        for path in paths {
            if let Some(file) = self.judged(&path, safe_path::open_file(&path, Wanted::Trusted))? {
                self.take(&path, file)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, file: File) -> Result<(), LoadError> {
        let mut bytes = Vec::new();
        // One byte more than allowed shows that there is more, whatever the metadata say.
        file.take(LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(unreadable(path))?;
        self.sources.push(Source { path: path.to_owned(), bytes });
        Ok(())
    }
}
