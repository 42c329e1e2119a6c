//! A run's own cgroup: what is started in it cannot leave it by forking, and dies at one word.
//!
//! ```text
//!   the daemon's cgroup
//!   └─ cronkeeper.<pid namespace>.<pid>.<start time>     this daemon's, made and found again by [`hierarchy`]
//!      ├─ daemon                                         daemon and warden, where controllers are in use
//!      └─ jobs                                           has fewer processes than all together may have: see [`hierarchy`]
//!         ├─ free/<tree id>                                 a run
//!         └─ limited/<tree id>                              a run with limits that the kernel's controllers keep
//! ```
//!
//! Runs without limits stand apart, so that the memory controller keeps no books on them. Only cgroup v2, from Linux 5.14
//! on, which brought `cgroup.kill`. Where that is not to be had, sessions, groups and descent serve alone (`sweep`).

pub mod hierarchy;

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::wire;
use crate::clock::Uptime;
use crate::run::KnownBy;

/// CGROUP2_SUPER_MAGIC.
const FILE_SYSTEM: rustix::fs::FsWord = 0x6367_7270;

/// The cgroup of one run.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// How /proc/PID/cgroup of its processes ends, or goes on below it.
    tail: String,
    counts_memory: bool,
}

impl Place {
    /// Makes it, and sets its limits.
    pub(super) fn make(wanted: &wire::Cgroup) -> io::Result<Self> {
        let path = PathBuf::from(&wanted.path);
        make(&path)?;
        limit(&path, wanted).inspect_err(|_| drop(fs::remove_dir(&path)))?;
        Ok(Self { tail: tail(&path), path, counts_memory: wanted.memory.is_some() })
    }

    /// For a process to be started in.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The processes in it, zombies not among them.
    pub(super) fn pids(&self) -> Vec<i32> {
        let list = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills all that is in it, and whatever is being forked there at this moment.
    pub(super) fn kill(&self) {
        // Gone: so is all that was in it.
        let _ = kill(&self.path);
    }

    /// Whether the kernel killed one of its processes because the memory limit was reached.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.counts_memory && value(&self.path.join("memory.events"), "oom_kill").is_some_and(|kills| kills > 0)
    }

    /// Removes it if nothing lives in it; says whether it is gone.
    pub(super) fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // Processes, or cgroups that the job made itself.
            Err(_) => is_empty(&self.path) && remove_all(&self.path),
        }
    }

    /// Whether a process of which /proc/PID/cgroup says this is in it.
    pub(super) fn holds(&self, cgroup: &str) -> bool {
        is_at_or_below(cgroup, &self.tail)
    }

    /// Removes the folders it stood in, as far as they are empty.
    pub(super) fn remove_parents(path: &Path) {
        for folder in path.ancestors().skip(1).take(3) {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What tells a tree in it from others.
    pub(super) fn known_by(&self) -> KnownBy {
        KnownBy::Cgroup(self.path.display().to_string())
    }
}

/// Makes one. Everybody may look into it, as into any other, whatever the umask here is: there a program finds its limits, be it another
/// user's.
fn make(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    // A program that cannot look goes by what it finds of the host.
    let _ = fs::set_permissions(path, Permissions::from_mode(0o755));
    Ok(())
}

fn limit(path: &Path, wanted: &wire::Cgroup) -> io::Result<()> {
    if let Some(bytes) = wanted.memory {
        fs::write(path.join("memory.max"), bytes.to_string())?;
        // The run as a whole, or a part of it would be missing and the rest go on as if it were not.
        fs::write(path.join("memory.oom.group"), "1")?;
    }
    match wanted.processes {
        Some(count) => fs::write(path.join("pids.max"), count.to_string()),
        None => Ok(()),
    }
}

/// The last four parts of a path: with the daemon's own folder among them, they are no other cgroup's.
fn tail(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(4).map(|part| part.to_string_lossy()).collect();
    parts.iter().rev().fold(String::new(), |tail, part| format!("{tail}/{part}"))
}

fn is_at_or_below(cgroup: &str, tail: &str) -> bool {
    let behind = cgroup.find(tail).map(|at| &cgroup[at + tail.len()..]);
    behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn kill(path: &Path) -> io::Result<()> {
    fs::write(path.join("cgroup.kill"), "1")
}

/// Kills all that is in it and waits until it is dead, at most until then. Says what is not; `None` where no cgroups are to be seen,
/// as in another mount namespace.
pub(super) fn end(path: &Path, until: Uptime) -> Option<Vec<i32>> {
    if !is_visible(path) {
        return None;
    }
    // Gone: so is all that was in it.
    let _ = kill(path);
    hierarchy::wait_empty(path, until);
    Some(if is_empty(path) { Vec::new() } else { hierarchy::pids_below(path) })
}

/// Whether it could be seen if it were there.
fn is_visible(path: &Path) -> bool {
    let nearest = path.ancestors().find(|folder| folder.exists());
    nearest.is_some_and(|folder| rustix::fs::statfs(folder).is_ok_and(|of| of.f_type == FILE_SYSTEM))
}

fn is_empty(path: &Path) -> bool {
    value(&path.join("cgroup.events"), "populated") == Some(0)
}

/// A number of a file of lines `name number`.
fn value(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Removes a cgroup with all below it, none of which has a process; says whether that was done.
fn remove_all(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for folder in folders {
        remove_all(&folder.path());
    }
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    #[test]
    fn a_process_is_known_by_its_cgroup_or_one_below_it() {
        let tail = tail(Path::new("/sys/fs/cgroup/a.service/cronkeeper.1.2.3/jobs/free/4"));
        assert_eq!(tail, "/cronkeeper.1.2.3/jobs/free/4");
        for (cgroup, is_in) in [
            ("/a.service/cronkeeper.1.2.3/jobs/free/4", true),
            ("/cronkeeper.1.2.3/jobs/free/4/made/by/the/job", true),
            ("/a.service/cronkeeper.1.2.3/jobs/free/44", false),
            ("/a.service/cronkeeper.1.2.3/jobs/free", false),
            ("/", false),
        ] {
            assert_eq!(is_at_or_below(cgroup, &tail), is_in, "{cgroup}");
        }
    }

    #[test]
    fn limits_are_written_before_anything_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").display().to_string();
        let place = Place::make(&wire::Cgroup { path, memory: Some(4_096), processes: Some(7) }).unwrap();
        let read = |name| fs::read_to_string(place.path.join(name)).unwrap();
        assert_eq!([read("memory.max"), read("memory.oom.group"), read("pids.max")], ["4096", "1", "7"]);
        fs::write(place.path.join("memory.events"), "low 0\noom 2\noom_kill 0\n").unwrap();
        assert!(!place.ran_out_of_memory());
        fs::write(place.path.join("memory.events"), "low 0\noom 2\noom_kill 1\n").unwrap();
        assert!(place.ran_out_of_memory());
    }

    #[test]
    fn fuzz_files_of_a_cgroup() {
        let words = &["populated ", "populated 0", "frozen 0", "oom_kill ", "oom ", "\n", " ", "18446744073709551615"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("cgroup-files", words) }.run(|input| {
            thread_local!(static DIR: tempfile::TempDir = tempfile::tempdir().unwrap());
            let path = DIR.with(|dir| dir.path().to_owned());
            for name in ["cgroup.events", "memory.events", "cgroup.procs"] {
                fs::write(path.join(name), input).unwrap();
            }
            let place = Place { tail: tail(&path), path, counts_memory: true };
            let (pids, is_empty) = (place.pids(), is_empty(place.path()));
            assert_eq!(hierarchy::pids_below(place.path()), pids);
            is_empty | place.ran_out_of_memory() | !pids.is_empty()
        });
    }

    #[test]
    fn fuzz_cgroup_of_a_process() {
        let words = &["0::", "/", "\n", "/cronkeeper.1.2.3", "/free/4", "/free", "44", "name=systemd:/"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("proc-cgroup", words) }.run(|input| {
            let tail = "/cronkeeper.1.2.3/free/4";
            let text = text(input);
            text.lines().any(|line| is_at_or_below(line, tail))
        });
    }
}
