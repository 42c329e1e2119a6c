//! Context of a request: the session, this node's names, and the rule to send nothing while disconnected.
//!
//! A request that is given up while disconnected would still be carried out after the reconnect (measured). So every
//! request first checks the state. One that slips through is awaited, and never dropped while the session is alive.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::bounded::{self, Records, Sized};
use super::damage::Damage;
use crate::paths;
use crate::tree::{AtVersion, CommitError, Error, Limits, Op, Session, Stat, State};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{RunId, Version};
use cronkeeper_core::term::{NodeName, SessionId};

/// Most records that one commit in the background removes, so that no other commit waits long behind it.
pub const MOST_DELETES: usize = 100;

/// A session, and this node's identity in it.
#[derive(Clone)]
pub struct SessionContext<C, K> {
    client: C,
    /// For the times at which writes are sent.
    pub clock: K,
    pub me: Arc<LocalNode>,
}

/// This node under one session.
pub struct LocalNode {
    pub node: NodeName,
    pub session: SessionId,
    /// Prefix of the names of this session's candidates.
    pub prefix: String,
    /// The data of this session's candidates.
    pub candidate_data: Vec<u8>,
}

/// Failure of an operation on a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The operation may succeed later. The text says why it failed.
    #[error("{0}")]
    Again(String),
    #[error("the session is over")]
    SessionOver,
    /// This client lacks the right. The text names the path.
    #[error("{0}")]
    NoAuth(String),
    /// The root that the service's address names does not exist.
    #[error("the root does not exist")]
    NoRoot,
    #[error("the root is among the data of the cluster at {cluster}")]
    RootInCluster { cluster: String },
}

impl SessionError {
    /// Classifies a failed request for this path.
    pub fn of(error: &Error, path: &str) -> Self {
        match error {
            Error::SessionOver => Self::SessionOver,
            Error::Denied => Self::NoAuth(format!("{path}: {error}")),
            Error::NoRoot => Self::NoRoot,
            Error::RootInCluster { cluster } => Self::RootInCluster { cluster: cluster.clone() },
            error => Self::Again(format!("{path}: {error}")),
        }
    }
}

/// Adds to a failed request the path that it was for.
pub trait At<T> {
    /// Converts the error.
    fn at(self, path: &str) -> Result<T, SessionError>;
}

impl<T> At<T> for Result<T, Error> {
    fn at(self, path: &str) -> Result<T, SessionError> {
        self.map_err(|error| SessionError::of(&error, path))
    }
}

impl<T> At<T> for Result<T, CommitError> {
    fn at(self, path: &str) -> Result<T, SessionError> {
        self.map_err(|failed| SessionError::of(&failed.error, path))
    }
}

impl<C: Session, K: Clock> SessionContext<C, K> {
    pub fn new(client: C, clock: K, me: LocalNode) -> Self {
        Self { client, clock, me: Arc::new(me) }
    }

    pub fn limits(&self) -> Limits {
        self.client.limits()
    }

    /// [`MOST_DELETES`], or as many as the service takes at once.
    pub fn most_deletes(&self) -> usize {
        MOST_DELETES.min(self.limits().jobs(1))
    }

    /// The session if it is connected.
    pub fn line(&self) -> Result<&C, SessionError> {
        match self.client.state() {
            State::Connected => Ok(&self.client),
            State::Disconnected => Err(SessionError::Again("the connection is lost".into())),
            State::Expired => Err(SessionError::SessionOver),
            State::AuthFailed => Err(SessionError::Again("authentication failed".into())),
        }
    }

    /// The path of this node's member.
    pub fn member(&self) -> String {
        paths::member(&self.me.node)
    }

    /// Reads children that have small records. Leaves out those that are gone by now.
    pub async fn get_small(&self, parent: &str, names: Vec<String>) -> Result<Reads, SessionError> {
        get_small(self.line()?, parent, names).await
    }

    /// Removes these candidates, and the member if it belongs to one of these sessions. It uses one commit, so that
    /// nobody sees one without the other.
    pub async fn remove_entries(&self, candidates: Vec<String>, sessions: &[SessionId]) -> Result<(), SessionError> {
        let ops = self.removals(candidates, sessions).await?;
        if !ops.is_empty() {
            self.line()?.commit(ops).await.at(&self.member())?;
        }
        Ok(())
    }

    /// What removes these candidates, and the member if it belongs to one of these sessions.
    pub async fn removals(&self, candidates: Vec<String>, sessions: &[SessionId]) -> Result<Vec<Op>, SessionError> {
        let remove = |name: &String| Op::Delete { path: paths::under(paths::LEADER, name), at: AtVersion::Any };
        let mut ops: Vec<Op> = candidates.iter().map(remove).collect();
        let member = self.member();
        if let Some(stat) = self.line()?.stat(&member).await.at(&member)?
            && stat.session.as_ref().is_some_and(|session| sessions.contains(session))
        {
            ops.push(Op::Delete { path: member, at: stat.version.into() });
        }
        Ok(ops)
    }
}

/// A record's name, its data, and what is known of it.
pub type Found = (String, Vec<u8>, Stat);

/// Result of reading many children.
#[derive(Debug, Default)]
pub struct Reads {
    pub found: Vec<Found>,
    /// Names of children that exist but cannot be read.
    pub unread: Vec<(String, Error)>,
}

impl Reads {
    /// Adds unreadable children to `damaged` and returns the others.
    pub fn or_damaged(self, parent: &str, damaged: &mut Vec<Damage>) -> Vec<Found> {
        damaged.extend(self.unread.iter().map(|(name, error)| Damage::unread(paths::under(parent, name), error)));
        self.found
    }
}

/// Children whose sizes are known.
pub struct SizedRecords {
    parent: String,
    names: Vec<String>,
    sizes: Sized,
}

impl SizedRecords {
    /// Reads the sizes of children.
    pub async fn of<C: Session>(client: &C, parent: &str, names: Vec<String>) -> Result<Self, SessionError> {
        Self::of_kind(client, parent, names, kind(parent)).await
    }

    async fn of_kind<C: Session>(
        client: &C,
        parent: &str,
        names: Vec<String>,
        records: Records,
    ) -> Result<Self, SessionError> {
        let paths = names.iter().map(|name| paths::under(parent, name)).collect();
        let sizes = Sized::of(client, paths, records).await.at(parent)?;
        Ok(Self { parent: parent.to_owned(), names, sizes })
    }

    /// Reads them, all requests handed over before the first answer. Leaves out those that are gone by now.
    ///
    /// A child that cannot be read does not affect the others.
    pub async fn get<C: Session>(self, client: &C) -> Result<Reads, SessionError> {
        let Self { parent, names, sizes } = self;
        let answers = sizes.get(client).await.at(&parent)?;
        let mut reads = Reads::default();
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok((data, stat)) => reads.found.push((name, data, stat)),
                Err(Error::Missing) => {}
                Err(error) if error.is_of_path() => reads.unread.push((name, error)),
                Err(error) => return Err(error).at(&paths::under(&parent, &name)),
            }
        }
        Ok(reads)
    }
}

/// The records that cronkeeper has below this parent.
fn kind(parent: &str) -> Records {
    match parent {
        paths::RUNNING | paths::TRIGGERS => bounded::RUNS,
        paths::JOBS | paths::LAST => bounded::JOBS,
        paths::NODES | paths::WANTED | paths::PLACES | paths::LEADER => bounded::NODES,
        _ => bounded::SMALL,
    }
}

/// Reads history records, one request after the other, so that few are in flight however many there are.
pub async fn get_history<C: Session>(client: &C, parent: &str, names: Vec<String>) -> Result<Reads, SessionError> {
    let mut reads = Reads::default();
    for names in names.chunks(bounded::HISTORY.count) {
        let sized = SizedRecords::of_kind(client, parent, names.to_vec(), bounded::HISTORY).await?;
        let more = sized.get(client).await?;
        reads.found.extend(more.found);
        reads.unread.extend(more.unread);
    }
    Ok(reads)
}

/// Reads history records whose metadata is known.
pub async fn get_known_history<C: Session>(
    client: &C,
    parent: &str,
    known: Vec<(String, Stat)>,
) -> Result<Reads, SessionError> {
    let names = known.iter().map(|(name, _)| name.clone()).collect();
    let records = known.into_iter().map(|(name, stat)| (paths::under(parent, &name), stat));
    let sizes = Sized::known(records, bounded::HISTORY);
    SizedRecords { parent: parent.to_owned(), names, sizes }.get(client).await
}

/// Reads the metadata of children, which needs no right to read them. Leaves out those that are gone.
pub async fn stats<C: Session>(
    client: &C,
    parent: &str,
    names: Vec<String>,
) -> Result<Vec<(String, Stat)>, SessionError> {
    let request = |name: String| {
        let stat: BoxFuture<'static, _> = client.stat(&paths::under(parent, &name)).boxed();
        (name, stat)
    };
    let requests: Vec<_> = names.into_iter().map(request).collect();
    let mut found = Vec::with_capacity(requests.len());
    for (name, stat) in requests {
        match stat.await {
            Ok(stat) => found.extend(stat.map(|stat| (name, stat))),
            Err(error) if error.is_of_path() => {}
            Err(error) => return Err(error).at(&paths::under(parent, &name)),
        }
    }
    Ok(found)
}

/// Records of one job's history to read when not all of them matter: more than trimming leaves by default.
pub const MOST_RECENT: usize = 60;

/// The names of a job's newest records, at most `most`, in the order of the times they carry. Leaves out other names.
pub async fn newest_history<C: Session>(client: &C, job: &JobName, most: usize) -> Result<Vec<String>, SessionError> {
    let mut names = names(client, &paths::job_history(job)).await?;
    names.retain(|name| RunId::parse(name).is_ok_and(|run| run.job() == job));
    Ok(names.split_off(names.len().saturating_sub(most)))
}

/// Waits until the server knows the newest runs: one that lags behind does once it has answered a write.
pub async fn catch_up<C: Session>(client: &C) -> Result<(), SessionError> {
    match client.commit(vec![Op::Check { path: paths::RUNNING.to_owned(), at: AtVersion::Any }]).await {
        Ok(_) | Err(CommitError { error: Error::Missing | Error::Denied, .. }) => Ok(()),
        Err(failed) => Err(failed).at(paths::RUNNING),
    }
}

/// The names of the records below a folder, sorted; empty if there is no such folder.
pub async fn names<C: Session>(client: &C, parent: &str) -> Result<Vec<String>, SessionError> {
    match client.names(parent).await {
        Ok(mut names) => {
            names.sort_unstable();
            Ok(names)
        }
        Err(Error::Missing) => Ok(Vec::new()),
        Err(error) => Err(error).at(parent),
    }
}

/// Turns a missing right to read the names into an empty list.
pub fn or_none(names: Result<Vec<String>, SessionError>) -> Result<Vec<String>, SessionError> {
    match names {
        Err(SessionError::NoAuth(_)) => Ok(Vec::new()),
        names => names,
    }
}

/// The names of the records below a folder; if they cannot be read, empty, and the folder is added to `damaged`.
pub async fn names_or_damaged<C: Session>(
    client: &C,
    parent: &str,
    damaged: &mut Vec<Damage>,
) -> Result<Vec<String>, SessionError> {
    match names(client, parent).await {
        Err(SessionError::NoAuth(_)) => {
            damaged.push(Damage::unread(parent, &Error::Denied));
            Ok(Vec::new())
        }
        names => names,
    }
}

/// Reads children that have small records.
pub async fn get_small<C: Session>(client: &C, parent: &str, names: Vec<String>) -> Result<Reads, SessionError> {
    SizedRecords::of(client, parent, names).await?.get(client).await
}

/// The guard of a write: the candidate must exist and be unchanged since it was created.
pub fn fence(candidate: &str) -> Op {
    Op::Check { path: candidate.to_owned(), at: Version::FIRST.into() }
}

/// The node named in the data of a queue entry.
pub fn node_in(data: &[u8]) -> Option<NodeName> {
    #[derive(serde::Deserialize)]
    struct CandidateData {
        node: NodeName,
    }
    bounded::SMALL.parse::<CandidateData>(data).ok().map(|data| data.node)
}

/// Serializes a record.
pub fn json<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record of ours has text keys only, so it is always JSON")
}
