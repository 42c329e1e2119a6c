//! Supervisor of one run: its output, its timeout, and the signals that end it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use futures_util::StreamExt as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;

use crate::cli::Error;
use crate::warden::handle::{Handle, Warden, WardenGone};
use cronkeeper_core::clock::system::{SystemClock, now};
use cronkeeper_core::clock::{Clock as _, Uptime, Wake};
use cronkeeper_core::job::Job;
use cronkeeper_core::process::{EndedBy, Ending, Launch, Notice, Order, StartFailure, StartStep, Stream, TreeId};
use cronkeeper_core::run::millis;

/// Output of the job: its stream, lines of it, and whether the last of them continues in the next piece.
pub(super) type OutputPiece = (Stream, Vec<String>, bool);

/// A run that ended, or a start that failed.
pub(super) type StartedOrFailed = Result<SupervisedEnd, StartFailure>;

pub(super) struct SupervisedEnd {
    /// The warden's report.
    pub(super) ending: Ending,
    /// The run was stopped because its `timeout` had passed.
    pub(super) timed_out: bool,
}

/// The first of these signals stops the run, the second kills it.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Starts the attempt and waits for its end.
pub(super) fn supervise(
    warden: Warden,
    launch: Launch,
    job: &Job,
    output: Sender<OutputPiece>,
) -> Result<StartedOrFailed, Error> {
    let system = |what| move |source| Error::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("the runtime cannot be started"))?;
    let is_over = Arc::new(AtomicBool::new(false));
    // Once the run is over, this process only prints the remaining output, and signals get their default effect back.
    for signal in SIGNALS {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_over))
            .map_err(system("signals cannot be caught"))?;
    }
    let ended = runtime.block_on(async {
        let signals = Signals::new(SIGNALS).map_err(system("signals cannot be caught"))?;
        let warden = warden.into_async(None).map_err(system("the warden cannot be reached"))?;
        let tree_id = launch.tree_id;
        let mut supervisor = ExecSupervisor { warden, signals, tree_id, job, output, due: None, stopped: None };
        let ended = supervisor.run(launch).await;
        // Best effort: the warden has nothing left to do, so an error here does not matter.
        let _ = supervisor.warden.close().await;
        ended.map_err(|error| system("lost track of the job")(io::Error::other(error)))
    });
    is_over.store(true, Ordering::SeqCst);
    ended
}

/// Why this process stopped the run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExecStopCause {
    Timeout,
    Signal,
}

struct ExecSupervisor<'a> {
    warden: Handle,
    signals: Signals,
    tree_id: TreeId,
    job: &'a Job,
    output: Sender<OutputPiece>,
    /// When the job's `timeout` passes; `None` before the start, without a `timeout`, and after a stop.
    due: Option<Uptime>,
    stopped: Option<ExecStopCause>,
}

impl ExecSupervisor<'_> {
    async fn run(&mut self, launch: Launch) -> Result<StartedOrFailed, WardenGone> {
        if self.warden.start(&launch).is_err() {
            let too_long = nix::errno::Errno::E2BIG as i32;
            return Ok(Err(StartFailure::Step { step: StartStep::Exec, errno: too_long }));
        }
        let clock = SystemClock::default();
        loop {
            let wake = Wake { wall: None, up: self.due };
            // Cancellation safe: signals not taken stay in the stream, the sleep is recreated, and `notice` documents
            // it. The clock comes before the output, because the output may be endless.
            tokio::select! {
                biased;
                Some(_) = self.signals.next() => self.interrupt(),
                () = clock.sleep_until(wake) => self.check_timeout(),
                notice = self.warden.notice() => if let Some(ended) = self.on_notice(notice?) {
                    return Ok(ended);
                },
            }
        }
    }

    fn on_notice(&mut self, notice: Notice) -> Option<StartedOrFailed> {
        match notice {
            Notice::Started { at, .. } => self.began(at),
            // Cannot fail: the thread that prints outlives this one.
            Notice::Output { stream, lines, continues, .. } => drop(self.output.send((stream, lines, continues))),
            Notice::NotStarted { why, .. } => return Some(Err(why)),
            Notice::Ended(ending) => {
                let timed_out = match ending.ended_by {
                    Some(EndedBy::Order) => self.stopped == Some(ExecStopCause::Timeout),
                    Some(EndedBy::TimeLimit) => true,
                    Some(EndedBy::Deadline) | None => false,
                };
                return Some(Ok(SupervisedEnd { ending: *ending, timed_out }));
            }
            Notice::Held { .. } | Notice::WithoutFiles { .. } | Notice::Pong => {}
        }
        None
    }

    fn began(&mut self, at: Uptime) {
        self.due = self.job.timeout.map(|timeout| at + timeout);
    }

    fn check_timeout(&mut self) {
        if self.due.is_some_and(|due| due <= now().up) {
            self.due = None;
            self.stop(ExecStopCause::Timeout);
        }
    }

    /// Handles a signal: the first stops the run as its timeout would, the next kills it.
    fn interrupt(&mut self) {
        self.due = None;
        if self.stopped.is_some() {
            self.order(Order::Kill { tree_id: self.tree_id });
        } else {
            self.stop(ExecStopCause::Signal);
        }
    }

    fn stop(&mut self, cause: ExecStopCause) {
        self.stopped = Some(cause);
        let grace_ms = millis(self.job.kill_grace);
        self.order(Order::Stop { tree_id: self.tree_id, grace_ms });
    }

    fn order(&mut self, order: Order) {
        // Cannot fail: these orders are short enough for one message.
        let _ = self.warden.send(order);
    }
}
