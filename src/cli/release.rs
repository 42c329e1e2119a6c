//! `cronkeeper release`: what a dead daemon of this host still holds is given up, so that nobody waits for it.
//!
//! For ExecStopPost, which delays the restart: it takes three seconds at most, and where nothing is to be done next to no
//! time. What cannot be sent now, because ZooKeeper is away, is kept for the next start and is no failure: the session of the
//! dead daemon ends by itself. A process that does not die is one: then nothing is given up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::node_args::{NodeArgs, chroot};
use super::{Error, Io, leftovers};
use crate::clock::Uptime;
use crate::clock::system::{self, SystemClock};
use crate::coordination::Event;
use crate::ledger;
use crate::run::journal::{Journal as _, Recovered};
use crate::solo::{self, Leftovers};
use crate::state_dir::journal::FileJournal;
use crate::state_dir::{StateDir, StateDirError};
use crate::term::NodeName;
use crate::zookeeper::{self, Estate, KeptSessions, ReleaseError, SessionStore as _};

/// In all.
const WITHIN: Duration = Duration::from_millis(2_800);
/// Of that, for processes to die of SIGKILL.
const DYING: Duration = Duration::from_millis(1_500);
/// The session that gives up holds nothing: how long the server remembers it is of no account.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// Give up what a dead daemon of this host still holds, after its processes are seen dead.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    home: NodeArgs,
}

impl Args {
    /// Gives up what there is to be given up.
    ///
    /// # Errors
    /// When a daemon lives here, a process does not die, or an operator must change something.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let until = system::uptime() + WITHIN;
        let node = self.home.node()?;
        let places = self.home.places(None);
        let Some(state) = self.open(places.state_dir(), &node)? else { return Ok(()) };
        match &self.home.zookeeper {
            None => {
                let leftovers: Leftovers = Arc::new(|runs| leftovers::kill(runs, DYING));
                Ok(solo::release(&state, &node, &leftovers)?)
            }
            Some(connect) => self.on_zookeeper(connect, state, node, until, io),
        }
    }

    /// `None` where no daemon ever lived.
    fn open(&self, path: &Path, node: &NodeName) -> Result<Option<StateDir>, Error> {
        StateDir::open_existing(path, self.home.belongs(), node).map_err(|error| match error {
            StateDirError::InUse { path, holder } => Error::StillRuns { path, holder },
            error => error.into(),
        })
    }

    fn on_zookeeper(
        &self,
        connect: &str,
        state: StateDir,
        node: NodeName,
        until: Uptime,
        io: &mut Io<'_>,
    ) -> Result<(), Error> {
        let (mut journal, recovered) = leftovers::settle(&state, &node, DYING, system::now().wall)?;
        if state.earlier_sessions().is_empty() {
            return Ok(());
        }
        let connector = self.home.connector(connect, SESSION_TIMEOUT)?;
        let mut store = KeptSessions::new(Arc::new(state), &recovered);
        let target = Estate { node: node.clone(), service: connect.to_owned(), chroot: chroot(connect).to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
        let (successor, mut inherited) = unbounded_channel();
        let released = runtime.block_on(async {
            let releasing = zookeeper::release(&connector, SystemClock::default(), target, &mut store, successor);
            tokio::time::timeout(until.since(system::uptime()), releasing).await
        });
        // A name that is still being resolved may not hold the end up.
        runtime.shutdown_background();
        hand_on(&mut journal, &mut inherited);
        let why = match released {
            Ok(Ok(())) => {
                writeln!(io.out, "what node `{node}` held is given up")?;
                return Ok(());
            }
            Ok(Err(ReleaseError::Failed(failure))) => return Err(Error::Release(failure)),
            Ok(Err(ReleaseError::NotNow(why))) => why,
            Err(_) => "no answer in time".to_owned(),
        };
        writeln!(io.err, "{}", postponed(&why, &node, &recovered, store.open_ends().len()))?;
        Ok(())
    }
}

/// What follows the ends that were written is the affair of the node's next start, which knows the jobs: it finds them in the journal
/// and, as it finds the same ones in the ledger, takes them for its own.
fn hand_on(journal: &mut FileJournal, inherited: &mut UnboundedReceiver<Event>) {
    while let Ok(event) = inherited.try_recv() {
        let Event::Ledger(ledger::Event::Ended { end, at }) = event else { continue };
        if let Err(error) = journal.ended(&end, at) {
            tracing::debug!(%error, "an end is not noted; its hooks are not run");
        }
    }
}

fn postponed(why: &str, node: &NodeName, recovered: &Recovered, ends: usize) -> String {
    let rest = match ends.max(recovered.runs.len()) {
        0 => String::new(),
        1 => "; the next start settles one run".to_owned(),
        runs => format!("; the next start settles {runs} runs"),
    };
    format!("cronkeeper: what node `{node}` held in ZooKeeper stays until its session ends: {why}{rest}")
}
