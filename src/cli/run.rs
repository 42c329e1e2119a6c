//! `cronkeeper run`: starts the daemon from its options.
//!
//! The order matters. The jobs are loaded first, because nothing may start without valid ones. Then the warden is
//! started, before there is any thread or lock that it could inherit. Then the state directory is opened, and only then
//! are threads, the runtime and the network started.

mod backend;
mod hooks;
mod listeners;
mod place;
pub(super) mod start_jobs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::SigSet;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{error, warn};

use self::backend::Backend;
use self::listeners::Listeners;
use self::start_jobs::{Rejected, StartJobs};
use super::jobs::JobsFile;
use super::node_args::NodeArgs;
use super::release::{self, Released};
use super::{Error, leftovers, listen};
use crate::accounts::{Account, Accounts};
use crate::api::network::Network;
use crate::api::nodes::Handover;
use crate::api::peers::Peers;
use crate::api::{LastReads, OutputSources, Sources};
use crate::archive::{Archive, HistoryRetention};
use crate::config::Loaded;
use crate::daemon::launch::Launcher;
use crate::daemon::reload::{self, Trigger};
use crate::daemon::view::View;
use crate::daemon::{Control, Monitor, MonitorSettings, RealPorts, Shown, orphans, signals};
use crate::metrics::Recorder;
use crate::notices::Sender;
use crate::output::{self, OutputQueue, OutputRetention, OutputStore, Reader};
use crate::status::Confinement;
use crate::systemd::{Notifier, Watchdog};
use crate::telemetry::{self, Format, LogFilter};
use crate::warden::begins::BeginsFile;
use crate::warden::cgroup::hierarchy::{self, Cgroups};
use crate::warden::handle::Warden;
use cronkeeper_cluster::state_dir::StateDir;
use cronkeeper_core::clock::system::{self, SystemClock};
use cronkeeper_core::clock::{Clock as _, Uptime};
use cronkeeper_core::duration;
use cronkeeper_core::election::Place;
use cronkeeper_core::engine::Engine;
use cronkeeper_core::event_loop::{self, EventLoop, Stopped};
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::NodeName;

/// The daemon's loop counts as stuck after this long without a turn.
const STALL: Duration = Duration::from_secs(10);
/// Longest wait at the end for output that is not written yet.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    jobs: JobsFile,
    /// Do not start without a valid jobs file, even if the state directory has the last good jobs
    #[arg(long, env = "CRONKEEPER_STRICT", value_parser = clap::builder::BoolishValueParser::new())]
    strict: bool,
    /// Do not start without a coordination service. Otherwise a missing setting would make this host lead a cluster of
    /// its own
    #[arg(long, env = "CRONKEEPER_CLUSTER", value_parser = clap::builder::BoolishValueParser::new())]
    cluster: bool,
    #[command(flatten)]
    node: NodeArgs,
    /// Session timeout: a node that is silent for this long is considered dead
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_SESSION_TIMEOUT", default_value = "10s", value_parser = duration::parse)]
    session_timeout: Duration,
    /// Directory of the API's Unix socket [default: $RUNTIME_DIRECTORY, else the state directory]
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_RUNTIME_DIR")]
    runtime_dir: Option<PathBuf>,
    #[command(flatten)]
    listen: listen::Args,
    /// How long running jobs may continue after the node was asked to stop; then they are stopped too. The packaged
    /// environment file sets 5m
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration::parse)]
    drain_timeout: Duration,
    /// Delete the history and pause of a job this long after it was removed from every node's jobs file, or `never`
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_FORGET_JOBS_AFTER", default_value = "30d", value_parser = forget_after)]
    forget_jobs_after: MaybeNever,
    /// Forget a node that has been away for this long, or `never`: jobs with `run_on: every` stop waiting for it
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_FORGET_NODES_AFTER", default_value = "1d", value_parser = forget_nodes_after)]
    forget_nodes_after: MaybeNever,
    /// Maximum age and size of the output that this node keeps of its runs; the oldest goes first; `none` keeps none
    #[arg(long, value_name = "AGE,SIZE", env = "CRONKEEPER_OUTPUT_RETENTION", default_value_t)]
    output_retention: OutputRetention,
    /// How long this node keeps its own copy of the history, at most 1 GiB. `never`: limited only by size; `none`: no
    /// copy. The ledger keeps the newest records in any case
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_HISTORY_RETENTION", default_value = "90d", value_parser = history_retention)]
    history_retention: HistoryRetention,
    #[command(flatten)]
    hooks: hooks::Args,
    /// Priority of this node as leader: the node with the highest priority takes over once it is fit to lead
    #[arg(long, value_name = "N", env = "CRONKEEPER_PRIORITY", default_value_t)]
    priority: u32,
    /// Whether this node may lead. `false`: it never does, and only runs what the leader places on it; that needs a
    /// coordination service
    #[arg(long, value_name = "BOOL", env = "CRONKEEPER_LEAD", default_value = "true", action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
    lead: bool,
    #[command(flatten)]
    place: place::PlaceArgs,
    /// Format of log lines [default: journald if stderr is the journal, else text]
    #[arg(long, value_name = "FORMAT", env = "CRONKEEPER_LOG_FORMAT", value_enum)]
    log_format: Option<Format>,
    /// Log level, or a filter such as `cronkeeper=debug,warn`
    #[arg(long, value_name = "LEVEL-OR-FILTER", env = "CRONKEEPER_LOG", default_value_t)]
    log: LogFilter,
}

/// How long records of what is gone are kept; `None`: forever.
#[derive(Clone, Copy, Debug)]
struct MaybeNever(Option<Duration>);

fn forget_after(text: &str) -> Result<MaybeNever, String> {
    maybe_never(text, "30d")
}

fn forget_nodes_after(text: &str) -> Result<MaybeNever, String> {
    maybe_never(text, "1d")
}

fn maybe_never(text: &str, example: &str) -> Result<MaybeNever, String> {
    match text {
        "never" => Ok(MaybeNever(None)),
        text => match duration::parse(text) {
            Ok(Duration::ZERO) => {
                Err(format!("must be longer than zero: write a duration such as `{example}`, or `never`"))
            }
            Ok(after) => Ok(MaybeNever(Some(after))),
            Err(bad) => Err(bad.to_string()),
        },
    }
}

fn history_retention(text: &str) -> Result<HistoryRetention, String> {
    match text {
        "never" => Ok(HistoryRetention::Unlimited),
        "none" => Ok(HistoryRetention::None),
        text => match duration::parse(text) {
            Ok(Duration::ZERO) => {
                Err("must be longer than zero: write a duration such as `90d`, `never` or `none`".to_owned())
            }
            Ok(after) => Ok(HistoryRetention::For(after)),
            Err(bad) => Err(bad.to_string()),
        },
    }
}

/// Validated settings, before anything is started.
struct Startup {
    node: NodeName,
    place: Place,
    state_dir: PathBuf,
    runtime_dir: PathBuf,
    jobs: StartJobs,
    network: Option<Arc<Network>>,
    peers: Option<Arc<Peers>>,
}

impl Args {
    /// Runs until an operator stops the node.
    ///
    /// # Errors
    /// When the node cannot start, or cannot continue.
    pub fn run(self) -> Result<(), Error> {
        unblock_signals()?;
        let startup = self.prepare()?;
        // Before the warden, which must be in the same cgroup as the daemon.
        let cgroups = Cgroups::make(true);
        let warden =
            Warden::spawn().map_err(|source| Error::System { what: "the warden cannot be started", source })?;
        let open_files = raise_open_files();
        let _log = telemetry::init(self.log_format, &self.log, &startup.node, backend::service(&self)?)?;
        // Kills what a dead daemon left in its cgroups. The backend kills the rest, which it finds by its records.
        hierarchy::reap(backend::KILL_TIMEOUT);
        let backend = Backend::open(&self, &startup)?;
        let (kept, store) = kept_output(&startup.state_dir, self.output_retention);
        // The daemon's loop runs on this thread. The service, the API and the rest share another one, so that neither
        // delays the other.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
        let tcp_runtime = startup.network.as_ref().map(|_| listeners::runtime()).transpose()?;
        let tcp_handle = tcp_runtime.as_ref().map(|runtime| runtime.handle().clone());
        let host = HostResources { open_files, cgroups };
        let ended = run_to_end(runtime, self.serve(startup, warden, host, backend, kept, tcp_handle));
        if let Some(store) = store {
            store.finish(OUTPUT_TIMEOUT);
        }
        if let Some(runtime) = tcp_runtime {
            runtime.shutdown_background();
        }
        ended
    }

    fn prepare(&self) -> Result<Startup, Error> {
        if self.cluster && !self.node.is_in_cluster() {
            return Err(Error::NoService);
        }
        if !self.lead && !self.node.is_in_cluster() {
            return Err(Error::NeverLeadsAlone);
        }
        // Wrong usage comes before what is wrong with files.
        self.node.named()?;
        let place = self.place.place()?;
        let node = self.node.node()?;
        let (network, peers) = (self.listen.network(&node)?, self.listen.peers()?);
        let directories = self.node.directories(self.runtime_dir.as_deref());
        directories.check()?;
        let (state_dir, runtime_dir) = (directories.state_dir().to_owned(), directories.named_or_state().to_owned());
        let jobs = StartJobs::load(&self.jobs, &state_dir, self.strict)?;
        Ok(Startup { node, place, state_dir, runtime_dir, jobs, network, peers })
    }

    /// Serves until the daemon ends; `tcp_runtime` serves the clients on TCP.
    async fn serve(
        self,
        startup: Startup,
        warden: Warden,
        host: HostResources,
        backend: Backend,
        (output, kept): (OutputQueue, Option<Reader>),
        tcp_runtime: Option<Handle>,
    ) -> Result<(), Error> {
        let Startup { node, place, state_dir, runtime_dir, jobs, network, peers } = startup;
        let StartJobs { loaded: jobs, started_with, rejected } = jobs;
        let signals = signals::catch().map_err(|source| Error::System { what: "signals cannot be caught", source })?;
        let mut notifier =
            Notifier::from_environment().map_err(|source| Error::System { what: "cannot notify systemd", source })?;
        let mut watchdog = Watchdog::from_environment();
        if self.node.is_in_cluster() {
            watchdog.set(self.session_timeout, &mut notifier);
        }
        if self.node.is_in_cluster() && !node.may_have_shares() {
            let (length, most) = (node.as_str().len(), NodeName::LONGEST_WITH_SHARES);
            warn!(
                "the node's name has {length} characters: with more than {most} it gets no share of jobs with \
                 `run_on: every`; give it a shorter one with `--node` (CRONKEEPER_NODE)"
            );
        }
        let custody = warden.custody();
        // Without it a start that dies with this process may count as one that began.
        let left = BeginsFile::create(&state_dir)
            .inspect_err(|error| warn!("cannot create the file that records which programs have begun: {error}"))
            .ok();
        let processes =
            warden.into_async(left).map_err(|source| Error::System { what: "the warden cannot be reached", source })?;
        let is_init = std::process::id() == 1;
        let _orphans = is_init.then(|| AbortOnDrop(tokio::spawn(log_error(orphans::reap(processes.watcher())))));
        let wrong_tokens = network.as_ref().map(|network| network.wrong_tokens()).unwrap_or_default();
        let listeners = Listeners::open(network.zip(tcp_runtime), &runtime_dir, !self.node.is_in_cluster()).await?;
        let listen = listeners.published();
        let now = system::now();
        let name = backend.name();
        log!(NODE_STARTED, version = env!("CARGO_PKG_VERSION"), backend = name, jobs = jobs.set.jobs.len());
        let forget_after = ForgetAfter { jobs: self.forget_jobs_after.0, nodes: self.forget_nodes_after.0 };
        let started = backend.start(&node, forget_after, custody).await?;
        let mut view = View::new(node.clone(), name, self.jobs.path.clone(), &jobs.set, now);
        view.confined(Confinement::of(host.cgroups.as_ref()));
        if !self.lead {
            view.never_leads();
        }
        if let Some(Rejected { error, copied_at }) = &rejected {
            view.started_with_copy(error, *copied_at);
        }
        let random = || uuid::Uuid::new_v4().as_u64_pair().0;
        let engine = Engine::new(node.clone(), jobs.set.clone())
            .with_priority(self.priority)
            .with_lead(self.lead)
            .with_random(random);
        // Without a cluster there is one place, where the leader runs everything.
        let engine = if self.node.is_in_cluster() { engine.with_place(place) } else { engine };
        let (status, seen) = watch::channel(Arc::new(view.status(now, &engine)));
        let (led, last_led) = watch::channel(None);
        let (leased, lease) = watch::channel(None);
        let (turned, turns) = watch::channel(Uptime::ZERO);
        let (defined, definitions) = watch::channel(Arc::new(jobs.set.clone()));
        let (handovers, requested) = mpsc::unbounded_channel();
        let metrics = Recorder::default();
        let archive = Archive::start(&state_dir, node.clone(), self.history_retention)
            .map_err(|source| Error::System { what: "the archive of the history cannot be started", source })?;
        let sources = Sources {
            status: seen,
            led: last_led,
            lease,
            turns,
            jobs: definitions,
            stall: STALL,
            reader: started.coordination.reader.clone(),
            last_reads: LastReads::default(),
            operator: started.coordination.operator.clone(),
            archive: archive.clone(),
            handovers,
            metrics: metrics.metrics(),
            wrong_tokens,
            output: OutputSources { kept, peers, is_shared: !self.node.is_in_cluster() },
        };
        let sender = Sender {
            node: node.clone(),
            outbox: started.coordination.outbox.clone(),
            jobs: sources.jobs.clone(),
            status: sources.status.clone(),
            health: sources.metrics.channels(),
            missing_after: self.hooks.hooks().node_missing_after,
        };
        let _sending = AbortOnDrop(tokio::spawn(sender.run()));
        let copying = archive.clone().keep_complete(node.clone(), sources.reader.clone(), sources.jobs.clone());
        let _copying = AbortOnDrop(tokio::spawn(copying));
        let (reloads, reloaded) = watch::channel(0);
        // One host's ledger can always be read.
        let known = sources.clone();
        let is_in_cluster = self.node.is_in_cluster();
        let _knowing = is_in_cluster.then(|| AbortOnDrop(tokio::spawn(crate::api::keep_known(known))));
        let _api = listeners.serve(sources, started.remote, reloaded, runtime_dir);
        let (controls, controlled) = mpsc::unbounded_channel();
        let _handovers = AbortOnDrop(tokio::spawn(forward_handovers(requested, controls.clone())));
        let trigger = Trigger::default();
        let (looked_up, accounts) = watch::channel(accounts_of(&jobs).await?);
        let path = self.jobs.path.clone();
        let reloading = reload::keep_up(path, started_with, trigger.clone(), controls.clone(), looked_up);
        // From here on it counts as a file that was rejected while the node ran; this is the loop's first event.
        let is_rejected = rejected.is_some();
        if let Some(Rejected { error, .. }) = rejected {
            let _ = controls.send(Control::Reloaded(Err(error)));
        }
        let _reloading = AbortOnDrop(tokio::spawn(reloading));
        let _signals = AbortOnDrop(tokio::spawn(signals::forward(signals, controls, trigger, reloads)));
        if !is_rejected {
            crate::daemon::announce(&jobs);
        }
        notifier.ready();
        let HostResources { open_files, cgroups } = host;
        let own = own_account().await?;
        let launcher = Launcher { node: node.clone(), own, accounts, open_files, cgroups: cgroups.clone() };
        let settings = MonitorSettings {
            notifier,
            watchdog,
            archive: archive.clone(),
            output,
            hooks: self.hooks.hooks(),
            view,
            shown: Shown { status, led, lease: leased, jobs: defined, turned, metrics },
        };
        let clock = SystemClock::default();
        let event_loop = EventLoop::<RealPorts>::new(event_loop::Parts {
            engine,
            observer: Monitor::new(settings, clock.now()),
            clock,
            coordination: started.coordination,
            processes,
            journal: started.journal,
            launcher,
            drain_timeout: self.drain_timeout,
            listen,
        });
        let stopped = event_loop.run(started.recovered, controlled).await;
        if let Some(cgroups) = cgroups {
            if let Stopped::WardenGone(_) = stopped {
                cgroups.kill(backend::KILL_TIMEOUT);
            }
            cgroups.remove();
        }
        // Blocking is fine here and below: the node has left, and there is nothing else left to do.
        archive.close(matches!(stopped, Stopped::Asked));
        let reason = stopped.to_string();
        log!(NODE_STOPPED, reason);
        match &stopped {
            Stopped::Asked => return Ok(()),
            Stopped::WardenGone(left) => {
                // Nobody else kills what the warden left behind.
                leftovers::kill(&left.runs, backend::KILL_TIMEOUT).map_err(Error::StillAlive)?;
                leftovers::kill_hooks(&left.hooks, &node, backend::KILL_TIMEOUT).map_err(Error::StillAlive)?;
            }
            Stopped::BackendGone | Stopped::Failed(_) => {}
        }
        if let (Stopped::WardenGone(_) | Stopped::BackendGone, Some(serving)) = (&stopped, started.serving) {
            release(&self.node, &node, &state_dir, serving, started.state).await;
        }
        Err(Error::Stopped(stopped))
    }
}

/// Releases what this process still holds in the service, all of whose processes are dead.
///
/// Where nothing starts the daemon again or calls `cronkeeper release`, the others would else wait for the end of its
/// session.
async fn release(args: &NodeArgs, node: &NodeName, state_dir: &Path, serving: JoinHandle<()>, state: Arc<StateDir>) {
    let Ok(Some(named)) = args.named() else { return };
    let until = system::uptime() + release::TIME_LIMIT;
    // It ends because nobody listens to it any more, and lets go of the state directory.
    if tokio::time::timeout(release::TIME_LIMIT, serving).await.is_err() {
        return;
    }
    drop(state);
    let released = match release::open(state_dir, args, node) {
        Ok(Some(state)) => release::of_cluster(args, &named, Arc::new(state), node, until).await,
        Ok(None) => return,
        Err(error) => Err(error),
    };
    match released {
        Ok(Released::Everything | Released::Nothing) => {}
        Ok(Released::Later(why)) => warn!("{why}"),
        Err(error) => warn!("nothing was released: {error}"),
    }
}

/// Starts to keep output. Without it the node works all the same, so a failure is only logged.
fn kept_output(state_dir: &Path, retention: OutputRetention) -> ((OutputQueue, Option<Reader>), Option<OutputStore>) {
    let directory = state_dir.join("output");
    if retention == OutputRetention::None && !directory.exists() {
        return Default::default();
    }
    match output::open(&directory, retention) {
        Ok((queue, reader, store)) => ((queue, Some(reader)), Some(store)),
        Err(error) => {
            log!(ERROR OUTPUT_FAILED, path = %directory.display(), %error, "keep");
            Default::default()
        }
    }
}

/// Unblocks all signals. The parent process may have blocked some, such as SIGTERM, and a mask is inherited.
///
/// Must be called before any thread is started, which would inherit the mask in turn.
fn unblock_signals() -> Result<(), Error> {
    let unblocked = SigSet::empty().thread_set_mask();
    unblocked.map_err(|errno| Error::System { what: "signals cannot be unblocked", source: errno.into() })
}

struct HostResources {
    /// Original soft and hard limit of open files, which jobs get back; `None`: unlimited, or left unchanged.
    open_files: Option<(u64, u64)>,
    cgroups: Option<Cgroups>,
}

/// Forwards handover requests from the API to the daemon's loop, which also receives those from signals.
async fn forward_handovers(mut requested: mpsc::UnboundedReceiver<Handover>, controls: mpsc::UnboundedSender<Control>) {
    while let Some(Handover { to, answer }) = requested.recv().await {
        if controls.send(Control::HandOver { to, answer: Some(answer) }).is_err() {
            return;
        }
    }
}

/// Looks up the accounts of the jobs. On a blocking thread, because a directory service may be slow.
async fn accounts_of(jobs: &Loaded) -> Result<Accounts, Error> {
    let set = jobs.set.clone();
    tokio::task::spawn_blocking(move || Accounts::of(&set)).await.map_err(|_| Error::Panicked)
}

/// Looks up this process's own account. On a blocking thread, because a directory service may be slow.
async fn own_account() -> Result<Account, Error> {
    tokio::task::spawn_blocking(Account::own).await.map_err(|_| Error::Panicked)
}

/// Runs the daemon, and turns a panic, which has been logged by then, into an error.
///
/// A panic drops everything that the daemon held, including the warden's socket, so the warden kills all runs.
fn run_to_end(runtime: Runtime, daemon: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(daemon)));
    // A read or name lookup that is still running must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended.unwrap_or(Err(Error::Panicked))
}

/// Logs why reaping failed. The node continues without it.
async fn log_error(reaping: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = reaping.await {
        error!(target: TARGET, "cannot reap orphaned processes: {error}");
    }
}

/// A task that is aborted when this is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Raises this process's soft limit of open files to the hard one; returns the original limits, for jobs.
fn raise_open_files() -> Option<(u64, u64)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current?, limit.maximum?);
    // If the kernel refuses, the limit stays as it is, which matters only with many runs at once.
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) }).ok()?;
    Some((soft, hard))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_panic_of_the_daemon_is_an_error_and_closes_the_wardens_socket() {
        let (ours, mut warden) = UnixStream::pair().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ended = run_to_end(runtime, async move {
            let _handle = ours;
            tokio::task::yield_now().await;
            panic!("a bug")
        });
        assert!(matches!(ended, Err(Error::Panicked)), "{ended:?}");
        assert_eq!(warden.read(&mut [0]).unwrap(), 0);
    }
}
