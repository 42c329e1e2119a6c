//! A cgroup for the nodes of one test, away from those of the others.
//!
//! Every daemon kills what dead daemons left in the cgroups beside its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::CRONKEEPER;
use super::scratch::{Scratch, write_program};
use super::{Facility, LONG, poll, skipped};

/// The cgroup. When dropped, it kills all its processes and is removed.
pub struct OwnCgroup {
    path: PathBuf,
    program: String,
    _scripts: Scratch,
}

impl OwnCgroup {
    /// A cgroup below `parent`.
    pub fn below(parent: &Path) -> Result<Self, String> {
        let scripts = Scratch::new("cgroup");
        let name = scripts.path().file_name().expect("a directory has a name").to_string_lossy().into_owned();
        let path = parent.join(format!("cronkeeper-it-{name}"));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let program = scripts.path().join("cronkeeper").to_str().expect("a path of ours").to_owned();
        let own = Self { path, program, _scripts: scripts };
        write_program(Path::new(&own.program), &format!("#!/bin/sh\n{}exec {CRONKEEPER} \"$@\"\n", own.enter()));
        Ok(own)
    }

    /// A cgroup below that of the tests.
    pub fn new() -> Result<Self, String> {
        let all = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = all.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("the tests are in no cgroup v2")?;
        Self::below(&mounted().ok_or("no cgroup2 file system is mounted here")?.join(own))
    }

    /// The same, or none where there can be none: no daemon has cgroups there.
    pub fn if_possible() -> Option<Self> {
        let or_say = |why: &String| skipped(Facility::Cgroups, &format!("a test has no cgroup of its own: {why}"));
        Self::new().inspect_err(or_say).ok()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lines by which a shell moves into this cgroup.
    pub fn enter(&self) -> String {
        format!("echo 0 >{}/cgroup.procs || exit\n", self.path.display())
    }

    /// A program that runs cronkeeper in this cgroup; without one, cronkeeper itself.
    pub fn program(apart: Option<&Self>) -> &str {
        apart.map_or(CRONKEEPER, |own| &own.program)
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // Kernels before 5.14 have no such file; the processes have been ended by their nodes then.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let is_gone = poll(LONG, || remove(&self.path).then_some(()));
        assert!(is_gone.is_some() || std::thread::panicking(), "{} stays", self.path.display());
    }
}

/// Where the cgroup2 file system is mounted.
pub fn mounted() -> Option<PathBuf> {
    let found = Command::new("findmnt").args(["-rn", "-t", "cgroup2", "-o", "TARGET"]).output().ok()?;
    let text = String::from_utf8(found.stdout).ok()?;
    Some(text.lines().next()?.into())
}

fn remove(cgroup: &Path) -> bool {
    let below = fs::read_dir(cgroup).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).for_each(|path| {
        remove(&path);
    });
    fs::remove_dir(cgroup).is_ok()
}
