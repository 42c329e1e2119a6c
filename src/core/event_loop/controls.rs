//! What operators ask of the daemon: by a signal, through the API, or by an edit of the jobs file.

use tokio::sync::oneshot;

use super::{EventLoop, Observer, Ports, ReloadedOf, Stopped, log};
use crate::clock::Now;
use crate::election::TransferError;
use crate::engine::Event;
use crate::term::NodeName;

/// A request of the operator, made by a signal, the API or an edit of the jobs file.
#[derive(Debug)]
pub enum Control<R> {
    /// The jobs file was read again, with this result.
    Reloaded(R),
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
    /// Log the node's state.
    LogState,
}

/// Receives the result of a handover. It is dropped without one if the daemon stops first.
pub type HandoverReply = oneshot::Sender<Result<(), TransferError>>;

impl<P: Ports> EventLoop<P> {
    pub(super) fn on_control(&mut self, now: Now, control: Control<ReloadedOf<P>>) -> Option<Stopped> {
        match control {
            Control::Reloaded(reloaded) => return self.on_reloaded(now, reloaded),
            Control::Drain => return self.drain(now),
            Control::Stop => {
                log::stopping(self.engine.own_runs());
                return self.turn(now, Event::Stop);
            }
            Control::HandOver { to, answer } => return self.hand_over(now, to, answer),
            Control::LogState => self.observer.log_state(now, &self.engine),
        }
        None
    }

    fn drain(&mut self, now: Now) -> Option<Stopped> {
        self.observer.on_stopping();
        let stopped = self.turn(now, Event::Drain { timeout: self.drain_timeout });
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

    fn on_reloaded(&mut self, now: Now, reloaded: ReloadedOf<P>) -> Option<Stopped> {
        let jobs = self.observer.on_reloaded(now, reloaded, &self.engine);
        let stopped = self.turn(now, jobs.map_or(Event::Rejected, Event::Loaded));
        self.publish();
        self.observer.on_reload_done();
        stopped
    }
}

fn send_reply(reply: Option<HandoverReply>, result: Result<(), TransferError>) {
    if let Some(reply) = reply {
        // The caller may have disconnected.
        let _ = reply.send(result);
    }
}
