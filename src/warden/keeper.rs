//! The warden's loop: wait, read orders, kill what is due, reap, send notices.
//!
//! Only the wait at the top of a turn blocks. Each turn takes a bounded share of every source, so that neither a flood
//! of output nor a burst of starts delays a deadline; output comes last ([`relay`](super::relay)). It prepares a few
//! starts, then forks for one after the other. Between any two of these steps it reads all orders and the clock. A tree
//! whose lease or deadline ends, or that is to be killed, is marked then, and gets its signal at the end of the turn,
//! however many starts are ordered.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup::{RunCgroup, UnusedCgroup};
use super::codec::Decoder;
use super::custody::Vault;
use super::hold::Hold;
use super::outbox::Outbox;
use super::poller::{Poller, Ready, TREE_IDS};
use super::procfs;
use super::spawn::{PreparedStart, Spawner};
use super::start_report::{self, StartOutcome};
use super::tree::{Tree, Trees};
use super::window::Window;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{
    Deadline, EndedBy, Launch, Notice, Order, SentOrder, StartFailure, StartStep, Stream, TreeId,
};
use cronkeeper_core::run::KnownBy;

/// Starts in one turn. After that many, ends are reported.
const STARTS_A_TURN: usize = 8;

/// Maximum number of reads of orders in a row.
const ORDER_READS: usize = 8;

/// Bytes read at once from one source: the default capacity of a pipe.
pub(super) const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) poller: Poller,
    /// The socket for starts and for all notices.
    daemon: UnixStream,
    launches: Decoder,
    /// There may be a whole launch among the bytes that were read.
    has_launches: bool,
    /// The socket for orders.
    order_socket: UnixStream,
    orders: Decoder,
    /// Number of starts carried out so far, including those that got no process.
    starts: u64,
    early: EarlyOrders,
    outbox: Outbox,
    pub(super) window: Window,
    /// The daemon is gone or sent an undecodable message: all trees are killed, then the warden ends.
    pub(super) is_closing: bool,
    pub(super) lease_until: Uptime,
    pub(super) trees: Trees,
    /// The tree of each inherited child, as far as it is known.
    pub(super) adopted: BTreeMap<i32, TreeId>,
    /// Inherited children without environment and arguments, and since when they are seen like that.
    pub(super) without_program: BTreeMap<i32, Uptime>,
    /// Inherited children whose environment names none of the trees that they may belong to.
    pub(super) unmarked: BTreeSet<i32>,
    /// The audit session of the warden itself, which all processes without a session of their own share.
    audit_session: Option<u32>,
    /// A child may have ended since the last reaping.
    pub(super) must_reap: bool,
    /// When to reap again even without a signal.
    pub(super) reap_at: Option<Uptime>,
    /// Earliest time for the next reaping, because the last one took long.
    pub(super) reap_from: Uptime,
    /// At the last check, all children were main processes of trees.
    pub(super) has_no_orphans: bool,
    to_terminate: Vec<TreeId>,
    /// A cgroup with the same parent directories as that of the latest run. They are removed when the warden ends.
    last_cgroup: Option<PathBuf>,
    spawner: Spawner,
    /// Closed only when this process ends: what is in it must outlive all trees.
    vault: Vault,
    pub(super) buffer: Vec<u8>,
}

impl Keeper {
    /// `custody`: the socket on which the daemon deposits descriptors. `begins`: where the children note the begins of
    /// their programs. `timer_slack`: that of the jobs, in nanoseconds.
    pub(super) fn new(
        daemon: UnixStream,
        order_socket: UnixStream,
        custody: Option<OwnedFd>,
        begins: Option<OwnedFd>,
        timer_slack: Option<NonZeroU64>,
    ) -> io::Result<Self> {
        let spawner = Spawner::new(order_socket.as_fd(), begins, timer_slack)?;
        let vault = Vault::new(custody, spawner.last())?;
        Ok(Self {
            poller: Poller::new(&daemon, &order_socket, &vault)?,
            daemon,
            launches: Decoder::default(),
            has_launches: false,
            order_socket,
            orders: Decoder::default(),
            starts: 0,
            early: EarlyOrders::default(),
            outbox: Outbox::default(),
            window: Window::default(),
            is_closing: false,
            lease_until: Uptime::ZERO,
            trees: Trees::default(),
            adopted: BTreeMap::new(),
            without_program: BTreeMap::new(),
            unmarked: BTreeSet::new(),
            audit_session: procfs::audit_session(rustix::process::getpid().as_raw_nonzero().get()),
            must_reap: false,
            reap_at: None,
            reap_from: Uptime::ZERO,
            has_no_orphans: true,
            to_terminate: Vec::new(),
            last_cgroup: None,
            spawner,
            vault,
            buffer: vec![0; CHUNK],
        })
    }

    /// Runs until the daemon is gone and everything is dead.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !(self.is_closing && self.trees.is_empty() && self.has_no_orphans) {
            let mut has_output = false;
            for ready in self.poller.wait(self.has_launches)? {
                match ready {
                    Ready::Daemon => self.read_launches(),
                    Ready::DaemonGone => self.close(),
                    Ready::Children => self.must_reap = true,
                    // Every turn reads orders and the clock anyway.
                    Ready::Orders | Ready::Timer => {}
                    Ready::Status(tree_id) => self.read_start_outcome(tree_id, false),
                    Ready::Outputs => has_output = true,
                    Ready::Vault => self.vault.turn()?,
                }
            }
            self.execute();
            self.kill_due(uptime());
            self.reap_and_kill();
            self.report_ends();
            // After everything else, because all of it can wait for the rest.
            if has_output {
                self.read_outputs()?;
            }
            self.flush_notices()?;
            self.poller.wake_at(self.next_wake())?;
        }
        if let Some(cgroup) = &self.last_cgroup {
            RunCgroup::remove_parents(cgroup);
        }
        Ok(())
    }

    fn read_launches(&mut self) {
        if self.is_closing || self.has_launches {
            return;
        }
        match (&self.daemon).read(&mut self.buffer) {
            Ok(0) => self.close(),
            Ok(bytes) => {
                self.launches.push(&self.buffer[..bytes]);
                self.has_launches = true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.close(),
        }
    }

    /// Handles the end of the daemon: an order to kill everything. Earlier orders that are still unread do not matter.
    fn close(&mut self) {
        self.is_closing = true;
        self.has_launches = false;
        self.must_reap = true;
        self.poller.unwatch_daemon(&self.daemon);
        self.poller.unwatch_daemon(&self.order_socket);
        self.trees.set_all_killing();
    }

    fn execute(&mut self) {
        self.execute_orders();
        let mut launches = Vec::new();
        while self.has_launches && launches.len() < STARTS_A_TURN {
            match self.launches.take() {
                Ok(Some(launch)) => launches.push(launch),
                Ok(None) => self.has_launches = false,
                // The daemon is the same binary, so an undecodable message means that it is broken.
                Err(_) => self.close(),
            }
        }
        self.start_all(&launches);
        let tree_ids = std::mem::take(&mut self.to_terminate);
        if !tree_ids.is_empty() {
            self.terminate(&tree_ids);
        }
    }

    /// Reads and executes all orders. If there are none, it costs one system call.
    fn execute_orders(&mut self) {
        for _ in 0..ORDER_READS {
            if self.is_closing {
                return;
            }
            match (&self.order_socket).read(&mut self.buffer) {
                Ok(0) => self.close(),
                Ok(bytes) => self.orders.push(&self.buffer[..bytes]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
                Err(_) => self.close(),
            }
            loop {
                match self.orders.take() {
                    Ok(Some(SentOrder { after, order })) => self.execute_one(order, after),
                    Ok(None) => break,
                    Err(_) => return self.close(),
                }
            }
        }
    }

    /// Executes an order that the daemon sent after `after` starts.
    fn execute_one(&mut self, order: Order, after: u64) {
        match order {
            Order::Stop { tree_id, .. } | Order::Kill { tree_id } | Order::Cancel { tree_id }
                if self.is_not_started_yet(tree_id, after) =>
            {
                self.early.at(tree_id, after).is_over = true;
            }
            Order::Deadline { tree_id, deadline } if self.is_not_started_yet(tree_id, after) => {
                self.early.at(tree_id, after).deadline = Some(deadline);
            }
            Order::Stop { tree_id, grace_ms } => self.stop(tree_id, Duration::from_millis(grace_ms)),
            Order::Kill { tree_id } => self.kill(tree_id, EndedBy::Order),
            Order::Cancel { tree_id } => {
                self.cancel(tree_id);
            }
            Order::Signal { tree_id, signal } => self.signal(tree_id, signal),
            Order::Lease { until } => self.lease_until = until,
            Order::Deadline { tree_id, deadline } => self.trees.set_deadline(tree_id, deadline),
            Order::OutputTaken { cost } => self.window.taken(cost),
            Order::Ping => self.send(&Notice::Pong),
        }
    }

    /// True if this tree may have been ordered and is not started yet. Any other unknown tree id is over.
    fn is_not_started_yet(&self, tree_id: TreeId, after: u64) -> bool {
        after > self.starts && !self.trees.contains(tree_id)
    }

    /// Prepares all starts before the first fork, and frees them after the last: see `spawn`.
    fn start_all(&mut self, launches: &[Launch]) {
        let mut prepared = Vec::with_capacity(launches.len());
        for launch in launches {
            prepared.push(self.prepare(launch));
            self.attend();
        }
        for (launch, prepared) in launches.iter().zip(&mut prepared) {
            self.start(launch, prepared);
            self.attend();
        }
    }

    /// Executes orders and due kills.
    fn attend(&mut self) {
        self.execute_orders();
        self.kill_due(uptime());
    }

    fn prepare<'a>(&mut self, launch: &'a Launch) -> Result<PreparedStart<'a>, StartFailure> {
        // If the cgroup cannot be created, only sessions, groups and descent are left, and limits for single processes.
        let cgroup = UnusedCgroup::make(launch.cgroup.as_ref());
        if let Some(path) = cgroup.get().map(RunCgroup::path)
            && self.last_cgroup.as_deref().and_then(Path::parent) != path.parent()
        {
            self.last_cgroup = Some(path.to_owned());
        }
        self.spawner.prepare(launch, cgroup)
    }

    fn start(&mut self, launch: &Launch, prepared: &mut Result<PreparedStart<'_>, StartFailure>) {
        let tree_id = launch.tree_id;
        self.starts += 1;
        let early = self.early.take(tree_id, self.starts);
        let deadline = early.deadline.unwrap_or(launch.deadline);
        let forked = self
            .may_start(tree_id, deadline, early.is_over)
            .and_then(|()| prepared.as_mut().map_err(|why| *why))
            .and_then(|prepared| self.spawner.fork(prepared));
        match forked {
            Ok(child) => self.keep(tree_id, Tree::new(launch, deadline, child)),
            Err(why) => self.send(&Notice::NotStarted { tree_id, why }),
        }
    }

    fn may_start(&self, tree_id: TreeId, deadline: Deadline, is_over: bool) -> Result<(), StartFailure> {
        if tree_id.0 >= TREE_IDS || self.trees.contains(tree_id) {
            return Err(start_report::failed(StartStep::Prepare, rustix::io::Errno::EXIST));
        }
        // It would have to be killed at once.
        if is_over || self.is_closing || deadline.due(self.lease_until) <= uptime() {
            return Err(StartFailure::TooLate);
        }
        Ok(())
    }

    /// Takes the tree of a child that was just forked.
    fn keep(&mut self, tree_id: TreeId, tree: Tree) {
        let watched = self.watch(tree_id, &tree);
        if tree.hold.is_some() {
            self.send(&Notice::Held { tree_id, pid: tree.pid() });
        }
        self.trees.insert(tree_id, tree);
        if watched.is_err() {
            // Without its pipes it must not continue. If there is no memory for three more epoll entries, there is none
            // for a job.
            self.trees.set_killing(tree_id);
        }
    }

    fn watch(&self, tree_id: TreeId, tree: &Tree) -> io::Result<()> {
        if let Some(status) = &tree.starting {
            self.poller.watch_status(tree_id, status)?;
        }
        for (stream, pipe) in [(Stream::Stdout, &tree.stdout), (Stream::Stderr, &tree.stderr)] {
            if let Some(pipe) = pipe {
                self.poller.watch_output(tree_id, stream, pipe)?;
            }
        }
        Ok(())
    }

    /// Reads the child's report on whether it reached its program, and sends it to the daemon.
    pub(super) fn read_start_outcome(&mut self, tree_id: TreeId, is_dead: bool) {
        let Some(tree) = self.trees.get_mut(tree_id) else { return };
        let Some(status) = tree.starting.take() else { return };
        let mut report = [0; start_report::REPORT];
        let read = match rustix::io::read(&status, &mut report) {
            // A child that is dead has written all that it will, whoever else holds its end of the pipe.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if !is_dead => {
                tree.starting = Some(status);
                return;
            }
            read => read.unwrap_or(0),
        };
        self.poller.unwatch_status(&status);
        tree.hold = None;
        let (files, outcome) = start_report::decode(&report[..read]);
        if !files.is_empty() {
            self.send(&Notice::WithoutFiles { tree_id, files });
        }
        let Some(tree) = self.trees.get_mut(tree_id) else { return };
        match outcome {
            StartOutcome::Died if tree.is_cancelled => {
                self.discard(tree_id);
                self.send(&Notice::NotStarted { tree_id, why: StartFailure::TooLate });
            }
            // Its end is reported like any other: without a start before it, the program never began.
            StartOutcome::Died => {}
            StartOutcome::Began(at) => {
                if tree.known_by == KnownBy::Environment {
                    let session = procfs::audit_session(tree.pid()).filter(|&its| self.audit_session != Some(its));
                    tree.known_by = session.map_or(KnownBy::Environment, KnownBy::AuditSession);
                }
                let (pid, known_by) = (tree.pid(), tree.known_by.clone());
                self.trees.began(tree_id, at);
                self.send(&Notice::Started { tree_id, pid, at, known_by });
            }
            StartOutcome::Failed(why) => {
                self.discard(tree_id);
                self.send(&Notice::NotStarted { tree_id, why });
            }
        }
    }

    /// True while a tree is held and its time has not come. A child that hangs beyond that has its end like any other.
    fn is_early(&self, tree_id: TreeId) -> bool {
        self.trees.get(tree_id).and_then(|tree| tree.hold.as_ref()).is_some_and(Hold::is_early)
    }

    /// Keeps a held program from beginning. Returns false if it was not held, or has begun.
    fn cancel(&mut self, tree_id: TreeId) -> bool {
        let Some(tree) = self.trees.live(tree_id) else { return false };
        if !tree.hold.take().is_some_and(|hold| hold.cancel()) {
            return false;
        }
        tree.is_cancelled = true;
        self.trees.set_killing(tree_id);
        true
    }

    /// The tree to end, unless it has ended by itself, even if only a moment ago. A held one is cancelled instead.
    fn tree_to_end(&mut self, tree_id: TreeId) -> Option<&mut Tree> {
        self.check_exit(tree_id);
        if self.is_early(tree_id) && self.cancel(tree_id) { None } else { self.trees.live(tree_id) }
    }

    fn stop(&mut self, tree_id: TreeId, grace: Duration) {
        let Some(tree) = self.tree_to_end(tree_id) else { return };
        tree.ended_by.get_or_insert(EndedBy::Order);
        if !tree.is_killing() {
            self.to_terminate.push(tree_id);
        }
        self.trees.stop(tree_id, uptime() + grace);
    }

    /// Starts to kill a tree.
    fn kill(&mut self, tree_id: TreeId, by: EndedBy) {
        let Some(tree) = self.tree_to_end(tree_id) else { return };
        tree.ended_by.get_or_insert(by);
        self.trees.set_killing(tree_id);
    }

    /// Starts to kill all trees that are due.
    fn kill_due(&mut self, now: Uptime) {
        while let Some((_, tree_id, by)) = self.trees.next_due(self.lease_until).filter(|&(at, ..)| at <= now) {
            self.kill(tree_id, by);
        }
    }

    fn next_wake(&self) -> Option<Uptime> {
        let due = self.trees.next_due(self.lease_until).map(|(at, ..)| at);
        let sweeps = self.trees.killing().map(|(_, tree)| tree.next_sweep);
        sweeps.chain(due).chain(self.reap_at).min().filter(|&at| at != Uptime::NEVER)
    }

    pub(super) fn send(&mut self, notice: &Notice) {
        // The limits of lines and tails keep every notice far below the limit of a message.
        let sent = self.outbox.push(notice);
        debug_assert!(sent.is_ok(), "{sent:?}");
    }

    /// Writes as much as the socket accepts.
    ///
    /// A failed write does not mean that the daemon is gone; only the end of its side of the socket does.
    fn flush_notices(&mut self) -> io::Result<()> {
        let mut daemon = &self.daemon;
        if self.outbox.flush(|bytes| daemon.write(bytes)).is_err() {
            self.outbox.clear();
        }
        self.poller.want_outputs(!self.window.is_full())?;
        if !self.is_closing {
            self.poller.want_daemon_writable(&self.daemon, self.outbox.waiting() > 0)?;
        }
        Ok(())
    }
}

/// Orders about trees that are not started yet.
#[derive(Debug, Default)]
struct EarlyOrders {
    orders: BTreeMap<TreeId, EarlyOrder>,
    /// Highest number of starts sent before one of these orders. Once that many are carried out, all of these orders have
    /// met their start, or will meet none.
    until: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct EarlyOrder {
    /// The tree must not be started.
    is_over: bool,
    /// Replaces the deadline in the launch.
    deadline: Option<Deadline>,
}

impl EarlyOrders {
    fn at(&mut self, tree_id: TreeId, after: u64) -> &mut EarlyOrder {
        self.until = self.until.max(after);
        self.orders.entry(tree_id).or_default()
    }

    /// Removes and returns the orders about this tree, whose start is the `starts`-th to be carried out.
    fn take(&mut self, tree_id: TreeId, starts: u64) -> EarlyOrder {
        let order = self.orders.remove(&tree_id).unwrap_or_default();
        if starts >= self.until {
            self.orders.clear();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_orders_are_kept_until_all_starts_before_them_are_carried_out() {
        let mut early = EarlyOrders::default();
        early.at(TreeId(7), 3).is_over = true;
        early.at(TreeId(9), 2).deadline = Some(Deadline::None);
        assert!(!early.take(TreeId(1), 1).is_over);
        assert!(early.take(TreeId(7), 2).is_over && !early.orders.is_empty());
        early.take(TreeId(2), 3);
        assert!(early.orders.is_empty(), "tree 9 was never started");
    }
}
