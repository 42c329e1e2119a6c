//! The warden's loop: wait, obey, look at the clock, reap, kill, tell.
//!
//! Nothing in it blocks but the one wait. Each turn takes a bounded share of every source, so that neither a flood of
//! output nor a burst of starts delays a deadline. Between two starts it reads all urgent orders and looks at the clock: the lease,
//! a kill and a deadline wait for one start at most, however many are ordered.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::cgroup::Place;
use super::codec::Decoder;
use super::outbox::Outbox;
use super::poller::{Poller, Ready, TREE_IDS};
use super::procfs;
use super::spawn::{self, Spawner};
use super::tree::{Tree, Trees};
use super::wire::{Deadline, EndedBy, Launch, Notice, Order, StartFailure, Step, Stream, TreeId, Urgent};
use crate::clock::Uptime;
use crate::clock::system::uptime;
use crate::run::KnownBy;

/// Starts in one turn: what is to be killed is killed, and what has ended is told, after so many.
const STARTS_A_TURN: usize = 4;

/// Reads of urgent orders in a row.
const URGENT_READS: usize = 8;

/// Pieces of output read in one turn.
const READS_A_TURN: usize = 32;

/// When more than this waits for the daemon, in bytes, the jobs' output is left in their pipes.
const BACK_PRESSURE: usize = 256 << 10;

/// Read at once from one source, in bytes: what a pipe holds by default.
const CHUNK: usize = 64 << 10;

/// The warden's whole state.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) poller: Poller,
    daemon: UnixStream,
    orders: Decoder,
    has_orders: bool,
    urgent: UnixStream,
    urgent_orders: Decoder,
    /// Starts that were read.
    starts: u64,
    early: Early,
    outbox: Outbox,
    /// The daemon is gone, or talks nonsense: all must die, then the warden ends.
    pub(super) is_closing: bool,
    pub(super) lease_until: Uptime,
    pub(super) trees: Trees,
    /// Inherited children of which it is known whose they are.
    pub(super) adopted: BTreeMap<i32, TreeId>,
    /// Inherited children without environment and arguments, and since when.
    pub(super) puzzling: BTreeMap<i32, Uptime>,
    /// Inherited children whose environment names none of the trees that they may be of.
    pub(super) unmarked: BTreeSet<i32>,
    /// The warden's own, of which everybody is who could not be given another.
    audit_session: Option<u32>,
    /// A child may have ended.
    pub(super) must_reap: bool,
    /// When to reap again without a signal.
    pub(super) reap_at: Option<Uptime>,
    /// Not to reap before this: it took long just now.
    pub(super) reap_from: Uptime,
    /// Nothing but trees' main processes was left when children were last looked at.
    pub(super) is_alone: bool,
    to_terminate: Vec<TreeId>,
    /// The cgroup that was made last: those it stands in are removed at the end.
    places: Option<PathBuf>,
    spawner: Spawner,
    buffer: Vec<u8>,
}

impl Keeper {
    pub(super) fn new(daemon: UnixStream, urgent: UnixStream) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new(&daemon, &urgent)?,
            daemon,
            orders: Decoder::default(),
            has_orders: false,
            urgent,
            urgent_orders: Decoder::default(),
            starts: 0,
            early: Early::default(),
            outbox: Outbox::default(),
            is_closing: false,
            lease_until: Uptime::ZERO,
            trees: Trees::default(),
            adopted: BTreeMap::new(),
            puzzling: BTreeMap::new(),
            unmarked: BTreeSet::new(),
            audit_session: procfs::audit_session(rustix::process::getpid().as_raw_nonzero().get()),
            must_reap: false,
            reap_at: None,
            reap_from: Uptime::ZERO,
            is_alone: true,
            to_terminate: Vec::new(),
            places: None,
            spawner: Spawner::new()?,
            buffer: vec![0; CHUNK],
        })
    }

    /// Runs until the daemon is gone and everything is dead.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !(self.is_closing && self.trees.is_empty() && self.is_alone) {
            for ready in self.poller.wait(self.has_orders)? {
                match ready {
                    Ready::Daemon => self.hear(),
                    Ready::DaemonGone => self.close(),
                    Ready::Children => self.must_reap = true,
                    // What is urgent is read in every turn, and so is the clock.
                    Ready::Urgent | Ready::Timer => {}
                    Ready::Status(tree_id) => self.start_decided(tree_id),
                    Ready::Outputs => self.read_outputs()?,
                }
            }
            self.execute();
            self.keep_time(uptime());
            self.reap_and_kill();
            self.tell_ends();
            self.speak()?;
            self.poller.wake_at(self.next_wake())?;
        }
        if let Some(place) = &self.places {
            Place::remove_parents(place);
        }
        Ok(())
    }

    /// Reads orders.
    fn hear(&mut self) {
        if self.is_closing || self.has_orders {
            return;
        }
        match (&self.daemon).read(&mut self.buffer) {
            Ok(0) => self.close(),
            Ok(bytes) => {
                self.orders.push(&self.buffer[..bytes]);
                self.has_orders = true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.close(),
        }
    }

    /// The daemon is gone: that is the order to kill all. What it ordered before and is still unread does not matter.
    fn close(&mut self) {
        self.is_closing = true;
        self.has_orders = false;
        self.must_reap = true;
        self.poller.forget_daemon(&self.daemon);
        self.poller.forget_daemon(&self.urgent);
        self.trees.condemn_all();
    }

    fn execute(&mut self) {
        self.execute_urgent();
        for _ in 0..STARTS_A_TURN {
            if !self.has_orders {
                break;
            }
            match self.orders.take() {
                Ok(Some(Order::Start(launch))) => self.start(*launch),
                // Where it comes by the way of the starts, all starts before it were read.
                Ok(Some(order)) => self.execute_one(order, self.starts),
                Ok(None) => self.has_orders = false,
                // The daemon is the same binary: nonsense means that it is broken.
                Err(_) => self.close(),
            }
            self.execute_urgent();
            self.keep_time(uptime());
        }
        let tree_ids = std::mem::take(&mut self.to_terminate);
        if !tree_ids.is_empty() {
            self.terminate(&tree_ids);
        }
    }

    /// Reads and obeys all that is urgent; where there is nothing it costs one system call.
    fn execute_urgent(&mut self) {
        for _ in 0..URGENT_READS {
            if self.is_closing {
                return;
            }
            match (&self.urgent).read(&mut self.buffer) {
                Ok(0) => self.close(),
                Ok(bytes) => self.urgent_orders.push(&self.buffer[..bytes]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
                Err(_) => self.close(),
            }
            loop {
                match self.urgent_orders.take() {
                    Ok(Some(Urgent { after, order })) => self.execute_one(order, after),
                    Ok(None) => break,
                    Err(_) => return self.close(),
                }
            }
        }
    }

    /// Obeys an order that was given after so many starts.
    fn execute_one(&mut self, order: Order, after: u64) {
        match order {
            Order::Start(launch) => self.start(*launch),
            Order::Stop { tree_id, .. } | Order::Kill { tree_id } if self.is_unread(tree_id, after) => {
                self.early.at(tree_id, after).is_over = true;
            }
            Order::Deadline { tree_id, deadline } if self.is_unread(tree_id, after) => {
                self.early.at(tree_id, after).deadline = Some(deadline);
            }
            Order::Stop { tree_id, grace_ms } => self.stop(tree_id, Duration::from_millis(grace_ms)),
            Order::Kill { tree_id } => self.kill(tree_id, EndedBy::Order),
            Order::Lease { until } => self.lease_until = until,
            Order::Deadline { tree_id, deadline } => self.trees.set_deadline(tree_id, deadline),
            Order::Ping => self.tell(&Notice::Pong),
        }
    }

    /// True where the start of this tree id may be among those that were ordered and are still to be read. Any other tree id that is not
    /// known is over.
    fn is_unread(&self, tree_id: TreeId, after: u64) -> bool {
        after > self.starts && !self.trees.contains(tree_id)
    }

    fn start(&mut self, mut launch: Launch) {
        let tree_id = launch.tree_id;
        self.starts += 1;
        let early = self.early.take(tree_id, self.starts);
        launch.deadline = early.deadline.unwrap_or(launch.deadline);
        let started = if early.is_over { Err(StartFailure::TooLate) } else { self.try_start(&launch) };
        if let Err(why) = started {
            self.tell(&Notice::NotStarted { tree_id, why });
        }
    }

    fn try_start(&mut self, launch: &Launch) -> Result<(), StartFailure> {
        let tree_id = launch.tree_id;
        if tree_id.0 >= TREE_IDS || self.trees.contains(tree_id) {
            return Err(StartFailure::Step { step: Step::Prepare, errno: rustix::io::Errno::EXIST.raw_os_error() });
        }
        // What would have to be killed at once is not started.
        if launch.deadline.due(self.lease_until) <= uptime() {
            return Err(StartFailure::TooLate);
        }
        // Without a cgroup, sessions, groups and descent are left, and limits for single processes.
        let place = launch.cgroup.as_ref().and_then(|wanted| Place::make(wanted).ok());
        self.places = place.as_ref().map(|place| place.path().to_owned()).or(self.places.take());
        let child = self.spawner.spawn(launch, place.as_ref()).inspect_err(|_| {
            place.as_ref().map(Place::remove);
        })?;
        let tree = Tree::new(launch, child, place);
        let watched = self.watch(tree_id, &tree);
        self.trees.insert(tree_id, tree);
        if watched.is_err() {
            // Without its pipes it must not go on; no memory for three more entries of epoll is no memory for a job.
            self.trees.condemn(tree_id);
        }
        Ok(())
    }

    fn watch(&self, tree_id: TreeId, tree: &Tree) -> io::Result<()> {
        let pipes = (tree.starting.as_ref(), tree.stdout.as_ref(), tree.stderr.as_ref());
        let (Some(status), Some(stdout), Some(stderr)) = pipes else { return Ok(()) };
        self.poller.watch_status(tree_id, status)?;
        self.poller.watch_output(tree_id, Stream::Stdout, stdout)?;
        self.poller.watch_output(tree_id, Stream::Stderr, stderr)
    }

    /// Reads from the child whether it reached its program, and says so. It has: the pipe is at its end, or holds why not.
    pub(super) fn start_decided(&mut self, tree_id: TreeId) {
        let Some(tree) = self.trees.get_mut(tree_id) else { return };
        let Some(status) = tree.starting.take() else { return };
        let mut report = [0; 8];
        let read = match rustix::io::read(&status, &mut report) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                tree.starting = Some(status);
                return;
            }
            read => read.unwrap_or(0),
        };
        self.poller.forget_status(&status);
        match spawn::outcome(&report[..read]) {
            None => {
                if tree.known_by == KnownBy::Environment {
                    let session = procfs::audit_session(tree.pid()).filter(|&its| self.audit_session != Some(its));
                    tree.known_by = session.map_or(KnownBy::Environment, KnownBy::AuditSession);
                }
                let (pid, at, known_by) = (tree.pid(), tree.forked_at, tree.known_by.clone());
                self.tell(&Notice::Started { tree_id, pid, at, known_by });
            }
            Some(why) => {
                self.discard(tree_id);
                self.tell(&Notice::NotStarted { tree_id, why });
            }
        }
    }

    fn stop(&mut self, tree_id: TreeId, grace: Duration) {
        self.note_exit(tree_id);
        let Some(tree) = self.trees.live(tree_id) else { return };
        tree.ended_by.get_or_insert(EndedBy::Order);
        if !tree.is_killing() {
            self.to_terminate.push(tree_id);
        }
        self.trees.stop(tree_id, uptime() + grace);
    }

    /// Has it killed, unless it has ended by itself, be that a moment ago.
    fn kill(&mut self, tree_id: TreeId, by: EndedBy) {
        self.note_exit(tree_id);
        let Some(tree) = self.trees.live(tree_id) else { return };
        tree.ended_by.get_or_insert(by);
        self.trees.condemn(tree_id);
    }

    /// Has those killed that are due.
    fn keep_time(&mut self, now: Uptime) {
        while let Some((_, tree_id)) = self.trees.next_due(self.lease_until).filter(|&(at, _)| at <= now) {
            self.kill(tree_id, EndedBy::Deadline);
        }
    }

    fn next_wake(&self) -> Option<Uptime> {
        let due = self.trees.next_due(self.lease_until).map(|(at, _)| at);
        let sweeps = self.trees.killing().map(|(_, tree)| tree.next_sweep);
        sweeps.chain(due).chain(self.reap_at).min().filter(|&at| at != Uptime::NEVER)
    }

    fn read_outputs(&mut self) -> io::Result<()> {
        for _ in 0..READS_A_TURN {
            if self.is_pressed() {
                break;
            }
            let Some((tree_id, stream)) = self.poller.next_output()? else { break };
            self.read_output(tree_id, stream, CHUNK);
        }
        Ok(())
    }

    /// Reads at most `limit` bytes; says how many. At the end of the stream the pipe is closed.
    fn read_output(&mut self, tree_id: TreeId, stream: Stream, limit: usize) -> usize {
        let Some(tree) = self.trees.get_mut(tree_id) else { return 0 };
        let Some(pipe) = tree.pipe(stream) else { return 0 };
        let limit = limit.min(self.buffer.len());
        match rustix::io::read(&*pipe, &mut self.buffer[..limit]) {
            Ok(bytes) if bytes > 0 => {
                let pieces = tree.output.take(stream, &self.buffer[..bytes]);
                self.hand_on(tree_id, pieces);
                bytes
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Ok(_) | Err(_) => {
                self.poller.forget_output(&*pipe);
                *tree.pipe(stream) = None;
                0
            }
        }
    }

    /// Reads what is in the pipes now and closes them: whoever else may hold their other end delays nothing.
    pub(super) fn drain(&mut self, tree_id: TreeId) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let pipe = self.trees.get_mut(tree_id).and_then(|tree| tree.pipe(stream).as_ref());
            let mut left = pipe.and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok()).unwrap_or(0);
            while left > 0 {
                match self.read_output(tree_id, stream, usize::try_from(left).unwrap_or(CHUNK)) {
                    0 => break,
                    read => left = left.saturating_sub(read as u64),
                }
            }
            if let Some(pipe) = self.trees.get_mut(tree_id).and_then(|tree| tree.pipe(stream).take()) {
                self.poller.forget_output(&pipe);
            }
        }
        let rest = self.trees.get_mut(tree_id).map(|tree| tree.output.finish()).unwrap_or_default();
        self.hand_on(tree_id, rest);
    }

    fn hand_on(&mut self, tree_id: TreeId, pieces: Vec<super::output::Piece>) {
        for (stream, line, continues) in pieces {
            self.tell(&Notice::Output { tree_id, stream, line, continues });
        }
    }

    /// True while the daemon has more to read than should wait for it.
    pub(super) fn is_pressed(&self) -> bool {
        self.outbox.waiting() > BACK_PRESSURE
    }

    pub(super) fn tell(&mut self, notice: &Notice) {
        // The bounds on lines and tail keep every notice far below the limit of a message.
        let sent = self.outbox.push(notice);
        debug_assert!(sent.is_ok(), "{sent:?}");
    }

    /// Writes what the socket takes. Deaf is not dead: only the end of its own side says that the daemon is gone.
    fn speak(&mut self) -> io::Result<()> {
        let mut daemon = &self.daemon;
        if self.outbox.flush(|bytes| daemon.write(bytes)).is_err() {
            self.outbox.clear();
        }
        self.poller.want_outputs(!self.is_pressed())?;
        if !self.is_closing {
            self.poller.want_daemon_writable(&self.daemon, self.outbox.waiting() > 0)?;
        }
        Ok(())
    }
}

/// What was ordered about trees whose start is still unread.
#[derive(Debug, Default)]
struct Early {
    orders: BTreeMap<TreeId, EarlyOrder>,
    /// As many starts as were ordered before the last of them: once they are read, none of them can come any more.
    until: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct EarlyOrder {
    /// It is not to be started.
    is_over: bool,
    /// In place of the one it is started with.
    deadline: Option<Deadline>,
}

impl Early {
    fn at(&mut self, tree_id: TreeId, after: u64) -> &mut EarlyOrder {
        self.until = self.until.max(after);
        self.orders.entry(tree_id).or_default()
    }

    /// What was ordered about this one, the latest of so many that were read.
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
    fn what_was_ordered_too_early_is_kept_until_all_starts_before_it_are_read() {
        let mut early = Early::default();
        early.at(TreeId(7), 3).is_over = true;
        early.at(TreeId(9), 2).deadline = Some(Deadline::None);
        assert!(!early.take(TreeId(1), 1).is_over);
        assert!(early.take(TreeId(7), 2).is_over && !early.orders.is_empty());
        early.take(TreeId(2), 3);
        assert!(early.orders.is_empty(), "of the ninth no start was ever sent");
    }
}
