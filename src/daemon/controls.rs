//! What operators ask of the daemon: by a signal, through the API, or by an edit of the jobs file.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::reload::Reloaded;
use super::{Daemon, Processes, Stopped, log};
use cronkeeper_core::clock::{Clock, Now};
use cronkeeper_core::election::TransferError;
use cronkeeper_core::engine::Event;
use cronkeeper_core::run::journal::Journal;
use cronkeeper_core::term::NodeName;

/// A request of the operator, made by a signal, the API or an edit of the jobs file.
#[derive(Debug)]
pub enum Control {
    /// The jobs file was read again.
    Reloaded(Reloaded),
    /// Stop after all runs have ended.
    Drain,
    /// Stop now.
    Stop,
    /// Let another node lead.
    HandOver {
        /// The node that should lead; absent: the next in line.
        to: Option<NodeName>,
        /// Receives the result of the handover.
        answer: Option<HandoverReply>,
    },
    LogState,
}

/// Receives the result of a handover. It is dropped without one if the daemon stops first.
pub type HandoverReply = oneshot::Sender<Result<(), TransferError>>;

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    pub(super) fn on_control(&mut self, now: Now, control: Control) -> Option<Stopped> {
        match control {
            Control::Reloaded(reloaded) => return self.on_reloaded(now, reloaded),
            Control::Drain => return self.drain(now),
            Control::Stop => {
                log::stopping(self.engine.own_runs());
                return self.turn(now, Event::Stop);
            }
            Control::HandOver { to, answer } => return self.hand_over(now, to, answer),
            Control::LogState => log::state(&self.view.status(now, &self.engine)),
        }
        None
    }

    fn drain(&mut self, now: Now) -> Option<Stopped> {
        self.settings.notifier.stopping();
        let stopped = self.turn(now, Event::Drain { timeout: self.settings.drain_timeout });
        if self.engine.own_runs() > 0 {
            self.publish();
        }
        stopped
    }

    fn hand_over(&mut self, now: Now, to: Option<NodeName>, reply: Option<HandoverReply>) -> Option<Stopped> {
        // Only a signal asks without waiting for a reply.
        if reply.is_none() {
            log::signalled_handover(self.engine.term().is_some());
        }
        if self.engine.term().is_none() {
            send_reply(reply, Err(TransferError::NotLeading));
            return None;
        }
        // Concurrent requests all receive the result of the first handover. Callers that have disconnected are removed.
        self.handovers.retain(|waiting| !waiting.is_closed());
        self.handovers.extend(reply);
        self.turn(now, Event::HandOver { to })
    }

    pub(super) fn on_handover_done(&mut self, result: Result<(), TransferError>) {
        for reply in self.handovers.drain(..) {
            send_reply(Some(reply), result.clone());
        }
    }

    fn on_reloaded(&mut self, now: Now, reloaded: Reloaded) -> Option<Stopped> {
        self.showing.changed();
        self.view.reloaded(now, &reloaded);
        self.settings.notifier.reloading();
        let stopped = self.apply(now, reloaded);
        self.settings.notifier.ready();
        stopped
    }

    fn apply(&mut self, now: Now, reloaded: Reloaded) -> Option<Stopped> {
        match reloaded {
            Ok(loaded) => {
                let difference = self.engine.jobs().difference(&loaded.set);
                log::loaded(&loaded, &difference, false);
                self.shown.metrics.dropped(difference.removed);
                self.shown.jobs.send_replace(Arc::new(loaded.set.clone()));
                let stopped = self.turn(now, Event::Loaded(loaded.set));
                self.publish();
                stopped
            }
            Err(error) => {
                log::rejected(self.view.path(), &error, self.view.last_good());
                let stopped = self.turn(now, Event::Rejected);
                self.publish();
                stopped
            }
        }
    }
}

fn send_reply(reply: Option<HandoverReply>, result: Result<(), TransferError>) {
    if let Some(reply) = reply {
        // The caller may have disconnected.
        let _ = reply.send(result);
    }
}
