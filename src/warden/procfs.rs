//! What /proc says about processes, and signals that cannot hit the wrong one.
//!
//! A pid alone is no name: it is used again. Pid and start time together are.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};

use rustix::process::{Pid, PidfdFlags, Signal};

/// A process as it was when /proc was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Since boot, in [`TICKS_PER_SECOND`].
    pub(super) start: u64,
    /// A zombie without living threads: it runs nothing any more.
    pub(super) is_dead: bool,
}

/// 52 fields, the longest of them 20 digits, and a name.
const LONGEST_STAT: usize = 1_280;

/// What a process is known by for good.
pub(super) type Identity = (i32, u64);

/// The unit of start times: USER_HZ, which Linux shows as 100 whatever the kernel's own tick.
pub(super) const TICKS_PER_SECOND: u64 = 100;

impl Process {
    /// None if there is no such process.
    pub(super) fn read(pid: i32) -> Option<Self> {
        let mut line = [0; LONGEST_STAT];
        // One read gives all of it: the kernel makes the line when it is asked.
        let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(pid, &line[..length])
    }

    pub(super) fn identity(&self) -> Identity {
        (self.pid, self.start)
    }

    /// Reads a line of /proc/pid/stat. The name in it may hold anything, so the fields count from its last `)`.
    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields: Vec<&str> = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        let threads = number(17)?;
        Some(Self {
            pid,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            start: fields.get(19)?.parse().ok()?,
            // A zombie whose other threads live on is a process whose first thread ended: still running.
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x") && threads <= 1,
        })
    }

    /// Sends a signal to this process and no other, whoever has its pid now. Gone or not ours to signal: nothing happens.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        if Self::read(self.pid).is_some_and(|now| now.start == self.start) {
            let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
        }
    }
}

/// All processes, by pid. Those that come and go while it reads may be missing.
pub(super) fn all() -> io::Result<BTreeMap<i32, Process>> {
    let mut processes = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(process) = Process::read(pid) {
            processes.insert(pid, process);
        }
    }
    Ok(processes)
}

/// The children of this process, which must have one thread. While the caller reaps none, none is missing: the
/// kernel appends new and inherited ones at the end.
pub(super) fn own_children() -> io::Result<Vec<i32>> {
    match fs::read_to_string("/proc/thread-self/children") {
        Ok(list) => Ok(list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()),
        // A kernel without CONFIG_PROC_CHILDREN.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            Ok(all()?.into_values().filter(|process| process.parent == own).map(|process| process.pid).collect())
        }
        Err(error) => Err(error),
    }
}

/// Where the code of this process lies that is mapped from files and cannot be written: start and length of each mapping.
pub(super) fn own_code() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(code).collect()
}

/// `5581a000-5581c000 r-xp 00002000 08:01 131 /usr/bin/cronkeeper`
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    is_code.then(|| (start, end.saturating_sub(start)))
}

/// The children of the first thread of this process, to which the kernel gives orphans.
pub(super) fn children_of_process() -> io::Result<Vec<i32>> {
    let own = std::process::id();
    let list = fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
    Ok(list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// The environment a process was started with; empty if it cannot be read, as for a zombie or another user's.
pub(super) fn environment(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// The cgroup of a process in the hierarchy of v2, as the caller's namespace shows it; empty if it has none.
pub(super) fn cgroup(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// The arguments a process was started with; empty between two programs.
pub(super) fn arguments(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// A variable in the form that [`environment`] has.
pub(super) fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REST: &str = "1 4242 4242 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0";

    #[test]
    fn a_name_with_spaces_and_parentheses_hides_nothing() {
        let stat = format!("4242 (a) Z 1 (b) S {REST}");
        let process = Process::parse(4242, stat.as_bytes()).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.start), (1, 4242, 4242, 777));
        assert!(!process.is_dead);
    }

    #[test]
    fn a_zombie_is_dead_unless_a_thread_of_it_lives() {
        assert!(Process::parse(1, format!("1 (x) Z {REST}").as_bytes()).unwrap().is_dead);
        let threads = REST.replace("20 0 1 0 777", "20 0 3 0 777");
        assert!(!Process::parse(1, format!("1 (x) Z {threads}").as_bytes()).unwrap().is_dead);
    }

    #[test]
    fn this_process_is_found_with_its_parent() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        assert_eq!(all().unwrap()[&pid].parent, parent);
    }

    #[test]
    fn code_is_what_may_be_executed_and_not_written_and_comes_from_a_file() {
        assert_eq!(code("1000-3000 r-xp 00002000 08:01 131  /usr/bin/a b"), Some((0x1000, 0x2000)));
        for other in
            ["1000-3000 r--p 0 08:01 131 /a", "1000-3000 rwxp 0 08:01 131 /a", "1000-3000 r-xp 0 00:00 0 [vdso]", ""]
        {
            assert_eq!(code(other), None, "{other}");
        }
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XRUN=no\0RUN=job.20261120T023000Z\0RUNNER=no\0";
        assert_eq!(variable(environment, "RUN"), Some(&b"job.20261120T023000Z"[..]));
        assert_eq!(variable(environment, "RU"), None);
    }

    proptest! {
        #[test]
        fn no_line_panics(stat in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Process::parse(1, &stat);
        }
    }
}
