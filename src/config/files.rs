//! The files behind the jobs path, with a check of who may write them.
//!
//! A user who can write or replace a jobs file decides what runs here as this user. A file that is not safe from that
//! is not read at all: error messages quote a file, and through a link it could be any file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{LoadError, Problem};
use crate::config::source::LARGEST;
use cronkeeper_cluster::safe_path::{self, Opened, Refusal, Wanted};

#[derive(Clone, Debug)]
pub(super) struct Source {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

/// The files found at a path, and the problems with them.
#[derive(Default)]
pub(super) struct Found {
    pub sources: Vec<Source>,
    pub problems: Vec<Problem>,
}

/// Reads a file, or the `*.yaml` and `*.yml` of a directory ordered by name.
pub(super) fn read(path: &Path) -> Result<Found, LoadError> {
    let mut found = Found::default();
    match found.accept(path, safe_path::open(path))? {
        Some(Opened::File(file)) => found.take(path, file)?,
        Some(Opened::Folder(directory)) => found.take_all(path, &directory)?,
        None => {}
    }
    Ok(found)
}

/// Like [`read`], whoever owns the files and may write them.
pub(super) fn read_untrusted(path: &Path) -> Result<Found, LoadError> {
    let open = |path: &Path| File::open(path).map_err(unreadable(path));
    let (mut found, opened) = (Found::default(), open(path)?);
    if !opened.metadata().map_err(unreadable(path))?.is_dir() {
        found.take(path, opened)?;
        return Ok(found);
    }
    for path in found.listed(path, opened)? {
        let file = open(&path)?;
        found.take(&path, file)?;
    }
    Ok(found)
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::Unreadable { path, source }
}

fn job_files(path: &Path, directory: impl AsFd) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
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
    /// Reports an unsafe file as a problem of the file, like the problems in its text.
    fn accept<T>(&mut self, path: &Path, opened: Result<T, Refusal>) -> Result<Option<T>, LoadError> {
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(Refusal::Unsafe(found)) => {
                self.problems.push(Problem::of_file(path, found.to_string()));
                Ok(None)
            }
            Err(Refusal::Io(source)) => Err(unreadable(path)(source)),
        }
    }

    /// The files of a directory; reports if there are none.
    fn listed(&mut self, directory: &Path, descriptor: impl AsFd) -> Result<Vec<PathBuf>, LoadError> {
        let paths = job_files(directory, descriptor).map_err(unreadable(directory))?;
        if paths.is_empty() {
            self.problems.push(Problem::of_file(directory, "the directory has no `*.yaml` or `*.yml` file"));
        }
        Ok(paths)
    }

    fn take_all(&mut self, directory: &Path, descriptor: impl AsFd) -> Result<(), LoadError> {
        for path in self.listed(directory, descriptor)? {
            if let Some(file) = self.accept(&path, safe_path::open_file(&path, Wanted::Trusted))? {
                self.take(&path, file)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, file: File) -> Result<(), LoadError> {
        let mut bytes = Vec::new();
        // Reads one byte more than allowed to detect a file that is too large; its metadata may be wrong.
        file.take(LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(unreadable(path))?;
        self.sources.push(Source { path: path.to_owned(), bytes });
        Ok(())
    }
}
