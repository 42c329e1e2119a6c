//! `cronkeeper run`: the daemon, put together.
//!
//! The order matters: the jobs first, for nothing starts on a wrong file; then the warden, before any thread and any lock
//! it could inherit; then the state directory; only then threads, the runtime and the network.

mod backend;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tracing::{error, info};

use self::backend::Backend;
use super::home::Home;
use super::jobs::JobsFile;
use super::{Error, leftovers};
use crate::api::serve::Serving;
use crate::api::socket::{ApiSocket, Claim};
use crate::api::{self, Sources};
use crate::clock::Uptime;
use crate::clock::system::{self, SystemClock};
use crate::config::{self, Loaded};
use crate::daemon::launch::Launcher;
use crate::daemon::reload::{self, Trigger};
use crate::daemon::view::View;
use crate::daemon::{Daemon, Parts, Settings, Shown, Stopped, signals};
use crate::duration;
use crate::engine::Engine;
use crate::status::{State, Status};
use crate::systemd::{Notifier, Watchdog};
use crate::telemetry::{self, Format, LogFilter, TARGET, event};
use crate::term::NodeName;
use crate::warden::handle::Warden;

/// A loop that has not turned for so long is stuck.
const STALL: Duration = Duration::from_secs(10);

/// Run the daemon: take part in the election, and run the jobs while leading.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    jobs: JobsFile,
    #[command(flatten)]
    home: Home,
    /// How long after its last word a host counts as lost
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_SESSION_TIMEOUT", default_value = "10s", value_parser = duration::parse)]
    session_timeout: Duration,
    /// Where the API's socket is [default: $RUNTIME_DIRECTORY, else the state directory]
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_RUNTIME_DIR")]
    runtime_dir: Option<PathBuf>,
    /// Serve the API, read-only, on TCP too
    #[arg(long, value_name = "ADDR:PORT", env = "CRONKEEPER_LISTEN")]
    listen: Option<SocketAddr>,
    /// How long runs may take after the node was told to end
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration::parse)]
    drain_timeout: Duration,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", env = "CRONKEEPER_LOG_FORMAT", value_enum, default_value_t)]
    log_format: Format,
    /// What is logged: a level, or a filter such as `cronkeeper=debug,warn`
    #[arg(long, value_name = "LEVEL-OR-FILTER", env = "CRONKEEPER_LOG", default_value_t)]
    log: LogFilter,
}

/// What is known before anything was started.
struct Plan {
    node: NodeName,
    state_dir: PathBuf,
    runtime_dir: PathBuf,
    jobs: Loaded,
    content: crate::job::Digest,
}

impl Args {
    /// Runs until told to end.
    ///
    /// # Errors
    /// When it cannot start, or cannot go on.
    pub fn run(self) -> Result<(), Error> {
        let plan = self.plan()?;
        let warden =
            Warden::spawn().map_err(|source| Error::System { what: "the warden cannot be started", source })?;
        let open_files = raise_open_files();
        let _log = telemetry::init(self.log_format, &self.log, &plan.node)?;
        let backend = Backend::open(&self, &plan)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
        let ended = runtime.block_on(self.serve(plan, warden, open_files, backend));
        // Nothing that still reads or resolves names may hold the end up.
        runtime.shutdown_timeout(Duration::from_millis(100));
        ended
    }

    fn plan(&self) -> Result<Plan, Error> {
        let content = config::fingerprint(&self.jobs.path);
        let jobs = self.jobs.load()?;
        let node = self.home.node()?;
        let places = self.home.places(self.runtime_dir.as_deref());
        let (state_dir, runtime_dir) = (places.state_dir().to_owned(), places.named_or_state().to_owned());
        Ok(Plan { node, state_dir, runtime_dir, jobs, content })
    }

    async fn serve(
        self,
        plan: Plan,
        warden: Warden,
        open_files: Option<(u64, u64)>,
        backend: Backend,
    ) -> Result<(), Error> {
        let Plan { node, runtime_dir, jobs, content, .. } = plan;
        let signals = signals::catch().map_err(|source| Error::System { what: "signals cannot be caught", source })?;
        let mut notifier = Notifier::from_environment()
            .map_err(|source| Error::System { what: "systemd cannot be told anything", source })?;
        let mut watchdog = Watchdog::from_environment();
        if self.home.zookeeper.is_some() {
            watchdog.set(self.session_timeout, &mut notifier);
        }
        let processes =
            warden.into_async().map_err(|source| Error::System { what: "the warden cannot be reached", source })?;
        let now = system::now();
        let name = backend.name();
        info!(target: TARGET, event = event::NODE_STARTED, version = env!("CARGO_PKG_VERSION"), backend = name, jobs = jobs.set.jobs.len());
        let started = backend.start(&node).await?;
        let view = View::new(node.clone(), name, self.jobs.path.clone(), &jobs.set, now);
        let engine = Engine::new(node.clone(), jobs.set.clone());
        let (status, seen) = watch::channel(Arc::new(view.status(now, &engine)));
        let (turned, turns) = watch::channel(Uptime::ZERO);
        let api = Api {
            sources: Sources { status: seen, turns, stall: STALL, reader: started.coordination.reader.clone() },
            runtime_dir,
            listen: self.listen,
            is_shared: self.home.zookeeper.is_none(),
        };
        let _api = api.serve().await?;
        let (controls, controlled) = mpsc::unbounded_channel();
        let trigger = Trigger::default();
        let _reloading =
            Owned(tokio::spawn(reload::keep_up(self.jobs.path.clone(), content, trigger.clone(), controls.clone())));
        let _signals = Owned(tokio::spawn(signals::hand_on(signals, controls, trigger)));
        crate::daemon::announce(&jobs);
        notifier.ready();
        let launcher = Launcher::of_this_user(node, open_files);
        let settings = Settings { drain_timeout: self.drain_timeout, launcher, notifier, watchdog };
        let daemon = Daemon::new(Parts {
            engine,
            clock: SystemClock::default(),
            coordination: started.coordination,
            processes,
            journal: started.journal,
            settings,
            view,
            shown: Shown { status, turned },
        });
        let stopped = daemon.run(started.recovered, controlled).await;
        let reason = stopped.to_string();
        info!(target: TARGET, event = event::NODE_STOPPED, reason);
        match stopped {
            Stopped::Asked => Ok(()),
            Stopped::WardenGone(runs) => {
                // Nobody else ends what the warden let go. Nothing else is left to do, so nothing is held up.
                leftovers::kill(&runs, backend::DYING).map_err(Error::StillAlive)?;
                Err(Error::Stopped(Stopped::WardenGone(runs)))
            }
            stopped => Err(Error::Stopped(stopped)),
        }
    }
}

/// A task that ends with its owner.
struct Owned(tokio::task::JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The API, before it is served.
struct Api {
    sources: Sources,
    runtime_dir: PathBuf,
    listen: Option<SocketAddr>,
    /// Several nodes may share the directory: the leader serves the socket.
    is_shared: bool,
}

impl Api {
    async fn serve(self) -> Result<(Option<Serving>, Owned), Error> {
        let router = api::router(self.sources.clone());
        let on_tcp = match self.listen {
            Some(address) => {
                let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
                Some(Serving::on_tcp(listener, router.clone()))
            }
            None => None,
        };
        if !self.is_shared {
            let socket = ApiSocket::open(&self.runtime_dir, Claim::IfFree).await.map_err(Error::Socket)?;
            let serving = Serving::on_socket(socket, router);
            return Ok((
                on_tcp,
                Owned(tokio::spawn(async move {
                    let _serving = serving;
                    std::future::pending::<()>().await;
                })),
            ));
        }
        Ok((on_tcp, Owned(tokio::spawn(self.serve_while_leading(router)))))
    }

    /// On one host the leader serves the socket; before it gives leadership up it takes it away.
    async fn serve_while_leading(self, router: axum::Router) {
        let mut status = self.sources.status.clone();
        let mut serving = None;
        loop {
            let leads = is_leading(&status.borrow_and_update());
            match (leads, &serving) {
                (true, None) => match ApiSocket::open(&self.runtime_dir, Claim::TakeOver).await {
                    Ok(socket) => serving = Some(Serving::on_socket(socket, router.clone())),
                    Err(error) => error!(target: TARGET, "nobody can ask this node: {error}"),
                },
                (false, Some(_)) => serving = None,
                _ => {}
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }
}

fn is_leading(status: &Status) -> bool {
    matches!(status.state, State::Leading | State::TakingOver)
}

/// Raises the own soft limit of open files to the hard one; returns what jobs are to be given back.
fn raise_open_files() -> Option<(u64, u64)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current?, limit.maximum?);
    // A refusal leaves the limit as it is, which only many runs at once would notice.
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) }).ok()?;
    Some((soft, hard))
}
