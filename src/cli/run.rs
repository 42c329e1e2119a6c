//! `cronkeeper run`: the daemon, put together.
//!
//! The order matters: the jobs first, for nothing starts on a wrong file; then the warden, before any thread and any lock
//! it could inherit; then the state directory; only then threads, the runtime and the network.

mod backend;
mod listeners;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::SigSet;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, watch};
use tracing::{error, info};

use self::backend::Backend;
use self::listeners::Listeners;
use super::jobs::JobsFile;
use super::node_args::NodeArgs;
use super::{Error, leftovers, listen};
use crate::accounts::{Account, Accounts};
use crate::api::Sources;
use crate::api::control::Handover;
use crate::api::network::Network;
use crate::clock::Uptime;
use crate::clock::system::{self, SystemClock};
use crate::config::{self, Loaded};
use crate::daemon::launch::Launcher;
use crate::daemon::reload::{self, Trigger};
use crate::daemon::view::View;
use crate::daemon::{Control, Daemon, Parts, Settings, Shown, Stopped, orphans, signals};
use crate::duration;
use crate::engine::Engine;
use crate::status::Confinement;
use crate::systemd::{Notifier, Watchdog};
use crate::telemetry::{self, Format, LogFilter, TARGET, event};
use crate::term::NodeName;
use crate::warden::cgroup::hierarchy::{self, Cgroups};
use crate::warden::handle::Warden;

/// A loop that has not turned for so long is stuck.
const STALL: Duration = Duration::from_secs(10);

/// Run the daemon: take part in the election, and run the jobs while leading.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    jobs: JobsFile,
    #[command(flatten)]
    home: NodeArgs,
    /// How long after its last word a host counts as lost
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_SESSION_TIMEOUT", default_value = "10s", value_parser = duration::parse)]
    session_timeout: Duration,
    /// Where the API's socket is [default: $RUNTIME_DIRECTORY, else the state directory]
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_RUNTIME_DIR")]
    runtime_dir: Option<PathBuf>,
    #[command(flatten)]
    listen: listen::Args,
    /// How long runs may take after the node was told to end
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration::parse)]
    drain_timeout: Duration,
    /// After how long what is kept of a job is removed that no node's jobs file has any more, or `never`
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_FORGET_JOBS_AFTER", default_value = "30d", value_parser = forget_after)]
    forget_jobs_after: ForgetAfter,
    /// How much this node is to lead: leadership is handed to the one with the highest priority that is fit for it
    #[arg(long, value_name = "N", env = "CRONKEEPER_PREFER", default_value_t)]
    priority: u32,
    /// How log lines look [default: journald where stderr is the journal, else text]
    #[arg(long, value_name = "FORMAT", env = "CRONKEEPER_LOG_FORMAT", value_enum)]
    log_format: Option<Format>,
    /// What is logged: a level, or a filter such as `cronkeeper=debug,warn`
    #[arg(long, value_name = "LEVEL-OR-FILTER", env = "CRONKEEPER_LOG", default_value_t)]
    log: LogFilter,
}

/// How long a job must be gone; absent: what is kept of it stays.
#[derive(Clone, Copy, Debug)]
struct ForgetAfter(Option<Duration>);

fn forget_after(text: &str) -> Result<ForgetAfter, String> {
    match text {
        "never" => Ok(ForgetAfter(None)),
        text => match duration::parse(text) {
            Ok(Duration::ZERO) => Err("a job is not forgotten while it runs: write a duration, or `never`".to_owned()),
            Ok(after) => Ok(ForgetAfter(Some(after))),
            Err(bad) => Err(bad.to_string()),
        },
    }
}

/// What is known before anything was started.
struct Plan {
    node: NodeName,
    state_dir: PathBuf,
    runtime_dir: PathBuf,
    jobs: Loaded,
    content: crate::job::Digest,
    network: Option<Arc<Network>>,
}

impl Args {
    /// Runs until told to end.
    ///
    /// # Errors
    /// When it cannot start, or cannot go on.
    pub fn run(self) -> Result<(), Error> {
        hear_all_signals()?;
        let plan = self.plan()?;
        // Before the warden, which is to stand in the same cgroup.
        let cgroups = Cgroups::make(true);
        let warden =
            Warden::spawn().map_err(|source| Error::System { what: "the warden cannot be started", source })?;
        let open_files = raise_open_files();
        let _log = telemetry::init(self.log_format, &self.log, &plan.node)?;
        // What a dead daemon left in its cgroups; what else is left of it, the backend sees to by its records.
        hierarchy::reap(backend::DYING);
        let backend = Backend::open(&self, &plan)?;
        // The daemon's loop is this thread; ZooKeeper, the API and the rest share one more, so that neither waits for the other.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
        let outside = plan.network.as_ref().map(|_| listeners::runtime()).transpose()?;
        let listeners = outside.as_ref().map(|outside| outside.handle().clone());
        let ended = to_the_end(runtime, self.serve(plan, warden, Host { open_files, cgroups }, backend, listeners));
        if let Some(outside) = outside {
            outside.shutdown_background();
        }
        ended
    }

    fn plan(&self) -> Result<Plan, Error> {
        let content = config::fingerprint(&self.jobs.path);
        let network = self.listen.network()?;
        let jobs = self.jobs.load()?;
        let node = self.home.node()?;
        let places = self.home.places(self.runtime_dir.as_deref());
        let (state_dir, runtime_dir) = (places.state_dir().to_owned(), places.named_or_state().to_owned());
        Ok(Plan { node, state_dir, runtime_dir, jobs, content, network })
    }

    /// `outside` is where whoever asks over the network is served.
    async fn serve(
        self,
        plan: Plan,
        warden: Warden,
        host: Host,
        backend: Backend,
        outside: Option<Handle>,
    ) -> Result<(), Error> {
        let Plan { node, runtime_dir, jobs, content, network, .. } = plan;
        let signals = signals::catch().map_err(|source| Error::System { what: "signals cannot be caught", source })?;
        let mut notifier = Notifier::from_environment()
            .map_err(|source| Error::System { what: "systemd cannot be told anything", source })?;
        let mut watchdog = Watchdog::from_environment();
        if self.home.zookeeper.is_some() {
            watchdog.set(self.session_timeout, &mut notifier);
        }
        let processes =
            warden.into_async().map_err(|source| Error::System { what: "the warden cannot be reached", source })?;
        let is_init = std::process::id() == 1;
        let _orphans = is_init.then(|| Owned(tokio::spawn(drop_error(orphans::reap(processes.pid())))));
        let listeners = Listeners::open(network.zip(outside), &runtime_dir, self.home.zookeeper.is_none()).await?;
        let now = system::now();
        let name = backend.name();
        info!(target: TARGET, event = event::NODE_STARTED, version = env!("CARGO_PKG_VERSION"), backend = name, jobs = jobs.set.jobs.len());
        let started = backend.start(&node, self.forget_jobs_after.0).await?;
        let mut view = View::new(node.clone(), name, self.jobs.path.clone(), &jobs.set, now);
        view.confined(Confinement::of(host.cgroups.as_ref()));
        let engine = Engine::new(node.clone(), jobs.set.clone()).with_priority(self.priority);
        let (status, seen) = watch::channel(Arc::new(view.status(now, &engine)));
        let (turned, turns) = watch::channel(Uptime::ZERO);
        let (handovers, wanted) = mpsc::unbounded_channel();
        let sources = Sources {
            status: seen,
            turns,
            stall: STALL,
            reader: started.coordination.reader.clone(),
            operator: started.coordination.operator.clone(),
            handovers,
        };
        let (reloads, reloaded) = watch::channel(0);
        let _api = listeners.serve(sources, started.remote, reloaded, runtime_dir);
        let (controls, controlled) = mpsc::unbounded_channel();
        let _handovers = Owned(tokio::spawn(hand_over(wanted, controls.clone())));
        let trigger = Trigger::default();
        let (looked_up, accounts) = watch::channel(accounts_of(&jobs).await?);
        let path = self.jobs.path.clone();
        let reloading = reload::keep_up(path, content, trigger.clone(), controls.clone(), looked_up);
        let _reloading = Owned(tokio::spawn(reloading));
        let _signals = Owned(tokio::spawn(signals::hand_on(signals, controls, trigger, reloads)));
        crate::daemon::announce(&jobs);
        notifier.ready();
        let Host { open_files, cgroups } = host;
        let own = own_account().await?;
        let launcher = Launcher { node: node.clone(), own, accounts, open_files, cgroups: cgroups.clone() };
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
        if let Some(cgroups) = cgroups {
            if let Stopped::WardenGone(_) = stopped {
                cgroups.kill(backend::DYING);
            }
            cgroups.remove();
        }
        let reason = stopped.to_string();
        info!(target: TARGET, event = event::NODE_STOPPED, reason);
        match stopped {
            Stopped::Asked => Ok(()),
            Stopped::WardenGone(left) => {
                // Nobody else ends what the warden let go. Nothing else is left to do, so nothing is held up.
                leftovers::kill(&left.runs, backend::DYING).map_err(Error::StillAlive)?;
                leftovers::kill_hooks(&left.hooks, &node, backend::DYING).map_err(Error::StillAlive)?;
                Err(Error::Stopped(Stopped::WardenGone(left)))
            }
            stopped => Err(Error::Stopped(stopped)),
        }
    }
}

/// Whoever started this process may have had signals blocked, and that is inherited: a SIGTERM would be waited for in vain. Before
/// any thread, which would inherit it in turn.
fn hear_all_signals() -> Result<(), Error> {
    let unblocked = SigSet::empty().thread_set_mask();
    unblocked.map_err(|errno| Error::System { what: "signals cannot be heard", source: errno.into() })
}

/// What this process has of its host.
struct Host {
    /// Soft and hard limit of open files to give back to jobs.
    open_files: Option<(u64, u64)>,
    cgroups: Option<Cgroups>,
}

/// What is asked for over the API reaches the daemon as what signals ask for does.
async fn hand_over(mut wanted: mpsc::UnboundedReceiver<Handover>, controls: mpsc::UnboundedSender<Control>) {
    while let Some(Handover { to, answer }) = wanted.recv().await {
        if controls.send(Control::HandOver { to, answer: Some(answer) }).is_err() {
            return;
        }
    }
}

/// A directory service may be asked, and take its time.
async fn accounts_of(jobs: &Loaded) -> Result<Accounts, Error> {
    let set = jobs.set.clone();
    tokio::task::spawn_blocking(move || Accounts::of(&set)).await.map_err(|_| Error::Panicked)
}

/// Likewise.
async fn own_account() -> Result<Account, Error> {
    tokio::task::spawn_blocking(Account::own).await.map_err(|_| Error::Panicked)
}

/// Runs the daemon. A panic in it, which the log has told by then, is an error like others: all it held is dropped, the warden's
/// socket with it, so that the warden kills what runs.
fn to_the_end(runtime: Runtime, daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(daemon)));
    // Nothing that still reads or resolves names may hold the end up.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended.unwrap_or(Err(Error::Panicked))
}

/// Without the signal nothing is reaped, and the node does all else.
async fn drop_error(reaping: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = reaping.await {
        error!(target: TARGET, "orphans of other processes are not reaped: {error}");
    }
}

/// A task that ends with its owner.
struct Owned(tokio::task::JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_panic_of_the_daemon_is_an_error_and_lets_go_of_the_warden() {
        let (ours, mut warden) = UnixStream::pair().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ended = to_the_end(runtime, async move {
            let _handle = ours;
            tokio::task::yield_now().await;
            panic!("a bug")
        });
        assert!(matches!(ended, Err(Error::Panicked)), "{ended:?}");
        assert_eq!(warden.read(&mut [0]).unwrap(), 0);
    }
}
