//! What an errand takes along: the session, who this node is, and the rule that nothing is asked of a connection that is down.
//!
//! A request given up while disconnected would still be carried out after the reconnect (measured). So each request is
//! preceded by a look at the state, and one that slipped through is waited for, never dropped while the session lives.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::client::{Client, Error, MultiError, Op, Stat, State};
use super::damage::Damage;
use super::paths;
use crate::clock::Clock;
use crate::job::JobName;
use crate::run::RunId;
use crate::term::NodeName;

/// Requests of at most this many nodes' data, for records of at most half a KiB.
pub const SMALL: usize = 500;
/// Records of the history that one request reads: of some 24 KiB each at worst, which together stay under 1 MiB.
pub const HISTORY_CHUNK: usize = 40;

/// The session, and who this node is in it.
#[derive(Clone)]
pub struct SessionContext<C, K> {
    client: C,
    /// To tell when a write was sent.
    pub clock: K,
    /// This node.
    pub me: Arc<LocalNode>,
}

/// This node under one session.
pub struct LocalNode {
    /// Its name.
    pub node: NodeName,
    /// The session, as stats show it.
    pub owner: i64,
    /// What the names of its candidates begin with.
    pub prefix: String,
    /// What its candidates hold.
    pub candidate_data: Vec<u8>,
}

/// Why an errand came back without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// To be tried again, and why.
    #[error("{0}")]
    Again(String),
    /// The session is over.
    #[error("the session is over")]
    SessionOver,
    /// This client may not do that. Names the path.
    #[error("{0}")]
    NoAuth(String),
    /// The chroot does not exist.
    #[error("the chroot does not exist")]
    NoChroot,
}

impl SessionError {
    /// The trouble that this answer about this path is.
    pub fn of(error: &Error, path: &str) -> Self {
        match error {
            Error::SessionOver => Self::SessionOver,
            Error::NoAuth => Self::NoAuth(format!("{path}: {error}")),
            error => Self::Again(format!("{path}: {error}")),
        }
    }
}

/// Says which path a request was about that failed.
pub trait At<T> {
    /// The trouble that it is for an errand.
    fn at(self, path: &str) -> Result<T, SessionError>;
}

impl<T> At<T> for Result<T, Error> {
    fn at(self, path: &str) -> Result<T, SessionError> {
        self.map_err(|error| SessionError::of(&error, path))
    }
}

impl<T> At<T> for Result<T, MultiError> {
    fn at(self, path: &str) -> Result<T, SessionError> {
        self.map_err(|failed| SessionError::of(&failed.error, path))
    }
}

impl<C: Client, K: Clock> SessionContext<C, K> {
    /// Sets a context up.
    pub fn new(client: C, clock: K, me: LocalNode) -> Self {
        Self { client, clock, me: Arc::new(me) }
    }

    /// The session, if a server answers now.
    pub fn line(&self) -> Result<&C, SessionError> {
        match self.client.state() {
            State::Connected => Ok(&self.client),
            State::Disconnected => Err(SessionError::Again("the connection is lost".into())),
            State::Expired => Err(SessionError::SessionOver),
            State::AuthFailed => Err(SessionError::Again("authentication failed".into())),
        }
    }

    /// The own member's path.
    pub fn member(&self) -> String {
        paths::member(&self.me.node)
    }

    /// Data of the nodes `names` of a folder with small records; those that went meanwhile are left out.
    pub async fn get_small(&self, folder: &str, names: Vec<String>) -> Result<Reads, SessionError> {
        get_small(self.line()?, folder, names).await
    }

    /// The node an entry of the queue belongs to; absent for one that is not cronkeeper's, is gone, or cannot be read.
    pub async fn node_of(&self, candidate: &str) -> Result<Option<NodeName>, SessionError> {
        let path = paths::under(paths::LEADER, candidate);
        match self.line()?.get(&path).await {
            Ok((data, _)) => Ok(node_in(&data)),
            Err(error) if error.is_of_path() => Ok(None),
            Err(error) => Err(error).at(&path),
        }
    }

    /// Removes these candidates, and the member where it is of one of these sessions, in one multi, so that nobody sees the one
    /// without the other.
    pub async fn remove_entries(&self, candidates: Vec<String>, sessions: &[i64]) -> Result<(), SessionError> {
        let remove = |name: &String| Op::Delete { path: paths::under(paths::LEADER, name), version: -1 };
        let mut ops: Vec<Op> = candidates.iter().map(remove).collect();
        let member = self.member();
        if let Some(stat) = self.line()?.stat(&member).await.at(&member)?
            && sessions.contains(&stat.ephemeral_owner)
        {
            ops.push(Op::Delete { path: member.clone(), version: stat.version });
        }
        if !ops.is_empty() {
            self.line()?.multi(ops).await.at(&member)?;
        }
        Ok(())
    }
}

/// A node as found: its name, data and stat.
pub type Found = (String, Vec<u8>, Stat);

/// What a read of many nodes brought.
#[derive(Debug, Default)]
pub struct Reads {
    /// The nodes.
    pub found: Vec<Found>,
    /// Those that are there and cannot be read, by their names.
    pub unread: Vec<(String, Error)>,
}

impl Reads {
    /// Names those that cannot be read, and gives back the others.
    pub fn or_damaged(self, folder: &str, damaged: &mut Vec<Damage>) -> Vec<Found> {
        damaged.extend(self.unread.iter().map(|(name, error)| Damage::unread(paths::under(folder, name), error)));
        self.found
    }
}

/// Data of many nodes of a folder, in requests of at most `chunk`, all handed over before the first answer. One that cannot be read
/// hides no other.
pub async fn get_all<C: Client>(
    client: &C,
    folder: &str,
    names: Vec<String>,
    chunk: usize,
) -> Result<Reads, SessionError> {
    let requests: Vec<_> = names
        .chunks(chunk)
        .map(|names| client.get_many(names.iter().map(|name| paths::under(folder, name)).collect()))
        .collect();
    let mut answers = Vec::with_capacity(names.len());
    for request in requests {
        answers.extend(request.await.at(folder)?);
    }
    let mut reads = Reads::default();
    for (name, answer) in names.into_iter().zip(answers) {
        match answer {
            Ok((data, stat)) => reads.found.push((name, data, stat)),
            Err(Error::NoNode) => {}
            Err(error) if error.is_of_path() => reads.unread.push((name, error)),
            Err(error) => return Err(error).at(&paths::under(folder, &name)),
        }
    }
    Ok(reads)
}

/// Data of records of the history, one request after the other: however many there are, few are on their way.
pub async fn get_history<C: Client>(client: &C, folder: &str, names: Vec<String>) -> Result<Reads, SessionError> {
    let mut reads = Reads::default();
    for names in names.chunks(HISTORY_CHUNK) {
        let more = get_all(client, folder, names.to_vec(), HISTORY_CHUNK).await?;
        reads.found.extend(more.found);
        reads.unread.extend(more.unread);
    }
    Ok(reads)
}

/// What the server says of many nodes of a folder, which needs no right to read them; those that are gone are left out.
pub async fn stats<C: Client>(
    client: &C,
    folder: &str,
    names: Vec<String>,
) -> Result<Vec<(String, Stat)>, SessionError> {
    let ask = |name: String| {
        let stat: BoxFuture<'static, _> = client.stat(&paths::under(folder, &name)).boxed();
        (name, stat)
    };
    let asked: Vec<_> = names.into_iter().map(ask).collect();
    let mut found = Vec::with_capacity(asked.len());
    for (name, stat) in asked {
        match stat.await {
            Ok(stat) => found.extend(stat.map(|stat| (name, stat))),
            Err(error) if error.is_of_path() => {}
            Err(error) => return Err(error).at(&paths::under(folder, &name)),
        }
    }
    Ok(found)
}

/// Records of one job's history that are looked at where not all of them matter: more than trimming leaves.
pub const MOST_LOOKED_AT: usize = 60;

/// The names of a job's records, in the order of the times that they carry: all of them where there are no more than `most`, else the
/// newest. What is called otherwise is left out.
pub async fn newest_history<C: Client>(client: &C, job: &JobName, most: usize) -> Result<Vec<String>, SessionError> {
    let mut names = children(client, &paths::job_history(job)).await?;
    names.retain(|name| RunId::parse(name).is_ok_and(|run| run.job() == job));
    Ok(names.split_off(names.len().saturating_sub(most)))
}

/// The names in a folder; none where it is gone.
pub async fn children<C: Client>(client: &C, folder: &str) -> Result<Vec<String>, SessionError> {
    match client.children(folder).await {
        Ok(mut names) => {
            names.sort_unstable();
            Ok(names)
        }
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(error).at(folder),
    }
}

/// None where they may not be read.
pub fn or_none(names: Result<Vec<String>, SessionError>) -> Result<Vec<String>, SessionError> {
    match names {
        Err(SessionError::NoAuth(_)) => Ok(Vec::new()),
        names => names,
    }
}

/// The names in a folder; none, and the folder among the damaged, where it cannot be read.
pub async fn children_or_damaged<C: Client>(
    client: &C,
    folder: &str,
    damaged: &mut Vec<Damage>,
) -> Result<Vec<String>, SessionError> {
    match children(client, folder).await {
        Err(SessionError::NoAuth(_)) => {
            damaged.push(Damage::unread(folder, &Error::NoAuth));
            Ok(Vec::new())
        }
        names => names,
    }
}

/// As [`get_all`], of a folder with small records.
pub async fn get_small<C: Client>(client: &C, folder: &str, names: Vec<String>) -> Result<Reads, SessionError> {
    get_all(client, folder, names, SMALL).await
}

/// The node that an entry's data names.
pub fn node_in(data: &[u8]) -> Option<NodeName> {
    #[derive(serde::Deserialize)]
    struct Entry {
        node: NodeName,
    }
    serde_json::from_slice::<Entry>(data).ok().map(|entry| entry.node)
}

/// A record of ours as the bytes of a node.
pub fn json<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record of ours has text keys only, so it is always JSON")
}
