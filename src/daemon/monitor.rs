//! Follows the event loop, and shows people what it does.

use std::sync::Arc;
use std::time::Duration;

use super::cluster_watch::{ClusterWatch, NodeHooks};
use super::log;
use super::reload::Reloaded;
use super::shown::{Showing, Shown};
use super::view::View;
use crate::archive::Archive;
use crate::output::{Lines, OutputKey, OutputQueue};
use crate::status::NodeState;
use crate::systemd::{Notifier, Watchdog};
use cronkeeper_core::clock::{Clock, Now, Uptime};
use cronkeeper_core::coordination::Request;
use cronkeeper_core::election::Event as Election;
use cronkeeper_core::engine::hooks::NodeHookCall;
use cronkeeper_core::engine::{Engine, Report};
use cronkeeper_core::event_loop::{Observer, Tree};
use cronkeeper_core::job::JobSet;
use cronkeeper_core::ledger::Event as LedgerEvent;
use cronkeeper_core::process::{Stream, Unsent};
use cronkeeper_core::run::HistoryRecord;

/// Interval between requests to systemd for more time while draining.
const EXTEND_EVERY: Duration = Duration::from_secs(5);

/// Settings of a monitor, fixed at its start.
pub struct MonitorSettings {
    /// Reports the daemon's state to systemd.
    pub notifier: Notifier,
    /// Reports to systemd that the loop turns.
    pub watchdog: Watchdog,
    /// Keeps the ends and skips that the ledger accepted from this node.
    pub archive: Archive,
    /// Keeps the output of runs.
    pub output: OutputQueue,
    /// The hooks of the node.
    pub hooks: NodeHooks,
    pub view: View,
    pub shown: Shown,
}

/// The observer of a real node's event loop.
pub struct Monitor {
    notifier: Notifier,
    watchdog: Watchdog,
    archive: Archive,
    output: OutputQueue,
    view: View,
    shown: Shown,
    showing: Showing,
    /// When systemd was last asked for more time to stop.
    extended_at: Uptime,
    outage: log::Outage,
    cluster: ClusterWatch,
    /// When the passing of time alone leads to a hook of the node.
    cluster_at: Option<Uptime>,
    leaderless: log::Leaderless,
}

impl Monitor {
    /// The monitor of a loop that starts now.
    pub fn new(settings: MonitorSettings, now: Now) -> Self {
        let MonitorSettings { notifier, watchdog, archive, output, hooks, view, shown } = settings;
        Self {
            notifier,
            watchdog,
            archive,
            output,
            view,
            shown,
            showing: Showing::NEVER,
            extended_at: Uptime::ZERO,
            outage: log::Outage::default(),
            cluster: ClusterWatch::new(hooks, now),
            cluster_at: None,
            leaderless: log::Leaderless::default(),
        }
    }

    /// Publishes the metrics, and the state if it is due. Building the state visits every job, so it is not always due.
    fn show(&mut self, now: Now, engine: &Engine, clock: &impl Clock) {
        self.shown.metrics.share();
        if self.showing.is_due(now.up) {
            let began = clock.now().up;
            self.notifier.status(&self.view.summary(engine));
            let status = Arc::new(self.view.status(now, engine));
            if status.state == NodeState::Leading {
                self.shown.led.send_replace(Some(Arc::clone(&status)));
            }
            self.shown.status.send_replace(status);
            self.shown.lease.send_replace(self.view.lease_until(engine));
            self.showing = Showing::published(began, clock.now().up);
        }
    }

    /// Extends systemd's stop timeout while the node drains, so that only the drain timeout limits it.
    fn extend_stop(&mut self, now: Now, engine: &Engine) {
        if engine.is_ending() && now.up >= self.extended_at + EXTEND_EVERY {
            self.extended_at = now.up;
            self.notifier.extend_timeout(EXTEND_EVERY * 3);
        }
    }
}

impl Observer for Monitor {
    type Reloaded = Reloaded;

    fn on_turn(&mut self, now: Now) {
        self.outage.turn(now.up);
        self.shown.turned.send_replace(now.up);
    }

    fn on_election(&mut self, now: Now, event: &Election, engine: &Engine) {
        self.showing.changed();
        log::election(event);
        self.outage.follow(now.up, event);
        for news in self.view.elected(now, event, engine.jobs()) {
            log::other_node(&news);
        }
        match event {
            Election::Session { timeout, .. } => self.watchdog.set(*timeout, &mut self.notifier),
            Election::Members(members) => self.leaderless.follow(now.up, members),
            // The answers to what was requested last are lost.
            Election::Suspended { .. } | Election::Expired { .. } => self.archive.doubt(now.wall),
            _ => {}
        }
    }

    fn on_lease(&mut self, engine: &Engine) {
        self.view.lease(engine.lease_until());
        self.shown.lease.send_replace(self.view.lease_until(engine));
    }

    fn on_request(&mut self, now: Now, request: &Request) {
        self.shown.metrics.requested(now.up, request);
    }

    fn on_ledger(&mut self, now: Now, event: &LedgerEvent) {
        self.shown.metrics.answered(now.up, event);
    }

    /// The archive keeps the ends and skips that the ledger has accepted for longer than the ledger keeps them.
    fn on_report(&mut self, now: Now, report: Report, engine: &Engine) {
        self.showing.changed();
        match &report {
            Report::Elected { term, took } => log::leads(term, *took, self.view.led_before()),
            report => log::report(report),
        }
        self.view.reported(now, &report);
        self.shown.metrics.reported(&report, engine.jobs());
        match report {
            Report::Recorded(end) => self.archive.put(HistoryRecord::Run(*end)),
            Report::Skipped { skip, .. } => self.archive.put(HistoryRecord::Skip(skip)),
            _ => {}
        }
    }

    fn on_output(&mut self, now: Now, tree: &Tree, stream: Stream, lines: Vec<String>, continues: bool) {
        log::lines(tree, stream, &lines, continues);
        if let Some(key) = key_of(tree) {
            self.output.lines(key, Lines { at: now.wall, stream: stream.into(), texts: lines, continues });
        }
    }

    fn on_tree_ended(&mut self, now: Now, tree: &Tree, unsent: Option<Unsent>) {
        if let Some(key) = key_of(tree) {
            self.output.ended(key, now.wall, unsent.unwrap_or_default());
        }
    }

    fn on_reloaded(&mut self, now: Now, reloaded: Reloaded, engine: &Engine) -> Option<JobSet> {
        self.showing.changed();
        self.view.reloaded(now, &reloaded);
        self.notifier.reloading();
        match reloaded {
            Ok(loaded) => {
                let difference = engine.jobs().difference(&loaded.set);
                log::loaded(&loaded, &difference, false);
                self.shown.metrics.dropped(difference.removed);
                self.shown.jobs.send_replace(Arc::new(loaded.set.clone()));
                Some(loaded.set)
            }
            Err(error) => {
                log::rejected(self.view.path(), &error, self.view.last_good());
                None
            }
        }
    }

    fn on_reload_done(&mut self) {
        self.notifier.ready();
    }

    fn on_stopping(&mut self) {
        self.notifier.stopping();
    }

    fn log_state(&mut self, now: Now, engine: &Engine) {
        log::state(&self.view.status(now, engine));
    }

    /// Visits every missing node, so the hooks are looked for only when a new state is about to be published, and when
    /// the time alone leads to a call.
    fn hooks_to_call(&mut self, now: Now, engine: &Engine) -> Vec<NodeHookCall> {
        if self.cluster.is_off() {
            return Vec::new();
        }
        if engine.is_ending() {
            // They would not run any more.
            self.cluster_at = None;
            return Vec::new();
        }
        let is_news = self.showing.is_due(now.up);
        if !is_news && self.cluster_at.is_none_or(|at| now.up < at) {
            return Vec::new();
        }
        let calls = self.cluster.see(now, &self.view.seen());
        self.cluster_at = self.cluster.next_at();
        calls
    }

    fn on_turn_end(&mut self, now: Now, engine: &Engine, clock: &impl Clock) {
        self.show(now, engine, clock);
        self.watchdog.turned(now.up, &mut self.notifier);
        self.extend_stop(now, engine);
    }

    fn next_at(&self) -> Option<Uptime> {
        [self.watchdog.next(), self.cluster_at, self.showing.due()].into_iter().flatten().min()
    }
}

/// Identifies the kept output of a tree; absent for a hook, whose output is only logged.
fn key_of(tree: &Tree) -> Option<OutputKey> {
    tree.attempt().map(|(run, attempt)| OutputKey { run: run.clone(), attempt })
}

#[cfg(test)]
mod tests;
