//! Invariant: every job that runs after others gets a link for each of their ends, and every link is used.
//!
//! Links lead to one run, not before the ends of all upstreams, or to a skip with a reason; no link is left at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{JobName, JobSet};
use cronkeeper_core::run::{HistoryRecord, Link, Note, RunId, RunRecord};

use super::super::facts::Fact;
use super::super::jobs;
use super::{Invariant, below, history_record, ops, written};
use crate::ledger::txn::Txn;

const TRIGGERS: &str = "/cronkeeper/triggers";
const RUNNING: &str = "/cronkeeper/running";

/// The leader waits a minute for a link that can no longer arrive; the rest is for what leads to that.
const LONGEST: Duration = Duration::from_secs(90);

pub struct ChainsGoOn {
    sets: [&'static JobSet; 2],
    /// The waiting links, by the name of their znode, and since when they wait.
    links: BTreeMap<String, (Link, Uptime)>,
    begun: BTreeSet<String>,
    now: Uptime,
}

impl Default for ChainsGoOn {
    fn default() -> Self {
        Self { sets: jobs::sets(), links: BTreeMap::new(), begun: BTreeSet::new(), now: Uptime::ZERO }
    }
}

impl ChainsGoOn {
    /// The links that this write creates.
    fn left(&mut self, txn: &Txn, touched: &[String]) -> Vec<Link> {
        let is_gone = |name: &str| {
            ops(txn).iter().any(|op| matches!(op, Op::Delete { path, .. } if below(path, TRIGGERS) == Some(name)))
        };
        let mut names = touched.iter().filter_map(|path| below(path, TRIGGERS)).filter(|name| !is_gone(name));
        let mut left = Vec::new();
        for op in ops(txn) {
            let Op::Create { path, data, .. } = op else { continue };
            if path.strip_prefix(TRIGGERS).is_none() {
                continue;
            }
            let name = names.find(|name| !self.links.contains_key(*name));
            if let (Some(name), Ok(Note::Link(link))) = (name, Note::read(data)) {
                self.links.insert(name.to_owned(), (link.clone(), self.now));
                left.push(link);
            }
        }
        left
    }

    /// The links that this write removes.
    fn taken(&mut self, txn: &Txn) -> Vec<Link> {
        let names = ops(txn).iter().filter_map(|op| match op {
            Op::Delete { path, .. } => below(path, TRIGGERS),
            _ => None,
        });
        names.filter_map(|name| Some(self.links.remove(name)?.0)).collect()
    }

    /// Checks that there is a link only for a run that has ended, and one for every dependent.
    fn links_of_ends(&self, txn: &Txn, left: &[Link]) -> Result<(), String> {
        let ended: Vec<HistoryRecord> = ops(txn).iter().filter_map(history_record).collect();
        for link in left {
            let upstream = link.run().of(link.upstream.clone());
            if !ended.iter().any(|record| covers(record, &upstream)) {
                return Err(format!("`{}` has a link of `{upstream}`, which has not ended", link.run()));
            }
        }
        for record in &ended {
            let HistoryRecord::Run(end) = record else { continue };
            let id = end.run.id();
            for job in &end.run.dependents {
                let is_its_link = |link: &Link| link.upstream == end.run.job && link.run() == id.of(job.clone());
                if ends(txn, &id) && !left.iter().any(is_its_link) {
                    return Err(format!("`{id}` has ended, and `{job}` has no link of it"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the removed links lead to a run or a reason.
    fn answered(&self, txn: &Txn, taken: &[Link]) -> Result<(), String> {
        for link in taken {
            let run = link.run();
            let is_begun = self.begun.contains(&run.to_string()) || begun(txn).any(|(id, _)| id == run.to_string());
            let path = format!("/cronkeeper/history/{}/{run}", run.job());
            let is_skipped = ops(txn).iter().any(|op| match op {
                Op::Create { path: at, .. } | Op::Set { path: at, .. } | Op::Check { path: at, .. } => *at == path,
                Op::Delete { .. } => false,
            });
            if !is_begun && !is_skipped {
                return Err(format!("what `{run}` waited with vanished"));
            }
        }
        Ok(())
    }

    /// Checks that a run that replaces links has a link of each upstream.
    fn rests_on(&self, run: &RunRecord, taken: &[Link]) -> Result<(), String> {
        let id = run.id();
        let said: BTreeSet<&JobName> =
            taken.iter().filter(|link| link.run() == id).map(|link| &link.upstream).collect();
        let definitions = self.sets.iter().filter_map(|set| set.jobs.get(&run.job)?.upstreams());
        let mut upstreams = definitions.map(|upstreams| upstreams.keys().collect::<BTreeSet<_>>());
        let is_after_others = upstreams.clone().next().is_some();
        let is_triggered = run.trigger.is_some() && said.is_empty();
        if is_after_others && !is_triggered && !upstreams.any(|upstreams| upstreams.is_subset(&said)) {
            return Err(format!("`{id}` was begun before all that it runs after had ended: {said:?}"));
        }
        Ok(())
    }
}

/// True if the record says how the run ended.
fn covers(record: &HistoryRecord, run: &RunId) -> bool {
    match record {
        HistoryRecord::Run(end) => end.run.id() == *run,
        HistoryRecord::Skip(skip) => {
            let at = run.scheduled_at();
            skip.job == *run.job() && skip.first <= at && at <= skip.last
        }
    }
}

fn begun(txn: &Txn) -> impl Iterator<Item = (String, RunRecord)> {
    let creates = ops(txn).iter().filter(|op| matches!(op, Op::Create { .. }));
    let records = creates.filter_map(|op| written(op, RUNNING));
    records.filter_map(|(id, data)| Some((id.to_owned(), serde_json::from_slice(data).ok()?)))
}

fn ends(txn: &Txn, run: &RunId) -> bool {
    let path = format!("{RUNNING}/{run}");
    ops(txn).iter().any(|op| matches!(op, Op::Delete { path: at, .. } if *at == path))
}

impl Invariant for ChainsGoOn {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        self.now = self.now.max(at);
        let Fact::Committed { txn, touched } = fact else { return Ok(()) };
        let taken = self.taken(txn);
        let left = self.left(txn, touched);
        self.links_of_ends(txn, &left)?;
        self.answered(txn, &taken)?;
        for (id, run) in begun(txn) {
            self.rests_on(&run, &taken)?;
            if !self.begun.insert(id.clone()) {
                return Err(format!("`{id}` was begun a second time"));
            }
        }
        Ok(())
    }

    fn conclude(&mut self) -> Result<(), String> {
        let old = self.links.values().find(|(_, since)| self.now.since(*since) > LONGEST);
        old.map_or(Ok(()), |(link, since)| Err(format!("in peace `{}` waits since {since:?}: {link:?}", link.run())))
    }
}
