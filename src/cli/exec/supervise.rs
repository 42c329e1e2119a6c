//! Watching one run: its output, its timeout, and the signals that end it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use futures_util::StreamExt as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;

use crate::cli::Error;
use crate::clock::system::{SystemClock, now};
use crate::clock::{Clock as _, Uptime, Wake};
use crate::job::Job;
use crate::run::millis;
use crate::warden::handle::{Handle, Warden, WardenGone};
use crate::warden::wire::{EndedBy, Ending, Launch, Notice, Order, StartFailure, Step, Stream, TreeId};

/// Output: from where, the text, and whether the line goes on in the next piece.
pub(super) type Piece = (Stream, String, bool);

/// How a run went: a start that failed, or an end.
pub(super) type Ended = Result<Watched, StartFailure>;

/// The end of a run.
pub(super) struct Watched {
    /// As the warden tells it.
    pub(super) ending: Ending,
    /// It was told to end because its `timeout` had passed.
    pub(super) timed_out: bool,
}

/// Each ends the run; the second of them at once.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Starts the attempt and sees it to its end.
pub(super) fn supervise(warden: Warden, launch: Launch, job: &Job, pieces: Sender<Piece>) -> Result<Ended, Error> {
    let system = |what| move |source| Error::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("the runtime cannot be started"))?;
    let is_over = Arc::new(AtomicBool::new(false));
    // Once the run is over only its output is waited for, and signals mean again what they mean everywhere.
    for signal in SIGNALS {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_over))
            .map_err(system("signals cannot be caught"))?;
    }
    let ended = runtime.block_on(async {
        let signals = Signals::new(SIGNALS).map_err(system("signals cannot be caught"))?;
        let warden = warden.into_async().map_err(system("the warden cannot be spoken to"))?;
        let mut watch = Watch { warden, signals, tree_id: launch.tree_id, job, pieces, due: None, stopped: None };
        let ended = watch.run(launch).await;
        // It has nothing left to do; that it cannot be waited for changes nothing.
        let _ = watch.warden.close().await;
        ended.map_err(|error| system("the job is out of sight")(io::Error::other(error)))
    });
    is_over.store(true, Ordering::SeqCst);
    ended
}

/// Why the run was told to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Timeout,
    Signal,
}

struct Watch<'a> {
    warden: Handle,
    signals: Signals,
    tree_id: TreeId,
    job: &'a Job,
    pieces: Sender<Piece>,
    /// When its `timeout` passes.
    due: Option<Uptime>,
    stopped: Option<Cause>,
}

impl Watch<'_> {
    async fn run(&mut self, launch: Launch) -> Result<Ended, WardenGone> {
        if self.warden.send(&Order::Start(Box::new(launch))).is_err() {
            let too_long = nix::errno::Errno::E2BIG as i32;
            return Ok(Err(StartFailure::Step { step: Step::Exec, errno: too_long }));
        }
        let clock = SystemClock::default();
        loop {
            let wake = Wake { wall: None, up: self.due };
            // Cancellation safe: signals not taken stay in the stream, a wait is asked for anew, `notice` says it is safe. The
            // clock comes before the output, of which there may be no end.
            tokio::select! {
                biased;
                Some(_) = self.signals.next() => self.interrupt(),
                () = clock.sleep_until(wake) => self.look_at_the_clock(),
                notice = self.warden.notice() => if let Some(ended) = self.noticed(notice?) {
                    return Ok(ended);
                },
            }
        }
    }

    fn noticed(&mut self, notice: Notice) -> Option<Ended> {
        match notice {
            Notice::Started { at, .. } => self.due = self.job.timeout.map(|timeout| at + timeout),
            // Who prints outlives who supervises.
            Notice::Output { stream, line, continues, .. } => drop(self.pieces.send((stream, line, continues))),
            Notice::NotStarted { why, .. } => return Some(Err(why)),
            Notice::Ended(ending) => {
                let timed_out = ending.ended_by == Some(EndedBy::Order) && self.stopped == Some(Cause::Timeout);
                return Some(Ok(Watched { ending: *ending, timed_out }));
            }
            Notice::Pong => {}
        }
        None
    }

    fn look_at_the_clock(&mut self) {
        if self.due.is_some_and(|due| due <= now().up) {
            self.due = None;
            self.stop(Cause::Timeout);
        }
    }

    /// The first signal ends the run as its timeout would, the next at once.
    fn interrupt(&mut self) {
        self.due = None;
        if self.stopped.is_some() {
            self.order(&Order::Kill { tree_id: self.tree_id });
        } else {
            self.stop(Cause::Signal);
        }
    }

    fn stop(&mut self, cause: Cause) {
        self.stopped = Some(cause);
        let grace_ms = millis(self.job.kill_grace);
        self.order(&Order::Stop { tree_id: self.tree_id, grace_ms });
    }

    fn order(&mut self, order: &Order) {
        // So short an order always fits a message.
        let _ = self.warden.send(order);
    }
}
