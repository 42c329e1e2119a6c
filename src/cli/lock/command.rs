//! The command under a lock: started by the warden, stopped in time, and informed of what concerns it.

use std::io::{self, Write as _};
use std::time::Duration;

use futures_util::StreamExt as _;
use nix::libc::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;

use super::OnLeaseEnd;
use super::signal::SignalName;
use crate::cli::Error;
use crate::cli::lock_failure::LockFailure;
use crate::warden;
use crate::warden::cgroup::hierarchy::Cgroups;
use crate::warden::handle::{Handle, HeldDescriptors, Warden, WardenGone};
use cronkeeper_cluster::recipes::lock::LockEvent;
use cronkeeper_core::clock::system::{SystemClock, now};
use cronkeeper_core::clock::{Clock as _, Uptime, Wake};
use cronkeeper_core::process::{
    Deadline, EndedBy, Ending, ExecStrings, Launch, LaunchFiles, Limits, Notice, Order, StartFailure, StartStep, TreeId,
};
use cronkeeper_core::run::millis;
use cronkeeper_core::start_problem::about_interpreter;

/// Signals that end this program by default, and two more that a command may wait for.
///
/// SIGTSTP is caught and ignored: a stopped client loses its lock, and the command would not stop with it.
const SIGNALS: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP];

/// Time for the processes of a command to die after SIGKILL, if the warden is dead.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The only tree of this warden.
const TREE: TreeId = TreeId(1);

/// Catches these signals, but for those that the caller ignores, as nohup(1) does.
pub(super) fn signals() -> Result<Signals, Error> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let is_heeded = |signal: &&i32| ignored.is_none_or(|ignored| ignored & (1 << (**signal - 1)) == 0);
    Signals::new(SIGNALS.iter().filter(is_heeded))
        .map_err(|source| Error::System { what: "signals cannot be caught", source })
}

/// How the command runs, from the options.
#[derive(Clone, Debug)]
pub(super) struct CommandSettings {
    pub argv: Vec<String>,
    pub hold: Option<Duration>,
    pub kill_grace: Duration,
    pub on_revoke: Option<SignalName>,
    pub on_lease_end: OnLeaseEnd,
}

impl CommandSettings {
    /// The end of `--hold` for a lock that was taken at this instant.
    fn hold_until(&self, held_from: Uptime) -> Option<Uptime> {
        self.hold.map(|hold| held_from + hold)
    }

    /// When the warden kills the command by itself, also while this process is stopped.
    fn deadline(&self, held_from: Uptime) -> Deadline {
        match (self.on_lease_end, self.hold_until(held_from)) {
            (OnLeaseEnd::Kill, Some(until)) => Deadline::LeaseOr(until),
            (OnLeaseEnd::Kill, None) => Deadline::Lease,
            (OnLeaseEnd::Warn, Some(until)) => Deadline::At(until),
            (OnLeaseEnd::Warn, None) => Deadline::None,
        }
    }
}

/// Why the command was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// `--hold` had passed.
    Hold,
    /// The lease ended, or the lock's entry is gone.
    LockLost,
    /// This process got a signal.
    Signal,
}

/// The command's end and why it was stopped, if it was; or why it was not started.
pub(super) type CommandEnd = Result<(Option<Stopped>, Ending), StartFailure>;

/// The session that holds the lock, as far as the command depends on it.
pub(super) trait Guard {
    /// Waits for the next event. Cancellation safe.
    fn event(&mut self) -> impl Future<Output = LockEvent>;
    /// The end of the lease.
    fn lease_until(&self) -> Uptime;
}

/// A lock that lasts as long as this process, such as a file's.
pub(super) struct NoLease;

impl Guard for NoLease {
    async fn event(&mut self) -> LockEvent {
        std::future::pending().await
    }

    fn lease_until(&self) -> Uptime {
        Uptime::NEVER
    }
}

pub(super) struct HeldCommand<'a, G> {
    pub warden: Handle,
    pub signals: &'a mut Signals,
    pub guard: G,
    pub settings: &'a CommandSettings,
    /// When the lock was taken.
    pub held_from: Uptime,
    stopped: Option<Stopped>,
    is_started: bool,
    /// Signals that came before the command was started.
    early: Vec<i32>,
    /// The command was informed that the lease is over.
    is_warned: bool,
    /// The end of the lease as the warden knows it.
    lease_until: Uptime,
}

impl<'a, G: Guard> HeldCommand<'a, G> {
    pub fn new(
        warden: Handle,
        signals: &'a mut Signals,
        guard: G,
        settings: &'a CommandSettings,
        held_from: Uptime,
    ) -> Self {
        let (stopped, is_started, early, is_warned) = (None, false, Vec::new(), false);
        let lease_until = guard.lease_until();
        Self { warden, signals, guard, settings, held_from, stopped, is_started, early, is_warned, lease_until }
    }

    /// Runs the command to its end.
    pub async fn run(&mut self, launch: Launch) -> Result<CommandEnd, WardenGone> {
        self.renew(self.guard.lease_until());
        if self.warden.start(&launch).is_err() {
            let too_long = nix::errno::Errno::E2BIG as i32;
            return Ok(Err(StartFailure::Step { step: StartStep::Exec, errno: too_long }));
        }
        let clock = SystemClock::default();
        loop {
            let wake = Wake { wall: None, up: self.next_deadline() };
            // Cancellation safe: signals not taken stay in the stream, the sleep is recreated, and `notice` and `event`
            // document it.
            tokio::select! {
                biased;
                Some(signal) = self.signals.next() => self.interrupt(signal),
                () = clock.sleep_until(wake), if wake.up.is_some() => self.check_deadlines(),
                notice = self.warden.notice() => if let Some(ended) = self.on_notice(notice?) {
                    return Ok(ended);
                },
                event = self.guard.event() => self.on_event(event),
            }
        }
    }

    fn on_notice(&mut self, notice: Notice) -> Option<CommandEnd> {
        match notice {
            Notice::Started { .. } => {
                self.is_started = true;
                for signal in std::mem::take(&mut self.early) {
                    self.forward(signal);
                }
                None
            }
            Notice::NotStarted { why, .. } => Some(Err(why)),
            Notice::Ended(ending) => {
                let by_deadline = (ending.ended_by == Some(EndedBy::Deadline)).then(|| self.deadline_was());
                let stopped = self.stopped.filter(|_| ending.ended_by == Some(EndedBy::Order)).or(by_deadline);
                Some(Ok((stopped, *ending)))
            }
            Notice::Held { .. } | Notice::WithoutFiles { .. } | Notice::Output { .. } | Notice::Pong => None,
        }
    }

    fn on_event(&mut self, event: LockEvent) {
        match event {
            LockEvent::Lease { until } => self.renew(until),
            LockEvent::SessionOver => self.lose("the session is over"),
            LockEvent::EntryGone { entry } => self.lose(&format!("somebody deleted `{entry}`")),
            LockEvent::RevokeRequested { entry } => {
                say(&format!("somebody asks to release the lock `{entry}`"));
                if let Some(signal) = self.settings.on_revoke {
                    self.signal(signal.number());
                }
            }
            LockEvent::Disconnected | LockEvent::Connected => {}
        }
    }

    fn renew(&mut self, until: Uptime) {
        self.lease_until = until;
        self.order(Order::Lease { until });
    }

    /// Which of its deadlines came first for the warden, which kills by itself: this process may have been stopped.
    fn deadline_was(&self) -> Stopped {
        let is_hold = self.settings.hold_until(self.held_from).is_some_and(|until| until <= self.lease_until);
        let ends_with_lease = self.settings.on_lease_end == OnLeaseEnd::Kill;
        if is_hold || !ends_with_lease { Stopped::Hold } else { Stopped::LockLost }
    }

    /// Handles the loss of the lock while the lease lasts: nobody else may know of the lease.
    fn lose(&mut self, why: &str) {
        match self.settings.on_lease_end {
            OnLeaseEnd::Kill => {
                say(why);
                self.stopped = Some(Stopped::LockLost);
                self.order(Order::Kill { tree_id: TREE });
            }
            OnLeaseEnd::Warn => self.warn(why),
        }
    }

    fn warn(&mut self, why: &str) {
        if !self.is_warned {
            self.is_warned = true;
            say(&format!("{why}; the lock is lost, and the command continues (--on-lease-end warn)"));
            self.signal(SIGTERM);
        }
    }

    /// When to act next: before `--hold` is over, or at the end of the lease.
    fn next_deadline(&self) -> Option<Uptime> {
        let warns = self.settings.on_lease_end == OnLeaseEnd::Warn && !self.is_warned;
        let lease = warns.then(|| self.guard.lease_until()).filter(|&until| until != Uptime::NEVER);
        self.stop_at().into_iter().chain(lease).min()
    }

    /// When the command must be asked to end, so that it is dead when `--hold` is over.
    fn stop_at(&self) -> Option<Uptime> {
        let hold = self.settings.hold.filter(|_| self.stopped != Some(Stopped::Hold))?;
        Some(self.held_from + hold.saturating_sub(self.grace()))
    }

    /// The time that a command has to end by itself: at most a fifth of `--hold`.
    fn grace(&self) -> Duration {
        self.settings.hold.map_or(self.settings.kill_grace, |hold| self.settings.kill_grace.min(hold / 5))
    }

    fn check_deadlines(&mut self) {
        let now = now().up;
        if self.stop_at().is_some_and(|at| at <= now) {
            self.stopped = Some(Stopped::Hold);
            let left = self.settings.hold_until(self.held_from).unwrap_or(now).since(now);
            self.order(Order::Stop { tree_id: TREE, grace_ms: millis(left) });
        }
        if self.settings.on_lease_end == OnLeaseEnd::Warn && self.guard.lease_until() <= now {
            self.warn("no quorum of the servers has answered");
        }
    }

    /// Handles a signal to this process. The second one that asks it to end kills the command.
    fn interrupt(&mut self, signal: i32) {
        match signal {
            SIGTSTP => {}
            SIGUSR1 | SIGUSR2 => self.signal(signal),
            _ if self.stopped.is_some() => self.order(Order::Kill { tree_id: TREE }),
            _ => {
                self.stopped = Some(Stopped::Signal);
                self.signal(signal);
            }
        }
    }

    fn signal(&mut self, signal: i32) {
        if self.is_started {
            self.forward(signal);
        } else {
            self.early.push(signal);
        }
    }

    /// Sends a signal to the command. SIGTERM reaches its whole tree and is followed by SIGKILL.
    fn forward(&mut self, signal: i32) {
        let is_final = signal == SIGTERM && self.stopped.is_some();
        let order = match is_final {
            true => Order::Stop { tree_id: TREE, grace_ms: millis(self.settings.kill_grace) },
            false => Order::Signal { tree_id: TREE, signal },
        };
        self.order(order);
        if !is_final {
            // A stopped process gets the signal only then.
            self.order(Order::Signal { tree_id: TREE, signal: SIGCONT });
        }
    }

    fn order(&mut self, order: Order) {
        // Cannot fail: these orders are short enough for one message.
        let _ = self.warden.send(order);
    }
}

/// Runs the command under a warden of its own.
pub(super) async fn run_command(
    settings: &CommandSettings,
    signals: &mut Signals,
    guard: impl Guard,
    environment: Vec<(String, String)>,
    held_from: Uptime,
    not_after: Uptime,
    descriptors: &HeldDescriptors<'_>,
) -> Result<CommandEnd, Error> {
    let system = |what| move |source| Error::System { what, source };
    let mut launch =
        launch(settings, environment, held_from, not_after).map_err(system("the working directory cannot be read"))?;
    warden::inherit_orphans().map_err(system("orphans cannot be inherited"))?;
    let (warden, streams) = Warden::spawn_with_streams(descriptors).map_err(system("the warden cannot be started"))?;
    let warden = warden.into_async(None).map_err(system("the warden cannot be reached"))?;
    let cgroups = Cgroups::make(false);
    launch.streams = Some(streams);
    launch.cgroup = cgroups.as_ref().map(|cgroups| cgroups.place(launch.tree_id, &launch.limits));
    let mut command = HeldCommand::new(warden, signals, guard, settings, held_from);
    let ended = command.run(launch).await;
    // The lock is released only when no process is left, so also if the warden died. Then the watcher kills them, and if
    // it cannot, or is dead too, this process does.
    let closing = command.warden.close();
    let left = if ended.is_err() {
        let _ = tokio::time::timeout(KILL_TIMEOUT, closing).await;
        warden::kill_children(KILL_TIMEOUT)
    } else {
        let _ = closing.await;
        Vec::new()
    };
    if let Some(cgroups) = cgroups {
        cgroups.remove();
    }
    match ended {
        Ok(ended) => Ok(ended),
        Err(_) if left.is_empty() => Err(LockFailure::WardenGone.into()),
        Err(_) => {
            say("processes of the command survive SIGKILL; the lock is kept until the session ends");
            // Neither releases nor closes the session.
            std::process::exit(128 + SIGKILL);
        }
    }
}

/// The launch of the command, in this process's directory, with its user and limits.
fn launch(
    settings: &CommandSettings,
    environment: Vec<(String, String)>,
    held_from: Uptime,
    not_after: Uptime,
) -> io::Result<Launch> {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    Ok(Launch {
        tree_id: TREE,
        argv: settings.argv.iter().collect(),
        environment: ExecStrings::of_variables(environment),
        input: String::new(),
        streams: None,
        directory: std::env::current_dir()?.to_string_lossy().into_owned(),
        files: LaunchFiles::default(),
        or_root: false,
        umask: umask.as_raw_mode(),
        user: None,
        nice: None,
        limits: Limits::default(),
        cgroup: None,
        not_before: None,
        not_after,
        deadline: settings.deadline(held_from),
        time_limit: None,
        max_output: 0,
    })
}

/// Words why the command was not started.
pub(super) fn not_started(settings: &CommandSettings, why: StartFailure) -> Error {
    let (step, errno) = match why {
        StartFailure::Step { step, errno } => (step, errno),
        // The lease ended before the command was started.
        StartFailure::TooLate => return LockFailure::Lost.into(),
    };
    let what = match step {
        StartStep::Exec | StartStep::Interpreter(_) => settings.argv.first().cloned().unwrap_or_default(),
        StartStep::Directory => "its working directory".to_owned(),
        _ => "a process for it".to_owned(),
    };
    let source = match step {
        StartStep::Interpreter(fault) => io::Error::new(io::ErrorKind::NotFound, about_interpreter(fault)),
        _ => io::Error::from_raw_os_error(errno),
    };
    let is_program = matches!(step, StartStep::Exec | StartStep::Interpreter(_));
    let is_missing = is_program && source.kind() == io::ErrorKind::NotFound;
    LockFailure::NotStarted { what, is_missing, source }.into()
}

/// Prints a message. There is no other place for it, so a failure is ignored.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "cronkeeper: {text}");
}
