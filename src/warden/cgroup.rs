//! A run's own cgroup: its processes cannot leave it, and one write kills them.
//!
//! ```text
//!   the daemon's cgroup
//!   └─ cronkeeper.<pid namespace>.<pid>.<start time>     this daemon's, created and later found again by [`hierarchy`]
//!      ├─ daemon                                         daemon and warden, if controllers are in use
//!      └─ jobs                                           with a process limit below the unit's: see [`hierarchy`]
//!         ├─ free/<tree id>                                 a run
//!         └─ limited/<tree id>                              a run whose limits the kernel's controllers enforce
//! ```
//!
//! Runs without limits are kept apart so that the memory controller does no accounting for them. Only cgroup v2 is
//! used, from Linux 5.14 on, the first with `cgroup.kill`. Where it is not available, only sessions, groups and descent
//! are left (`sweep`).

pub mod hierarchy;

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process;
use cronkeeper_core::run::KnownBy;

/// The umask with which everybody may read a new cgroup.
///
/// All other cgroups are readable as well: a program finds its limits there, even if it runs as another user.
pub(super) const UMASK: Mode = Mode::from_bits_retain(0o022);

/// CGROUP2_SUPER_MAGIC.
const FILE_SYSTEM: rustix::fs::FsWord = 0x6367_7270;

/// The cgroup of one run.
#[derive(Debug)]
pub(super) struct RunCgroup {
    path: String,
    counts_memory: bool,
}

impl RunCgroup {
    /// Creates the cgroup and sets its limits. The umask is [`UMASK`].
    fn make(wanted: &process::Cgroup) -> io::Result<Self> {
        let path = Path::new(&wanted.path);
        fs::create_dir(path)?;
        limit(path, wanted).inspect_err(|_| drop(fs::remove_dir(path)))?;
        Ok(Self { path: wanted.path.clone(), counts_memory: wanted.memory.is_some() })
    }

    /// Opens the directory, so that a process can be started in the cgroup.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The processes in the cgroup, without zombies.
    pub(super) fn pids(&self) -> Vec<i32> {
        let list = fs::read_to_string(self.path().join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills all processes in the cgroup, including those that are being forked at this moment.
    pub(super) fn kill(&self) {
        // If the cgroup is gone, so are its processes.
        let _ = kill(self.path());
    }

    /// True if the kernel killed a process of it because the memory limit was reached.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.counts_memory && value(&self.path().join("memory.events"), "oom_kill").is_some_and(|kills| kills > 0)
    }

    /// Removes the cgroup if no process is left in it; returns whether it is gone.
    pub(super) fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // It has processes, or cgroups that the job created itself.
            Err(_) => is_empty(self.path()) && remove_all(self.path()),
        }
    }

    /// True if a process with this entry in /proc/PID/cgroup is in the cgroup.
    pub(super) fn holds(&self, cgroup: &str) -> bool {
        is_at_or_below(cgroup, tail(&self.path))
    }

    /// Removes the parent directories of a run's cgroup, as far as they are empty.
    pub(super) fn remove_parents(path: &Path) {
        for directory in path.ancestors().skip(1).take(3) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// What its processes are recognized by.
    pub(super) fn known_by(&self) -> KnownBy {
        KnownBy::Cgroup(self.path.clone())
    }
}

/// The cgroup, if there is one, of a process that has not been forked yet. Dropping it removes the cgroup.
#[derive(Debug)]
pub(super) struct UnusedCgroup(Option<RunCgroup>);

impl UnusedCgroup {
    /// Creates the cgroup that is wanted, if any, and if it can be created.
    pub(super) fn make(wanted: Option<&process::Cgroup>) -> Self {
        Self(wanted.and_then(|wanted| RunCgroup::make(wanted).ok()))
    }

    pub(super) fn get(&self) -> Option<&RunCgroup> {
        self.0.as_ref()
    }

    /// Takes the cgroup out once its process was forked; dropping this then removes nothing.
    pub(super) fn take(&mut self) -> Option<RunCgroup> {
        self.0.take()
    }
}

impl Drop for UnusedCgroup {
    fn drop(&mut self) {
        if let Some(cgroup) = &self.0 {
            cgroup.remove();
        }
    }
}

/// Creates a cgroup that everybody may read, in a process whose umask may be any.
fn make(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    // If this fails, a program that cannot read its limits assumes the resources of the whole host.
    let _ = fs::set_permissions(path, Permissions::from_mode(0o755));
    Ok(())
}

fn limit(path: &Path, wanted: &process::Cgroup) -> io::Result<()> {
    if let Some(bytes) = wanted.memory {
        fs::write(path.join("memory.max"), bytes.to_string())?;
        // Kills the whole run: otherwise a part of it would be missing and the rest would continue regardless.
        fs::write(path.join("memory.oom.group"), "1")?;
    }
    match wanted.processes {
        Some(count) => fs::write(path.join("pids.max"), count.to_string()),
        None => Ok(()),
    }
}

/// The last four components of the path, by which /proc/PID/cgroup tells its processes from others.
///
/// They are unique because the daemon's own directory is among them.
fn tail(path: &str) -> &str {
    path.rmatch_indices('/').nth(3).map_or(path, |(at, _)| &path[at..])
}

fn is_at_or_below(cgroup: &str, tail: &str) -> bool {
    let behind = cgroup.find(tail).map(|at| &cgroup[at + tail.len()..]);
    behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn kill(path: &Path) -> io::Result<()> {
    fs::write(path.join("cgroup.kill"), "1")
}

/// Kills all processes in the cgroup and waits until they are dead, at most until `until`.
///
/// Returns those that are not; `None` if no cgroups are visible, as in another mount namespace.
pub(super) fn end(path: &Path, until: Uptime) -> Option<Vec<i32>> {
    if !is_visible(path) {
        return None;
    }
    // If the cgroup is gone, so are its processes.
    let _ = kill(path);
    hierarchy::wait_empty(path, until);
    Some(if is_empty(path) { Vec::new() } else { hierarchy::pids_below(path) })
}

/// True if the cgroup would be visible if it existed.
fn is_visible(path: &Path) -> bool {
    let nearest = path.ancestors().find(|directory| directory.exists());
    nearest.is_some_and(|directory| rustix::fs::statfs(directory).is_ok_and(|of| of.f_type == FILE_SYSTEM))
}

fn is_empty(path: &Path) -> bool {
    value(&path.join("cgroup.events"), "populated") == Some(0)
}

/// Reads a number from a file with lines `name number`.
fn value(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Removes a cgroup without processes and all cgroups below it; returns whether it is gone.
fn remove_all(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for directory in directories {
        remove_all(&directory.path());
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
    fn a_process_is_recognized_by_its_cgroup_or_one_below_it() {
        let tail = tail("/sys/fs/cgroup/a.service/cronkeeper.1.2.3/jobs/free/4");
        assert_eq!(tail, "/cronkeeper.1.2.3/jobs/free/4");
        for (cgroup, is_in) in [
            ("/a.service/cronkeeper.1.2.3/jobs/free/4", true),
            ("/cronkeeper.1.2.3/jobs/free/4/made/by/the/job", true),
            ("/a.service/cronkeeper.1.2.3/jobs/free/44", false),
            ("/a.service/cronkeeper.1.2.3/jobs/free", false),
            ("/", false),
        ] {
            assert_eq!(is_at_or_below(cgroup, tail), is_in, "{cgroup}");
        }
    }

    #[test]
    fn limits_are_written_before_anything_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").display().to_string();
        let cgroup = RunCgroup::make(&process::Cgroup { path, memory: Some(4_096), processes: Some(7) }).unwrap();
        let read = |name| fs::read_to_string(cgroup.path().join(name)).unwrap();
        assert_eq!([read("memory.max"), read("memory.oom.group"), read("pids.max")], ["4096", "1", "7"]);
        fs::write(cgroup.path().join("memory.events"), "low 0\noom 2\noom_kill 0\n").unwrap();
        assert!(!cgroup.ran_out_of_memory());
        fs::write(cgroup.path().join("memory.events"), "low 0\noom 2\noom_kill 1\n").unwrap();
        assert!(cgroup.ran_out_of_memory());
    }

    #[test]
    fn fuzz_files_of_a_cgroup() {
        let words = &["populated ", "populated 0", "frozen 0", "oom_kill ", "oom ", "\n", " ", "18446744073709551615"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("cgroup-files", words) }.run(|input| {
            thread_local!(static DIR: tempfile::TempDir = tempfile::tempdir().unwrap());
            let path = DIR.with(|dir| dir.path().to_str().unwrap().to_owned());
            let cgroup = RunCgroup { path, counts_memory: true };
            for name in ["cgroup.events", "memory.events", "cgroup.procs"] {
                fs::write(cgroup.path().join(name), input).unwrap();
            }
            let (pids, is_empty) = (cgroup.pids(), is_empty(cgroup.path()));
            assert_eq!(hierarchy::pids_below(cgroup.path()), pids);
            is_empty | cgroup.ran_out_of_memory() | !pids.is_empty()
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
