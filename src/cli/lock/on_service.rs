//! A lock on a coordination service: wait for it, run the command, release it.

use std::time::Duration;

use futures_util::StreamExt as _;
use nix::libc::{SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::command::{CommandEnd, CommandSettings, Guard, NoLease, not_started, run_command, say, signals};
use super::{Args, Taken, command_environment, conclude, outer_keys};
use crate::cli::lock_failure::LockFailure;
use crate::cli::progress::announced;
use crate::cli::service::{Connected, Reach, Service, on_service};
use crate::cli::wait;
use crate::cli::{Error, Exit, Io, host};
use crate::warden::{self, handle::HeldDescriptors};
use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::recipes::lock::{
    self, AT_ONCE, HeldLock, KnownObstacles, LockClient, LockError, LockEvent, LockRequest, LockSession, held_by_key,
    listing,
};
use cronkeeper_cluster::tree::Session;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::clock::{Clock as _, Uptime, Wake};
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use cronkeeper_core::term::FencingToken;

/// After waiting this long, a client gives back memory that it no longer needs.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Longest time for the servers to confirm a release. The lock is free at the latest when the session ends.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

type ServiceLock<S> = LockSession<S, SystemClock>;

impl<S: Session> Guard for ServiceLock<S> {
    fn event(&mut self) -> impl Future<Output = LockEvent> {
        LockSession::event(self)
    }

    fn lease_until(&self) -> Uptime {
        LockSession::lease_until(self)
    }
}

impl<G: Guard> Guard for &mut G {
    fn event(&mut self) -> impl Future<Output = LockEvent> {
        G::event(self)
    }

    fn lease_until(&self) -> Uptime {
        G::lease_until(self)
    }
}

pub(super) fn run<C: Reach>(
    args: &Args,
    settings: CommandSettings,
    service: &Service<C>,
    io: &mut Io<'_>,
) -> Result<Exit, Error> {
    runtime()?.block_on(async {
        let signals = signals()?;
        let clock = SystemClock::default();
        let key = LockKey::draw();
        let client = client_data(&settings.argv);
        let request = LockRequest {
            paths: args.paths.clone(),
            kind: args.kind(),
            recipe: args.recipe.into(),
            uuid: key.uuid(),
            data: lock::data(&client),
            waits: args.timeout != Some(Duration::ZERO),
        };
        let give_up_at = args.timeout.filter(|timeout| !timeout.is_zero()).map(|timeout| clock.now().up + timeout);
        let paths = wait::listed(&args.paths);
        let awaited = format!("{paths}; `cronkeeper locks` shows who holds what");
        Run { args, service, clock, signals, settings, request, key, give_up_at, awaited }.run(io).await
    })
}

/// Asks the holders of the locks to release them.
pub(super) fn revoke(args: &Args, io: &mut Io<'_>) -> Result<Exit, Error> {
    let service = args.service.required_service("lock --revoke")?;
    let asked = runtime()?.block_on(async { on_service!(&service, service => ask(args, service).await) })?;
    for (path, asked) in &asked {
        if let Some(first) = asked.foreign.first() {
            let (first, more) = (cronkeeper_core::escape::short(first, 200), asked.foreign.len() - 1);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(io.err, "cronkeeper: `{path}` is blocked by `{first}`{more}: {}", lock::STAYS)?;
        } else if asked.holders == 0 {
            writeln!(io.err, "cronkeeper: nobody holds `{path}`")?;
        }
    }
    let asked: usize = asked.iter().map(|(_, asked)| asked.holders).sum();
    if asked == 0 {
        return Ok(Exit::Failed);
    }
    writeln!(io.out, "asked {} to release", cronkeeper_core::suggest::counted(asked, "holder"))?;
    Ok(Exit::Fine)
}

/// Asks the holders of each path. Returns which paths have how many.
async fn ask<'a, C: Reach>(args: &'a Args, service: &Service<C>) -> Result<Vec<(&'a LockPath, listing::Asked)>, Error> {
    let clock = SystemClock::default();
    let Connected { session, .. } = service.enter(&clock, clock.now().up + service.session_timeout).await?;
    let mut asked = Vec::new();
    for path in &args.paths {
        asked.push((path, listing::revoke(&session, path).await.map_err(|error| service.failed(error))?));
    }
    service.close(session).await;
    Ok(asked)
}

pub(in crate::cli) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { what: "the runtime cannot be started", source })
}

/// Who this process is, for the data of its entries.
pub(in crate::cli) fn client_data(argv: &[String]) -> LockClient {
    LockClient {
        host: host::name(),
        pid: std::process::id(),
        user: crate::accounts::Account::own().name,
        program: argv.first().cloned().unwrap_or_default(),
        revoked_at_ms: None,
    }
}

/// How waiting for the lock ended.
enum Waited<S: Session> {
    Held(Box<ServiceLock<S>>, Vec<HeldLock>),
    /// All paths are held by processes around this one.
    HeldOutside,
    /// A signal asked this process to end.
    Interrupted(i32),
}

/// How waiting under one session ended.
enum WaitEnd {
    Answered(Result<Vec<HeldLock>, LockError>),
    Signal(i32),
}

/// Names the persistent entries that are in the way now.
fn tell_obstacles(obstacles: &mut watch::Receiver<KnownObstacles>) {
    for entry in obstacles.borrow_and_update().values() {
        say(&format!("`{}`: {}", cronkeeper_core::escape::plain(entry), lock::STAYS));
    }
}

struct Run<'a, C> {
    args: &'a Args,
    service: &'a Service<C>,
    clock: SystemClock,
    signals: Signals,
    settings: CommandSettings,
    request: LockRequest,
    key: LockKey,
    /// When waiting ends.
    give_up_at: Option<Uptime>,
    /// What this process waits for, for people.
    awaited: String,
}

impl<C: Reach> Run<'_, C> {
    async fn run(mut self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let outer = outer_keys();
        let mut connected = self.connect(true).await?;
        let mut held = self.held_outside(&connected.session, &outer).await?;
        self.request.paths.retain(|path| !held.iter().any(|(outside, _)| outside == path));
        let taken = if self.request.paths.is_empty() {
            self.service.close(connected.session).await;
            Waited::HeldOutside
        } else {
            loop {
                match self.wait(connected).await? {
                    Some(waited) => break waited,
                    None => {
                        say("the session is over; queuing again with a new one");
                        connected = self.connect(false).await?;
                        // What the old session has left in the queue is not this one's.
                        self.key = LockKey::draw();
                        self.request.uuid = self.key.uuid();
                    }
                }
            }
        };
        let (mut session, own) = match taken {
            Waited::Held(session, own) => (Some(session), own),
            Waited::HeldOutside => (None, Vec::new()),
            Waited::Interrupted(signal) => return Ok(Exit::Command(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
        };
        held.extend(own.iter().map(|held| (held.path.clone(), held.token)));
        held.sort_by_key(|(path, _)| self.args.paths.iter().position(|named| named == path));
        let ended = self.hold(session.as_deref_mut(), &own, held, &outer).await;
        if let Some(session) = session {
            self.release(*session, &own).await;
        }
        match ended? {
            Ok((stopped, ending)) => Ok(conclude(stopped, &ending, &self.settings, io)?),
            Err(why) => Err(not_started(&self.settings, why)),
        }
    }

    /// Opens a session. The first one must succeed soon, a later one whenever the servers are back.
    async fn connect(&self, is_first: bool) -> Result<Connected<C::Session>, Error> {
        let soon = self.clock.now().up + self.service.session_timeout;
        let until = if is_first { soon } else { Uptime::NEVER };
        let until = self.give_up_at.map_or(until, |give_up_at| give_up_at.min(until));
        self.service.connect(&self.clock, until).await
    }

    /// The paths that processes around this one hold, with their tokens.
    async fn held_outside(
        &self,
        session: &C::Session,
        outer: &[LockKey],
    ) -> Result<Vec<(LockPath, FencingToken)>, Error> {
        let mut held = Vec::new();
        if outer.is_empty() || matches!(self.request.kind, LockKind::Permits { .. }) {
            return Ok(held);
        }
        let paths = futures_util::stream::iter(&self.request.paths);
        let mut found =
            paths.map(|path| async move { (path, held_by_key(session, path, outer).await) }).buffered(AT_ONCE);
        while let Some((path, by_key)) = found.next().await {
            match by_key.map_err(|error| self.service.failed(error))? {
                Some((kind, token)) if kind.covers(self.request.kind) => held.push((path.clone(), token)),
                Some(_) => return Err(LockFailure::Upgrade { path: path.to_string() }.into()),
                None => {}
            }
        }
        Ok(held)
    }

    /// Waits for the lock under one session. `None`: the session is over.
    async fn wait(
        &mut self,
        Connected { session, requested }: Connected<C::Session>,
    ) -> Result<Option<Waited<C::Session>>, Error> {
        let mut lock = LockSession::new(session, self.clock.clone(), requested);
        let wake = Wake { wall: None, up: self.give_up_at };
        let mut obstacles = lock.obstacles();
        let mut waits_long = std::pin::pin!(tokio::time::sleep(LONG_WAIT));
        let mut is_small = false;
        let ended = {
            let acquired = announced(&self.awaited, lock.acquire(&self.request));
            tokio::pin!(acquired);
            loop {
                // Cancellation safe: signals not taken stay in the stream, the sleep is recreated, and the attempt is
                // kept; if it is given up, the request is withdrawn below.
                tokio::select! {
                    biased;
                    Some(signal) = self.signals.next() => if ![SIGUSR1, SIGUSR2, SIGTSTP].contains(&signal) {
                        break WaitEnd::Signal(signal);
                    },
                    acquired = &mut acquired => break WaitEnd::Answered(acquired),
                    Ok(()) = obstacles.changed() => tell_obstacles(&mut obstacles),
                    () = &mut waits_long, if !is_small => {
                        is_small = true;
                        warden::release_file_pages();
                    }
                    () = self.clock.sleep_until(wake), if wake.up.is_some() => if wake.is_due(self.clock.now()) {
                        break WaitEnd::Answered(Err(LockError::Busy { path: self.request.paths[0].clone() }));
                    },
                }
            }
        };
        // One that a request found which does not wait.
        if obstacles.has_changed().unwrap_or(false) {
            tell_obstacles(&mut obstacles);
        }
        let refused = match ended {
            WaitEnd::Answered(Ok(held)) => return Ok(Some(Waited::Held(Box::new(lock), held))),
            WaitEnd::Answered(Err(LockError::Session(SessionError::SessionOver))) => return Ok(None),
            WaitEnd::Answered(Err(error)) => Err(error),
            WaitEnd::Signal(signal) => Ok(Waited::Interrupted(signal)),
        };
        // What cannot be withdrawn goes with the session.
        let _ = tokio::time::timeout(RELEASE_WITHIN, lock.withdraw(&self.request)).await;
        self.service.close(lock.into_client()).await;
        match refused {
            Ok(waited) => Ok(Some(waited)),
            Err(LockError::Busy { path }) => {
                Err(LockFailure::Busy { path: path.to_string(), waited: self.args.timeout.unwrap_or_default() }.into())
            }
            Err(error) => Err(self.service.failed(error)),
        }
    }

    /// Runs the command while the lock is held.
    async fn hold(
        &mut self,
        session: Option<&mut ServiceLock<C::Session>>,
        own: &[HeldLock],
        held: Vec<(LockPath, FencingToken)>,
        outer: &[LockKey],
    ) -> Result<CommandEnd, Error> {
        let held_from = self.clock.now().up;
        let (paths, tokens) = held.into_iter().map(|(path, token)| (path.to_string(), token)).unzip();
        let environment = command_environment(&Taken { paths, tokens, key: self.key.clone() }, outer);
        let until = session.as_ref().map_or(Uptime::NEVER, |session| session.lease_until());
        let nothing = HeldDescriptors::default();
        match session {
            Some(session) => {
                session.watch_entries(own, &self.request.data);
                run_command(&self.settings, &mut self.signals, session, environment, held_from, until, &nothing).await
            }
            None => {
                run_command(&self.settings, &mut self.signals, NoLease, environment, held_from, until, &nothing).await
            }
        }
    }

    async fn release(&self, lock: ServiceLock<C::Session>, own: &[HeldLock]) {
        let why = match tokio::time::timeout(RELEASE_WITHIN, lock.release(own)).await {
            Ok(Ok(()) | Err(SessionError::SessionOver)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no server answers".to_owned()),
        };
        if let Some(why) = why {
            let timeout = cronkeeper_core::duration::format(lock.client().timeout());
            say(&format!(
                "cannot release the lock: {why}; it is free when the session ends, in {timeout} at the latest"
            ));
        }
        self.service.close(lock.into_client()).await;
    }
}
