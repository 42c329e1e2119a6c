//! The errands of a place in the queue: take it, look who is before it, open a term by it, give it up.

use std::collections::BTreeSet;

use futures_util::future::join3;

use super::client::{Client, Error, Mode, Op, Stat};
use super::committer::check;
use super::context::{self, At as _, SessionContext, SessionError};
use super::damage::Damage;
use super::queue::{self, Entry, Place};
use super::{paths, snapshot, time};
use crate::clock::server::ServerTime;
use crate::clock::{Clock, Uptime};
use crate::election::Member;
use crate::ledger::Snapshot;
use crate::term::{CandidateName, FencingToken, NodeName, SessionId};

/// What a look at the queue showed.
pub enum Look<W> {
    /// The own entry is the first.
    First(CandidateName),
    /// Another is before it; a watch is on that one, and something may be wrong with it.
    Behind(Behind, W, Option<Damage>),
    /// The own entry is gone.
    Gone,
}

/// Who is before the own entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The own entry.
    pub candidate: CandidateName,
    /// The one just before.
    pub predecessor: CandidateName,
    /// Whose it is.
    pub predecessor_node: Option<NodeName>,
    /// Whose the first is.
    pub leader_node: Option<NodeName>,
}

/// What shows a node that is the first in the queue that its session lives, and so that nobody else leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Its lease: the opening write follows the term's begin, and nobody waits for its answer.
    Lease,
    /// The opening write, which comes first.
    Write,
}

/// A term's opening write, acknowledged by a quorum.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Before it was handed over.
    pub sent: Uptime,
    /// When the servers say that it was made.
    pub time: Option<ServerTime>,
}

/// A term as opened in the ledger.
pub struct Opened<W> {
    /// The candidate's creation transaction.
    pub token: FencingToken,
    /// The opening write, where the term could not begin without it.
    pub written: Option<Written>,
    /// The ledger, as all former terms left it.
    pub snapshot: Box<Snapshot>,
    /// What of it could not be read.
    pub damaged: Vec<Damage>,
    /// On the own candidate and member.
    pub watches: Vec<W>,
}

impl<W> Opened<W> {
    /// True where the jobs or the runs could not even be listed.
    pub fn is_blind(&self) -> bool {
        self.damaged.iter().any(|damage| [paths::JOBS, paths::RUNNING].contains(&damage.path.as_str()))
    }
}

/// What still stands of the own entries.
pub struct Verified<W> {
    /// The candidate is there and this session's.
    pub has_candidate: bool,
    /// The member is there and this session's.
    pub has_member: bool,
    /// On what was asked to be watched.
    pub watches: Vec<W>,
}

/// What a read of the queue and the members showed, without a watch.
pub struct Survey {
    /// Who is before the own entry, if anyone is.
    pub behind: Option<Behind>,
    /// False when the own entry was not found.
    pub has_candidate: bool,
    /// False when the own member was not found.
    pub has_member: bool,
    /// The nodes that live.
    pub members: Vec<Member>,
    /// Those of them that cannot be read.
    pub damaged: Vec<Damage>,
}

/// Joins the queue. After a create whose fate is unclear (`is_unclear`) a write is committed first: then a list shows it.
pub async fn join<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    is_unclear: bool,
) -> Result<CandidateName, SessionError> {
    if is_unclear {
        settle(&context).await?;
        if let Some(ours) = find_own(&context).await?.ours {
            return Ok(CandidateName(ours));
        }
    }
    let path = paths::under(paths::LEADER, &context.me.prefix);
    let made = context.line()?.create(&path, context.me.candidate_data.clone(), Mode::EphemeralSequential).await;
    match made {
        Ok((path, _)) => Ok(CandidateName(paths::name(&path).to_owned())),
        Err(Error::NoNode) => {
            // Removed by hand with all that stood in it.
            let _ = context.line()?.create(paths::LEADER, Vec::new(), Mode::Persistent).await;
            Err(SessionError::Again(format!("{} was gone", paths::LEADER)))
        }
        Err(error) => Err(error).at(paths::LEADER),
    }
}

/// Commits a write: what was on its way before has arrived then, or never will.
async fn settle<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<(), SessionError> {
    let member = context.member();
    context.line()?.multi(vec![Op::Check { path: member.clone(), version: -1 }]).await.at(&member).map(drop)
}

/// Looks who is before the own entry and watches that one alone: no herd.
pub async fn look<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Look<C::Watch>, SessionError> {
    loop {
        let place = find_own(&context).await?;
        let Some(ours) = place.ours else { return Ok(Look::Gone) };
        let candidate = CandidateName(ours);
        let Some(predecessor) = place.predecessor else { return Ok(Look::First(candidate)) };
        let path = paths::under(paths::LEADER, &predecessor);
        let Some((node, stat, watch)) = watch_entry(&context, &path).await? else { continue };
        let behind = behind(&context, candidate, predecessor, node, place.first).await?;
        let lasts = "it is before this node in the queue, and is not ephemeral: it never goes by itself";
        let damage = (stat.ephemeral_owner == 0).then(|| Damage::new(path, lasts));
        return Ok(Look::Behind(behind, watch, damage));
    }
}

/// Whose an entry is, and a watch on it; `None` where it is gone. One that cannot be read is not cronkeeper's.
async fn watch_entry<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    path: &str,
) -> Result<Option<(Option<NodeName>, Stat, C::Watch)>, SessionError> {
    // Reading data leaves no watch where there is no node; a watch on its existence would.
    match context.line()?.get_and_watch(path).await {
        Ok((data, stat, watch)) => return Ok(Some((context::node_in(&data), stat, watch))),
        Err(Error::NoNode) => return Ok(None),
        Err(error) if error.is_of_path() => {}
        Err(error) => return Err(error).at(path),
    }
    let (stat, watch) = context.line()?.stat_and_watch(path).await.at(path)?;
    Ok(stat.map(|stat| (None, stat, watch)))
}

async fn behind<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    candidate: CandidateName,
    predecessor: String,
    predecessor_node: Option<NodeName>,
    first: Option<String>,
) -> Result<Behind, SessionError> {
    let leader_node = match first {
        Some(first) if first != predecessor => context.node_of(&first).await?,
        _ => predecessor_node.clone(),
    };
    Ok(Behind { candidate, predecessor: CandidateName(predecessor), predecessor_node, leader_node })
}

/// The own place; surplus entries are removed on the way.
async fn find_own<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<Place, SessionError> {
    let place = queue::place(&read_order(context).await?, &context.me.prefix);
    for surplus in &place.surplus {
        remove(context, surplus).await?;
    }
    Ok(place)
}

async fn read_order<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<String>, SessionError> {
    ordered(context.line()?).await
}

/// The queue in order.
pub async fn ordered<C: Client>(client: &C) -> Result<Vec<String>, SessionError> {
    let names = context::children(client, paths::LEADER).await?;
    let entries = if queue::needs_age(&names) {
        let found = context::stats(client, paths::LEADER, names).await?;
        found.into_iter().map(|(name, stat)| Entry { name, czxid: stat.czxid }).collect()
    } else {
        names.into_iter().map(|name| Entry { name, czxid: 0 }).collect()
    };
    Ok(queue::order(entries))
}

async fn remove<C: Client, K: Clock>(context: &SessionContext<C, K>, candidate: &str) -> Result<(), SessionError> {
    let path = paths::under(paths::LEADER, candidate);
    match context.line()?.delete(&path, -1).await {
        Ok(()) | Err(Error::NoNode) => Ok(()),
        Err(error) => Err(error).at(&path),
    }
}

/// Opens a term: reads what the former ones left, after the opening write where that is the proof. `None`: the own candidate is gone.
///
/// The queue was read on this session and showed the own candidate first. So the server had carried out the removal of every earlier
/// one, and all that these ever guarded before it: what it answers from now on is complete, with a write in front or without. The
/// write shows that the session lives, and a lease that holds shows it too.
pub async fn open<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
    dead: BTreeSet<SessionId>,
    proof: Proof,
    at: OpenAt,
) -> Result<Option<Opened<C::Watch>>, SessionError> {
    let (path, own) = (paths::candidate(&candidate), context.member());
    let line = context.line()?;
    // All is handed over before the first answer, for a takeover is as long as its round trips: a session's requests are
    // carried out in their order, so the reads come after the write, and show nothing that counts if it fails.
    let writing = (proof == Proof::Write).then(|| hand_over_opening(&context, line, &path, at));
    let (standing, member) = (line.stat_and_watch(&path), line.stat_and_watch(&own));
    let standing = async { Ok((standing.await.at(&path)?, member.await.at(&own)?)) };
    let writing = async {
        match writing {
            Some(writing) => writing.await.map(|written| written.map(Some)),
            None => Ok(Some(None)),
        }
    };
    let (written, standing, snapshot) = join3(writing, standing, snapshot::read(line, &dead)).await;
    let Some(written) = written? else { return Ok(None) };
    let ((stat, candidate_watch), (member, member_watch)) = standing?;
    let (snapshot, damaged) = snapshot?;
    let is_ours = |stat: &Stat| stat.ephemeral_owner == context.me.owner;
    let Some(stat) = stat.filter(is_ours) else { return Ok(None) };
    if !member.as_ref().is_some_and(is_ours) {
        return Ok(None);
    }
    let watches = vec![candidate_watch, member_watch];
    Ok(Some(Opened { token: FencingToken(stat.czxid), written, snapshot: Box::new(snapshot), damaged, watches }))
}

/// What a term's opening writes to, beside the check of the own candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenAt {
    /// The queue: everybody can see there who led last.
    Queue,
    /// The own member, with this data, where the queue may not be written to.
    Member(Vec<u8>),
}

/// Writes who leads, guarded by the own candidate. `None`: that is gone.
pub async fn write_opening<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
    at: OpenAt,
) -> Result<Option<Written>, SessionError> {
    hand_over_opening(&context, context.line()?, &paths::candidate(&candidate), at).await
}

/// It is handed over when this returns.
fn hand_over_opening<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    line: &C,
    candidate: &str,
    at: OpenAt,
) -> impl Future<Output = Result<Option<Written>, SessionError>> + Send {
    let (path, data) = match at {
        OpenAt::Queue => (paths::LEADER.to_owned(), context.me.candidate_data.clone()),
        OpenAt::Member(data) => (context.member(), data),
    };
    let ops = vec![check(candidate), Op::Set { path: path.clone(), data, version: -1 }];
    let (clock, candidate) = (context.clock.clone(), candidate.to_owned());
    let sent = clock.now().up;
    let multi = line.multi(ops);
    async move {
        match multi.await {
            Ok(done) => Ok(Some(Written { sent, time: time::of(&done, sent, clock.now().up) })),
            Err(failed) => match (failed.index, &failed.error) {
                // Closed to its own node, a candidate guards nothing any more: another is needed.
                (Some(0), Error::NoNode | Error::BadVersion | Error::NoAuth) => Ok(None),
                (Some(0), _) => Err(failed).at(&candidate),
                _ => Err(failed).at(&path),
            },
        }
    }
}

/// Looks whether the own entries still stand and are this session's, and watches them where asked to.
pub async fn verify<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    candidate: Option<CandidateName>,
    watch_candidate: bool,
    watch_member: bool,
) -> Result<Verified<C::Watch>, SessionError> {
    let mut watches = Vec::new();
    let has_candidate = match &candidate {
        Some(name) => is_own(&context, &paths::candidate(name), watch_candidate, &mut watches).await?,
        None => false,
    };
    let has_member = is_own(&context, &context.member(), watch_member, &mut watches).await?;
    Ok(Verified { has_candidate, has_member, watches })
}

async fn is_own<C: Client, K: Clock>(
    context: &SessionContext<C, K>,
    path: &str,
    watch: bool,
    watches: &mut Vec<C::Watch>,
) -> Result<bool, SessionError> {
    let stat = if watch {
        let (stat, watch) = context.line()?.stat_and_watch(path).await.at(path)?;
        watches.push(watch);
        stat
    } else {
        context.line()?.stat(path).await.at(path)?
    };
    Ok(stat.is_some_and(|stat| stat.ephemeral_owner == context.me.owner))
}

/// Gives the place up.
pub async fn withdraw<C: Client, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
) -> Result<(), SessionError> {
    remove(&context, &candidate.0).await
}

/// Removes every own candidate, also one that an unclear create may have left.
pub async fn clear<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<(), SessionError> {
    settle(&context).await?;
    let place = find_own(&context).await?;
    match place.ours {
        Some(ours) => remove(&context, &ours).await,
        None => Ok(()),
    }
}

/// Removes all own entries in one multi: those known, and those that an unclear create may have left.
pub async fn leave<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<(), SessionError> {
    let mut names = context::children(context.line()?, paths::LEADER).await?;
    names.retain(|name| name.starts_with(&context.me.prefix));
    context.remove_entries(names, &[context.me.owner]).await
}

/// Reads the queue and the members, for the log and for status.
pub async fn survey<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Survey, SessionError> {
    let place = queue::place(&read_order(&context).await?, &context.me.prefix);
    let has_candidate = place.ours.is_some();
    let behind = match (place.ours, place.predecessor) {
        (Some(ours), Some(predecessor)) => {
            let node = context.node_of(&predecessor).await?;
            Some(behind(&context, CandidateName(ours), predecessor, node, place.first).await?)
        }
        _ => None,
    };
    let (members, damaged) = snapshot::members(context.line()?).await?;
    let path = context.member();
    // Not judged by what it says: that may have been overwritten.
    let own = context.line()?.stat(&path).await.at(&path)?;
    let has_member = own.is_some_and(|stat| stat.ephemeral_owner == context.me.owner);
    Ok(Survey { behind, has_candidate, has_member, members, damaged })
}

#[cfg(test)]
mod tests;
