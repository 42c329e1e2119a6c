//! `cronkeeper release`: releases what a dead daemon on this host still holds. A daemon that cannot continue releases
//! it itself ([`of_cluster`]).
//!
//! Without it, the other nodes wait until the dead daemon's session times out. Meant for ExecStopPost, which delays the
//! restart: it takes at most three seconds, and returns at once if there is nothing to release.
//!
//! If the service cannot be reached, the command succeeds all the same: the rest is kept for the next start, and the dead
//! daemon's session ends by itself. If a process does not die, the command fails and releases nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::node_args::{Named, NodeArgs};
use super::stores::{for_store, on_store};
use super::{Error, Io, leftovers};
use cronkeeper_cluster::recipes::{self, KeptSessions, ReleaseError, ReleaseTarget, SessionStore as _};
use cronkeeper_cluster::solo::{self, Leftovers};
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_cluster::state_dir::{StateDir, StateDirError};
use cronkeeper_cluster::store::Rewinds;
use cronkeeper_cluster::tree::{Connect, Session as _};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::{self, SystemClock};
use cronkeeper_core::coordination::Event;
use cronkeeper_core::ledger;
use cronkeeper_core::run::journal::{Journal as _, Recovered};
use cronkeeper_core::term::NodeName;

/// Time limit of the whole command.
pub(super) const TIME_LIMIT: Duration = Duration::from_millis(2_800);
/// Part of [`TIME_LIMIT`] for processes to die after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Timeout of the command's own session. Any value does, because that session holds nothing.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    node: NodeArgs,
}

impl Args {
    /// # Errors
    /// When the daemon is still running, a process does not die, or an operator must change something.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let until = system::uptime() + TIME_LIMIT;
        let mut node = self.node.node()?;
        if let Some(Named::ZooKeeper(connect)) = self.node.named()? {
            // What can never be right is refused even if there is nothing to release.
            self.node.connector(&connect, SESSION_TIMEOUT)?;
        }
        let directories = self.node.directories(None);
        directories.check()?;
        let path = directories.state_dir();
        let Some(state) = open(path, &self.node, &node)? else {
            let path = path.display();
            writeln!(io.err, "cronkeeper: nothing to release: no daemon has used the state directory `{path}`")?;
            return Ok(());
        };
        match state.node().filter(|_| self.node.given_node().is_none()) {
            Some(owner) => node = owner,
            None => state.check_node(&node)?,
        }
        match self.node.named()? {
            None => {
                let path = path.to_owned();
                let leftovers: Leftovers = Arc::new(move |runs| leftovers::end(&path, runs, KILL_TIMEOUT));
                Ok(solo::release(&state, &node, &leftovers)?)
            }
            Some(named) => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
                let released = runtime.block_on(of_cluster(&self.node, &named, Arc::new(state), &node, until));
                // A name lookup that is still running must not delay the exit.
                runtime.shutdown_background();
                match released? {
                    Released::Nothing => {}
                    Released::Everything => writeln!(io.out, "released everything that node `{node}` held")?,
                    Released::Later(why) => writeln!(io.err, "cronkeeper: {why}")?,
                }
                Ok(())
            }
        }
    }
}

/// Opens the state directory; `None` if no daemon has ever used it.
pub(super) fn open(path: &Path, args: &NodeArgs, node: &NodeName) -> Result<Option<StateDir>, Error> {
    StateDir::open_existing(path, args.backend_identity()?, node).map_err(|error| match error {
        StateDirError::InUse { path, holder } => Error::StillRuns { path, holder },
        error => error.into(),
    })
}

/// What was released of a dead daemon.
pub(super) enum Released {
    /// It held nothing.
    Nothing,
    Everything,
    /// The rest is released by the next start, or when the session ends; in the words of a message.
    Later(String),
}

/// Releases what a dead daemon, to which the state directory belonged, has left in its service.
///
/// Blocks for at most [`KILL_TIMEOUT`] while processes die.
///
/// # Errors
/// If a process does not die, and then nothing was released, or an operator must change something.
pub(super) async fn of_cluster(
    args: &NodeArgs,
    named: &Named,
    state: Arc<StateDir>,
    node: &NodeName,
    until: Uptime,
) -> Result<Released, Error> {
    let left = Left { journal: leftovers::settle(&state, node, KILL_TIMEOUT, system::now().wall)?, state, node, until };
    match named {
        Named::ZooKeeper(connect) => {
            let connector = Znodes(args.connector(connect, SESSION_TIMEOUT)?);
            left.release(&connector, connect.to_string(), connect.shown_chroot().to_owned()).await
        }
        // The dead daemon has used it.
        Named::Store(store) => for_store!(store, settings, S => {
            let store = S::new(settings.as_ref().clone(), SESSION_TIMEOUT, Rewinds::Accepted);
            let connector = on_store(store, SESSION_TIMEOUT, Arc::default());
            left.release(&connector, settings.to_string(), "/".to_owned()).await
        }),
    }
}

/// What a dead daemon has left.
struct Left<'a> {
    journal: (FileJournal, Recovered),
    state: Arc<StateDir>,
    node: &'a NodeName,
    until: Uptime,
}

impl Left<'_> {
    async fn release<C: Connect>(self, connector: &C, service: String, root: String) -> Result<Released, Error> {
        let Self { journal: (mut journal, recovered), state, node, until } = self;
        if state.earlier_sessions().is_empty() {
            return Ok(Released::Nothing);
        }
        let mut store = KeptSessions::new(state, &recovered);
        let target = ReleaseTarget { node: node.clone(), service: service.clone(), root };
        let (successor, mut inherited) = unbounded_channel();
        let releasing = recipes::release(connector, SystemClock::default(), target, &mut store, successor);
        let released = tokio::time::timeout(until.since(system::uptime()), releasing).await;
        record_ends(&mut journal, &mut inherited);
        let why = match released {
            Ok(Ok(())) => return Ok(Released::Everything),
            Ok(Err(ReleaseError::Failed(failure))) => return Err(Error::Release(failure)),
            Ok(Err(ReleaseError::NotNow(why))) => why,
            Err(_) => "no answer in time".to_owned(),
        };
        Ok(Released::Later(postponed(&why, C::Session::SERVICE, node, &recovered, store.open_ends().len())))
    }
}

/// Records in the journal the ends that were written to the ledger, so that the node's next start runs their hooks.
///
/// This command does not load the jobs file, so it cannot run hooks itself. The next start finds the same ends in the
/// ledger and treats them as its own.
fn record_ends(journal: &mut FileJournal, inherited: &mut UnboundedReceiver<Event>) {
    while let Ok(event) = inherited.try_recv() {
        let Event::Ledger(ledger::Event::Ended { end, at, .. }) = event else { continue };
        if let Err(error) = journal.ended(&end, at) {
            tracing::debug!(%error, "cannot record the end of a run; its hooks will not run");
        }
    }
}

fn postponed(why: &str, service: &str, node: &NodeName, recovered: &Recovered, ends: usize) -> String {
    let rest = match ends.max(recovered.runs.len()) {
        0 => String::new(),
        1 => "; the next start settles one run".to_owned(),
        runs => format!("; the next start settles {runs} runs"),
    };
    format!("node `{node}` keeps what it holds in {service} until its session ends: {why}{rest}")
}
