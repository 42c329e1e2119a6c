//! The cgroups of one daemon: made at its start, and those of dead daemons found again and ended.
//!
//! A daemon's folder is named by its pid namespace, pid and start time, so that anyone beside it can see whether it lives.
//! When it does not, whatever is in its folder must die: nothing else needs to be known about it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Uptime;
use crate::clock::system::uptime;
use crate::warden::procfs::Process;
use crate::warden::wire;

use super::{is_empty, kill, make, remove_all};

/// Begins the name of a daemon's folder.
const NAME: &str = "cronkeeper.";

/// What enforces the limits of whole runs.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// Of all the processes and threads that a limit allows, so many are left to daemon, warden and what systemd starts beside them (`check`,
/// `release`), whatever jobs do. Most of them are short-lived threads: one for each caller on the socket, or for each user whose
/// processes are searched.
const ROOM: u64 = 128;

/// How long to wait before looking again at what was killed.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The folder of this daemon, and what is enforced in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    path: PathBuf,
    /// Memory and number of processes of a run are limited there; else by rlimits.
    has_controllers: bool,
}

impl Cgroups {
    /// Makes the folder. `None` where there is no cgroup v2, it may not be written to, or the kernel is older than 5.14.
    ///
    /// With `may_move`, and where this process's cgroup was delegated to it, controllers are put to use; for that the process
    /// moves to a cgroup below. All runs together then have fewer processes than are allowed here. To be called before any other
    /// process or thread is started.
    pub fn make(may_move: bool) -> Option<Self> {
        let base = own()?;
        let path = base.join(name(rustix::process::getpid().as_raw_nonzero().get())?);
        make(&path).ok()?;
        let jobs = path.join("jobs");
        let made = make(&jobs).and_then(|()| make(&jobs.join("free")));
        if made.is_err() || !jobs.join("cgroup.kill").exists() {
            remove_all(&path);
            return None;
        }
        let has_controllers =
            may_move && is_delegated(&base) && enable(&base, &path).and_then(|()| leave_room(&base, &jobs)).is_ok();
        Some(Self { path, has_controllers })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether memory and processes of whole runs are limited here.
    pub fn has_controllers(&self) -> bool {
        self.has_controllers
    }

    /// The place of a run with these limits.
    pub fn place(&self, tree_id: wire::TreeId, limits: &wire::Limits) -> wire::Cgroup {
        let (memory, processes) = match self.has_controllers {
            true => (limits.memory, limits.processes),
            false => (None, None),
        };
        let folder = if memory.or(processes).is_some() { "limited" } else { "free" };
        let path = self.jobs().join(folder).join(tree_id.0.to_string()).display().to_string();
        wire::Cgroup { path, memory, processes }
    }

    /// Kills all runs in it, whose warden is gone, and waits until they are dead, at most for so long. Blocks until then. What does not
    /// die is found again by what is noted of its run.
    pub fn kill(&self, within: Duration) {
        let jobs = self.jobs();
        // Gone: so is all that was in it.
        let _ = kill(&jobs);
        wait_empty(&jobs, uptime() + within);
    }

    /// Removes the folder, as far as nothing lives in it. A daemon that has moved into it leaves that to the next one.
    pub fn remove(&self) {
        remove_all(&self.path);
    }

    fn jobs(&self) -> PathBuf {
        self.path.join("jobs")
    }
}

/// Kills all that lives in the folders of dead daemons beside the own one, and removes them. Returns what did not die within
/// that time. Blocks until then.
pub fn reap(within: Duration) -> Vec<i32> {
    let Some(base) = own() else { return Vec::new() };
    let dead = dead(&base);
    for path in &dead {
        // Gone by itself, or by another who buries it.
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
        std::thread::sleep(LOOK_AGAIN);
    }
}

pub(super) fn pids_below(path: &Path) -> Vec<i32> {
    let list = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = list.lines().filter_map(|pid| pid.parse().ok()).collect();
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    for folder in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        pids.extend(pids_below(&folder.path()));
    }
    pids
}

/// The cgroup that this process was started in, where it is mounted.
fn own() -> Option<PathBuf> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = mounted(own_path(&cgroup)?, &mounts)?;
    // systemd puts what ExecStopPost and ExecReload start beside the main process; and a daemon that has moved is below.
    let is_own = |part: &Path| part.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME));
    match path.file_name()?.to_str()? {
        ".control" => path.parent().map(Path::to_owned),
        "daemon" if path.parent().is_some_and(is_own) => path.ancestors().nth(2).map(Path::to_owned),
        _ => Some(path),
    }
}

/// The path in the one hierarchy of v2.
fn own_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where `path` is found below a mount of cgroup v2.
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

/// Who manages this part of the tree: systemd says so by a mark; the root of a container, and what belongs to an
/// unprivileged user, is nobody else's.
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

/// Puts the controllers to use for `limited`. A cgroup with controllers for those below has no processes of its own, so this
/// process leaves `base` first.
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

/// Keeps `jobs` below what the cgroups above allow: a job that forks without end is refused more processes while daemon and warden can
/// still have some. Where no cgroup has a limit, the host's own is for all of it alike: nothing could be kept free of others.
fn leave_room(base: &Path, jobs: &Path) -> io::Result<()> {
    match most_processes(base) {
        Some(most) => fs::write(jobs.join("pids.max"), most.saturating_sub(ROOM).max(most / 2).to_string()),
        None => Ok(()),
    }
}

/// The strictest limit of a cgroup and those above it, as far as they are to be seen. Said is `max` where there is none, and nothing
/// where processes are not counted.
fn most_processes(base: &Path) -> Option<u64> {
    let said = base.ancestors().filter_map(|at| fs::read_to_string(at.join("pids.max")).ok());
    said.filter_map(|said| said.trim().parse().ok()).min()
}

/// The name of a living process's folder.
fn name(pid: i32) -> Option<String> {
    Some(format!("{NAME}{}.{pid}.{}", namespace()?, Process::read(pid)?.start))
}

/// The pid namespace: in another one the same pid is another process.
fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The folders of daemons that are no more.
fn dead(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let Some(namespace) = namespace() else { return Vec::new() };
    let is_dead = |folder: &str| is_dead(folder, namespace, Process::look);
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_dead)).map(|entry| entry.path()).collect()
}

/// Only of what is known not to be there is it known: where the kernel has no memory or no files left, a daemon that lives cannot be
/// looked at either.
fn is_dead(folder: &str, namespace: u64, look: impl FnOnce(i32) -> io::Result<Option<Process>>) -> bool {
    let parts = folder.strip_prefix(NAME).map(|rest| rest.split('.').map(str::parse::<u64>));
    let Some(Ok([of_namespace, pid, start])) =
        parts.map(|parts| parts.collect::<Result<Vec<_>, _>>().unwrap_or_default()).map(<[u64; 3]>::try_from)
    else {
        return false;
    };
    let Ok(pid) = i32::try_from(pid) else { return false };
    of_namespace == namespace
        && match look(pid) {
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
    fn a_folder_is_dead_when_its_daemon_of_this_namespace_is() {
        let namespace = namespace().unwrap();
        let is_dead = |folder: &str| is_dead(folder, namespace, Process::look);
        let own = name(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        assert!(!is_dead(&own), "{own}");
        assert!(is_dead(&format!("{own}0")), "another start time");
        let elsewhere = own.replace(&namespace.to_string(), "1");
        assert!(!is_dead(&format!("{elsewhere}0")), "not ours to judge");
        let beyond = "cronkeeper.1.99999999999.3".replace(".1.", &format!(".{namespace}."));
        for other in ["cronkeeper.service", "cronkeeper.1.2", "cronkeeper.1.2.3.4", "cronkeeper.a.2.3", "x", &beyond] {
            assert!(!is_dead(other), "{other}");
        }
    }

    #[test]
    fn a_daemon_that_cannot_be_looked_at_is_not_dead() {
        let errors = [rustix::io::Errno::NFILE, rustix::io::Errno::MFILE, rustix::io::Errno::NOMEM];
        for error in errors {
            assert!(!is_dead("cronkeeper.1.2.3", 1, |_| Err(error.into())), "{error}");
        }
        assert!(is_dead("cronkeeper.1.2.3", 1, |_| Ok(None)));
    }

    #[test]
    fn limits_are_the_controllers_only_where_there_are_some() {
        let limits = wire::Limits { memory: Some(1), ..wire::Limits::default() };
        let place =
            |has_controllers, limits| Cgroups { path: "/c".into(), has_controllers }.place(wire::TreeId(7), limits);
        assert_eq!(
            place(true, &limits),
            wire::Cgroup { path: "/c/jobs/limited/7".into(), memory: Some(1), processes: None }
        );
        let free = wire::Cgroup { path: "/c/jobs/free/7".into(), memory: None, processes: None };
        assert_eq!((place(false, &limits), place(true, &wire::Limits::default())), (free.clone(), free));
    }

    #[test]
    fn jobs_get_fewer_processes_than_the_strictest_limit_above_them_allows() {
        let dir = tempfile::tempdir().unwrap();
        let (slice, unit, jobs) = (dir.path().join("s"), dir.path().join("s/u"), dir.path().join("s/u/c/jobs"));
        fs::create_dir_all(&jobs).unwrap();
        let says = |at: &Path, limit: &str| fs::write(at.join("pids.max"), format!("{limit}\n")).unwrap();
        let left = || {
            says(&jobs, "max");
            leave_room(&unit, &jobs).unwrap();
            fs::read_to_string(jobs.join("pids.max")).unwrap().trim().to_owned()
        };
        assert_eq!(left(), "max", "processes are not counted");
        says(&unit, "max");
        assert_eq!(left(), "max", "there is no limit");
        says(&unit, "1000");
        assert_eq!(left(), "872");
        says(&slice, "500");
        assert_eq!(left(), "372", "a limit further up is the stricter one");
        says(&slice, "max");
        says(&unit, "100");
        assert_eq!(left(), "50", "of little, half");
    }

    /// The cgroups of a process, an empty line, and its mounts.
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
            // Whoever cannot be looked at lives.
            assert!(!is_dead(&text, 1, |_| Err(io::ErrorKind::Other.into())));
            is_dead(&text, 1, |_| Ok(None))
        });
    }
}
