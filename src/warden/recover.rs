//! Kills leftover processes of runs without the warden, and waits until they are dead.
//!
//! A run's record contains what its processes are recognized by ([`KnownBy`]). If that is a cgroup, the cgroup alone
//! decides. Otherwise a process belongs to the run if it is the main process (same pid and start time), descends from
//! one that belongs to it, or is in its audit session. Only for a run with neither cgroup nor audit session are
//! environments read. That needs care, because any user can write what he likes into an environment, make it long, or
//! make it slow to read. So only processes of the run's user or root are read, only those that started after the run
//! and before the search, only a part of each environment, and only for a limited time. A user who forges an
//! environment loses only his own process and delays nobody.
//!
//! All functions here block, for a bounded time. They are used by `release`, by a daemon before it joins, and by a
//! daemon whose warden is gone or hangs. Records of an earlier boot must not be passed to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::cgroup;
use super::process_table::ProcessTable;
use super::procfs::{self, Environment, Identity, Process};
use super::tree::RUN_ID;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::Recorded;
use cronkeeper_core::run::KnownBy;

/// The variable with the node's name, in the environment of every process of a run.
const NODE: &str = "CRONKEEPER_NODE";

/// Readings of /proc in one attempt to stop a growing tree.
const ROUNDS: usize = 8;

/// Total time for reading environments: a restart must be done within three seconds.
const READ_TIME: Duration = Duration::from_secs(2);

/// Number of threads that read environments. A slow process delays only those read by the same thread.
const READERS: usize = 64;

const ROOT: u32 = 0;

fn audit_session(recorded: &Recorded) -> Option<u32> {
    match recorded.traces.known_by {
        KnownBy::AuditSession(session) => Some(session),
        KnownBy::Cgroup(_) | KnownBy::Environment => None,
    }
}

/// True if a process that started in this tick as this user may belong to the run.
fn may_have(recorded: &Recorded, start: u64, uids: procfs::Uids) -> bool {
    let since = match (recorded.main, recorded.traces.since) {
        (Some((_, Some(start))), _) => start,
        (_, since) => since.map_or(0, procfs::tick),
    };
    let is_users = |user: u32| uids.iter().all(|&uid| [user, ROOT].contains(&uid));
    start >= since && recorded.traces.uid.is_none_or(is_users)
}

/// A process that is not dead, or may belong to a run.
///
/// It was sent SIGKILL and did not die in time, because it is in uninterruptible sleep or belongs to another user. Or
/// the time was not enough to find out whether it belongs to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    pub run: String,
    pub pid: i32,
}

/// The start time of a process, in ticks since boot; `None` if there is no such process.
///
/// Pid and start time together identify a process for good.
pub fn start_time(pid: i32) -> Option<u64> {
    Process::read(pid).map(|process| process.start)
}

/// Like [`kill_leftovers`], for runs that may still be running as a whole.
///
/// Kills their known processes first and at once.
///
/// # Errors
/// If /proc cannot be read.
pub fn kill_orphans(orphans: &[Recorded], node: &str, within: Duration) -> io::Result<Vec<Survivor>> {
    kill_cgroups(orphans);
    // Done before the search, which a stuck process can delay.
    let mains = orphans.iter().filter_map(|orphan| orphan.main);
    for process in mains.filter_map(|(pid, start)| Process::read(pid).filter(|process| Some(process.start) == start)) {
        drop(kill(&process));
    }
    kill_leftovers(orphans, node, within)
}

/// Kills all processes of these runs of `node`; blocks until they are dead, at most for `within`.
///
/// Returns the processes that did not die. It never kills the caller or an ancestor of it, unless they are in the
/// cgroup of a run.
///
/// # Errors
/// If /proc cannot be read.
pub fn kill_leftovers(recorded: &[Recorded], node: &str, within: Duration) -> io::Result<Vec<Survivor>> {
    let until = uptime() + within;
    kill_cgroups(recorded);
    let mut survivors = Vec::new();
    let mut loose = Vec::new();
    for record in recorded {
        match cgroup(record).and_then(|path| cgroup::end(path, until)) {
            Some(left) => survivors.extend(left.into_iter().map(|pid| Survivor { run: record.run.clone(), pid })),
            None => loose.push(record),
        }
    }
    if !loose.is_empty() {
        survivors.extend(Search::new(&loose, node, until).kill()?);
    }
    Ok(survivors)
}

fn cgroup(record: &Recorded) -> Option<&Path> {
    match &record.traces.known_by {
        KnownBy::Cgroup(path) => Some(Path::new(path)),
        KnownBy::AuditSession(_) | KnownBy::Environment => None,
    }
}

/// Kills all cgroups before waiting for any of them.
fn kill_cgroups(recorded: &[Recorded]) {
    for path in recorded.iter().filter_map(cgroup) {
        // The cgroup may never have been created, or be gone with its processes.
        let _ = cgroup::kill(path);
    }
}

/// Processes of runs, each with the index of its record.
type Leftovers = BTreeMap<Identity, (Process, usize)>;

/// The search for processes of runs without a cgroup.
struct Search<'a> {
    recorded: &'a [&'a Recorded],
    node: &'a str,
    until: Uptime,
    /// The tick in which the search began. A process that starts later cannot carry the mark of a run unless it
    /// descends from one.
    began: u64,
    /// Until when environments may be read.
    read_until: Uptime,
    /// The run named in each environment that was read.
    run_by_environment: BTreeMap<Identity, Option<usize>>,
    /// Processes whose environment was read, even if it was still empty.
    read: BTreeSet<Identity>,
    /// Processes that may belong to a run, whose environment could not be read in time.
    unread: Vec<Survivor>,
}

impl<'a> Search<'a> {
    fn new(recorded: &'a [&'a Recorded], node: &'a str, until: Uptime) -> Self {
        let now = uptime();
        let (began, read_until) = (procfs::tick(now), until.min(now + READ_TIME));
        Self {
            recorded,
            node,
            until,
            began,
            read_until,
            run_by_environment: BTreeMap::new(),
            read: BTreeSet::new(),
            unread: Vec::new(),
        }
    }

    /// Kills until the search finds no process any more; returns those that do not die.
    fn kill(mut self) -> io::Result<Vec<Survivor>> {
        loop {
            let leftovers = self.freeze()?;
            if leftovers.is_empty() {
                // Processes that may be left of a run count as survivors: the run must not be repeated while they
                // exist.
                return Ok(self.unread);
            }
            let dying: Vec<OwnedFd> = leftovers.values().filter_map(|(process, _)| kill(process)).collect();
            wait_dead(dying, self.until)?;
            if uptime() >= self.until {
                let recorded = self.recorded;
                let survivor =
                    |(process, run): &(Process, usize)| Survivor { run: recorded[*run].run.clone(), pid: process.pid };
                return Ok(self.find()?.values().map(survivor).collect());
            }
        }
    }

    /// Stops all processes that it finds until no new ones appear: a stopped process cannot fork.
    fn freeze(&mut self) -> io::Result<Leftovers> {
        let mut known = Leftovers::new();
        for _ in 0..ROUNDS {
            let found = self.find()?;
            let new = found.iter().filter(|(identity, _)| !known.contains_key(*identity));
            let new: Vec<&Process> = new.map(|(_, (process, _))| process).collect();
            new.iter().for_each(|process| process.signal(Signal::STOP));
            let has_new = !new.is_empty();
            known = found;
            if !has_new || uptime() >= self.until {
                break;
            }
        }
        Ok(known)
    }

    fn find(&mut self) -> io::Result<Leftovers> {
        let process_table = ProcessTable::read()?;
        let spared = process_table.ancestry(rustix::process::getpid().as_raw_nonzero().get());
        let mut roots = self.in_audit_sessions(&process_table);
        for (run, pids) in self.marked(&process_table)? {
            roots.entry(run).or_default().extend(pids);
        }
        let mut leftovers = Leftovers::new();
        for (index, record) in self.recorded.iter().enumerate() {
            let main =
                record.main.and_then(|(pid, start)| process_table.get(pid).filter(|now| Some(now.start) == start));
            let roots = roots.remove(&index).unwrap_or_default();
            for process in process_table.members(main.map(|main| main.pid), roots) {
                if !spared.contains(&process.pid) {
                    leftovers.insert(process.identity(), (process.clone(), index));
                }
            }
        }
        Ok(leftovers)
    }

    fn in_audit_sessions(&self, process_table: &ProcessTable) -> BTreeMap<usize, BTreeSet<i32>> {
        let sessions = self.recorded.iter().enumerate();
        let sessions: BTreeMap<u32, usize> =
            sessions.filter_map(|(index, record)| Some((audit_session(record)?, index))).collect();
        let mut found: BTreeMap<usize, BTreeSet<i32>> = BTreeMap::new();
        if sessions.is_empty() {
            return found;
        }
        for process in process_table.processes().filter(|process| !process.is_dead) {
            if let Some(index) = procfs::audit_session(process.pid).and_then(|session| sessions.get(&session)) {
                found.entry(*index).or_default().insert(process.pid);
            }
        }
        found
    }

    /// The processes whose environment names a run without an audit session, by run.
    fn marked(&mut self, process_table: &ProcessTable) -> io::Result<BTreeMap<usize, BTreeSet<i32>>> {
        let living: BTreeMap<i32, &Process> = process_table
            .processes()
            .filter(|process| !process.is_dead)
            .map(|process| (process.pid, process))
            .collect();
        let to_read = self.unread_by_user(&living);
        let pids: Vec<i32> = to_read.values().flatten().copied().collect();
        for (pid, environment) in read_in_time(to_read, self.read_until)? {
            let Some(process) = living.get(&pid) else { continue };
            self.read.insert(process.identity());
            if environment.is_empty {
                continue;
            }
            // The process may have ended meanwhile, and its pid may belong to another one.
            if Process::read(pid).is_some_and(|now| now.start == process.start) {
                let run = self.run_named(process, &environment);
                self.run_by_environment.insert(process.identity(), run);
            }
        }
        let unread =
            pids.iter().filter_map(|pid| living.get(pid)).filter(|process| !self.read.contains(&process.identity()));
        self.unread = unread.filter_map(|process| self.may_be_left(process)).collect();
        let mut marked: BTreeMap<usize, BTreeSet<i32>> = BTreeMap::new();
        for process in living.values() {
            if let Some(Some(index)) = self.run_by_environment.get(&process.identity()) {
                marked.entry(*index).or_default().insert(process.pid);
            }
        }
        Ok(marked)
    }

    /// The processes whose environment must be read, by user: a user with slow processes then delays no other user.
    fn unread_by_user(&self, living: &BTreeMap<i32, &Process>) -> BTreeMap<procfs::Uids, Vec<i32>> {
        let mut all: BTreeMap<procfs::Uids, Vec<i32>> = BTreeMap::new();
        let needs_environment = self.recorded.iter().any(|record| audit_session(record).is_none());
        if !needs_environment {
            return all;
        }
        let is_new = |process: &&&Process| {
            process.start <= self.began && !self.run_by_environment.contains_key(&process.identity())
        };
        for process in living.values().filter(is_new) {
            let Some(uids) = procfs::uids(process.pid) else { continue };
            if self.recorded.iter().any(|record| self.may_be_of(record, process.start, uids)) {
                all.entry(uids).or_default().push(process.pid);
            }
        }
        all
    }

    fn may_be_of(&self, record: &Recorded, start: u64, uids: procfs::Uids) -> bool {
        audit_session(record).is_none() && may_have(record, start, uids)
    }

    /// The process as a survivor of the first run that it may belong to, if it is still alive.
    fn may_be_left(&self, process: &Process) -> Option<Survivor> {
        let uids = procfs::uids(process.pid)?;
        Process::read(process.pid).filter(|now| now.start == process.start)?;
        let record = self.recorded.iter().find(|record| self.may_be_of(record, process.start, uids))?;
        Some(Survivor { run: record.run.clone(), pid: process.pid })
    }

    fn run_named(&self, process: &Process, environment: &Environment) -> Option<usize> {
        let [Some(run), Some(node)] = environment.values.as_slice() else { return None };
        let uids = procfs::uids(process.pid)?;
        let matches = |record: &&Recorded| record.run.as_bytes() == run && self.may_be_of(record, process.start, uids);
        self.recorded.iter().position(matches).filter(|_| node == self.node.as_bytes())
    }
}

/// Reads the environments of these processes, as far as that is possible until `until`.
///
/// A thread that hangs in a reading is abandoned.
fn read_in_time(pids: BTreeMap<procfs::Uids, Vec<i32>>, until: Uptime) -> io::Result<BTreeMap<i32, Environment>> {
    let (sender, receiver) = channel();
    if uptime() >= until {
        return Ok(BTreeMap::new());
    }
    let mut shares: Vec<Vec<i32>> = pids.into_values().collect();
    let rest = shares.split_off(shares.len().min(READERS)).concat();
    shares.push(rest);
    for pids in shares.into_iter().filter(|pids| !pids.is_empty()) {
        let sender = sender.clone();
        thread::Builder::new().name("environ".into()).spawn(move || read_all(&pids, until, &sender))?;
    }
    drop(sender);
    let mut all = BTreeMap::new();
    while let Ok((pid, environment)) = receiver.recv_timeout(until.since(uptime())) {
        all.insert(pid, environment);
    }
    Ok(all)
}

fn read_all(pids: &[i32], until: Uptime, sender: &Sender<(i32, Environment)>) {
    for &pid in pids {
        let environment = procfs::environment(pid, &[RUN_ID, NODE]);
        // The caller does not wait any more.
        if uptime() >= until || sender.send((pid, environment)).is_err() {
            return;
        }
    }
}

/// Kills a process; the returned descriptor becomes readable when it is dead. `None` if it is dead already.
fn kill(process: &Process) -> Option<OwnedFd> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    if start_time(process.pid) != Some(process.start) {
        return None; // Another process has its pid now.
    }
    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    Some(pidfd)
}

fn wait_dead(mut dying: Vec<OwnedFd>, until: Uptime) -> io::Result<()> {
    while !dying.is_empty() && uptime() < until {
        let left = until.since(uptime());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled: Vec<PollFd<'_>> = dying.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_dead: Vec<bool> = polled.iter().map(|pidfd| !pidfd.revents().is_empty()).collect();
        let mut is_dead = is_dead.into_iter();
        dying.retain(|_| !is_dead.next().unwrap_or(false));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::run::Traces;

    /// A process that a slow host leaves no time to read: its run must not be repeated while it exists.
    #[test]
    fn a_process_that_could_not_be_read_in_time_may_be_left() {
        let since = uptime();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let uid = Some(rustix::process::getuid().as_raw());
        let traces = Traces { uid, since: Some(since), ..Traces::default() };
        let (record, pid) = (Recorded { run: "a".into(), main: None, traces }, child.id().cast_signed());
        let recorded = [&record];
        let search = || Search::new(&recorded, "here", uptime() + Duration::from_secs(60));
        let left = Search { read_until: Uptime::ZERO, ..search() }.kill().unwrap();
        assert!(left.contains(&Survivor { run: "a".into(), pid }), "{left:?}");
        let left = search().kill().unwrap();
        assert!(!left.iter().any(|survivor| survivor.pid == pid), "{left:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
