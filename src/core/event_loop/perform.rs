//! Execution of the engine's commands, in the order given.

use rustix::io::Errno;

use super::{EventLoop, Launcher as _, Observer, Ports, Stopped, log};
use crate::clock::Now;
use crate::engine::hooks::HookStart;
use crate::engine::{Command, Event, Start};
use crate::process::{Launch, Notice, Order, Processes as _, Recorded, StartFailure, StartStep, TreeId};
use crate::run::journal::Journal as _;
use crate::run::{BeginNote, KnownBy, Traces};

impl<P: Ports> EventLoop<P> {
    pub(super) fn perform(&mut self, now: Now, commands: Vec<Command>) -> Option<Stopped> {
        let mut stopped = None;
        for command in commands {
            match command {
                // A backend that is gone has also closed its channel of events, which ends the loop.
                Command::Ask(request) => {
                    self.observer.on_request(now, &request);
                    drop(self.coordination.requests.send(request));
                }
                Command::Start(start) => stopped = stopped.or(self.start(now, *start)),
                Command::RunHook(start) => self.run_hook(now, &start),
                Command::Order(order) => self.order(order),
                Command::EndTrees(tree_ids) => self.end_trees(&tree_ids),
                Command::KeepEnd { end, version } => {
                    if let Err(error) = self.journal.ended(&end, version) {
                        log::state_failed(&end.run.id(), "keep the end of a run", &error);
                    }
                }
                Command::Forget(run) => {
                    if let Err(error) = self.journal.settled(&run) {
                        log::state_failed(&run, "record a settled run", &error);
                    }
                }
                Command::NoteUnstarted(run) => {
                    if let Err(error) = self.journal.unstarted(&run) {
                        log::state_failed(&run, "record that the run was never started", &error);
                    }
                }
                Command::Report(report) => self.observer.on_report(now, report, &self.engine),
                Command::Exit => stopped = Some(Stopped::Asked),
            }
        }
        stopped
    }

    pub(super) fn order(&mut self, order: Order) {
        if let Err(error) = self.processes.send(order) {
            log::order_not_sent(&error);
        }
    }

    fn end_trees(&mut self, tree_ids: &[TreeId]) {
        let orphans: Vec<Recorded> = tree_ids.iter().filter_map(|tree_id| self.trees.recorded(*tree_id)).collect();
        // If this daemon was stopped, it has not read yet what the warden started and killed meanwhile. A tree whose main
        // process it does not know may never have begun.
        let lives = |tree_id: &TreeId| {
            let main = self.trees.recorded(*tree_id).and_then(|recorded| recorded.main);
            main.is_some_and(|(pid, start_time)| self.processes.start_time(pid) == start_time)
        };
        let living = tree_ids.iter().filter(|tree_id| lives(tree_id));
        living.filter_map(|tree_id| self.trees.attempt(*tree_id)).for_each(|(run, _)| log::overdue(run));
        self.processes.kill_trees(orphans, self.engine.node());
    }

    /// Records the run in the journal, then starts it.
    ///
    /// The order matters: after a crash between the two, the record says which processes to look for.
    fn start(&mut self, now: Now, start: Start) -> Option<Stopped> {
        let run = start.run.id();
        let launch = self.launcher.launch(&start);
        let mut traces = launch.as_ref().map(|launch| traces(launch, now)).unwrap_or_default();
        let file = self.processes.begins_file().map(str::to_owned);
        traces.begin = file.map(|file| BeginNote { file, tree: start.tree_id.0 });
        if let Err(error) = self.journal.begun(&start.run, start.version, &traces) {
            log::state_failed(&run, "record the run, so it is not started,", &error);
            return self.not_started(now, &start, error.raw_os_error());
        }
        // The engine reports which user or group this host does not know.
        let Some(launch) = launch else {
            let why = StartFailure::Step { step: StartStep::User, errno: 0 };
            return self.turn(now, Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }));
        };
        if let Err(error) = self.processes.start(&launch) {
            log::start_not_sent(&run, &error);
            return self.not_started(now, &start, Some(Errno::TOOBIG.raw_os_error()));
        }
        self.trees.insert_attempt(start.tree_id, run, start.run.attempt, traces);
        None
    }

    /// Starts a hook. One that cannot be started is queued as refused instead of passed to the engine at once.
    ///
    /// The engine answers with the next hook: as thousands may be waiting, a direct call could recurse that deep.
    fn run_hook(&mut self, now: Now, start: &HookStart) {
        let tree_id = start.tree_id;
        let refused = |step, errno| Notice::NotStarted { tree_id, why: StartFailure::Step { step, errno } };
        let Some(launch) = self.launcher.hook(start) else {
            return self.refused_hooks.push_back(refused(StartStep::User, 0));
        };
        let traces = traces(&launch, now);
        if self.processes.start(&launch).is_err() {
            return self.refused_hooks.push_back(refused(StartStep::Prepare, Errno::TOOBIG.raw_os_error()));
        }
        self.trees.insert_hook(tree_id, &start.call, traces);
    }

    fn not_started(&mut self, now: Now, start: &Start, errno: Option<i32>) -> Option<Stopped> {
        let why = StartFailure::Step { step: StartStep::Prepare, errno: errno.unwrap_or_default() };
        self.turn(now, Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }))
    }
}

/// How to recognize the processes that are about to start. The warden reports later whether it could create the cgroup.
fn traces(launch: &Launch, now: Now) -> Traces {
    let cgroup = launch.cgroup.as_ref().map(|cgroup| KnownBy::Cgroup(cgroup.path.clone()));
    let Launch { not_before, .. } = *launch;
    let known_by = cgroup.unwrap_or_default();
    Traces { uid: Some(launch.uid()), since: Some(now.up), not_before, begin: None, known_by }
}
