//! The cgroups of a daemon: created at its start, removed once it is dead.
//!
//! The name of a daemon's directory contains its pid namespace, pid and start time, so that any process beside it can
//! check whether the daemon is alive. If it is dead, all processes in its directory must be killed; nothing else needs
//! to be known about them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::warden::procfs::Process;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process;

use super::{is_empty, kill, make, remove_all};

/// Prefix of the name of a daemon's directory.
const NAME: &str = "cronkeeper.";

/// The controllers that enforce the limits of whole runs.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// Processes and threads that jobs must leave to the daemon, the warden and the commands beside them.
///
/// systemd starts `check` and `release` beside them. Most of the reserve is for short-lived threads: one for each
/// client of the socket, or for each user whose processes are searched.
const RESERVED_PROCESSES: u64 = 128;

/// The pause before checking again whether killed processes are dead.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The directory of this daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    path: PathBuf,
    /// Memory and process limits of whole runs are enforced here; otherwise rlimits do it for single processes.
    has_controllers: bool,
}

impl Cgroups {
    /// Creates the directory.
    ///
    /// Returns `None` if there is no cgroup v2, the directory cannot be created, or the kernel is older than 5.14.
    ///
    /// With `may_move`, and if this process's cgroup was delegated to it, controllers are enabled; for that, the
    /// process moves to a cgroup below. All runs together are then limited to fewer processes than this cgroup. Call it
    /// before any other process or thread is started.
    pub fn make(may_move: bool) -> Option<Self> {
        let base = own_cgroup()?;
        let path = base.join(name(rustix::process::getpid().as_raw_nonzero().get())?);
        make(&path).ok()?;
        let jobs = path.join("jobs");
        let made = make(&jobs).and_then(|()| make(&jobs.join("free")));
        if made.is_err() || !jobs.join("cgroup.kill").exists() {
            remove_all(&path);
            return None;
        }
        let has_controllers = may_move
            && is_delegated(&base)
            && enable(&base, &path).and_then(|()| reserve_processes(&base, &jobs)).is_ok();
        Some(Self { path, has_controllers })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if memory and process limits of whole runs are enforced here.
    pub fn has_controllers(&self) -> bool {
        self.has_controllers
    }

    /// The cgroup for a run with these limits.
    pub fn place(&self, tree_id: process::TreeId, limits: &process::Limits) -> process::Cgroup {
        let (memory, processes) = match self.has_controllers {
            true => (limits.memory, limits.processes),
            false => (None, None),
        };
        let directory = if memory.or(processes).is_some() { "limited" } else { "free" };
        let path = self.jobs().join(directory).join(tree_id.0.to_string()).display().to_string();
        process::Cgroup { path, memory, processes }
    }

    /// Kills all runs of this daemon, whose warden is gone, and blocks until they are dead, at most for `within`.
    ///
    /// A process that survives is found again by what was recorded of its run.
    pub fn kill(&self, within: Duration) {
        let jobs = self.jobs();
        // If the cgroup is gone, so are its processes.
        let _ = kill(&jobs);
        wait_empty(&jobs, uptime() + within);
    }

    /// Removes the directory, as far as no process is left in it.
    ///
    /// If the daemon has moved into it, the next daemon removes it.
    pub fn remove(&self) {
        remove_all(&self.path);
    }

    fn jobs(&self) -> PathBuf {
        self.path.join("jobs")
    }
}

/// Kills all processes in the directories of dead daemons beside this one, and removes them.
///
/// Blocks at most for `within`. Returns the pids that are still alive then.
pub fn reap(within: Duration) -> Vec<i32> {
    let Some(base) = own_cgroup() else { return Vec::new() };
    let dead = dead_daemons(&base);
    for path in &dead {
        // It may be gone already, or another process may have removed it.
        let _ = kill(path);
    }
    let until = uptime() + within;
    let mut left = Vec::new();
    for path in dead {
        wait_empty(&path, until);
        if !remove_all(&path) {
            left.extend(pids_below(&path));
        }
    }
    left
}

pub(super) fn wait_empty(path: &Path, until: Uptime) {
    while !is_empty(path) && path.exists() && uptime() < until {
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub(super) fn pids_below(path: &Path) -> Vec<i32> {
    let list = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = list.lines().filter_map(|pid| pid.parse().ok()).collect();
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    for directory in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        pids.extend(pids_below(&directory.path()));
    }
    pids
}

/// The directory of the cgroup that this process was started in.
fn own_cgroup() -> Option<PathBuf> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = mounted(own_path(&cgroup)?, &mounts)?;
    // systemd starts ExecStopPost and ExecReload in a cgroup beside the main process, and a daemon that has moved is in
    // one below.
    let is_own = |part: &Path| part.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME));
    match path.file_name()?.to_str()? {
        ".control" => path.parent().map(Path::to_owned),
        "daemon" if path.parent().is_some_and(is_own) => path.ancestors().nth(2).map(Path::to_owned),
        _ => Some(path),
    }
}

/// The path in the single v2 hierarchy.
fn own_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The directory of cgroup `path` below a mount of cgroup v2.
fn mounted(path: &str, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = if root == "/" {
            path
        } else {
            path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?
        };
        Some(Path::new(point).join(below.trim_start_matches('/')))
    })
}

/// True if this process may manage the cgroup.
///
/// systemd marks a delegated cgroup with an extended attribute. The root of a container, and a cgroup that belongs to
/// an unprivileged user, have no other manager.
fn is_delegated(base: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let is_marked = |name: &str| {
        let mut mark = [0; 1];
        matches!(rustix::fs::getxattr(base, name, &mut mark), Ok(1)) && mark == *b"1"
    };
    let user = nix::unistd::geteuid();
    let is_users = || !user.is_root() && fs::metadata(base).is_ok_and(|meta| meta.uid() == user.as_raw());
    let is_root = || fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| own_path(&text) == Some("/"));
    is_marked("user.delegate") || is_marked("trusted.delegate") || is_users() || is_root()
}

/// Enables the controllers for `limited`.
///
/// A cgroup that enables controllers for its children must not contain processes, so this process leaves `base` first.
fn enable(base: &Path, path: &Path) -> io::Result<()> {
    let available = fs::read_to_string(base.join("cgroup.controllers"))?;
    if CONTROLLERS.iter().any(|wanted| !available.split_whitespace().any(|name| name == *wanted)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    make(&path.join("daemon"))?;
    fs::write(path.join("daemon/cgroup.procs"), "0")?;
    let (jobs, limited) = (path.join("jobs"), path.join("jobs/limited"));
    make(&limited)?;
    let on = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    [base, path, &jobs, &limited].iter().try_for_each(|at| fs::write(at.join("cgroup.subtree_control"), &on))
}

/// Limits `jobs` to fewer processes than the cgroups above allow.
///
/// A job that forks endlessly is then refused more processes while the daemon and the warden can still start some. If
/// no cgroup has a limit, the limit of the host applies to all processes alike, and nothing can be reserved.
fn reserve_processes(base: &Path, jobs: &Path) -> io::Result<()> {
    match process_limit(base) {
        Some(most) => {
            fs::write(jobs.join("pids.max"), most.saturating_sub(RESERVED_PROCESSES).max(most / 2).to_string())
        }
        None => Ok(()),
    }
}

/// The strictest process limit of a cgroup and its ancestors, as far as they are visible.
///
/// The file contains `max` if there is no limit; it does not exist if processes are not counted.
fn process_limit(base: &Path) -> Option<u64> {
    let limit = base.ancestors().filter_map(|at| fs::read_to_string(at.join("pids.max")).ok());
    limit.filter_map(|limit| limit.trim().parse().ok()).min()
}

/// The name of the directory of a living process.
fn name(pid: i32) -> Option<String> {
    Some(format!("{NAME}{}.{pid}.{}", namespace()?, Process::read(pid)?.start))
}

/// The pid namespace of this process. In another one, the same pid is another process.
fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The directories of dead daemons.
fn dead_daemons(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let Some(namespace) = namespace() else { return Vec::new() };
    let is_dead = |directory: &str| is_dead(directory, namespace, Process::try_read);
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_dead)).map(|entry| entry.path()).collect()
}

/// True only if the daemon certainly does not exist.
///
/// If the kernel is out of memory or file descriptors, a living daemon cannot be read either.
fn is_dead(directory: &str, namespace: u64, read: impl FnOnce(i32) -> io::Result<Option<Process>>) -> bool {
    let parts = directory.strip_prefix(NAME).map(|rest| rest.split('.').map(str::parse::<u64>));
    let Some(Ok([of_namespace, pid, start])) =
        parts.map(|parts| parts.collect::<Result<Vec<_>, _>>().unwrap_or_default()).map(<[u64; 3]>::try_from)
    else {
        return false;
    };
    let Ok(pid) = i32::try_from(pid) else { return false };
    of_namespace == namespace
        && match read(pid) {
            Ok(now) => now.is_none_or(|now| now.start != start || now.is_dead),
            Err(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_cgroup_is_found_wherever_v2_is_mounted() {
        let cgroup = "4:memory:/x\n0::/system.slice/cronkeeper.service\n";
        let path = own_path(cgroup).unwrap();
        assert_eq!(mounted(path, MOUNTS), Some("/sys/fs/cgroup/unified/system.slice/cronkeeper.service".into()));
        let bound = "41 31 0:38 /system.slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(path, bound), Some("/sys/fs/cgroup/cronkeeper.service".into()));
        assert_eq!(mounted("/system.slice", bound), Some("/sys/fs/cgroup".into()));
        assert_eq!(mounted("/system.slices", bound), None);
        assert_eq!((own_path("4:memory:/x\n"), mounted("/", "")), (None, None));
    }

    #[test]
    fn a_directory_is_dead_when_its_daemon_is_dead_in_this_namespace() {
        let namespace = namespace().unwrap();
        let is_dead = |directory: &str| is_dead(directory, namespace, Process::try_read);
        let own = name(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        assert!(!is_dead(&own), "{own}");
        assert!(is_dead(&format!("{own}0")), "another start time");
        let elsewhere = own.replace(&namespace.to_string(), "1");
        assert!(!is_dead(&format!("{elsewhere}0")), "of another pid namespace");
        let beyond = "cronkeeper.1.99999999999.3".replace(".1.", &format!(".{namespace}."));
        for other in ["cronkeeper.service", "cronkeeper.1.2", "cronkeeper.1.2.3.4", "cronkeeper.a.2.3", "x", &beyond] {
            assert!(!is_dead(other), "{other}");
        }
    }

    #[test]
    fn a_daemon_that_cannot_be_read_is_not_dead() {
        let errors = [rustix::io::Errno::NFILE, rustix::io::Errno::MFILE, rustix::io::Errno::NOMEM];
        for error in errors {
            assert!(!is_dead("cronkeeper.1.2.3", 1, |_| Err(error.into())), "{error}");
        }
        assert!(is_dead("cronkeeper.1.2.3", 1, |_| Ok(None)));
    }

    #[test]
    fn limits_are_set_in_cgroups_only_with_controllers() {
        let limits = process::Limits { memory: Some(1), ..process::Limits::default() };
        let place =
            |has_controllers, limits| Cgroups { path: "/c".into(), has_controllers }.place(process::TreeId(7), limits);
        assert_eq!(
            place(true, &limits),
            process::Cgroup { path: "/c/jobs/limited/7".into(), memory: Some(1), processes: None }
        );
        let free = process::Cgroup { path: "/c/jobs/free/7".into(), memory: None, processes: None };
        assert_eq!((place(false, &limits), place(true, &process::Limits::default())), (free.clone(), free));
    }

    #[test]
    fn jobs_get_fewer_processes_than_the_strictest_limit_above_them_allows() {
        let dir = tempfile::tempdir().unwrap();
        let (slice, unit, jobs) = (dir.path().join("s"), dir.path().join("s/u"), dir.path().join("s/u/c/jobs"));
        fs::create_dir_all(&jobs).unwrap();
        let set_limit = |at: &Path, limit: &str| fs::write(at.join("pids.max"), format!("{limit}\n")).unwrap();
        let left = || {
            set_limit(&jobs, "max");
            reserve_processes(&unit, &jobs).unwrap();
            fs::read_to_string(jobs.join("pids.max")).unwrap().trim().to_owned()
        };
        assert_eq!(left(), "max", "processes are not counted");
        set_limit(&unit, "max");
        assert_eq!(left(), "max", "no limit is set");
        set_limit(&unit, "1000");
        assert_eq!(left(), "872");
        set_limit(&slice, "500");
        assert_eq!(left(), "372", "a limit further up is the stricter one");
        set_limit(&slice, "max");
        set_limit(&unit, "100");
        assert_eq!(left(), "50", "of a small limit, half");
    }

    /// Input: the cgroups of a process, an empty line, and its mounts.
    #[test]
    fn fuzz_cgroup_and_mounts() {
        let words = &["0::", "/", " - ", "cgroup2", " ", "\n", "\\040", "/sys/fs/cgroup", "..", "/system.slice"];
        Fuzz::of("cgroup-mounts", words).run(|input| {
            let text = text(input);
            let (cgroup, mounts) = text.split_once("\n\n").unwrap_or((&text, MOUNTS));
            let found = own_path(cgroup).and_then(|path| mounted(path, mounts));
            found.is_some()
        });
    }

    #[test]
    fn fuzz_name_of_a_daemons_folder() {
        let words = &["cronkeeper.", ".", "1", "18446744073709551615", "-1", "+1"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("cgroup-folders", words) }.run(|input| {
            let text = text(input);
            // A daemon that cannot be read counts as alive.
            assert!(!is_dead(&text, 1, |_| Err(io::ErrorKind::Other.into())));
            is_dead(&text, 1, |_| Ok(None))
        });
    }
}
