//! Operations on a node's place in the queue: join, check the predecessor, open a term, withdraw.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join3, try_join};
use jiff::Timestamp;

use super::bounded;
use super::context::{self, At as _, SessionContext, SessionError};
use super::damage::Damage;
use super::snapshot;
use super::strays::{self, Strays, StraysFound};
use crate::paths;
use crate::queue::{self, QueuePosition};
use crate::tree::{AtVersion, Error, Life, Op, Record, Session, Stat};
use cronkeeper_core::clock::server::ServerTime;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{self, Member, Place};
use cronkeeper_core::ledger::Snapshot;
use cronkeeper_core::term::{CandidateName, FencingToken, NodeName, SessionId};

/// This node's position in the queue.
pub enum Look<W> {
    /// This node's candidate is first.
    First(CandidateName),
    /// Another candidate precedes it: with a watch on that one, and what is wrong with those ahead.
    Behind(Behind, W, Vec<Damage>),
    /// This node has no candidate in the queue.
    Gone,
}

/// The candidates ahead of this node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// This node's candidate.
    pub candidate: CandidateName,
    /// The candidate just ahead of it.
    pub predecessor: CandidateName,
    /// Absent if the predecessor is not cronkeeper's or cannot be read.
    pub predecessor_node: Option<NodeName>,
    /// The first candidate.
    pub first: CandidateName,
    /// The node of the first candidate; absent on the same conditions.
    pub first_node: Option<NodeName>,
    /// The node of the first candidate has opened a term with it.
    pub leads: bool,
}

impl Behind {
    /// The leader: the node of the first candidate, once it has opened a term.
    pub fn leader_node(&self) -> Option<&NodeName> {
        self.first_node.as_ref().filter(|_| self.leads)
    }
}

/// Proof that the session of the first node in the queue is alive, and hence that nobody else leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Its lease: the opening write follows the start of the term, and nothing waits for its answer.
    Lease,
    /// The opening write, which must be acknowledged before the term begins.
    Write,
}

/// A term's opening write, acknowledged by a quorum.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Read just before the write was handed over.
    pub sent: Uptime,
    /// The servers' time of the write, if they have stated one.
    pub time: Option<ServerTime>,
}

/// A term as opened in the ledger.
pub struct Opened<W> {
    /// The transaction that created the candidate.
    pub token: FencingToken,
    /// The opening write, if the term needed it as proof.
    pub written: Option<Written>,
    /// The ledger, as all former terms left it.
    pub snapshot: Box<Snapshot>,
    /// Parts of the ledger that could not be read.
    pub damaged: Vec<Damage>,
    /// Watches on this node's candidate and member.
    pub watches: Vec<W>,
}

impl<W> Opened<W> {
    /// True if the jobs or the runs could not even be listed.
    pub fn is_blind(&self) -> bool {
        self.damaged.iter().any(|damage| [paths::JOBS, paths::RUNNING].contains(&damage.path.as_str()))
    }
}

/// Which of this node's own entries still exist.
pub struct Verified<W> {
    /// The candidate exists and belongs to this session.
    pub has_candidate: bool,
    /// It is a leader's, and another candidate precedes it.
    pub is_preceded: bool,
    /// The member exists and belongs to this session.
    pub has_member: bool,
    /// The watches that were requested.
    pub watches: Vec<W>,
}

/// The queue, as read without a watch.
pub struct Ahead {
    /// The candidates ahead of this node's own, if there are any.
    pub behind: Option<Behind>,
    /// What is wrong with those.
    pub damaged: Vec<Damage>,
    /// False if this node's candidate was not found.
    pub has_candidate: bool,
    /// The leader, read only for a node that never has a candidate.
    pub leader: Option<NodeName>,
}

/// The queue and the members, as read from time to time.
pub struct Survey<W> {
    pub ahead: Ahead,
    /// False if this node's member was not found.
    pub has_member: bool,
    /// The nodes that are alive.
    pub members: Vec<Member>,
    /// Members that cannot be read.
    pub damaged: Vec<Damage>,
    /// Fires when a member has come or gone; absent unless it was asked for.
    pub changed: Option<W>,
    /// The places to run jobs; absent unless they were asked for.
    pub places: Option<PlacesRead<W>>,
    /// What is in the folder of the runs and is not a run; absent unless it was asked for.
    pub strays: Option<StraysFound>,
    /// Those that are not alive any more because their daemons were asked to stop.
    pub stopped: Vec<NodeName>,
    /// False if the opening write of the term is gone; true also unless it was asked for.
    pub is_opened: bool,
}

/// The places to run jobs, as a leader reads them.
pub struct PlacesRead<W> {
    pub places: BTreeMap<NodeName, Place>,
    /// Those that cannot be read.
    pub damaged: Vec<Damage>,
    /// Fires when one of them has changed; absent unless it was asked for.
    pub changed: Option<W>,
}

impl<W> PlacesRead<W> {
    /// The nodes that have a place, readable or not; unknown if the places cannot be listed.
    pub fn nodes(&self) -> Option<BTreeSet<NodeName>> {
        let is_listed = self.damaged.iter().all(|damage| damage.path != paths::PLACES);
        let unread = self.damaged.iter().filter_map(|damage| NodeName::parse(paths::name(&damage.path)).ok());
        is_listed.then(|| self.places.keys().cloned().chain(unread).collect())
    }
}

/// What a survey reads and watches besides the queue and the members.
#[derive(Debug, Default)]
pub struct Surveyed {
    /// Which members there are is watched.
    pub watches_members: bool,
    pub places: bool,
    pub watches_places: bool,
    /// Who leads is read although this node has no candidate, because it never has one.
    pub observes: bool,
    /// The runs are looked at by a leader, which knows this of them.
    pub strays: Option<Strays>,
    /// The nodes that were alive at the last reading, and when their processes had started.
    pub alive: BTreeMap<NodeName, Timestamp>,
    /// Checks that the opening write of this node's term, which has this token, is still there.
    pub opened: Option<FencingToken>,
}

/// Joins the queue.
///
/// After a create without an answer (`is_unclear`), commits a write first: afterwards a listing shows what the create
/// has made.
pub async fn join<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    is_unclear: bool,
) -> Result<CandidateName, SessionError> {
    if is_unclear {
        settle(&context).await?;
        if let Some(ours) = find_own(&context).await?.ours {
            return Ok(CandidateName(ours));
        }
    }
    let data = context.me.candidate_data.clone();
    match context.line()?.append(paths::LEADER, &context.me.prefix, data, Life::OfSession).await {
        Ok((path, _)) => Ok(CandidateName(paths::name(&path).to_owned())),
        Err(Error::Missing) => {
            // Somebody removed the parent with everything in it.
            let _ = context.line()?.create(paths::LEADER, Vec::new(), Life::Lasting).await;
            Err(SessionError::Again(format!("{} was missing", paths::LEADER)))
        }
        Err(error) => Err(error).at(paths::LEADER),
    }
}

/// Commits a write: afterwards every earlier request of this session has been carried out, or never will be.
async fn settle<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<(), SessionError> {
    let member = context.member();
    context.line()?.commit(vec![Op::Check { path: member.clone(), at: AtVersion::Any }]).await.at(&member).map(drop)
}

/// Finds this node's predecessor and watches only that one, so that a removal wakes a single node.
pub async fn look<C: Session, K: Clock>(context: SessionContext<C, K>) -> Result<Look<C::Watch>, SessionError> {
    loop {
        let place = find_own(&context).await?;
        let Some(ours) = place.ours else { return Ok(Look::Gone) };
        let candidate = CandidateName(ours);
        let Some(predecessor) = place.predecessor else { return Ok(Look::First(candidate)) };
        let path = paths::under(paths::LEADER, &predecessor);
        let Some((entry, watch)) = watch_entry(&context, &path).await? else { continue };
        let (behind, damaged) = behind(&context, candidate, predecessor, entry, place.first).await?;
        return Ok(Look::Behind(behind, watch, damaged));
    }
}

/// What is known of an entry ahead.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryAhead {
    /// Absent if it is not cronkeeper's, is gone, or cannot be read.
    node: Option<NodeName>,
    /// It belongs to no session, so that it stays until somebody deletes it.
    lasts: bool,
    /// Absent if it is gone or cannot be read.
    record: Option<Record>,
}

impl EntryAhead {
    pub(super) fn new((data, stat): Record) -> Self {
        let node = context::node_in(&data);
        Self { node, lasts: stat.session.is_none(), record: Some((data, stat)) }
    }

    /// An entry that cannot be read.
    fn unread(stat: &Stat) -> Self {
        Self { lasts: stat.session.is_none(), ..Self::default() }
    }
}

/// The opening write of the last term, empty before the first one; `None` if the folder of the queue is gone.
pub(super) async fn read_opening<C: Session>(client: &C) -> Result<Option<Record>, SessionError> {
    match client.get(paths::LEADER).await {
        Ok(opening) => Ok(Some(opening)),
        Err(Error::Missing) => Ok(None),
        Err(error) => Err(error).at(paths::LEADER),
    }
}

/// True if the last term was opened with this candidate: its opening write is the candidate's data, and newer than the
/// candidate. So a node that dies before its turn has opened none, nor has one for which an earlier candidate did.
fn is_opened_with((data, stat): &Record, opening: &Record) -> bool {
    opening.0 == *data && opening.1.changed > stat.created
}

/// True if the node of the first candidate has opened a term with it. `opening`: the last term's opening write; without
/// one the first candidate counts as opened.
async fn has_opened<C: Session>(
    client: &C,
    candidate: &str,
    entry: &EntryAhead,
    opening: Option<&Record>,
) -> Result<bool, SessionError> {
    let (Some(node), Some(record)) = (&entry.node, &entry.record) else { return Ok(false) };
    if opening.is_none_or(|opening| is_opened_with(record, opening)) {
        return Ok(true);
    }
    let member = paths::member(node);
    match client.get(&member).await {
        Ok((data, _)) => Ok(bounded::NODES.parse::<Member>(&data).is_ok_and(|member| member.has_opened(candidate))),
        Err(error) if error.is_of_path() => Ok(false),
        Err(error) => Err(error).at(&member),
    }
}

/// The leader of a queue with this first entry and this opening write.
pub(super) async fn leader_of<C: Session>(
    client: &C,
    first: &str,
    entry: &EntryAhead,
    opening: Option<&Record>,
) -> Result<Option<NodeName>, SessionError> {
    let leads = has_opened(client, first, entry, opening).await?;
    Ok(entry.node.clone().filter(|_| leads))
}

/// An entry with a watch on it; `None` if it is gone. One that cannot be read is not cronkeeper's.
async fn watch_entry<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    path: &str,
) -> Result<Option<(EntryAhead, C::Watch)>, SessionError> {
    // A read of data leaves no watch behind if the node does not exist; a check for existence would.
    match context.line()?.get_and_watch(path).await {
        Ok((data, stat, watch)) => return Ok(Some((EntryAhead::new((data, stat)), watch))),
        Err(Error::Missing) => return Ok(None),
        Err(error) if error.is_of_path() => {}
        Err(error) => return Err(error).at(path),
    }
    let (stat, watch) = context.line()?.stat_and_watch(path).await.at(path)?;
    Ok(stat.map(|stat| (EntryAhead::unread(&stat), watch)))
}

async fn read_entry<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    name: &str,
) -> Result<EntryAhead, SessionError> {
    let path = paths::under(paths::LEADER, name);
    match context.line()?.get(&path).await {
        Ok(record) => return Ok(EntryAhead::new(record)),
        Err(Error::Missing) => return Ok(EntryAhead::default()),
        Err(error) if error.is_of_path() => {}
        Err(error) => return Err(error).at(&path),
    }
    let stat = context.line()?.stat(&path).await.at(&path)?;
    Ok(stat.map(|stat| EntryAhead::unread(&stat)).unwrap_or_default())
}

/// Who is ahead, and what is wrong with those.
async fn behind<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    candidate: CandidateName,
    predecessor: String,
    entry: EntryAhead,
    first: Option<String>,
) -> Result<(Behind, Vec<Damage>), SessionError> {
    let name = first.unwrap_or_else(|| predecessor.clone());
    let first = async { if name == predecessor { Ok(entry.clone()) } else { read_entry(context, &name).await } };
    let (first, opening) = try_join(first, read_opening(context.line()?)).await?;
    let leads = has_opened(context.line()?, &name, &first, opening.as_ref()).await?;
    let mut damaged: Vec<Damage> = blocking(context, &name, &first)?.into_iter().collect();
    if entry.lasts && name != predecessor {
        let lasts = "it precedes this node in the queue and is not ephemeral: it stays until somebody deletes it";
        damaged.push(Damage::new(paths::under(paths::LEADER, &predecessor), lasts));
    }
    let behind = Behind {
        candidate,
        predecessor: CandidateName(predecessor),
        predecessor_node: entry.node,
        first: CandidateName(name),
        first_node: first.node,
        leads,
    };
    Ok((behind, damaged))
}

/// Finds this node's position in the queue and removes surplus candidates of its own.
async fn find_own<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<QueuePosition, SessionError> {
    let place = queue::place(&read_order(context).await?, &context.me.prefix);
    for surplus in &place.surplus {
        remove(context, surplus).await?;
    }
    Ok(place)
}

async fn read_order<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<String>, SessionError> {
    ordered(context.line()?).await
}

/// The names of the candidates, first to last.
pub async fn ordered<C: Session>(client: &C) -> Result<Vec<String>, SessionError> {
    let names = context::names(client, paths::LEADER).await?;
    client.in_order(paths::LEADER, names).await.at(paths::LEADER)
}

async fn remove<C: Session, K: Clock>(context: &SessionContext<C, K>, candidate: &str) -> Result<(), SessionError> {
    let path = paths::under(paths::LEADER, candidate);
    match context.line()?.delete(&path, AtVersion::Any).await {
        Ok(()) | Err(Error::Missing) => Ok(()),
        Err(error) => Err(error).at(&path),
    }
}

/// Opens a term: reads what former terms left, after the opening write if that is the proof.
///
/// Returns `None` if the own candidate or member is gone.
///
/// This session has read the queue and found its own candidate first. So this server has already carried out the
/// removal of every earlier candidate, and all writes that those guarded: its answers from now on are complete, with or
/// without a write before them. The write proves that the session is alive; a lease that holds proves it too.
pub async fn open<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
    dead: BTreeSet<SessionId>,
    proof: Proof,
    at: OpenAt,
) -> Result<Option<Opened<C::Watch>>, SessionError> {
    let (path, own) = (paths::candidate(&candidate), context.member());
    let line = context.line()?;
    // Send everything before the first answer, because a takeover lasts as long as its round trips. A session's
    // requests are carried out in order, so the reads come after the write. If the write fails, the reads are
    // discarded.
    let writing = (proof == Proof::Write).then(|| send_opening(&context, line, &path, at));
    let (standing, member) = (line.stat_and_watch(&path), line.stat_and_watch(&own));
    let standing = async { Ok((standing.await.at(&path)?, member.await.at(&own)?)) };
    let writing = async {
        match writing {
            Some(writing) => writing.await.map(|written| written.map(Some)),
            None => Ok(Some(None)),
        }
    };
    let (written, standing, snapshot) = join3(writing, standing, snapshot::read_for_takeover(line, &dead)).await;
    let Some(written) = written? else { return Ok(None) };
    let ((stat, candidate_watch), (member, member_watch)) = standing?;
    let (snapshot, damaged) = snapshot?;
    let is_ours = |stat: &Stat| stat.session.as_ref() == Some(&context.me.session);
    let Some(stat) = stat.filter(is_ours) else { return Ok(None) };
    if !member.as_ref().is_some_and(is_ours) {
        return Ok(None);
    }
    let watches = vec![candidate_watch, member_watch];
    Ok(Some(Opened { token: stat.created.token(), written, snapshot: Box::new(snapshot), damaged, watches }))
}

/// The target of a term's opening write, which also checks the own candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenAt {
    /// The parent of the queue, where everybody can see who led last, and whether the first candidate leads.
    Queue,
    /// This node's member, with this data, which names the candidate, if the parent of the queue must not be written.
    Member(Vec<u8>),
}

/// Records who leads, guarded by the own candidate. `None`: the candidate is gone.
pub async fn write_opening<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
    at: OpenAt,
) -> Result<Option<Written>, SessionError> {
    send_opening(&context, context.line()?, &paths::candidate(&candidate), at).await
}

/// Sends the opening write before it returns; the future waits for the answer.
fn send_opening<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    line: &C,
    candidate: &str,
    at: OpenAt,
) -> impl Future<Output = Result<Option<Written>, SessionError>> + Send {
    let (path, data) = match at {
        OpenAt::Queue => (paths::LEADER.to_owned(), context.me.candidate_data.clone()),
        OpenAt::Member(data) => (context.member(), data),
    };
    let ops = vec![context::fence(candidate), Op::Set { path: path.clone(), data, at: AtVersion::Any }];
    let (clock, candidate) = (context.clock.clone(), candidate.to_owned());
    let sent = clock.now().up;
    let multi = line.commit(ops);
    async move {
        match multi.await {
            Ok(done) => Ok(Some(Written { sent, time: done.time(sent, clock.now().up) })),
            Err(failed) => match (failed.index, &failed.error) {
                // A candidate whose rights exclude its own node no longer guards anything: another is needed.
                (Some(0), Error::Missing | Error::Changed | Error::Denied) => Ok(None),
                (Some(0), _) => Err(failed).at(&candidate),
                _ => Err(failed).at(&path),
            },
        }
    }
}

/// Checks that the own entries still exist and belong to this session, and watches them on request. Of a leader also
/// that no candidate precedes its own: the servers may have lost that one was removed.
pub async fn verify<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    candidate: Option<CandidateName>,
    is_leader: bool,
    watch_member: bool,
) -> Result<Verified<C::Watch>, SessionError> {
    let mut watches = Vec::new();
    let has_candidate = match &candidate {
        Some(name) => is_own(&context, &paths::candidate(name), is_leader, &mut watches).await?,
        None => false,
    };
    let has_member = is_own(&context, &context.member(), watch_member, &mut watches).await?;
    let is_preceded = is_leader && has_candidate && {
        match read_order(&context).await {
            Ok(order) => order.first() != candidate.as_ref().map(|candidate| &candidate.0),
            Err(SessionError::NoAuth(_)) => false,
            Err(error) => return Err(error),
        }
    };
    Ok(Verified { has_candidate, is_preceded, has_member, watches })
}

async fn is_own<C: Session, K: Clock>(
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
    Ok(stat.is_some_and(|stat| stat.session.as_ref() == Some(&context.me.session)))
}

/// Leaves the queue.
pub async fn withdraw<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    candidate: CandidateName,
) -> Result<(), SessionError> {
    remove(&context, &candidate.0).await
}

/// Removes this node's candidate, also one that a create without an answer may have left.
pub async fn clear<C: Session, K: Clock>(context: SessionContext<C, K>) -> Result<(), SessionError> {
    settle(&context).await?;
    let place = find_own(&context).await?;
    match place.ours {
        Some(ours) => remove(&context, &ours).await,
        None => Ok(()),
    }
}

/// Removes the member and all candidates of this session in one multi, also those that a create without an answer may
/// have left. `stopped`: the same multi writes this to the record of the node's place, if it has one, so that nobody who
/// misses the member takes the node for dead.
pub async fn leave<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    stopped: Option<Place>,
) -> Result<(), SessionError> {
    let mut names = context::names(context.line()?, paths::LEADER).await?;
    names.retain(|name| name.starts_with(&context.me.prefix));
    let removals = context.removals(names, std::slice::from_ref(&context.me.session)).await?;
    if removals.is_empty() {
        return Ok(());
    }
    if let Some(stopped) = stopped {
        let path = paths::place(&context.me.node);
        let set = Op::Set { path, data: context::json(&stopped), at: AtVersion::Any };
        match context.line()?.commit(removals.iter().cloned().chain([set]).collect()).await {
            // That it leaves counts for more than that others know why.
            Err(failed) if failed.error.is_of_path() => {}
            done => return done.at(&context.member()).map(drop),
        }
    }
    context.line()?.commit(removals).await.at(&context.member()).map(drop)
}

/// Reads the queue and the members, for the log and for status, and on request the places to run jobs and the runs.
/// Watches on request.
pub async fn survey<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    wanted: Surveyed,
) -> Result<Survey<C::Watch>, SessionError> {
    let ahead = if wanted.observes { observe(&context).await? } else { read_ahead(&context).await? };
    // The watch comes first, so that it fires for whatever the reading has missed.
    let changed = if wanted.watches_members { watch_members(context.line()?).await? } else { None };
    let places = if wanted.places { Some(read_places(&context, wanted.watches_places).await?) } else { None };
    let strays = match wanted.strays {
        Some(known) => Some(strays::look(context.line()?, known).await?),
        None => None,
    };
    let (members, damaged) = snapshot::members(context.line()?).await?;
    let stopped = find_stopped(context.line()?, wanted.alive, &members).await?;
    let path = context.member();
    // Compare sessions only: the member's data may have been overwritten.
    let own = context.line()?.stat(&path).await.at(&path)?;
    let has_member = own.is_some_and(|stat| stat.session.as_ref() == Some(&context.me.session));
    // The servers may have lost it, or somebody may have written something else.
    let is_opened = match wanted.opened {
        Some(token) => {
            let is_own = |(data, stat): Record| data == context.me.candidate_data && stat.changed.token() > token;
            read_opening(context.line()?).await?.is_none_or(is_own)
        }
        None => true,
    };
    Ok(Survey { ahead, has_member, members, damaged, changed, places, strays, stopped, is_opened })
}

/// Those of the nodes that were alive, and are not any more, which left because they were asked to stop. Whoever leaves
/// writes so in the commit that removes its member, so it can be read once the member is gone.
async fn find_stopped<C: Session>(
    client: &C,
    mut were_alive: BTreeMap<NodeName, Timestamp>,
    members: &[Member],
) -> Result<Vec<NodeName>, SessionError> {
    for member in members {
        were_alive.remove(&member.node);
    }
    if were_alive.is_empty() {
        return Ok(Vec::new());
    }
    let names = were_alive.keys().map(NodeName::to_string).collect();
    let found = context::get_small(client, paths::PLACES, names).await?.found;
    let places: BTreeMap<&str, &[u8]> = found.iter().map(|(name, data, _)| (name.as_str(), &data[..])).collect();
    were_alive.retain(|node, started_at| {
        let place = places.get(node.as_str()).and_then(|data| bounded::NODES.parse::<Place>(data).ok());
        place.is_some_and(|place| place.was_stopped(*started_at))
    });
    Ok(were_alive.into_keys().collect())
}

async fn read_places<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    watches: bool,
) -> Result<PlacesRead<C::Watch>, SessionError> {
    let watch =
        if watches { Some(context.line()?.stat_and_watch(paths::PLACES).await.at(paths::PLACES)?.1) } else { None };
    let (places, damaged) = snapshot::places(context.line()?).await?;
    Ok(PlacesRead { places, damaged, changed: watch })
}

async fn read_ahead<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<Ahead, SessionError> {
    let place = queue::place(&read_order(context).await?, &context.me.prefix);
    let has_candidate = place.ours.is_some();
    let (Some(ours), Some(predecessor)) = (place.ours, place.predecessor) else {
        return Ok(Ahead { behind: None, damaged: Vec::new(), has_candidate, leader: None });
    };
    let entry = read_entry(context, &predecessor).await?;
    let (behind, damaged) = behind(context, CandidateName(ours), predecessor, entry, place.first).await?;
    Ok(Ahead { behind: Some(behind), damaged, has_candidate, leader: None })
}

/// Who leads, for a node without a candidate.
async fn observe<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<Ahead, SessionError> {
    let mut ahead = Ahead { behind: None, damaged: Vec::new(), has_candidate: false, leader: None };
    if let Some(name) = read_order(context).await?.into_iter().next() {
        let (entry, opening) = try_join(read_entry(context, &name), read_opening(context.line()?)).await?;
        ahead.damaged.extend(blocking(context, &name, &entry)?);
        ahead.leader = leader_of(context.line()?, &name, &entry, opening.as_ref()).await?;
    }
    Ok(ahead)
}

/// What is wrong with the first entry of the queue if it stays there forever.
fn blocking<C: Session, K: Clock>(
    context: &SessionContext<C, K>,
    name: &str,
    entry: &EntryAhead,
) -> Result<Option<Damage>, SessionError> {
    if !entry.lasts {
        return Ok(None);
    }
    let path = paths::under(paths::LEADER, name);
    let removal = context.line()?.removal(&path);
    Ok(Some(Damage::to_delete(path, election::BLOCKED, removal)))
}

/// Who is ahead now. `leads`: the node of the first candidate led when that was last read; then `None` if the candidate
/// is still there. Does not watch that one, because its end would wake the whole queue.
pub async fn look_for_first<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    first: CandidateName,
    leads: bool,
) -> Result<Option<Ahead>, SessionError> {
    let path = paths::candidate(&first);
    if leads && context.line()?.stat(&path).await.at(&path)?.is_some() {
        return Ok(None);
    }
    read_ahead(&context).await.map(Some)
}

/// A watch on which members there are; none if the server refuses it, since they are read from time to time anyway.
async fn watch_members<C: Session>(client: &C) -> Result<Option<C::Watch>, SessionError> {
    match client.names_and_watch(paths::NODES).await {
        Ok((_, watch)) => Ok(Some(watch)),
        Err(error) if error.is_of_path() => Ok(None),
        Err(error) => Err(error).at(paths::NODES),
    }
}

#[cfg(test)]
mod tests;
