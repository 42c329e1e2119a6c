//! The warden of each node and its jobs' processes, simulated behind the warden's wire: starts and orders in, notices
//! out.
//!
//! The warden runs beside the daemon: a pause of the daemon does not affect it, and the death of the daemon makes it
//! kill everything. It freezes together with its host, and then its jobs freeze too; or it hangs alone, and the jobs
//! continue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process::{Deadline, EndedBy, Ending, Exit, Launch, Notice, Order, StartFailure, TreeId};
use cronkeeper_core::run::{BeginNote, KnownBy};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::facts::Fact;
use super::jobs::PARAMETER;
use super::launcher::DEFINITION;
use super::world::{Env, Event};

/// The time between two consecutive starts or orders.
const STEP: Duration = Duration::from_nanos(1);

/// One held process in so many is killed before its time.
const ONE_HELD_IN: u8 = 32;

/// A job's process, as the invariants see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub node: usize,
    pub pid: i32,
    /// From the process's environment.
    pub run: String,
    pub attempt: u32,
    pub token: i64,
    /// CRONKEEPER_SCHEDULED_AT, as it finds it.
    pub scheduled_at: String,
    /// The variable [`PARAMETER`], if it finds it.
    pub parameter: Option<String>,
    /// The variable [`DEFINITION`].
    pub definition: String,
}

/// An action of the warden of `node`; nothing happens if that warden is of another `generation` by then.
pub struct Step {
    node: usize,
    generation: u64,
    action: Action,
}

enum Action {
    Start(Box<Launch>),
    Execute(Order),
    /// The daemon's end of the socket is closed.
    DaemonGone,
    LookAtDeadlines,
    /// The time of a held program has come. Its process knows that by itself, whatever the warden does.
    Begin(TreeId),
    /// Somebody kills a held process.
    KillHeld(TreeId),
    /// A tree ends.
    End(TreeId, Exit, Option<EndedBy>),
    /// A notice reaches the daemon.
    Notify(Notice),
}

struct Warden {
    generation: u64,
    frozen: bool,
    hangs: bool,
    lease_until: Uptime,
    /// The time of the next check of the deadlines.
    alarm: Option<Uptime>,
    trees: BTreeMap<TreeId, Tree>,
    /// Steps that came while the warden was frozen or hung.
    inbox: Vec<Step>,
    /// The time at which the last start that was sent is carried out; the next comes after it.
    last_start_at: Uptime,
    /// The same of the last order.
    last_order_at: Uptime,
    /// Trees whose start was sent and is not carried out yet, with the orders about them that came meanwhile.
    starting: BTreeMap<TreeId, Early>,
    /// Processes that are prepared and whose time has not come, with their pids.
    held: BTreeMap<TreeId, (i32, Launch)>,
    /// Starts and orders that the daemon has not written to its sockets yet, while these are blocked.
    unsent: Option<Vec<Action>>,
    daemon: Option<UnboundedSender<Notice>>,
    /// The generations whose daemon died while the warden lived, which then left its notes on begins.
    left: BTreeSet<u64>,
    /// The generation and tree of each program that has begun.
    begun: BTreeSet<(u64, TreeId)>,
}

/// Orders that overtook their tree's start.
#[derive(Default)]
struct Early {
    is_over: bool,
    deadline: Option<Deadline>,
}

struct Tree {
    process: Process,
    deadline: Deadline,
    ending: bool,
    /// The process is gone, but the warden has not noticed yet.
    dead: bool,
}

pub struct Wardens {
    wardens: Vec<Warden>,
    pids: i32,
    /// The duration of a start; `None`: almost nothing.
    slow: Option<Duration>,
    /// The time at which the last process of each run ended.
    ended: BTreeMap<String, Uptime>,
}

impl Wardens {
    pub fn new(nodes: usize) -> Self {
        let warden = |_| Warden {
            generation: 0,
            frozen: false,
            hangs: false,
            lease_until: Uptime::ZERO,
            alarm: None,
            trees: BTreeMap::new(),
            inbox: Vec::new(),
            last_start_at: Uptime::ZERO,
            last_order_at: Uptime::ZERO,
            starting: BTreeMap::new(),
            held: BTreeMap::new(),
            unsent: None,
            daemon: None,
            left: BTreeSet::new(),
            begun: BTreeSet::new(),
        };
        Self { wardens: (0..nodes).map(warden).collect(), pids: 100, slow: None, ended: BTreeMap::new() }
    }

    /// Creates a warden for a new daemon of `node` and returns the warden's notices.
    pub fn attach(&mut self, node: usize) -> UnboundedReceiver<Notice> {
        let (daemon, notices) = unbounded_channel();
        let warden = &mut self.wardens[node];
        warden.generation += 1;
        warden.hangs = false;
        warden.inbox.clear();
        warden.lease_until = Uptime::ZERO;
        warden.alarm = None;
        (warden.last_start_at, warden.last_order_at) = (Uptime::ZERO, Uptime::ZERO);
        warden.starting.clear();
        warden.held.clear();
        warden.daemon = Some(daemon);
        notices
    }

    /// Takes a start from the daemon.
    pub fn order_start(&mut self, env: &mut Env, node: usize, launch: Launch) {
        self.send(env, node, Action::Start(Box::new(launch)));
    }

    /// Takes an order from the daemon.
    pub fn order(&mut self, env: &mut Env, node: usize, order: Order) {
        self.send(env, node, Action::Execute(order));
    }

    fn send(&mut self, env: &mut Env, node: usize, action: Action) {
        match &mut self.wardens[node].unsent {
            Some(unsent) => unsent.push(action),
            None => self.deliver(env, node, action),
        }
    }

    /// Starts have their own queue, in which each waits for those before it; no order waits for them.
    fn deliver(&mut self, env: &mut Env, node: usize, action: Action) {
        let slow = self.slow;
        let warden = &mut self.wardens[node];
        let at = env.now() + Duration::from_micros(env.rng.u64(20..500));
        let at = match &action {
            Action::Start(launch) => {
                warden.starting.insert(launch.tree_id, Early::default());
                warden.last_start_at =
                    at.max(warden.last_start_at + STEP).max(warden.last_order_at) + slow.unwrap_or_default();
                warden.last_start_at
            }
            _ => {
                warden.last_order_at = at.max(warden.last_order_at + STEP);
                warden.last_order_at
            }
        };
        env.queue.at(at, Event::Warden(Step { node, generation: warden.generation, action }));
    }

    /// Sets how long a start takes from now on.
    pub fn slow(&mut self, each: Option<Duration>) {
        self.slow = each;
    }

    /// Blocks the sockets, so that the daemon keeps its messages.
    pub fn clog(&mut self, node: usize) {
        self.wardens[node].unsent.get_or_insert_default();
    }

    /// True while the daemon holds an attempt that it has not sent.
    pub fn has_unsent_start(&self, node: usize) -> bool {
        self.wardens[node].unsent.iter().flatten().any(|action| matches!(action, Action::Start(_)))
    }

    /// Unblocks the sockets, which then accept the held messages in order.
    pub fn unclog(&mut self, env: &mut Env, node: usize) {
        for action in self.wardens[node].unsent.take().unwrap_or_default() {
            self.deliver(env, node, action);
        }
    }

    /// How many processes a node's warden holds.
    pub fn held(&self, node: usize) -> usize {
        self.wardens[node].held.len()
    }

    /// The file in which the warden of this node's daemon leaves its notes on begins.
    pub fn begins_file(&self, node: usize) -> String {
        self.wardens[node].generation.to_string()
    }

    /// True if the notes that a dead daemon's warden has left say that a program never began.
    pub fn is_left_unbegun(&self, node: usize, note: &BeginNote) -> bool {
        let (warden, generation) = (&self.wardens[node], note.file.parse().unwrap_or_default());
        warden.left.contains(&generation) && !warden.begun.contains(&(generation, TreeId(note.tree)))
    }

    /// The daemon's process is gone.
    pub fn daemon_gone(&mut self, env: &mut Env, node: usize, with_host: bool) {
        let warden = &mut self.wardens[node];
        if warden.daemon.take().is_some() && !with_host {
            warden.left.insert(warden.generation);
        }
        warden.unsent = None;
        if !with_host {
            // systemd kills the rest of the control group, and that does not depend on the warden.
            self.go_on(env, node);
            return self.later(env, node, Duration::from_micros(50)..Duration::from_millis(5), Action::DaemonGone);
        }
        self.wardens[node].generation += 1;
        self.end_leftovers(env, node);
    }

    /// The first action of a new process: kills everything that an earlier one left, and confirms that it is dead.
    pub fn end_leftovers(&mut self, env: &mut Env, node: usize) {
        self.wardens[node].held.clear();
        for (_, tree) in std::mem::take(&mut self.wardens[node].trees).into_iter().filter(|(_, tree)| !tree.dead) {
            env.facts.push(Fact::Gone(tree.process));
        }
    }

    /// The daemon itself kills the process of a run.
    pub fn kill_without(&mut self, env: &mut Env, node: usize, run: &str) {
        // Of a held process the warden reports the end without a start: its program had not begun.
        let is_of_run = |pid: i32, launch: &Launch| Process::of(node, pid, launch).run == run;
        let held = self.wardens[node].held.extract_if(.., |_, (pid, launch)| is_of_run(*pid, launch));
        let held: Vec<TreeId> = held.map(|(tree_id, _)| tree_id).collect();
        for tree_id in held {
            self.end_before_program(env, node, tree_id, 9);
        }
        let of_run = |tree: &Tree| tree.process.run == run && !tree.dead;
        let tree_ids: Vec<TreeId> =
            self.wardens[node].trees.iter().filter(|(_, tree)| of_run(tree)).map(|(tree_id, _)| *tree_id).collect();
        let exit = Exit::Signal { signal: 9, core: false };
        for tree_id in tree_ids {
            let within = Duration::from_millis(1)..Duration::from_millis(20);
            self.later(env, node, within, Action::End(tree_id, exit, None));
        }
    }

    /// Kills the warden, and everything that it has started.
    pub fn kill_warden(&mut self, env: &mut Env, node: usize) {
        env.note(|| format!("node-{node} has killed its warden"));
        let warden = &mut self.wardens[node];
        warden.generation += 1;
        warden.daemon = None;
        // What it held never begins, and nobody has said so yet.
        let held = std::mem::take(&mut warden.held);
        warden.starting.extend(held.into_keys().map(|tree_id| (tree_id, Early::default())));
        self.end_leftovers(env, node);
    }

    /// The daemon is about to end: those of its trees whose programs have not begun, and then never do.
    pub fn unbegun(&mut self, node: usize, mut trees: Vec<TreeId>) -> Vec<TreeId> {
        let warden = &mut self.wardens[node];
        for action in warden.unsent.take().into_iter().flatten() {
            if let Action::Start(launch) = action {
                warden.starting.entry(launch.tree_id).or_default();
            }
        }
        // The notes tell it, also if the warden was killed just after it had given a start up.
        let generation = if warden.daemon.is_some() { warden.generation } else { warden.generation - 1 };
        trees.retain(|tree_id| !warden.begun.contains(&(generation, *tree_id)));
        for tree_id in &trees {
            warden.held.remove(tree_id);
            warden.starting.entry(*tree_id).or_default().is_over = true;
        }
        trees
    }

    /// The warden hangs; its jobs do not depend on it.
    pub fn hang(&mut self, node: usize) {
        self.wardens[node].hangs = true;
    }

    /// The warden continues, and carries out in order what it received meanwhile.
    pub fn go_on(&mut self, env: &mut Env, node: usize) {
        if std::mem::take(&mut self.wardens[node].hangs) {
            for (micros, step) in (0..).zip(std::mem::take(&mut self.wardens[node].inbox)) {
                env.queue.after(Duration::from_micros(micros), Event::Warden(step));
            }
        }
    }

    /// The time at which the last process of a run ended, if one did.
    pub fn ended_at(&self, run: &str) -> Option<Uptime> {
        self.ended.get(run).copied()
    }

    /// The time at which the last process of any of these runs ended.
    pub fn last_end(&self, is_meant: impl Fn(&str) -> bool) -> Option<Uptime> {
        self.ended.iter().filter(|(run, _)| is_meant(run)).map(|(_, at)| *at).max()
    }

    /// All processes of jobs.
    pub fn alive(&self) -> impl Iterator<Item = &Process> {
        let trees = self.wardens.iter().flat_map(|warden| warden.trees.values());
        trees.filter(|tree| !tree.dead).map(|tree| &tree.process)
    }

    /// True if processes of jobs are alive.
    pub fn has_trees(&self, node: usize) -> bool {
        self.wardens[node].trees.values().any(|tree| !tree.dead)
    }

    pub fn is_frozen(&self, node: usize) -> bool {
        self.wardens[node].frozen
    }

    pub fn freeze(&mut self, env: &mut Env, node: usize) {
        self.wardens[node].frozen = true;
        env.facts.push(Fact::Frozen { node });
    }

    pub fn thaw(&mut self, env: &mut Env, node: usize) {
        if !std::mem::take(&mut self.wardens[node].frozen) {
            return;
        }
        env.facts.push(Fact::Thawed { node });
        for step in std::mem::take(&mut self.wardens[node].inbox) {
            env.queue.after(Duration::from_micros(env.rng.u64(..500)), Event::Warden(step));
        }
    }

    pub fn step(&mut self, env: &mut Env, step: Step) {
        let node = step.node;
        let warden = &mut self.wardens[node];
        if warden.generation != step.generation {
            return;
        }
        if warden.frozen || warden.hangs {
            match (warden.frozen, &step.action) {
                (false, Action::End(tree_id, ..)) => {
                    let tree_id = *tree_id;
                    self.die(env, node, tree_id);
                }
                (false, Action::Begin(tree_id)) => return self.begin(env, node, *tree_id),
                (false, Action::KillHeld(tree_id)) => return self.kill_held(env, node, *tree_id),
                _ => {}
            }
            return self.wardens[node].inbox.push(step);
        }
        match step.action {
            Action::Start(launch) => self.start(env, node, *launch),
            Action::Execute(Order::Stop { tree_id, .. } | Order::Kill { tree_id } | Order::Cancel { tree_id })
                if warden.starting.contains_key(&tree_id) =>
            {
                warden.starting.entry(tree_id).or_default().is_over = true;
            }
            Action::Execute(Order::Deadline { tree_id, deadline }) if warden.starting.contains_key(&tree_id) => {
                warden.starting.entry(tree_id).or_default().deadline = Some(deadline);
            }
            Action::Execute(Order::Stop { tree_id, .. } | Order::Kill { tree_id } | Order::Cancel { tree_id })
                if warden.held.contains_key(&tree_id) =>
            {
                self.cancel(env, node, tree_id);
            }
            Action::Execute(Order::Cancel { .. }) => {}
            Action::Begin(tree_id) => self.begin(env, node, tree_id),
            Action::KillHeld(tree_id) => self.kill_held(env, node, tree_id),
            Action::Execute(Order::Stop { tree_id, grace_ms }) => self.stop(env, node, tree_id, grace_ms),
            Action::Execute(Order::Kill { tree_id }) => self.kill(env, node, tree_id, EndedBy::Order),
            Action::Execute(Order::Lease { until }) => {
                warden.lease_until = until;
                self.watch_deadlines(env, node);
            }
            Action::Execute(Order::Deadline { tree_id, deadline }) => {
                if let Some(tree) = warden.trees.get_mut(&tree_id) {
                    tree.deadline = deadline;
                } else if let Some((_, launch)) = warden.held.get_mut(&tree_id) {
                    launch.deadline = deadline;
                }
                self.watch_deadlines(env, node);
            }
            // No simulated job asks for signals, and none has output.
            Action::Execute(Order::Signal { .. } | Order::OutputTaken { .. }) => {}
            Action::Execute(Order::Ping) => self.emit(env, node, Notice::Pong),
            Action::DaemonGone => {
                warden.held.clear();
                for tree_id in warden.trees.keys().copied().collect::<Vec<_>>() {
                    self.kill(env, node, tree_id, EndedBy::Order);
                }
            }
            Action::LookAtDeadlines => {
                warden.alarm = None;
                self.watch_deadlines(env, node);
            }
            Action::End(tree_id, exit, ended_by) => self.end(env, node, tree_id, exit, ended_by),
            Action::Notify(notice) => {
                if let Some(daemon) = &warden.daemon {
                    let _ = daemon.send(notice);
                }
            }
        }
    }

    fn start(&mut self, env: &mut Env, node: usize, mut launch: Launch) {
        let tree_id = launch.tree_id;
        let early = self.wardens[node].starting.remove(&tree_id).unwrap_or_default();
        launch.deadline = early.deadline.unwrap_or(launch.deadline);
        if early.is_over || launch.not_after <= env.now() {
            return self.emit(env, node, Notice::NotStarted { tree_id, why: StartFailure::TooLate });
        }
        self.pids += 1;
        if let Some(hook) = variable(&launch, "CRONKEEPER_HOOK") {
            return self.start_hook(env, node, &launch, hook);
        }
        match launch.not_before.filter(|&at| at > env.now()) {
            Some(at) => self.hold(env, node, launch, at),
            None => self.run(env, node, self.pids, &launch),
        }
    }

    /// Prepares a process whose time has not come.
    fn hold(&mut self, env: &mut Env, node: usize, launch: Launch, at: Uptime) {
        let (tree_id, pid) = (launch.tree_id, self.pids);
        let warden = &mut self.wardens[node];
        warden.held.insert(tree_id, (pid, launch));
        env.queue.at(at, Event::Warden(Step { node, generation: warden.generation, action: Action::Begin(tree_id) }));
        self.emit(env, node, Notice::Held { tree_id, pid });
        // Not where a trial counts the begins of slow starts.
        if self.slow.is_none() && env.rng.u8(..ONE_HELD_IN) == 0 {
            let left = at.since(env.now()).max(STEP);
            self.later(env, node, Duration::ZERO..left, Action::KillHeld(tree_id));
        }
        self.watch_deadlines(env, node);
    }

    /// Kills a process that runs as the job's user already, and whose program has not begun.
    fn kill_held(&mut self, env: &mut Env, node: usize, tree_id: TreeId) {
        if self.wardens[node].held.remove(&tree_id).is_some() {
            env.note(|| format!("node-{node}: a process is killed before its program begins"));
            self.end_before_program(env, node, tree_id, 15);
            // A warden that hangs may never report it. Then the daemon finds out when it ends.
            if self.wardens[node].hangs {
                self.wardens[node].starting.entry(tree_id).or_default();
            }
        }
    }

    /// The warden reports the end of a process without a start before it.
    fn end_before_program(&mut self, env: &mut Env, node: usize, tree_id: TreeId, signal: i32) {
        let exit = Exit::Signal { signal, core: false };
        let at = env.now();
        self.emit(env, node, Notice::Ended(Box::new(ending(tree_id, exit, None, at))));
    }

    fn begin(&mut self, env: &mut Env, node: usize, tree_id: TreeId) {
        let Some((pid, launch)) = self.wardens[node].held.remove(&tree_id) else { return };
        if launch.not_after <= env.now() || self.wardens[node].daemon.is_none() {
            return self.emit(env, node, Notice::NotStarted { tree_id, why: StartFailure::TooLate });
        }
        self.run(env, node, pid, &launch);
    }

    fn cancel(&mut self, env: &mut Env, node: usize, tree_id: TreeId) {
        self.wardens[node].held.remove(&tree_id);
        self.emit(env, node, Notice::NotStarted { tree_id, why: StartFailure::TooLate });
    }

    fn run(&mut self, env: &mut Env, node: usize, pid: i32, launch: &Launch) {
        let tree_id = launch.tree_id;
        let process = Process::of(node, pid, launch);
        env.note(|| format!("node-{node} pid {} is attempt {} of {}", process.pid, process.attempt, process.run));
        env.facts.push(Fact::Spawned(process.clone()));
        let generation = self.wardens[node].generation;
        self.wardens[node].begun.insert((generation, tree_id));
        self.emit(
            env,
            node,
            Notice::Started { tree_id, pid: process.pid, at: env.now(), known_by: KnownBy::default() },
        );
        self.wardens[node]
            .trees
            .insert(tree_id, Tree { process, deadline: launch.deadline, ending: false, dead: false });
        // Lasts from an instant to longer than most periods.
        let lasts = Duration::from_millis(20).mul_f64(1500_f64.powf(env.rng.f64()));
        let exit = Exit::Code(i32::from(env.rng.u8(..5) == 0));
        self.later(env, node, lasts..lasts * 2, Action::End(tree_id, exit, None));
        self.watch_deadlines(env, node);
    }

    /// A hook: not a run's process, and nothing of it is checked but its start. It ends soon, or the daemon stops it or
    /// ends.
    fn start_hook(&mut self, env: &mut Env, node: usize, launch: &Launch, hook: String) {
        let named = |name: &str| variable(launch, name).unwrap_or_default();
        let (tree_id, job, run) = (launch.tree_id, named("CRONKEEPER_JOB"), named("CRONKEEPER_RUN_ID"));
        env.facts.push(Fact::Hooked { node, hook, job, run });
        let at = env.now();
        self.emit(env, node, Notice::Started { tree_id, pid: self.pids, at, known_by: KnownBy::default() });
        let ending = ending(tree_id, Exit::Code(0), None, at);
        self.later(
            env,
            node,
            Duration::from_millis(1)..Duration::from_secs(2),
            Action::Notify(Notice::Ended(Box::new(ending))),
        );
    }

    fn stop(&mut self, env: &mut Env, node: usize, tree_id: TreeId, grace_ms: u64) {
        let grace = Duration::from_millis(grace_ms);
        let heeds = env.rng.bool();
        let exit = Exit::Signal { signal: if heeds { 15 } else { 9 }, core: false };
        let delay = if heeds { Duration::ZERO..grace.max(Duration::from_micros(1)) } else { grace..grace * 2 };
        self.later(env, node, delay, Action::End(tree_id, exit, Some(EndedBy::Order)));
    }

    fn kill(&mut self, env: &mut Env, node: usize, tree_id: TreeId, by: EndedBy) {
        if let Some(tree) = self.wardens[node].trees.get_mut(&tree_id)
            && !std::mem::replace(&mut tree.ending, true)
        {
            let exit = Exit::Signal { signal: 9, core: false };
            self.later(
                env,
                node,
                Duration::from_micros(50)..Duration::from_millis(2),
                Action::End(tree_id, exit, Some(by)),
            );
        }
    }

    /// Kills the trees whose deadline has come, and schedules the next check for the others.
    fn watch_deadlines(&mut self, env: &mut Env, node: usize) {
        let warden = &self.wardens[node];
        let due = |deadline: Deadline| deadline.due(warden.lease_until);
        let running = warden.trees.iter().filter(|(_, tree)| !tree.ending);
        let running = running.map(|(tree_id, tree)| (*tree_id, due(tree.deadline)));
        let held = warden.held.iter().map(|(tree_id, (_, launch))| (*tree_id, due(launch.deadline)));
        let deadlines: Vec<(TreeId, Uptime)> = running.chain(held).collect();
        let (now, generation) = (env.now(), warden.generation);
        for &(tree_id, _) in deadlines.iter().filter(|(_, at)| *at <= now) {
            match self.wardens[node].held.contains_key(&tree_id) {
                true => self.cancel(env, node, tree_id),
                false => self.kill(env, node, tree_id, EndedBy::Deadline),
            }
        }
        let next = deadlines.iter().map(|(_, at)| *at).filter(|at| *at > now && *at != Uptime::NEVER).min();
        let alarm = &mut self.wardens[node].alarm;
        if let Some(at) = next.filter(|at| alarm.is_none_or(|set| *at < set)) {
            *alarm = Some(at);
            env.queue.at(at, Event::Warden(Step { node, generation, action: Action::LookAtDeadlines }));
        }
    }

    fn end(&mut self, env: &mut Env, node: usize, tree_id: TreeId, exit: Exit, ended_by: Option<EndedBy>) {
        self.die(env, node, tree_id);
        if self.wardens[node].trees.remove(&tree_id).is_some() {
            let at = env.now();
            self.emit(env, node, Notice::Ended(Box::new(ending(tree_id, exit, ended_by, at))));
        }
    }

    /// The process is gone, whether or not the warden notices.
    fn die(&mut self, env: &mut Env, node: usize, tree_id: TreeId) {
        let Some(tree) = self.wardens[node].trees.get_mut(&tree_id).filter(|tree| !tree.dead) else { return };
        tree.dead = true;
        let process = tree.process.clone();
        env.note(|| format!("node-{node} pid {} of {} has ended", process.pid, process.run));
        self.ended.insert(process.run.clone(), env.now());
        env.facts.push(Fact::Gone(process));
    }

    fn emit(&mut self, env: &mut Env, node: usize, notice: Notice) {
        self.later(env, node, Duration::from_micros(20)..Duration::from_micros(500), Action::Notify(notice));
    }

    fn later(&mut self, env: &mut Env, node: usize, within: std::ops::Range<Duration>, action: Action) {
        let spread = (within.end - within.start).as_nanos() as u64;
        let delay = within.start + Duration::from_nanos(env.rng.u64(..spread.max(1)));
        env.queue.after(delay, Event::Warden(Step { node, generation: self.wardens[node].generation, action }));
    }
}

fn variable(launch: &Launch, name: &str) -> Option<String> {
    launch.environment.variable(name).map(str::to_owned)
}

fn ending(tree_id: TreeId, exit: Exit, ended_by: Option<EndedBy>, at: Uptime) -> Ending {
    let (tail, out_of_memory) = (String::new(), false);
    Ending { tree_id, exit, ended_by, at, leftovers: 0, tail, dropped_bytes: 0, unsent: None, out_of_memory }
}

impl Process {
    fn of(node: usize, pid: i32, launch: &Launch) -> Self {
        let value = |name: &str| variable(launch, name).unwrap_or_default();
        Self {
            node,
            pid,
            run: value("CRONKEEPER_RUN_ID"),
            attempt: value("CRONKEEPER_ATTEMPT").parse().unwrap_or(0),
            token: value("CRONKEEPER_FENCING_TOKEN").parse().unwrap_or(0),
            scheduled_at: value("CRONKEEPER_SCHEDULED_AT"),
            parameter: variable(launch, PARAMETER),
            definition: value(DEFINITION),
        }
    }
}

#[cfg(test)]
mod tests {
    use cronkeeper_core::process::ExecStrings;

    use super::super::faults::Fault;
    use super::super::launcher;
    use super::super::testbed::Testbed;
    use super::super::world::Health;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn order(testbed: &Testbed, order: Order) {
        let world = &mut *testbed.executor.world.lock();
        world.wardens.order(&mut world.env, 0, order);
    }

    fn order_start(testbed: &Testbed, launch: Launch) {
        let world = &mut *testbed.executor.world.lock();
        world.wardens.order_start(&mut world.env, 0, launch);
    }

    /// A node with a warden, and a tree that runs until something ends it.
    fn with_tree(deadline: Deadline) -> (Testbed, UnboundedReceiver<Notice>) {
        // A seed whose job lasts longer than the tests.
        let mut testbed = Testbed::new(3, 1);
        let notices = testbed.executor.world.lock().wardens.attach(0);
        order(&testbed, Order::Lease { until: testbed.now() + 100 * MS });
        order_start(&testbed, launch(testbed.now() + 100 * MS, deadline));
        testbed.run(10 * MS);
        assert!(testbed.executor.world.lock().wardens.has_trees(0));
        (testbed, notices)
    }

    fn launch(not_after: Uptime, deadline: Deadline) -> Launch {
        let environment = ExecStrings::of_variables([("CRONKEEPER_RUN_ID", "a.20261120T000000Z")]);
        Launch { not_after, deadline, ..launcher::launch(TreeId(1), environment) }
    }

    #[test]
    fn a_tree_is_killed_at_lease_end_though_the_daemon_stands_still() {
        let (mut testbed, _notices) = with_tree(Deadline::Lease);
        testbed.executor.fault(Fault::Pause { node: 0 });
        testbed.run(80 * MS);
        assert!(testbed.executor.world.lock().wardens.has_trees(0));
        testbed.run(20 * MS);
        assert!(!testbed.executor.world.lock().wardens.has_trees(0));
    }

    #[test]
    fn a_kept_tree_goes_on_after_the_lease_until_its_own_deadline() {
        let start = Testbed::new(3, 1).now();
        let (mut testbed, _notices) = with_tree(Deadline::LeaseAnd(start + 300 * MS));
        testbed.run(200 * MS);
        assert!(testbed.executor.world.lock().wardens.has_trees(0));
        testbed.run(100 * MS);
        assert!(!testbed.executor.world.lock().wardens.has_trees(0));
    }

    #[test]
    fn the_daemons_death_kills_all_its_trees() {
        let (mut testbed, _notices) = with_tree(Deadline::None);
        {
            let world = &mut *testbed.executor.world.lock();
            world.wardens.daemon_gone(&mut world.env, 0, false);
        }
        testbed.run(10 * MS);
        assert!(!testbed.executor.world.lock().wardens.has_trees(0));
    }

    #[test]
    fn a_start_that_comes_too_late_starts_nothing() {
        let mut testbed = Testbed::new(3, 1);
        let mut notices = testbed.executor.world.lock().wardens.attach(0);
        order_start(&testbed, launch(testbed.now(), Deadline::Lease));
        testbed.run(10 * MS);
        assert_eq!(
            notices.try_recv().ok(),
            Some(Notice::NotStarted { tree_id: TreeId(1), why: StartFailure::TooLate })
        );
    }

    #[test]
    fn slow_starts_wait_for_each_other_and_nothing_waits_for_them() {
        let mut testbed = Testbed::new(3, 1);
        let mut notices = testbed.executor.world.lock().wardens.attach(0);
        testbed.executor.fault(Fault::SlowStarts { each: 20 * MS });
        for tree_id in 1..=3 {
            let launch = launch(testbed.now() + 100 * MS, Deadline::None);
            order_start(&testbed, Launch { tree_id: TreeId(tree_id), ..launch });
        }
        order(&testbed, Order::Kill { tree_id: TreeId(2) });
        order(&testbed, Order::Ping);
        let mut received = Vec::new();
        for _ in 0..4 {
            testbed.run(20 * MS);
            received.extend(std::iter::from_fn(|| notices.try_recv().ok()).map(|notice| match notice {
                Notice::Pong => 0,
                Notice::Started { tree_id, .. } => tree_id.0,
                Notice::NotStarted { tree_id: TreeId(2), why: StartFailure::TooLate } => 20,
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(received, [0, 1, 20, 3]);
    }

    #[test]
    fn a_warden_that_hangs_kills_nothing_and_its_daemon_can() {
        let (mut testbed, mut notices) = with_tree(Deadline::Lease);
        while notices.try_recv().is_ok() {}
        testbed.executor.world.lock().nodes[0].health = Health::Running;
        testbed.executor.fault(Fault::HangWarden { node: 0 });
        testbed.run(200 * MS);
        assert!(testbed.executor.world.lock().wardens.has_trees(0));
        {
            let world = &mut *testbed.executor.world.lock();
            world.wardens.kill_without(&mut world.env, 0, "a.20261120T000000Z");
        }
        testbed.run(20 * MS);
        assert!(!testbed.executor.world.lock().wardens.has_trees(0));
        assert!(notices.try_recv().is_err(), "it says nothing");
        testbed.executor.fault(Fault::WakeWarden { node: 0 });
        testbed.run(10 * MS);
        assert!(matches!(notices.try_recv(), Ok(Notice::Ended(_))));
    }

    #[test]
    fn a_frozen_host_kills_nothing_until_it_thaws() {
        let (mut testbed, _notices) = with_tree(Deadline::Lease);
        testbed.executor.fault(Fault::Freeze { node: 0 });
        testbed.run(200 * MS);
        assert!(testbed.executor.world.lock().wardens.has_trees(0));
        testbed.executor.fault(Fault::Thaw { node: 0 });
        testbed.run(10 * MS);
        assert!(!testbed.executor.world.lock().wardens.has_trees(0));
    }
}
