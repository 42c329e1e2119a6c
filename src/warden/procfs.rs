//! Processes as /proc shows them, and signals that reach only the right one.
//!
//! A pid alone does not identify a process, because the kernel reuses it. Pid and start time together do.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};

use rustix::process::{Pid, PidfdFlags, Signal};

use cronkeeper_core::clock::Uptime;

/// A process at the moment when /proc was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Since boot, in units of 1 / [`TICKS_PER_SECOND`].
    pub(super) start: u64,
    /// True for a zombie without living threads.
    pub(super) is_dead: bool,
}

/// Longest line of /proc/PID/stat: 52 fields of at most 20 digits, and a name.
const LONGEST_STAT: usize = 1_280;

/// Read limit for an environment, which a process can replace with gigabytes.
///
/// Our variables come after the job's own, which are seldom a hundredth of this.
const LONGEST_ENVIRONMENT: u64 = 256 << 10;

/// Read limit for /proc/PID/cgroup: a path has at most 4096 bytes, and there are about a dozen v1 hierarchies.
const LONGEST_CGROUPS: u64 = 64 << 10;

/// Read limit for /proc/PID/status: the user comes before the groups, and there can be thousands of groups.
const LONGEST_STATUS: u64 = 1 << 10;

/// Pid and start time, which identify a process for good.
pub(super) type Identity = (i32, u64);

/// Unit of start times: USER_HZ, which Linux shows as 100 whatever the kernel's own tick is.
pub(super) const TICKS_PER_SECOND: u64 = 100;

impl Process {
    /// None if there is no such process, or it cannot be read.
    pub(super) fn read(pid: i32) -> Option<Self> {
        Self::try_read(pid).ok().flatten()
    }

    /// None if there is no such process. An error, such as no memory or no files, says nothing about it.
    pub(super) fn try_read(pid: i32) -> io::Result<Option<Self>> {
        let mut line = [0; LONGEST_STAT];
        // One read is enough: the kernel generates the whole line for it.
        let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut stat| stat.read(&mut line));
        match read {
            Ok(length) => Self::parse(pid, &line[..length]).map(Some).ok_or(io::ErrorKind::InvalidData.into()),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        (self.pid, self.start)
    }

    /// Parses /proc/PID/stat. The process name may contain anything, so fields are counted from its last `)`.
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
            // A zombie with other living threads is a process whose first thread ended: it is still running.
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x") && threads <= 1,
        })
    }

    /// Signals this process, never another one that has its pid now.
    ///
    /// If it is gone, or this user may not signal it, nothing happens.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        if Self::read(self.pid).is_some_and(|now| now.start == self.start) {
            let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
        }
    }
}

/// True if the process did not exist, or ended while it was read.
fn is_gone(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH))
}

/// The tick that contains `at`. Start times are rounded down to ticks.
pub(super) fn tick(at: Uptime) -> u64 {
    at.as_nanos() / (1_000_000_000 / TICKS_PER_SECOND)
}

/// All processes by pid. Those that start or end during the reading may be missing.
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

/// The children of this process, which must have one thread.
///
/// As long as the caller reaps none meanwhile, the list is complete: the kernel appends new and inherited children at
/// the end.
pub(super) fn own_children() -> io::Result<Vec<i32>> {
    children_in("/proc/thread-self/children")
}

/// Reads a list of children of this process.
fn children_in(file: &str) -> io::Result<Vec<i32>> {
    match fs::read_to_string(file) {
        Ok(list) => Ok(list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()),
        // This kernel was built without CONFIG_PROC_CHILDREN.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            Ok(all()?.into_values().filter(|process| process.parent == own).map(|process| process.pid).collect())
        }
        Err(error) => Err(error),
    }
}

/// Start and length of each mapping of this process that is unwritable and equals its file.
pub(super) fn own_file_pages() -> Vec<(usize, usize)> {
    file_pages(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())
}

fn file_pages(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            // Tables that the dynamic linker has relocated are unwritable too, and differ from the file.
            (Some("Anonymous:" | "Swap:"), size) if size != Some("0") => mapping = None,
            // It comes after the other.
            (Some("Swap:"), _) => found.extend(mapping.take()),
            _ => mapping = unwritable(line).or(mapping),
        }
    }
    found
}

/// Parses a line such as `5581a000-5581c000 r-xp 00002000 08:01 131 /usr/bin/cronkeeper`.
fn unwritable(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_ours = matches!(fields.next()?, "r-xp" | "r--p") && fields.nth(3)?.starts_with('/');
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    is_ours.then(|| (start, end.saturating_sub(start)))
}

/// The children of this process's first thread, which the kernel makes the parent of orphans.
pub(super) fn children_of_process() -> io::Result<Vec<i32>> {
    let own = std::process::id();
    children_in(&format!("/proc/{own}/task/{own}/children"))
}

/// The first `limit` bytes of a file in /proc, as text.
fn read_prefix(pid: i32, name: &str, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The v2 cgroup of a process as the caller's namespace shows it; empty if it has none.
pub(super) fn cgroup(pid: i32) -> String {
    let text = read_prefix(pid, "cgroup", LONGEST_CGROUPS).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Real, effective and saved user id of a process.
pub(super) type Uids = [u32; 3];

/// None if there is no such process.
pub(super) fn uids(pid: i32) -> Option<Uids> {
    parse_uids(&read_prefix(pid, "status", LONGEST_STATUS).ok()?)
}

/// Parses /proc/PID/status. A process name cannot forge a line, because its line breaks are escaped.
fn parse_uids(status: &str) -> Option<Uids> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// The audit session of a process; `None` if it has none or the kernel has no audit.
pub(super) fn audit_session(pid: i32) -> Option<u32> {
    let session = read_prefix(pid, "sessionid", 16).ok()?.trim().parse().ok()?;
    (session != u32::MAX).then_some(session)
}

/// True if a program is running: between two programs a process has no arguments.
pub(super) fn has_arguments(pid: i32) -> bool {
    File::open(format!("/proc/{pid}/cmdline")).and_then(|mut line| line.read(&mut [0])).is_ok_and(|read| read > 0)
}

/// Requested variables of a process's initial environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// The values, in the order of the names; `None` if not set.
    pub(super) values: Vec<Option<Vec<u8>>>,
    /// Nothing could be read: the process is between two programs, has ended, or belongs to another user.
    pub(super) is_empty: bool,
}

/// Reads variables of the environment that a process was started with.
///
/// A process can make this reading slow, so use it only if nothing else identifies the process.
pub(super) fn environment(pid: i32, names: &[&str]) -> Environment {
    match File::open(format!("/proc/{pid}/environ")) {
        Ok(file) => variables(file, names),
        Err(_) => variables(io::empty(), names),
    }
}

/// Reads up to the last of the variables, but never beyond the limit.
fn variables(environ: impl Read, names: &[&str]) -> Environment {
    let mut environ = BufReader::with_capacity(4 << 10, environ.take(LONGEST_ENVIRONMENT));
    let mut found = Environment { values: vec![None; names.len()], is_empty: true };
    let mut entry = Vec::new();
    while found.values.contains(&None) {
        entry.clear();
        // An entry at the limit is cut off; a read error counts as the end.
        if !matches!(environ.read_until(0, &mut entry), Ok(1..)) {
            break;
        }
        found.is_empty = false;
        let Some(entry) = entry.strip_suffix(&[0]) else { break };
        for (name, value) in names.iter().zip(&mut found.values).filter(|(_, value)| value.is_none()) {
            *value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")).map(<[u8]>::to_owned);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{Fuzz, text};

    const REST: &str = "1 4242 4242 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0";

    #[test]
    fn a_name_with_spaces_and_parentheses_hides_nothing() {
        let stat = format!("4242 (a) Z 1 (b) S {REST}");
        let process = Process::parse(4242, stat.as_bytes()).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.start), (1, 4242, 4242, 777));
        assert!(!process.is_dead);
    }

    #[test]
    fn a_zombie_is_dead_unless_one_of_its_threads_is_alive() {
        assert!(Process::parse(1, format!("1 (x) Z {REST}").as_bytes()).unwrap().is_dead);
        let threads = REST.replace("20 0 1 0 777", "20 0 3 0 777");
        assert!(!Process::parse(1, format!("1 (x) Z {threads}").as_bytes()).unwrap().is_dead);
    }

    #[test]
    fn this_process_is_read_with_its_parent() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        assert_eq!(all().unwrap()[&pid].parent, parent);
    }

    #[test]
    fn pages_of_files_are_unwritable_and_were_never_changed() {
        let of = |header: &str, sizes: [u32; 2]| {
            let [anonymous, swap] = sizes;
            file_pages(&format!("{header}\nRss: 8 kB\nAnonymous: {anonymous} kB\nSwap:   {swap} kB\nLocked: 0 kB\n"))
        };
        for permissions in ["r-xp", "r--p"] {
            let header = format!("1000-3000 {permissions} 00002000 08:01 131  /usr/bin/a b");
            assert_eq!(of(&header, [0, 0]), [(0x1000, 0x2000)]);
            assert_eq!(of(&header, [4, 0]), [], "relocated");
            assert_eq!(of(&header, [0, 4]), [], "relocated and swapped out");
        }
        for other in
            ["1000-3000 rw-p 0 08:01 131 /a", "1000-3000 rwxp 0 08:01 131 /a", "1000-3000 r-xp 0 00:00 0 [vdso]", ""]
        {
            assert_eq!(of(other, [0, 0]), [], "{other}");
        }
    }

    fn run(environ: &[u8]) -> Option<Vec<u8>> {
        variables(environ, &["RUN"]).values.remove(0)
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environ = b"XRUN=no\0RUN=job.20261120T023000Z\0RUNNER=no\0RUN=second\0";
        assert_eq!(run(environ).as_deref(), Some(&b"job.20261120T023000Z"[..]));
        assert_eq!(variables(&environ[..], &["RU", "RUNNER"]).values, [None, Some(b"no".to_vec())]);
        assert_eq!((run(b"RUN=cut"), variables(io::empty(), &["RUN"]).is_empty), (None, true));
    }

    #[test]
    fn only_the_start_of_an_endless_environment_is_read() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(0);
                self.0 += buffer.len() as u64;
                Ok(buffer.len())
            }
        }
        let mut endless = Endless(0);
        assert!(!variables(&mut endless, &["RUN"]).is_empty);
        assert_eq!(endless.0, LONGEST_ENVIRONMENT);
        let mut behind = Endless(0);
        assert_eq!(variables((&b"RUN=a\0"[..]).chain(&mut behind), &["RUN"]).values, [Some(b"a".to_vec())]);
        assert_eq!(behind.0, 0, "all requested variables were found");
    }

    #[test]
    fn the_user_of_a_process_is_read_from_its_own_line() {
        let status = "Name:\tUid:\\nUid:\t5\nState:\tS (sleeping)\nUid:\t1000\t0\t7\t0\nGid:\t1\t1\t1\t1\n";
        assert_eq!(parse_uids(status), Some([1_000, 0, 7]));
        assert_eq!((parse_uids("Name:\tx\nUid:\t1\t2\n"), parse_uids("")), (None, None));
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(uids(own).unwrap()[1], rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_missing_process_is_gone_and_this_process_exists() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(matches!((Process::try_read(i32::MAX), Process::try_read(own)), (Ok(None), Ok(Some(_)))));
        assert!(is_gone(&io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error())));
        assert!(!is_gone(&io::Error::from_raw_os_error(rustix::io::Errno::NFILE.raw_os_error())));
        assert!(has_arguments(own) && !has_arguments(i32::MAX));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn no_line_panics(stat in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Process::parse(1, &stat);
        }

        #[test]
        fn no_environment_panics_and_what_is_in_it_is_found(
            before in prop::collection::vec(any::<u8>(), 0..200),
            value in "[^\0]{0,40}",
        ) {
            let _ = variables(&before[..], &["RUN", "", "="]);
            let before: Vec<u8> = before.into_iter().filter(|&byte| byte != b'R').collect();
            let environ = [&before[..], b"\0RUN=", value.as_bytes(), b"\0"].concat();
            prop_assert_eq!(run(&environ), Some(value.into_bytes()));
        }

        #[test]
        fn no_status_panics(status in any::<String>()) {
            let _ = parse_uids(&status);
        }
    }

    #[test]
    fn fuzz_stat_of_a_process() {
        let words = &[")", "(", " ", "Z", "X", "-1", "0", "4242"];
        Fuzz { longest: LONGEST_STAT, ..Fuzz::of("proc-stat", words) }.run(|input| Process::parse(1, input).is_some());
    }

    #[test]
    fn fuzz_status_of_a_process() {
        Fuzz {
            longest: LONGEST_STATUS as usize,
            ..Fuzz::of("proc-status", &["Uid:", "\t", "Gid:", "Name:\t", "1000"])
        }
        .run(|input| parse_uids(&text(input)).is_some());
    }

    #[test]
    fn fuzz_environment_of_a_process() {
        let words = &["\0", "=", "CRONKEEPER_RUN_ID=", "CRONKEEPER_NODE=", "a.20261120T023000Z", "PATH=/bin"];
        Fuzz { longest: 2 * LONGEST_ENVIRONMENT as usize, ..Fuzz::of("proc-environ", words) }.run(|input| {
            let names = ["CRONKEEPER_RUN_ID", "CRONKEEPER_NODE"];
            let found = variables(input, &names);
            let seen = &input[..input.len().min(LONGEST_ENVIRONMENT as usize)];
            let whole = &seen[..seen.iter().rposition(|&byte| byte == 0).map_or(0, |last| last + 1)];
            let first = |name: &str| {
                let begin = format!("{name}=");
                whole.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(begin.as_bytes()))
            };
            let expected: Vec<_> = names.iter().map(|name| first(name).map(<[u8]>::to_owned)).collect();
            assert_eq!(found.values, expected);
            assert_eq!(found.is_empty, input.is_empty());
            found.values.iter().any(Option::is_some)
        });
    }

    #[test]
    fn fuzz_maps_of_a_process() {
        let words = &["r-xp", "r--p", "-", "/", "ffffffffffffffff", "00:00", " ", "\nAnonymous: 0", "\nSwap: 0 kB"];
        Fuzz::of("proc-maps", words).run(|input| !file_pages(&text(input)).is_empty());
    }
}
