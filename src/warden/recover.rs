//! Without the warden: find what is left of runs, kill it, and see it dead.
//!
//! What a run's processes are known by is noted with it ([`KnownBy`]). Its cgroup alone says what is in it. Else it is known by the
//! main process, if that still lives under the same start time, by descent from what is found, and by its audit session. Only where the
//! run has none of both are environments read, and then with care, for any user can write into one what he likes, and make it long, or
//! slow to be read: only of processes of the run's user or root, that started after the run and before the search; not much of each;
//! and not for long. So whoever forges one loses his own process, and delays nobody.
//!
//! It blocks, for a bounded time; it is for `release`, for the start of a daemon before it joins, and for one whose warden is gone or
//! hangs. Only records of this boot make sense here.

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
use crate::clock::Uptime;
use crate::clock::system::uptime;
use crate::run::{KnownBy, Traces};

/// The node, in the environment of every process of a run.
const NODE: &str = "CRONKEEPER_NODE";

/// Readings of /proc while stopping a tree that grows.
const ROUNDS: usize = 8;

/// How long environments are read, in all: a restart is to be done within three seconds.
const READING: Duration = Duration::from_secs(2);

/// How many read at once. One that is held up holds up those that it shares a place with.
const READERS: usize = 64;

const ROOT: u32 = 0;

/// What a daemon wrote down about a run that it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The run's id.
    pub run: String,
    /// Its main process, if it was started, and that process's [`start_time`], if it was read in time.
    pub main: Option<(i32, Option<u64>)>,
    /// By what its processes are known.
    pub traces: Traces,
}

impl Recorded {
    fn audit_session(&self) -> Option<u32> {
        match self.traces.known_by {
            KnownBy::AuditSession(session) => Some(session),
            KnownBy::Cgroup(_) | KnownBy::Environment => None,
        }
    }

    /// Whether a process may be of it that started at this tick, as this user.
    fn may_have(&self, start: u64, uids: procfs::Uids) -> bool {
        let since = match (self.main, self.traces.since) {
            (Some((_, Some(start))), _) => start,
            (_, since) => since.map_or(0, procfs::tick),
        };
        let is_users = |user: u32| uids.iter().all(|&uid| [user, ROOT].contains(&uid));
        start >= since && self.traces.uid.is_none_or(is_users)
    }
}

/// A process that was sent SIGKILL and did not die in time: it sleeps uninterruptibly, or belongs to another user. Or one of which it could
/// not be found in time whether it is of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Of which run.
    pub run: String,
    /// Which.
    pub pid: i32,
}

/// When a process started, in ticks since boot: with its pid, its name for good. None if there is no such process.
pub fn start_time(pid: i32) -> Option<u64> {
    Process::read(pid).map(|process| process.start)
}

/// The same as [`kill_leftovers`], of runs that may be alive as a whole: what is known of them dies first and at once.
///
/// # Errors
/// When /proc cannot be read.
pub fn kill_strays(orphans: &[Recorded], node: &str, within: Duration) -> io::Result<Vec<Survivor>> {
    kill_cgroups(orphans);
    // Before the search, which a process that is stuck can hold up.
    let mains = orphans.iter().filter_map(|orphan| orphan.main);
    for process in mains.filter_map(|(pid, start)| Process::read(pid).filter(|process| Some(process.start) == start)) {
        drop(kill(&process));
    }
    kill_leftovers(orphans, node, within)
}

/// Kills all that is left of these runs of `node` and returns when it is dead, or after `within`. Says what did not die. Where there
/// is no cgroup to be killed as one, it never kills the caller or an ancestor of it.
///
/// # Errors
/// When /proc cannot be read.
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

/// Each at one word, so that none waits for another to die.
fn kill_cgroups(recorded: &[Recorded]) {
    for path in recorded.iter().filter_map(cgroup) {
        // It may never have been made, or be gone with all that was in it.
        let _ = cgroup::kill(path);
    }
}

/// Processes of runs: each with its place in the records.
type Leftovers = BTreeMap<Identity, (Process, usize)>;

/// The search for what is left of runs that no cgroup holds.
struct Search<'a> {
    recorded: &'a [&'a Recorded],
    node: &'a str,
    until: Uptime,
    /// The tick in which it began: whoever starts later has no mark of a run, unless he descends from it.
    began: u64,
    /// Until when environments are read.
    read_until: Uptime,
    /// What environments said.
    judged: BTreeMap<Identity, Option<usize>>,
    /// Whose environment was read, though there may have been nothing in it yet.
    read: BTreeSet<Identity>,
    /// Those that may be of a run, and whose environment could not be read in time.
    unread: Vec<Survivor>,
}

impl<'a> Search<'a> {
    fn new(recorded: &'a [&'a Recorded], node: &'a str, until: Uptime) -> Self {
        let now = uptime();
        let (began, read_until) = (procfs::tick(now), until.min(now + READING));
        Self {
            recorded,
            node,
            until,
            began,
            read_until,
            judged: BTreeMap::new(),
            read: BTreeSet::new(),
            unread: Vec::new(),
        }
    }

    /// Kills what it finds until nothing is found. Says what does not die.
    fn kill(mut self) -> io::Result<Vec<Survivor>> {
        loop {
            let leftovers = self.freeze()?;
            if leftovers.is_empty() {
                // Nothing is begun again beside what may be left of it.
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

    /// Stops all that is found, until nothing new is: what is stopped cannot fork.
    fn freeze(&mut self) -> io::Result<Leftovers> {
        let mut known = Leftovers::new();
        for _ in 0..ROUNDS {
            let found = self.find()?;
            let new = found.iter().filter(|(identity, _)| !known.contains_key(*identity));
            let new: Vec<&Process> = new.map(|(_, (process, _))| process).collect();
            new.iter().for_each(|process| process.signal(Signal::STOP));
            let is_news = !new.is_empty();
            known = found;
            if !is_news || uptime() >= self.until {
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
            sessions.filter_map(|(index, record)| Some((record.audit_session()?, index))).collect();
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

    /// The processes whose environment names a run that is known by nothing else, by run.
    fn marked(&mut self, process_table: &ProcessTable) -> io::Result<BTreeMap<usize, BTreeSet<i32>>> {
        let living: BTreeMap<i32, &Process> = process_table
            .processes()
            .filter(|process| !process.is_dead)
            .map(|process| (process.pid, process))
            .collect();
        let asked = self.to_be_read(&living);
        let pids: Vec<i32> = asked.values().flatten().copied().collect();
        for (pid, environment) in read_in_time(asked, self.read_until)? {
            let Some(process) = living.get(&pid) else { continue };
            self.read.insert(process.identity());
            if environment.is_empty {
                continue;
            }
            // It may have ended, and another have its number, while it was asked.
            if Process::read(pid).is_some_and(|now| now.start == process.start) {
                let run = self.run_named(process, &environment);
                self.judged.insert(process.identity(), run);
            }
        }
        let unread =
            pids.iter().filter_map(|pid| living.get(pid)).filter(|process| !self.read.contains(&process.identity()));
        self.unread = unread.filter_map(|process| self.may_be_left(process)).collect();
        let mut marked: BTreeMap<usize, BTreeSet<i32>> = BTreeMap::new();
        for process in living.values() {
            if let Some(Some(index)) = self.judged.get(&process.identity()) {
                marked.entry(*index).or_default().insert(process.pid);
            }
        }
        Ok(marked)
    }

    /// Those whose environment may say something, apart by users: of what one user makes slow to be read, no other's waits.
    fn to_be_read(&self, living: &BTreeMap<i32, &Process>) -> BTreeMap<procfs::Uids, Vec<i32>> {
        let mut all: BTreeMap<procfs::Uids, Vec<i32>> = BTreeMap::new();
        let is_asked = self.recorded.iter().any(|record| record.audit_session().is_none());
        if !is_asked {
            return all;
        }
        let is_new =
            |process: &&&Process| process.start <= self.began && !self.judged.contains_key(&process.identity());
        for process in living.values().filter(is_new) {
            let Some(uids) = procfs::uids(process.pid) else { continue };
            if self.recorded.iter().any(|record| self.may_be_of(record, process.start, uids)) {
                all.entry(uids).or_default().push(process.pid);
            }
        }
        all
    }

    fn may_be_of(&self, record: &Recorded, start: u64, uids: procfs::Uids) -> bool {
        record.audit_session().is_none() && record.may_have(start, uids)
    }

    /// A process that still lives, as one of the first run that it may be of.
    fn may_be_left(&self, process: &Process) -> Option<Survivor> {
        let uids = procfs::uids(process.pid)?;
        Process::read(process.pid).filter(|now| now.start == process.start)?;
        let record = self.recorded.iter().find(|record| self.may_be_of(record, process.start, uids))?;
        Some(Survivor { run: record.run.clone(), pid: process.pid })
    }

    fn run_named(&self, process: &Process, environment: &Environment) -> Option<usize> {
        let [Some(run), Some(node)] = environment.values.as_slice() else { return None };
        let uids = procfs::uids(process.pid)?;
        let is_meant = |record: &&Recorded| record.run.as_bytes() == run && self.may_be_of(record, process.start, uids);
        self.recorded.iter().position(is_meant).filter(|_| node == self.node.as_bytes())
    }
}

/// What the environments of these say, as far as they can be read until then: of nobody where it is past. A reading that does not come back is left to itself.
fn read_in_time(pids: BTreeMap<procfs::Uids, Vec<i32>>, until: Uptime) -> io::Result<BTreeMap<i32, Environment>> {
    let (told, tells) = channel();
    if uptime() >= until {
        return Ok(BTreeMap::new());
    }
    let mut shares: Vec<Vec<i32>> = pids.into_values().collect();
    let rest = shares.split_off(shares.len().min(READERS)).concat();
    shares.push(rest);
    for pids in shares.into_iter().filter(|pids| !pids.is_empty()) {
        let told = told.clone();
        thread::Builder::new().name("environ".into()).spawn(move || read_all(&pids, until, &told))?;
    }
    drop(told);
    let mut all = BTreeMap::new();
    while let Ok((pid, environment)) = tells.recv_timeout(until.since(uptime())) {
        all.insert(pid, environment);
    }
    Ok(all)
}

fn read_all(pids: &[i32], until: Uptime, told: &Sender<(i32, Environment)>) {
    for &pid in pids {
        let environment = procfs::environment(pid, &[RUN_ID, NODE]);
        // Nobody waits for it any more.
        if uptime() >= until || told.send((pid, environment)).is_err() {
            return;
        }
    }
}

/// Kills a process; what is returned becomes readable when it is dead. None if it is dead already.
fn kill(process: &Process) -> Option<OwnedFd> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    if start_time(process.pid) != Some(process.start) {
        return None; // Another one that has its pid now.
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

    /// On a host that is starved, or held up: nothing may be begun again beside what nobody has looked at.
    #[test]
    fn a_process_that_could_not_be_looked_at_in_time_may_be_left() {
        let since = uptime();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let uid = Some(rustix::process::getuid().as_raw());
        let traces = Traces { uid, since: Some(since), known_by: KnownBy::Environment };
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
