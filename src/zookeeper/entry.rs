//! How a node comes in: the folders, the cluster's id, what its own earlier sessions left, and its member.

use std::time::Duration;

use uuid::Uuid;

use super::client::{Client, Error, Mode, Op};
use super::context::{self, At as _, SessionContext, SessionError};
use super::give_up::{Leftover, give_up};
use super::paths;
use crate::clock::Clock;
use crate::election::Member;
use crate::telemetry::TARGET;

/// What became of making the member.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered {
    /// The node lives.
    Yes,
    /// Another session has the name.
    NameHeld {
        /// Whose it is, for people.
        by: String,
        /// The session.
        owner: i64,
        /// Its timeout, where its node says so.
        timeout: Option<Duration>,
    },
}

/// Makes the folders, and the cluster's id if there is none; returns the id that stands there. `known` is the one this node knows of: it
/// stands for one that was removed, overwritten by what is no id, or made unreadable.
pub async fn prepare<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    known: Option<String>,
    new_cluster: String,
) -> Result<String, SessionError> {
    // What was all made just now is no cluster that anybody knows.
    let is_new = make_folders(&context).await?;
    let known = known.filter(|_| !is_new);
    let id = known.clone().unwrap_or(new_cluster);
    let made = context.line()?.create(paths::CLUSTER, id.into_bytes(), Mode::Persistent).await;
    match (made, &known) {
        (Ok(_) | Err(Error::NodeExists), _) => {}
        (Err(Error::NoAuth), Some(_)) => {}
        (Err(error), _) => return Err(error).at(paths::CLUSTER),
    }
    let (found, stat) = match (context.line()?.get(paths::CLUSTER).await, known.clone()) {
        (Ok(found), _) => found,
        // Whoever knows the cluster does not need to read it again.
        (Err(Error::NoAuth | Error::NoNode), Some(known)) => return Ok(known),
        (Err(error), _) => return Err(error).at(paths::CLUSTER),
    };
    match (cluster_in(&found), known) {
        (Some(found), _) => Ok(found),
        (None, Some(known)) => {
            write_cluster(&context, known.clone(), stat.version).await?;
            Ok(known)
        }
        // Whoever knows it writes it anew, and only who does.
        (None, None) => Err(SessionError::Again(format!("{}: it holds no cluster's id", paths::CLUSTER))),
    }
}

/// Looks whether the cluster's id stands as this node knows it, and writes it anew where it was removed, or overwritten by what is no
/// id: without it the next node to start would take the cluster for another.
pub async fn keep_cluster<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    known: String,
) -> Result<(), SessionError> {
    match context.line()?.get(paths::CLUSTER).await {
        Ok((found, stat)) if cluster_in(&found).is_none() => write_cluster(context, known, stat.version).await,
        Err(Error::NoNode) => {
            let made = context.line()?.create(paths::CLUSTER, known.into_bytes(), Mode::Persistent).await;
            made.map(drop).at(paths::CLUSTER)
        }
        Err(error) if !error.is_of_path() => Err(error).at(paths::CLUSTER),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn write_cluster<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    id: String,
    version: i32,
) -> Result<(), SessionError> {
    tracing::warn!(target: TARGET, "{} holds no cluster's id: it is written anew", paths::CLUSTER);
    let set = Op::Set { path: paths::CLUSTER.into(), data: id.into_bytes(), version };
    context.line()?.multi(vec![set]).await.at(paths::CLUSTER).map(drop)
}

fn cluster_in(data: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(data).ok()?;
    Uuid::parse_str(text).is_ok().then(|| text.to_owned())
}

/// True where there was nothing of cronkeeper's before.
async fn make_folders<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<bool, SessionError> {
    let client = context.line()?;
    let mut is_new = false;
    let creates = paths::FOLDERS.map(|folder| (folder, client.create(folder, Vec::new(), Mode::Persistent)));
    for (folder, create) in creates {
        match create.await {
            Ok(_) => is_new |= folder == paths::ROOT,
            Err(Error::NodeExists) => {}
            // The first one's parent is the chroot itself.
            Err(Error::NoNode) if folder == paths::LEADER => return Err(SessionError::NoChroot),
            // A server asks for the right to make a node before it looks whether the node is there.
            Err(Error::NoAuth) if client.stat(folder).await.at(folder)?.is_some() => {}
            Err(error) => return Err(error).at(folder),
        }
    }
    Ok(is_new)
}

/// Gives up what dead processes left, then makes the member; where that `is_closed` to its own node, anew.
pub(super) async fn enter<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    member: Member,
    left: Leftover,
    is_closed: bool,
) -> Result<Entered, SessionError> {
    give_up(&context, left).await?;
    let (path, data) = (context.member(), context::json(&member));
    if is_closed {
        remove_own(&context, &path).await?;
    }
    match context.line()?.create(&path, data.clone(), Mode::Ephemeral).await {
        Ok(_) => return Ok(Entered::Yes),
        Err(Error::NodeExists) => {}
        // A folder was removed by hand: they are made again first.
        Err(Error::NoNode) => {
            make_folders(&context).await?;
            return Err(SessionError::Again(format!("{} was gone", paths::NODES)));
        }
        Err(error) => return Err(error).at(&path),
    }
    let Some(stat) = context.line()?.stat(&path).await.at(&path)? else {
        return Err(SessionError::Again(format!("{path}: the name has just become free")));
    };
    if stat.ephemeral_owner != context.me.owner {
        let held = match context.line()?.get(&path).await {
            Ok((held, _)) => held,
            Err(error) if error.is_of_path() => Vec::new(),
            Err(error) => return Err(error).at(&path),
        };
        return Ok(held_by(&held, stat.ephemeral_owner));
    }
    // Made by a create of this session whose answer was lost.
    match context.line()?.multi(vec![Op::Set { path: path.clone(), data, version: stat.version }]).await {
        Ok(_) => Ok(Entered::Yes),
        // Or somebody has taken the rights to it: it is made anew.
        Err(failed) if failed.error == Error::NoAuth => {
            remove_own(&context, &path).await?;
            Err(SessionError::Again(format!("{path}: it was closed to its own node, and is made anew")))
        }
        Err(failed) => Err(failed).at(&path),
    }
}

/// Removes the own member, so that it can be made anew.
async fn remove_own<C: Client, K: Clock>(context: &SessionContext<C, K>, path: &str) -> Result<(), SessionError> {
    let Some(stat) = context.line()?.stat(path).await.at(path)? else { return Ok(()) };
    if stat.ephemeral_owner != context.me.owner {
        return Ok(());
    }
    match context.line()?.delete(path, stat.version).await {
        Ok(()) | Err(Error::NoNode) => Ok(()),
        Err(error) => Err(error).at(path),
    }
}

fn held_by(data: &[u8], owner: i64) -> Entered {
    let holder: Option<Member> = serde_json::from_slice(data).ok();
    let timeout = holder.as_ref().and_then(|holder| holder.session_timeout_ms).map(Duration::from_millis);
    let by = match holder {
        Some(holder) => format!("process {} on host {}, session {owner:#x}", holder.pid, holder.host),
        None => format!("session {owner:#x}"),
    };
    Entered::NameHeld { by, owner, timeout }
}

/// Writes what the node has loaded into its member. False: the member is gone.
pub async fn publish<C: Client, K: Clock>(context: SessionContext<C, K>, member: Member) -> Result<bool, SessionError> {
    let path = context.member();
    let set = Op::Set { path: path.clone(), data: context::json(&member), version: -1 };
    match context.line()?.multi(vec![set]).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::NoNode => Ok(false),
        Err(failed) => Err(failed).at(&path),
    }
}
