//! What a job is given from files, read in the forked child.
//!
//! The child reads them because a disk or a file server may hang: then only this start hangs. It does so before it
//! changes its user and sets its limits, which do not concern the files. A start without files costs nothing here.
//!
//! A run needs all of its files. A hook does without those that cannot be used: else what fails a run would silence the
//! hook that tells of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use super::child::NulByte;
use super::{program, start_report};
use crate::job_files::{self, FileError};
use crate::memory_file;
use cronkeeper_core::environment_file::Variable;
use cronkeeper_core::process::{
    FileProblem, Launch, SecretFile, StartFailure, StartStep, UNUSABLE_FILES, UnusableFile,
};

/// Most bytes of the list of files that cannot be used, so that it fits into a variable.
const LONGEST_LIST: usize = 64 << 10;

/// Most bytes of variables from files for a process that can do without them. With much more the kernel, whose limit is
/// usually 2 MiB for arguments and environment, would execute no program.
const MOST_DISPENSABLE: usize = 3 << 19;

/// The environment of a job with files, and what follows from it.
pub(super) struct Given {
    pub(super) environment: Vec<CString>,
    pub(super) candidates: Vec<CString>,
    /// The files that it does without.
    pub(super) unusable: Vec<UnusableFile>,
    /// Memory files, open until the program begins, which inherits them.
    _secrets: Vec<OwnedFd>,
}

/// Reads the files of a launch; `None` if it has none.
pub(super) fn read(launch: &Launch) -> Result<Option<Given>, StartFailure> {
    let files = &launch.files;
    if files.is_empty() {
        return Ok(None);
    }
    let mut unusable = Unusable { are_accepted: files.are_dispensable, files: Vec::new(), paths: Vec::new() };
    let mut variables = BTreeMap::new();
    let mut room = if files.are_dispensable { MOST_DISPENSABLE } else { usize::MAX };
    for (index, file) in files.environment.iter().enumerate() {
        let read = job_files::variables(file, launch.uid()).and_then(|variables| fitting(variables, &mut room));
        let read = read.map_err(|error| failed(StartStep::Environment, index, &error));
        variables.extend(unusable.unless(&file.path, read)?.into_iter().flatten());
    }
    let mut environment = merged(launch, variables);
    let mut secrets = Vec::new();
    for (index, secret) in files.secrets.iter().enumerate() {
        let name = format!("{}_FILE", secret.name);
        environment.retain(|(other, _)| *other != name);
        let Some(file) = unusable.unless(&secret.path, in_memory(index, secret, launch))? else { continue };
        // By the number of the main process, not `self`: descendants that close what they inherit find it too.
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        environment.push((name, path.into_bytes()));
        secrets.push(file);
    }
    if let Some((_, value)) = environment.iter_mut().find(|(name, _)| name == UNUSABLE_FILES) {
        *value = unusable.paths;
    }
    let no_nul = |NulByte| StartFailure::Step { step: StartStep::Exec, errno: nix::libc::EINVAL };
    prepared(launch, &environment, unusable.files, secrets).map(Some).map_err(no_nul)
}

/// The variables of a file, if there is room for them.
fn fitting(variables: Vec<Variable>, room: &mut usize) -> Result<Vec<Variable>, FileError> {
    // With `=`, the NUL at its end, and the pointer to it.
    let size: usize = variables.iter().map(|(name, value)| name.len() + value.len() + 2 + size_of::<usize>()).sum();
    *room = room.checked_sub(size).ok_or_else(|| io::Error::from(Errno::TOOBIG))?;
    Ok(variables)
}

/// The files that cannot be used.
struct Unusable {
    /// The process is started without them.
    are_accepted: bool,
    files: Vec<UnusableFile>,
    /// Their paths, a line each.
    paths: Vec<u8>,
}

impl Unusable {
    /// What was read of a file; `None` if the process is started without it.
    fn unless<T>(&mut self, path: &Path, read: Result<T, StartFailure>) -> Result<Option<T>, StartFailure> {
        match read {
            Err(StartFailure::Step { step: step @ (StartStep::Environment(_) | StartStep::Secret(_)), errno })
                if self.are_accepted =>
            {
                self.files.push(UnusableFile { step, errno });
                self.name(path.as_os_str().as_bytes());
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn name(&mut self, path: &[u8]) {
        let separator: &[u8] = if self.paths.is_empty() { b"" } else { b"\n" };
        if self.paths.len() + path.len() < LONGEST_LIST {
            self.paths.extend([separator, path].concat());
        }
    }
}

/// A memory file with a secret. Its descriptor is the lowest that is free.
fn in_memory(index: usize, secret: &SecretFile, launch: &Launch) -> Result<OwnedFd, StartFailure> {
    let unusable = |error: &FileError| failed(StartStep::Secret, index, error);
    let bytes = job_files::secret(&secret.path, launch.uid()).map_err(|error| unusable(&error))?;
    let owner = launch.user.as_ref().map(|user| (Uid::from_raw(user.uid), Gid::from_raw(user.gid)));
    memory_file::secret(&bytes, owner).map_err(|errno| match errno {
        // This host lacks them for any job, whatever is in the file.
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => start_report::failed(StartStep::Prepare, errno),
        errno => unusable(&FileError::Io(errno.into())),
    })
}

/// The environment in which each name occurs once.
///
/// The variables of the launch come first, with those by which a node recognizes its processes at their beginning:
/// however long a file is, they are found.
fn merged(launch: &Launch, mut from_files: BTreeMap<String, Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    let replaceable: BTreeSet<&str> = launch.files.replaceable.iter().map(String::as_str).collect();
    let mut all: Vec<_> = launch
        .environment
        .variables()
        .map(|(name, value)| {
            let from_file = from_files.remove(name).filter(|_| replaceable.contains(name));
            (name.to_owned(), from_file.unwrap_or_else(|| value.as_bytes().to_vec()))
        })
        .collect();
    all.extend(from_files);
    all
}

fn prepared(
    launch: &Launch,
    environment: &[(String, Vec<u8>)],
    unusable: Vec<UnusableFile>,
    secrets: Vec<OwnedFd>,
) -> Result<Given, NulByte> {
    let name = launch.argv.first().unwrap_or_default();
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_slice());
    let entry = |(name, value): &(String, Vec<u8>)| CString::new([name.as_bytes(), b"=", value].concat());
    Ok(Given {
        candidates: program::candidates(name, path)?,
        environment: environment.iter().map(entry).collect::<Result<_, _>>()?,
        unusable,
        _secrets: secrets,
    })
}

fn failed(step: fn(FileProblem) -> StartStep, index: usize, error: &FileError) -> StartFailure {
    let (fault, errno) = error.fault();
    let index = u8::try_from(index).unwrap_or(u8::MAX);
    StartFailure::Step { step: step(FileProblem { index, fault }), errno }
}
