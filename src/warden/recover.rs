//! Without the warden: find what is left of runs, kill it, and see it dead.
//!
//! A run's processes are known by its main process, if that still lives under the same start time, by the run and node in
//! their environment, and by descent from either. It blocks, for a bounded time; it is for `release`, for the start of a
//! daemon before it joins, and for one whose warden is gone or hangs. Only records of this boot make sense here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::cgroup;
use super::forest::Forest;
use super::procfs::{self, Identity, Process};
use super::tree::RUN_ID;
use crate::clock::Uptime;
use crate::clock::system::uptime;

/// The node, in the environment of every process of a run.
const NODE: &str = "CRONKEEPER_NODE";

/// Readings of /proc while stopping a tree that grows.
const ROUNDS: usize = 8;

/// What a daemon wrote down about a run that it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The run's id.
    pub run: String,
    /// Its main process, if it was started, and that process's [`start_time`], if it was read in time.
    pub main: Option<(i32, Option<u64>)>,
}

/// A run that its warden does not kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// What is known of it.
    pub recorded: Recorded,
    /// Where all of it is, if its warden made that.
    pub cgroup: Option<PathBuf>,
}

/// A process that was sent SIGKILL and did not die in time: it sleeps uninterruptibly, or belongs to another user.
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

/// The same as [`kill_leftovers`], of runs that a cgroup may hold: what is in there dies first and at once.
///
/// # Errors
/// When /proc cannot be read.
pub fn kill_strays(strays: &[Stray], node: &str, within: Duration) -> io::Result<Vec<Survivor>> {
    for path in strays.iter().filter_map(|stray| stray.cgroup.as_deref()) {
        // It may never have been made, or be gone with all that was in it.
        let _ = cgroup::kill(path);
    }
    // Before the search, which a process that is stuck can hold up.
    let mains = strays.iter().filter_map(|stray| stray.recorded.main);
    for process in mains.filter_map(|(pid, start)| Process::read(pid).filter(|process| Some(process.start) == start)) {
        drop(kill(&process));
    }
    let recorded: Vec<Recorded> = strays.iter().map(|stray| stray.recorded.clone()).collect();
    kill_leftovers(&recorded, node, within)
}

/// Kills all that is left of these runs of `node` and returns when it is dead, or after `within`. Says what did not die. Never
/// kills the caller or an ancestor of it.
///
/// # Errors
/// When /proc cannot be read.
pub fn kill_leftovers(recorded: &[Recorded], node: &str, within: Duration) -> io::Result<Vec<Survivor>> {
    let until = uptime() + within;
    loop {
        let leftovers = freeze(recorded, node)?;
        if leftovers.is_empty() {
            return Ok(Vec::new());
        }
        let dying: Vec<OwnedFd> = leftovers.values().filter_map(|(process, _)| kill(process)).collect();
        wait_dead(dying, until)?;
        if uptime() >= until {
            let survivor =
                |(process, run): &(Process, usize)| Survivor { run: recorded[*run].run.clone(), pid: process.pid };
            return Ok(find(recorded, node)?.values().map(survivor).collect());
        }
    }
}

/// Processes of runs: each with its place in the records.
type Leftovers = BTreeMap<Identity, (Process, usize)>;

/// Stops all that is found, until nothing new is: what is stopped cannot fork.
fn freeze(recorded: &[Recorded], node: &str) -> io::Result<Leftovers> {
    let mut known = Leftovers::new();
    for _ in 0..ROUNDS {
        let found = find(recorded, node)?;
        let is_news = found.keys().any(|identity| !known.contains_key(identity));
        for (process, _) in found.iter().filter(|(identity, _)| !known.contains_key(*identity)).map(|(_, found)| found)
        {
            process.signal(Signal::STOP);
        }
        known = found;
        if !is_news {
            break;
        }
    }
    Ok(known)
}

fn find(recorded: &[Recorded], node: &str) -> io::Result<Leftovers> {
    let forest = Forest::read()?;
    let spared = forest.ancestry(rustix::process::getpid().as_raw_nonzero().get());
    let marked = marked(&forest, node);
    let mut leftovers = Leftovers::new();
    for (index, record) in recorded.iter().enumerate() {
        let main = record.main.and_then(|(pid, start)| forest.get(pid).filter(|now| Some(now.start) == start));
        let roots = marked.get(record.run.as_bytes()).into_iter().flatten().copied();
        for process in forest.members(main.map(|main| main.pid), roots) {
            if !spared.contains(&process.pid) {
                leftovers.insert(process.identity(), (process.clone(), index));
            }
        }
    }
    Ok(leftovers)
}

/// The processes that carry a run of this node in their environment, by run.
fn marked(forest: &Forest, node: &str) -> BTreeMap<Vec<u8>, BTreeSet<i32>> {
    let mut marked: BTreeMap<Vec<u8>, BTreeSet<i32>> = BTreeMap::new();
    for process in forest.processes().filter(|process| !process.is_dead) {
        let environment = procfs::environment(process.pid);
        let run = procfs::variable(&environment, RUN_ID);
        if let Some(run) = run.filter(|_| procfs::variable(&environment, NODE) == Some(node.as_bytes())) {
            marked.entry(run.to_owned()).or_default().insert(process.pid);
        }
    }
    marked
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
