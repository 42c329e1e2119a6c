//! What is placed on this node: the bell of its offers, and the records of the runs that are offered.
//!
//! A look sets the watch first and then reads. A watch that fires carries no data; it only makes the node look again, as
//! a reconnect and each survey do. Records that were read a moment ago are not read again for each further offer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;

use super::futures::{BoxFuture, fired, under_way};
use crate::paths;
use crate::recipes::bounded;
use crate::recipes::context::{At as _, SessionContext, SessionError};
use crate::recipes::damage::Damage;
use crate::recipes::snapshot;
use crate::tree::{AtVersion, Error, Life, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::ledger::Event;
use cronkeeper_core::log;
use cronkeeper_core::run::{RunId, RunRecord, RunState, Version};
use cronkeeper_core::suggest::counted;

/// Time before a look that failed is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// A record that was read so recently is not read again at once.
const FRESH: Duration = Duration::from_secs(1);
/// Most runs that a look reads: more than a leader has open on a node. Whoever makes more offers by hand has them read one
/// look after the other, what is new first.
const MOST: usize = 1_000;
/// An offer is removed if its run has not been placed here for this long: nobody has made it with a run, or the commit
/// that was to remove it was lost.
const BARE: Duration = Duration::from_secs(10);
/// Most of those that a look removes.
const MOST_REMOVED: usize = 500;
/// Most damaged names that a look reports.
const MOST_DAMAGED: usize = 20;

/// What a look has found.
pub(super) struct Look {
    listed: BTreeSet<RunId>,
    found: Vec<(RunRecord, Version)>,
    damaged: Vec<Damage>,
    /// Those of the listed runs that were not read, because that was done a moment before.
    passed_over: BTreeSet<RunId>,
    /// Those whose runs, as read, are not placed on this node.
    bare: BTreeSet<RunId>,
    /// Resolves when an offer was added; absent if there is a watch already.
    changed: Option<BoxFuture<()>>,
}

/// The end of a wait.
pub(super) enum OffersEvent {
    /// An offer may have been added.
    Changed,
    Looked(Result<Look, SessionError>),
}

/// The offers of this node, under one session.
pub(super) struct Offers {
    /// When the next look is due, if one is.
    at: Option<Uptime>,
    looking: Option<BoxFuture<Result<Look, SessionError>>>,
    watch: Option<BoxFuture<()>>,
    /// The listed runs whose records were looked for, and when.
    read: BTreeMap<RunId, Uptime>,
    /// Those of them that are not placed here, and since when.
    bare: BTreeMap<RunId, Uptime>,
    /// What was reported last; absent until the session's first report.
    reported: Option<BTreeSet<RunId>>,
}

impl Offers {
    pub fn new() -> Self {
        Self {
            at: Some(Uptime::ZERO),
            looking: None,
            watch: None,
            read: BTreeMap::new(),
            bare: BTreeMap::new(),
            reported: None,
        }
    }

    /// Waits for the end of a look, or until the bell rings. Cancellation safe: the awaited futures are kept.
    pub async fn next(&mut self) -> OffersEvent {
        // Cancellation safe: see above.
        tokio::select! {
            biased;
            looked = under_way(self.looking.as_mut()) => OffersEvent::Looked(looked),
            () = under_way(self.watch.as_mut()) => OffersEvent::Changed,
        }
    }

    /// When the next look is due: once the member exists.
    pub fn at(&self, is_member: bool) -> Option<Uptime> {
        self.at.filter(|_| is_member && self.looking.is_none())
    }

    /// Looks at this instant, or earlier if that was due.
    pub fn look_at(&mut self, at: Uptime) {
        self.at = Some(self.at.map_or(at, |due| due.min(at)));
    }

    /// Looks at this instant, and reports what is found even if it was reported before: the service may have lost something.
    pub fn look_again(&mut self, now: Uptime) {
        self.reported = None;
        self.look_at(now);
    }

    /// The bell has rung.
    pub fn changed(&mut self, now: Uptime) {
        self.watch = None;
        self.look_at(now);
    }

    /// Starts a look if one is due.
    pub fn start<C: Session, K: Clock>(&mut self, now: Uptime, is_member: bool, context: &SessionContext<C, K>) {
        if self.at(is_member).is_none_or(|at| now < at) {
            return;
        }
        self.at = None;
        let known = Known {
            read: self.read.clone(),
            now,
            bare: self.bare.iter().filter(|(_, since)| **since + BARE <= now).map(|(run, _)| run.clone()).collect(),
        };
        self.looking = Some(Box::pin(look(context.clone(), known, self.watch.is_none())));
    }

    /// Takes the result of a look. Returns what to report, if anything, and what is damaged.
    ///
    /// # Errors
    /// If the look failed, and will be repeated soon.
    pub fn looked(
        &mut self,
        looked: Result<Look, SessionError>,
        now: Uptime,
    ) -> Result<(Option<Event>, Vec<Damage>), SessionError> {
        self.looking = None;
        let Look { listed, found, damaged, passed_over, bare, changed } =
            looked.inspect_err(|_| self.look_at(now + PAUSE))?;
        self.watch = self.watch.take().or(changed);
        self.read.retain(|run, _| listed.contains(run));
        self.read.extend(listed.difference(&passed_over).map(|run| (run.clone(), now)));
        self.bare.retain(|run, _| bare.contains(run) || passed_over.contains(run));
        bare.into_iter().for_each(|run| _ = self.bare.entry(run).or_insert(now));
        // One that was passed over may be another attempt by now; or there was no room for it.
        let next = passed_over.iter().map(|run| self.read.get(run).map_or(now, |read| *read + FRESH));
        next.max().into_iter().for_each(|at| self.look_at(at));
        let is_news = !found.is_empty() || self.reported.as_ref() != Some(&listed);
        self.reported = Some(listed.clone());
        Ok((is_news.then_some(Event::Offers { listed, found }), damaged))
    }
}

/// What earlier looks have found.
struct Known {
    /// The runs whose records were looked for, and when.
    read: BTreeMap<RunId, Uptime>,
    now: Uptime,
    /// Not placed here for long enough to remove their offers, unless they are placed now.
    bare: BTreeSet<RunId>,
}

/// Lists the offers, reads the runs among them that were not read a moment ago, and removes those that are long bare.
async fn look<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    known: Known,
    wants_watch: bool,
) -> Result<Look, SessionError> {
    let folder = paths::offers(&context.me.node);
    let line = context.line()?;
    // In this order, so that no offer is missed; all are sent before the first answer.
    let watching = wants_watch.then(|| line.stat_and_watch(&folder));
    let (stat, names) = (line.stat(&folder), line.names(&folder));
    let changed = match watching {
        Some(watching) => Some(fired(watching.await.at(&folder)?.1)),
        None => None,
    };
    if stat.await.at(&folder)?.is_none() {
        // The watch fires for that too, and the node looks again.
        match line.create(&folder, Vec::new(), Life::Lasting).await {
            Ok(_) | Err(Error::Exists) => {}
            Err(error) => return Err(error).at(&folder),
        }
    }
    let names = match names.await {
        Ok(names) => names,
        Err(Error::Missing) => Vec::new(),
        Err(error) => return Err(error).at(&folder),
    };
    let (mut listed, mut damaged) = (BTreeSet::new(), Vec::new());
    for name in names {
        match RunId::parse(&name) {
            Ok(run) => _ = listed.insert(run),
            Err(bad) if damaged.len() < MOST_DAMAGED => damaged.push(Damage::new(paths::under(&folder, &name), bad)),
            Err(_) => {}
        }
    }
    let is_fresh = |run: &RunId| known.read.get(run).is_some_and(|read| *read + FRESH > known.now);
    let mut unread: Vec<&RunId> = listed.iter().filter(|run| !is_fresh(run)).collect();
    // What is new comes first, then what was read longest ago.
    unread.sort_by_key(|run| known.read.get(*run));
    unread.truncate(MOST);
    let runs = unread.iter().map(|run| paths::running(run)).collect();
    let (mut found, mut bare) = (Vec::new(), BTreeSet::new());
    for (run, read) in unread.iter().zip(bounded::get(context.line()?, runs, bounded::RUNS).await.at(paths::RUNNING)?) {
        match read {
            // What cannot be parsed is reported by the leader, which reads all runs.
            Ok((data, stat)) => {
                let Ok((record, version)) = snapshot::run_record(&run.to_string(), &data, &stat) else { continue };
                if record.state != RunState::Placed || record.owner.node != context.me.node {
                    bare.insert((*run).clone());
                }
                found.push((record, version));
            }
            Err(Error::Missing) => _ = bare.insert((*run).clone()),
            Err(error) if error.is_of_path() => {}
            Err(error) => return Err(error).at(&paths::running(run)),
        }
    }
    let read: BTreeSet<&RunId> = unread.into_iter().collect();
    let passed_over = listed.iter().filter(|run| !read.contains(run)).cloned().collect();
    let long_bare: Vec<&RunId> = bare.intersection(&known.bare).take(MOST_REMOVED).collect();
    remove_bare(line, &folder, &long_bare).await?;
    Ok(Look { listed, found, damaged, passed_over, bare, changed })
}

/// Removes offers of runs that are not placed here. Should one be placed at this moment, the leader sees that its offer is
/// gone, and makes it again.
async fn remove_bare<S: Session>(line: &S, folder: &str, bare: &[&RunId]) -> Result<(), SessionError> {
    let offers: Vec<String> = bare.iter().map(|run| paths::under(folder, &run.to_string())).collect();
    for removed in join_all(offers.iter().map(|path| line.delete(path, AtVersion::Any))).await {
        match removed {
            Ok(()) | Err(Error::Missing) => {}
            Err(error) => return Err(error).at(folder),
        }
    }
    if let Some(path) = offers.first() {
        let removed = counted(offers.len(), "offer");
        log!(COORDINATION_REPAIRED, path, "removed {removed} of runs that are not placed on this node");
    }
    Ok(())
}
