//! A node's entry into the cluster: folders, cluster id, leftovers of its earlier sessions, member.
//!
//! Whoever may write below the members' folder can put anything under a node's name. Only the member of another daemon
//! holds the name. A record without a session is replaced. Anything else is reported, and the node waits until it is gone.

use std::fmt;
use std::time::Duration;

use super::bounded;
use super::cluster_id::{self, Recorded};
use super::context::{self, At as _, SessionContext, SessionError};
use super::damage::{self, Damage};
use super::give_up::{Leftover, give_up};
use super::requests;
use crate::paths;
use crate::tree::{AtVersion, Error, Life, Op, Session};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::Member;
use cronkeeper_core::log;
use cronkeeper_core::run::Version;
use cronkeeper_core::term::{NodeName, SessionId};

/// Result of creating the member.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered {
    /// The member exists: the node is alive to the others.
    Yes,
    /// Another session holds the node name.
    NameHeld {
        /// The holder, as text for people.
        by: String,
        session: SessionId,
        /// The holder's session timeout, if its member states it.
        timeout: Option<Duration>,
    },
    /// The path of this node's member holds something else, which this node cannot remove.
    Blocked(Damage),
}

/// Creates the folders, and the cluster id if there is none. Returns the id on record.
///
/// `known` is the id that this node knows. It is used if the recorded one was removed, overwritten with anything but an
/// id, or made unreadable.
pub async fn prepare<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    known: Option<String>,
    new_cluster: String,
) -> Result<String, SessionError> {
    if known.is_none() {
        context.line()?.check_founding(paths::CLUSTER).await.at(paths::CLUSTER)?;
    }
    // If everything was created just now, no node can know this cluster.
    let is_new = make_parents(&context).await?;
    let known = known.filter(|_| !is_new);
    let id = known.clone().unwrap_or(new_cluster);
    let client = context.line()?;
    // Both requests are sent now, so that the size costs no round trip.
    let making = client.create(paths::CLUSTER, id.into_bytes(), Life::Lasting);
    let sizing = client.stat(paths::CLUSTER);
    match (making.await, &known) {
        (Ok(_) | Err(Error::Exists), _) => {}
        (Err(Error::Denied), Some(_)) => {}
        (Err(error), _) => return Err(error).at(paths::CLUSTER),
    }
    let found = match sizing.await {
        Ok(Some(stat)) => cluster_id::read_known(context.line()?, &stat).await,
        Ok(None) => Err(Error::Missing),
        Err(error) => Err(error),
    };
    match (found, known) {
        (Ok(Recorded::Foreign { why, version }), Some(known)) => {
            write_cluster(&context, known.clone(), &why, version).await?;
            Ok(known)
        }
        // Only a node that knows the id can write it again: wait for one.
        (Ok(found), _) => found.id(),
        // A node that knows the id does not need to read it.
        (Err(Error::Denied | Error::Missing), Some(known)) => Ok(known),
        (Err(error), _) => Err(error).at(paths::CLUSTER),
    }
}

/// Checks the cluster id on record, and writes it again if it was removed or overwritten with anything but an id.
///
/// Without it the next node to start would believe that this is a different cluster.
pub async fn keep_cluster<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    known: String,
) -> Result<(), SessionError> {
    match cluster_id::read(context.line()?).await {
        Ok(Recorded::Foreign { why, version }) => write_cluster(context, known, &why, version).await,
        Err(Error::Missing) => {
            let made = context.line()?.create(paths::CLUSTER, known.into_bytes(), Life::Lasting).await;
            made.map(drop).at(paths::CLUSTER)
        }
        Err(error) if !error.is_of_path() => Err(error).at(paths::CLUSTER),
        Ok(Recorded::Id(_)) | Err(_) => Ok(()),
    }
}

async fn write_cluster<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    id: String,
    why: &str,
    version: Version,
) -> Result<(), SessionError> {
    let path = paths::CLUSTER;
    log!(COORDINATION_REPAIRED, path, "writing {path} again, which holds no cluster id: {why}");
    let set = Op::Set { path: paths::CLUSTER.into(), data: id.into_bytes(), at: version.into() };
    context.line()?.commit(vec![set]).await.at(paths::CLUSTER).map(drop)
}

/// Creates the folders. Returns true if cronkeeper had no data here before.
async fn make_parents<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<bool, SessionError> {
    let client = context.line()?;
    let mut is_new = false;
    let creates = paths::PARENTS.map(|path| (path, client.create(path, Vec::new(), Life::Lasting)));
    for (path, create) in creates {
        match create.await {
            Ok(_) => is_new |= path == paths::ROOT,
            Err(Error::Exists) => {}
            // A server checks the right to create a node before it checks whether the node exists.
            Err(Error::Denied) if client.stat(path).await.at(path)?.is_some() => {}
            Err(error) => return Err(error).at(path),
        }
    }
    Ok(is_new)
}

/// Gives up what dead processes left, then creates the member. If it `is_closed` to its own node, recreates it.
pub(super) async fn enter<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    member: Member,
    left: Leftover,
    is_closed: bool,
) -> Result<Entered, SessionError> {
    give_up(&context, &left).await?;
    let (path, data) = (context.member(), context::json(&member));
    if is_closed {
        remove_own(&context, &path).await?;
    }
    match context.line()?.create(&path, data.clone(), Life::OfSession).await {
        Ok(_) => return Ok(Entered::Yes),
        Err(Error::Exists) => {}
        // Somebody removed a parent: create them all before the next try.
        Err(Error::Missing) => {
            make_parents(&context).await?;
            return Err(SessionError::Again(format!("{} was missing", paths::NODES)));
        }
        Err(error) => return Err(error).at(&path),
    }
    let just_free = || Err(SessionError::Again(format!("{path}: the node name has just become free")));
    let Some(stat) = context.line()?.stat(&path).await.at(&path)? else { return just_free() };
    let Some(session) = stat.session else { return replace_lasting(&context, path, stat.version).await };
    if left.left.contains(&session) {
        context.remove_entries(Vec::new(), &left.left).await?;
        return Err(SessionError::Again(format!("{path}: it was back, although it had been removed")));
    }
    if session != context.me.session {
        return match context.line()?.get(&path).await {
            Ok((held, _)) => Ok(held_by(path, &held, &member.node, session)),
            // It may have gone meanwhile.
            Err(Error::Missing) => just_free(),
            Err(error) if error.is_of_path() => Ok(Entered::Blocked(blocking(path, &session, &error))),
            Err(error) => Err(error).at(&path),
        };
    }
    // A create of this session made it, and the answer was lost.
    match context.line()?.commit(vec![Op::Set { path: path.clone(), data, at: stat.version.into() }]).await {
        Ok(_) => Ok(Entered::Yes),
        // Somebody has withdrawn this node's rights to it: recreate it.
        Err(failed) if failed.error == Error::Denied => {
            remove_own(&context, &path).await?;
            Err(SessionError::Again(format!("{path}: its access list excluded this node; recreating it")))
        }
        Err(failed) => Err(failed).at(&path),
    }
}

/// Removes this node's member if it belongs to this session, so that it can be recreated.
async fn remove_own<C: Session, K: Clock>(context: &SessionContext<C, K>, path: &str) -> Result<(), SessionError> {
    let Some(stat) = context.line()?.stat(path).await.at(path)? else { return Ok(()) };
    if stat.session.as_ref() != Some(&context.me.session) {
        return Ok(());
    }
    match context.line()?.delete(path, stat.version.into()).await {
        Ok(()) | Err(Error::Missing) => Ok(()),
        Err(error) => Err(error).at(path),
    }
}

/// Removes what is in the place of this node's member and belongs to no session, so that the member can be created: no
/// living node has such a member.
async fn replace_lasting<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    path: String,
    version: Version,
) -> Result<Entered, SessionError> {
    match context.line()?.delete(&path, version.into()).await {
        Ok(()) => {
            log!(COORDINATION_REPAIRED, path, "{path} {LASTS}; this node has removed it and makes its own");
            Err(SessionError::Again(format!("{path} was in the way")))
        }
        Err(Error::Missing | Error::Changed) => Err(SessionError::Again(format!("{path} has just been changed"))),
        Err(error) if error.is_of_path() => {
            let why = format!("it {LASTS}, keeps this node out, and cannot be removed by it ({error}): delete it");
            let removal = context.line()?.removal(&path);
            Ok(Entered::Blocked(Damage::to_delete(path, &why, removal)))
        }
        Err(error) => Err(error).at(&path),
    }
}

const LASTS: &str = "is not ephemeral, so it is not the member of a living node";

/// What an entry of another session means for this node: another daemon's member, or something that is not a member.
fn held_by(path: String, data: &[u8], node: &NodeName, session: SessionId) -> Entered {
    let holder = bounded::SMALL.parse::<Member>(data).and_then(|holder| match holder.node == *node {
        true => Ok(holder),
        false => Err(format!("it names a different node, `{}`", holder.node)),
    });
    match holder {
        Ok(holder) => Entered::NameHeld {
            by: format!("process {} on host {}, session {}", holder.pid, holder.host, session.0),
            timeout: holder.session_timeout_ms.map(Duration::from_millis),
            session,
        },
        Err(why) => Entered::Blocked(blocking(path, &session, &why)),
    }
}

fn blocking(path: String, session: &SessionId, why: &dyn fmt::Display) -> Damage {
    let why = damage::reason(&format_args!("it is no member of a node, {why}"));
    Damage::new(
        path,
        format_args!("{why}; this node stays out until session {}, which it belongs to, has ended", session.0),
    )
}

/// Writes into the member what the node has loaded, and whether it is drained, and notifies the leader. Returns false if
/// the member is gone.
pub async fn publish<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    member: Member,
) -> Result<bool, SessionError> {
    let path = context.member();
    let set = Op::Set { path: path.clone(), data: context::json(&member), at: AtVersion::Any };
    match requests::write_of_node(context.line()?, set).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::Missing => Ok(false),
        Err(failed) => Err(failed).at(&path),
    }
}

#[cfg(test)]
mod tests;
