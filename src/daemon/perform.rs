//! Execution of the engine's commands, in the order given.

use rustix::io::Errno;
use tracing::error;

use super::{Daemon, Processes, Stopped, log};
use crate::warden::recover::Recorded;
use cronkeeper_core::clock::{Clock, Now};
use cronkeeper_core::engine::hooks::HookStart;
use cronkeeper_core::engine::{Command, Event, Report, Start};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::process::{Launch, Notice, Order, StartFailure, StartStep, TreeId};
use cronkeeper_core::run::journal::Journal;
use cronkeeper_core::run::{HistoryRecord, KnownBy, Traces};

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    pub(super) fn perform(&mut self, now: Now, commands: Vec<Command>) -> Option<Stopped> {
        let mut stopped = None;
        for command in commands {
            match command {
                // A backend that is gone has also closed its channel of events, which ends the loop.
                Command::Ask(request) => {
                    self.shown.metrics.requested(now.up, &request);
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
                Command::Report(report) => {
                    self.showing.changed();
                    log::report(&report);
                    self.view.reported(now, &report);
                    self.shown.metrics.reported(&report, self.engine.jobs());
                    self.archive(report);
                }
                Command::Exit => stopped = Some(Stopped::Asked),
            }
        }
        stopped
    }

    /// Keeps the ends and skips that the ledger has accepted, for longer than the ledger keeps them.
    fn archive(&self, report: Report) {
        match report {
            Report::Recorded(end) => self.settings.archive.put(HistoryRecord::Run(*end)),
            Report::Skipped { skip, .. } => self.settings.archive.put(HistoryRecord::Skip(skip)),
            _ => {}
        }
    }

    pub(super) fn order(&mut self, order: Order) {
        if let Err(error) = self.processes.send(order) {
            error!(target: TARGET, event = log_event::WARDEN_FAILED, %error, "cannot send an order to the warden: {error}");
        }
    }

    fn end_trees(&mut self, tree_ids: &[TreeId]) {
        let orphans: Vec<Recorded> = tree_ids.iter().filter_map(|tree_id| self.trees.recorded(*tree_id)).collect();
        tree_ids.iter().filter_map(|tree_id| self.trees.attempt(*tree_id)).for_each(|(run, _)| log::overdue(run));
        self.processes.kill_trees(orphans, &self.settings.launcher.node);
    }

    /// Records the run in the journal, then starts it.
    ///
    /// The order matters: after a crash between the two, the record says which processes to look for.
    fn start(&mut self, now: Now, start: Start) -> Option<Stopped> {
        let run = start.run.id();
        let launch = self.settings.launcher.launch(&start);
        let traces = launch.as_ref().map(|launch| traces(launch, now)).unwrap_or_default();
        if let Err(error) = self.journal.begun(&start.run, start.version, &traces) {
            log::state_failed(&run, "record the run, so it is not started,", &error);
            return self.not_started(now, &start, error.raw_os_error());
        }
        // The engine reports which user or group this host does not know.
        let Ok(launch) = launch else {
            let why = StartFailure::Step { step: StartStep::User, errno: 0 };
            return self.turn(now, Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }));
        };
        if let Err(error) = self.processes.start(&launch) {
            let (event, job) = (log_event::WARDEN_FAILED, &start.run.job);
            error!(target: TARGET, event, %job, %run, %error, "cannot send the start of a run to the warden: {error}");
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
        let Ok(launch) = self.settings.launcher.hook(start) else {
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
    Traces { uid: Some(launch.uid()), since: Some(now.up), not_before, known_by: cgroup.unwrap_or_default() }
}
