//! The supervisors of the nodes, which restart them when they end: here the test does what systemd does elsewhere.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::losses::AcceptedEnd;
use super::plan::{Part, Pick, SentSignal, TIMEOUT};
use super::work::Work;
use crate::support::LONG;
use crate::support::host::Host;
use crate::support::node::{Event, Events, Node, Spec};
use crate::support::process::watcher_and_warden_of;
use crate::support::scratch::fill;

/// Room for the state of a node, as long as nobody fills it.
const DISK: &str = "mode=700,size=4m";

/// All nodes.
pub struct Supervisors {
    nodes: Vec<SupervisedNode>,
}

struct SupervisedNode {
    /// `None`: it runs on this machine, and its disk is never full.
    host: Option<Arc<Host>>,
    /// Taken out only to be started again.
    node: Option<Node>,
    /// The logs of all its processes so far.
    logs: Vec<Arc<Events>>,
    /// A fault has ended the node or its warden.
    may_end: bool,
    /// A process that is started while this holds ends at once.
    is_disk_full: bool,
}

impl SupervisedNode {
    /// True if its warden was stopped for so long that the daemon took it for dead.
    fn is_silent(&self) -> bool {
        self.logs.last().is_some_and(|log| !log.named("warden.silent").is_empty())
    }
}

impl Supervisors {
    /// Starts nodes with these jobs, one after the other. `place` names the service to each, and `host` its host, if it has
    /// one of its own.
    pub fn start<'h>(
        work: &Work,
        place: impl Fn(Spec, usize) -> Spec,
        host: impl Fn(usize) -> Option<&'h Arc<Host>>,
    ) -> Self {
        let mut nodes = Vec::new();
        for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
            let spec = place(Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), name), i).jobs(&work.yaml);
            let timeout = format!("{}s", TIMEOUT.as_secs());
            let spec = spec.option("--session-timeout", &timeout).option("--drain-timeout", "5s");
            // With what the ledger has accepted.
            let mut spec = spec.option("--log", "cronkeeper=trace,warn");
            let host = host(i);
            if let Some(host) = host {
                spec = spec.on(host);
                let state = spec.state_dir();
                let mount = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", state.to_str().expect("it is text")];
                host.run(&mount, "").expect("a host can mount what it likes");
            }
            let node = spec.start();
            let joined = if nodes.is_empty() { "takeover.done" } else { "election.following" };
            node.await_event(joined, LONG);
            nodes.push(SupervisedNode {
                host: host.cloned(),
                logs: vec![node.log()],
                node: Some(node),
                may_end: false,
                is_disk_full: false,
            });
        }
        Self { nodes }
    }

    pub fn names(&self) -> Vec<&str> {
        (0..self.nodes.len()).map(|i| self.node(i).name()).collect()
    }

    pub fn name(&self, i: usize) -> &str {
        self.node(i).name()
    }

    /// Leaves no room for the node's state.
    pub fn fill_disk(&mut self, i: usize) {
        fill(&self.filler(i));
        self.nodes[i].is_disk_full = true;
    }

    /// Frees the room again, and restarts the node if it ended for want of room.
    pub fn make_room(&mut self, i: usize) {
        std::fs::remove_file(self.filler(i)).expect("it was made before");
        self.nodes[i].is_disk_full = false;
        if !self.may_end(i) {
            self.revive(i);
        }
    }

    fn filler(&self, i: usize) -> PathBuf {
        let host = self.nodes[i].host.as_ref().expect("only a disk of a host is filled");
        host.file(&self.node(i).spec().state_dir().join("filler"))
    }

    /// The node that a pick means. The leader is the node that was elected last.
    pub fn pick(&self, pick: Pick) -> usize {
        let newest = |supervised: &SupervisedNode| {
            let elected = supervised.logs.iter().flat_map(|log| log.named("leader.elected"));
            elected.filter_map(|event| event.number("token")).max()
        };
        let leader = (0..self.nodes.len()).max_by_key(|&i| newest(&self.nodes[i])).expect("there are nodes");
        match pick {
            Pick::Leader => leader,
            Pick::Other(n) => (0..self.nodes.len()).filter(|&i| i != leader).nth(n).expect("there are two others"),
        }
    }

    /// Sends a signal. Returns the processes that were stopped, to be continued; `None` if there was no process.
    pub fn signal(&mut self, i: usize, signal: SentSignal, part: Part) -> Option<Vec<OwnedFd>> {
        let node = self.node(i);
        // Before it has started, it does not catch signals: SIGUSR2 would end it.
        let is_early = signal == SentSignal::Usr2 && node.events().count("node.started") == 0;
        if node.status().is_some() || is_early {
            return None;
        }
        let (daemon, warden) = (open(node.pid())?, warden_of(node));
        let hit: Vec<OwnedFd> = match part {
            Part::Daemon => vec![daemon],
            Part::Warden => vec![warden?],
            Part::Both => vec![daemon, warden?],
        };
        self.nodes[i].may_end |= match signal {
            SentSignal::Kill => true,
            // The warden ignores it: it ends with its daemon.
            SentSignal::Term => part != Part::Warden,
            SentSignal::Stop | SentSignal::Usr2 => false,
        };
        let send = |signal| hit.iter().for_each(|process| self::send(process, signal));
        match signal {
            SentSignal::Term => send(Signal::TERM),
            SentSignal::Stop => send(Signal::STOP),
            SentSignal::Usr2 => send(Signal::USR2),
            SentSignal::Kill => {
                // Neither may see the other die.
                send(Signal::STOP);
                send(Signal::KILL);
            }
        }
        Some(hit)
    }

    /// Stops all processes of a node's host; returns them, to be continued.
    pub fn suspend(&mut self, i: usize) -> Option<Vec<OwnedFd>> {
        let mut stopped = self.signal(i, SentSignal::Stop, Part::Both)?;
        let mut known = Vec::new();
        loop {
            let found = self.node(i).job_processes();
            let news: Vec<u32> = found.into_iter().filter(|pid| !known.contains(pid)).collect();
            if news.is_empty() {
                return Some(stopped);
            }
            for process in news.iter().filter_map(|pid| open(*pid)) {
                send(&process, Signal::STOP);
                stopped.push(process);
            }
            known.extend(news);
        }
    }

    /// Kills all processes of a node's host; returns them, to be restarted.
    pub fn kill_all(&mut self, i: usize) -> Option<Vec<OwnedFd>> {
        // Stopped first, so that none of them sees another die.
        let all = self.suspend(i)?;
        all.iter().for_each(|process| send(process, Signal::KILL));
        self.nodes[i].may_end = true;
        Some(all)
    }

    /// True if a fault has ended the node, so that it must be restarted.
    pub fn may_end(&self, i: usize) -> bool {
        self.nodes[i].may_end
    }

    /// Restarts a node that a fault has ended; false while it is alive.
    pub fn revive(&mut self, i: usize) -> bool {
        let supervised = &mut self.nodes[i];
        if supervised.node.as_ref().is_none_or(|node| node.status().is_none()) {
            return false;
        }
        let node = supervised.node.take().expect("it was there").again();
        supervised.logs.push(node.log());
        (supervised.node, supervised.may_end) = (Some(node), false);
        true
    }

    /// Restarts the nodes that have ended because their warden was silent.
    pub fn revive_silent(&mut self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&i| self.nodes[i].is_silent() && self.revive(i)).collect()
    }

    /// Nodes that have ended although no fault ended them.
    pub fn unexplained_ends(&self) -> Vec<String> {
        let is_unexplained =
            |supervised: &&SupervisedNode| !supervised.may_end && !supervised.is_disk_full && !supervised.is_silent();
        let each = self.nodes.iter().filter(is_unexplained).filter_map(|supervised| supervised.node.as_ref());
        each.filter_map(|node| Some(format!("{} ended by itself, with {}", node.name(), node.status()?))).collect()
    }

    /// The ends of runs that the nodes count as written. `run.finished` says less: most ends are logged before they are
    /// written.
    pub fn accepted_ends(&self) -> Vec<AcceptedEnd> {
        let accepted = |event: &Event| event.text("message") == "the ledger has the end of a run";
        let end = |event: &Event| AcceptedEnd { node: event.text("node").into(), run: event.text("run").into() };
        self.story().iter().filter(|event| accepted(event)).map(end).collect()
    }

    /// All log lines of all nodes, ordered by time.
    pub fn story(&self) -> Vec<Event> {
        let mut story: Vec<Event> =
            self.nodes.iter().flat_map(|supervised| &supervised.logs).flat_map(|log| log.all()).collect();
        story.sort_by(|one, other| one.text("timestamp").cmp(other.text("timestamp")));
        story
    }

    fn node(&self, i: usize) -> &Node {
        self.nodes[i].node.as_ref().expect("it is only taken out to be started again")
    }
}

impl Drop for Supervisors {
    fn drop(&mut self) {
        for supervised in &mut self.nodes {
            let Some(node) = supervised.node.take() else { continue };
            let state = node.spec().state_dir();
            drop(node);
            if let Some(host) = &supervised.host {
                // If that fails, the mount disappears with its host.
                let _left = host.run(&["umount", "--lazy", &state.display().to_string()], "");
            }
        }
    }
}

fn warden_of(node: &Node) -> Option<OwnedFd> {
    let [_, found] = watcher_and_warden_of(node.pid())?;
    let warden = open(found)?;
    // Opened, so that its number cannot be reused; it is the warden if it is still there.
    (watcher_and_warden_of(node.pid())?[1] == found).then_some(warden)
}

fn open(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

/// A process that has ended takes no signal, and needs none.
pub fn send(process: &OwnedFd, signal: Signal) {
    let _ended = pidfd_send_signal(process, signal);
}
