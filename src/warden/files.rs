//! What a job is given from files, read in the forked child.
//!
//! The child reads them because a disk or a file server may hang: then only this start hangs. It does so before it
//! changes its user and sets its limits, neither of which is about the files. A start without files costs nothing here.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use super::child::NulByte;
use super::program;
use crate::job_files::{self, FileError};
use crate::process::{FileProblem, Launch, StartFailure, StartStep};

/// The environment of a job with files, and what follows from it.
pub(super) struct Given {
    pub(super) environment: Vec<CString>,
    pub(super) candidates: Vec<CString>,
}

/// Reads the files of a launch; `None` if it has none.
pub(super) fn read(launch: &Launch) -> Result<Option<Given>, StartFailure> {
    let files = &launch.files;
    if files.is_empty() {
        return Ok(None);
    }
    let mut variables = BTreeMap::new();
    for (index, file) in files.environment.iter().enumerate() {
        let read = job_files::variables(file, launch.uid());
        variables.extend(read.map_err(|error| failed(StartStep::Environment, index, &error))?);
    }
    let environment = merged(launch, variables);
    let no_nul = |NulByte| StartFailure::Step { step: StartStep::Exec, errno: nix::libc::EINVAL };
    prepared(launch, &environment).map(Some).map_err(no_nul)
}

/// The environment in which each name occurs once.
///
/// The variables of the launch come first, with those by which a node recognizes its processes at their beginning:
/// however long a file is, they are found.
fn merged(launch: &Launch, mut from_files: BTreeMap<String, Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    let replaceable: BTreeSet<&str> = launch.files.replaceable.iter().map(String::as_str).collect();
    let mut all: Vec<_> = launch
        .environment
        .iter()
        .map(|(name, value)| {
            let from_file = from_files.remove(name).filter(|_| replaceable.contains(name.as_str()));
            (name.clone(), from_file.unwrap_or_else(|| value.clone().into_bytes()))
        })
        .collect();
    all.extend(from_files);
    all
}

fn prepared(launch: &Launch, environment: &[(String, Vec<u8>)]) -> Result<Given, NulByte> {
    let name = launch.argv.first().map_or("", String::as_str);
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_slice());
    let entry = |(name, value): &(String, Vec<u8>)| CString::new([name.as_bytes(), b"=", value].concat());
    Ok(Given {
        candidates: program::candidates(name, path)?,
        environment: environment.iter().map(entry).collect::<Result<_, _>>()?,
    })
}

fn failed(step: fn(FileProblem) -> StartStep, index: usize, error: &FileError) -> StartFailure {
    let (fault, errno) = error.fault();
    let index = u8::try_from(index).unwrap_or(u8::MAX);
    StartFailure::Step { step: step(FileProblem { index, fault }), errno }
}
