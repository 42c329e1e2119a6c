//! Requests of operators, written on sessions lent to people.
//!
//! A write that is not answered is written again once the connection is back: a second pause is harmless. Before a
//! trigger is written, its uuid is searched; if the server lags behind and does not find the first one, the leader
//! recognizes the duplicate. If the fate of a request stays unknown, its error says so, and the caller may send it again.

mod many;
mod recount;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{BoxFuture, select_all};
use futures_util::{FutureExt as _, join};
use uuid::Uuid;

use super::bounded;
use super::context::{self, At as _, SessionError, json};
use super::{LedgerReader, requests, snapshot, wanted};
use crate::paths;
use crate::tree::{CommitError, Committed, Error, Lend, Life, Op, Session, Watch};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{ControlEntry, Each, Followed, ForgetNode, Operator, OperatorError, OperatorFuture};
use cronkeeper_core::run::{
    ControlRecord, Drain, HandoverRequest, HistoryRecord, JobRecord, KillRequest, NodeControl, NotRecounted, Pause,
    RecountRequest, Recounted, Resume, RunId, RunRecord, RunState, TriggerRecord, TriggerSeq, Version,
};
use cronkeeper_core::term::NodeName;

/// Most tries of a write whose base others keep changing, or that is not answered. That is enough for a job that is
/// decided on every second.
const TRIES: usize = 100;

impl<L: Lend> Operator for LedgerReader<L> {
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> OperatorFuture<'_, Option<Pause>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.paused(&job, id, &pause, None, &doubt).await)
        })
    }

    fn pause_all(&self, jobs: Vec<(JobName, Uuid)>, pause: Pause) -> OperatorFuture<'_, Each<Option<Pause>>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.paused_all(&jobs, &pause, &doubt).await)
        })
    }

    fn pauses(&self) -> OperatorFuture<'_, BTreeMap<JobName, ControlEntry>> {
        Box::pin(async move { read(async { requests::pauses(&self.line().await?).await }.await) })
    }

    fn request_resumes(&self, jobs: Vec<JobName>, resume: Resume) -> OperatorFuture<'_, Each<Option<Uuid>>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.resumes_requested(&jobs, &resume, &doubt).await)
        })
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.resume_requested(&job, &resume, None, &doubt).await)
        })
    }

    fn resumed(&self, job: JobName, pause: Uuid) -> OperatorFuture<'_, ()> {
        Box::pin(async move { read(self.gone(&job, pause).await) })
    }

    fn recount(&self, job: JobName, request: RecountRequest) -> OperatorFuture<'_, Result<Recounted, NotRecounted>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.recounted(&job, &request, &doubt).await)
        })
    }

    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.requested(request, &doubt).await)
        })
    }

    fn triggered(&self, job: JobName, uuid: Uuid) -> OperatorFuture<'_, Option<RunId>> {
        Box::pin(async move { read(async { known(&self.line().await?, &job, uuid).await }.await) })
    }

    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.killed(&run, request, &doubt).await)
        })
    }

    fn drain(&self, node: NodeName, drain: Drain) -> OperatorFuture<'_, Option<Drain>> {
        Box::pin(async move {
            let was = self.wanted(&node, |control| NodeControl { drained: Some(drain.clone()), ..control });
            was.await.map(|was| was.drained)
        })
    }

    fn undrain(&self, node: NodeName) -> OperatorFuture<'_, Option<Drain>> {
        Box::pin(async move {
            // A handover that was requested earlier is no longer wanted either.
            self.wanted(&node, |_| NodeControl::default()).await.map(|was| was.drained)
        })
    }

    fn forget_node(&self, node: NodeName) -> OperatorFuture<'_, ForgetNode> {
        Box::pin(async move {
            let doubt = Doubt::default();
            doubt.judge(self.forgotten(&node, &doubt).await)
        })
    }

    fn request_handover(&self, node: NodeName, request: HandoverRequest) -> OperatorFuture<'_, ()> {
        Box::pin(async move {
            let was = self.wanted(&node, |control| NodeControl { handover: Some(request.clone()), ..control });
            was.await.map(drop)
        })
    }

    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed> {
        Box::pin(async move { read(self.ended(&run).await) })
    }
}

/// How many writes of a request may have been carried out.
#[derive(Debug, Default)]
struct Doubt(AtomicUsize);

/// What became of a write.
enum Written {
    Done(Committed),
    /// Another writer changed what it depends on: nothing was written.
    Superseded,
    /// It may have been carried out, or may be later.
    Unanswered,
}

impl Doubt {
    fn judge<T>(&self, result: Result<T, SessionError>) -> Result<T, OperatorError> {
        result.map_err(|error| match self.0.load(Ordering::Relaxed) {
            0 => OperatorError::Unwritten(error.to_string()),
            _ => OperatorError::Unclear(error.to_string()),
        })
    }

    /// Carries out a write. If the future is dropped, the doubt stays.
    async fn write<C: Session>(&self, client: &C, ops: Vec<Op>, path: &str) -> Result<Written, SessionError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let failed = match client.commit(ops).await {
            Ok(done) => return Ok(Written::Done(done)),
            Err(CommitError { error: Error::Unanswered(_) | Error::SessionOver, .. }) => {
                return Ok(Written::Unanswered);
            }
            Err(failed) => failed,
        };
        self.0.fetch_sub(1, Ordering::Relaxed);
        match failed.error {
            Error::Changed | Error::Exists | Error::Missing => Ok(Written::Superseded),
            _ => Err(failed).at(path),
        }
    }
}

impl<L: Lend> LedgerReader<L> {
    /// Writes the job's record unchanged along with the pause. Its new version rejects whatever a leader has in flight
    /// for the job. `tried`: an earlier try was not answered; what it would have replaced.
    async fn paused(
        &self,
        job: &JobName,
        id: Uuid,
        pause: &Pause,
        mut tried: Option<Option<Pause>>,
        doubt: &Doubt,
    ) -> Result<Option<Pause>, SessionError> {
        for _ in 0..TRIES {
            let client = self.line().await?;
            let (record, control) = join!(client.get(&paths::job(job)), requests::control(&client, job));
            let (control, was) = put_pause(job, id, pause, control?);
            match tried {
                Some(before) if was.as_ref() == Some(pause) => return Ok(before),
                Some(before) if was != before => return Err(overtaken()),
                Some(_) | None => {}
            }
            let touch = match record {
                Ok((data, stat)) => touch(job, id, Some((data, stat.version))),
                Err(Error::Missing) => touch(job, id, None),
                Err(error) => return Err(error).at(&paths::job(job)),
            };
            let ops = vec![control, touch, requests::notify_leader(paths::CONTROL)];
            tried = match doubt.write(&client, ops, &paths::control(job)).await? {
                Written::Done(_) => return Ok(was),
                Written::Superseded => None,
                Written::Unanswered => Some(was),
            };
        }
        Err(busy())
    }

    /// `tried`: an earlier try was not answered; the pause that it would have ended, and its version.
    async fn resume_requested(
        &self,
        job: &JobName,
        resume: &Resume,
        mut tried: Option<(Uuid, Version)>,
        doubt: &Doubt,
    ) -> Result<Option<Uuid>, SessionError> {
        for _ in 0..TRIES {
            let client = self.line().await?;
            let Some(entry) = requests::control(&client, job).await? else { return Ok(tried.map(|(id, _)| id)) };
            let found = (entry.record.id, entry.version);
            match tried {
                Some((id, _)) if found.0 == id && entry.record.resume.as_ref() == Some(resume) => return Ok(Some(id)),
                Some(tried) if tried != found => return Err(overtaken()),
                Some(_) | None => {}
            }
            let (set, id) = put_resume(job, resume, entry);
            let ops = vec![set, requests::notify_leader(paths::CONTROL)];
            tried = match doubt.write(&client, ops, &paths::control(job)).await? {
                Written::Done(_) => return Ok(Some(id)),
                Written::Superseded => None,
                Written::Unanswered => Some(found),
            };
        }
        Err(busy())
    }

    async fn gone(&self, job: &JobName, pause: Uuid) -> Result<(), SessionError> {
        loop {
            match self.line().await?.get_and_watch(&paths::control(job)).await {
                Err(Error::Missing) => return Ok(()),
                Ok((data, ..)) if is_another(&data, pause) => return Ok(()),
                Ok((_, _, watch)) => watch.fired().await,
                Err(error) => return Err(error).at(&paths::control(job)),
            }
        }
    }

    async fn requested(&self, request: TriggerRecord, doubt: &Doubt) -> Result<RunId, SessionError> {
        let mut is_unclear = false;
        for _ in 0..TRIES {
            let client = self.line().await?;
            if is_unclear {
                context::catch_up(&client).await?;
            }
            if let Some(known) = known(&client, &request.job, request.uuid).await? {
                return Ok(known);
            }
            let (folder, prefix) = (paths::TRIGGERS.to_owned(), String::new());
            let create = Op::Append { folder, prefix, data: json(&request), life: Life::Lasting };
            let ops = vec![create, requests::notify_leader(paths::TRIGGERS)];
            let made = match doubt.write(&client, ops, paths::TRIGGERS).await? {
                Written::Done(made) => made,
                Written::Superseded => return Err(SessionError::Again(format!("{} is missing", paths::TRIGGERS))),
                Written::Unanswered => {
                    is_unclear = true;
                    continue;
                }
            };
            let seq = made.created.first().and_then(|path| paths::trigger_seq(paths::name(path)));
            let seq = seq.ok_or_else(|| SessionError::Again("the server's answer names no trigger".to_owned()))?;
            return Ok(RunId::manual(request.job, request.at, seq));
        }
        Err(busy())
    }

    /// Changes what is wanted of a node, which watches its record. Returns what was wanted before.
    async fn wanted(
        &self,
        node: &NodeName,
        change: impl Fn(NodeControl) -> NodeControl,
    ) -> Result<NodeControl, OperatorError> {
        let doubt = Doubt::default();
        let changed = async {
            // What a try that was not answered would have changed.
            let mut tried: Option<NodeControl> = None;
            for _ in 0..TRIES {
                let client = self.line().await?;
                let (was, stat) = wanted::read(&client, node).await?;
                match tried {
                    Some(before) if was == change(before.clone()) => return Ok(before),
                    Some(before) if was != before => return Err(overtaken()),
                    Some(_) | None => {}
                }
                let control = change(was.clone());
                if stat.is_none() && control == NodeControl::default() {
                    return Ok(was);
                }
                let write = wanted::replace(node, &control, stat.as_ref());
                tried = match doubt.write(&client, vec![write], &paths::wanted(node)).await? {
                    Written::Done(_) => return Ok(was),
                    Written::Superseded => None,
                    Written::Unanswered => Some(was),
                };
            }
            Err(busy())
        };
        let changed = changed.await;
        doubt.judge(changed)
    }

    /// A node that joins meanwhile writes its place again.
    async fn forgotten(&self, node: &NodeName, doubt: &Doubt) -> Result<ForgetNode, SessionError> {
        // A try that was not answered may have removed it.
        let mut tried = false;
        for _ in 0..TRIES {
            let client = self.line().await?;
            context::catch_up(&client).await?;
            let path = paths::member(node);
            if client.stat(&path).await.at(&path)?.is_some() {
                return Ok(ForgetNode::Alive);
            }
            let mut ops = Vec::new();
            let records = [paths::place(node), paths::wanted(node), paths::gone_node(node)];
            // With an offer in it, the folder stays: the leader takes that back.
            let offers = paths::offers(node);
            let is_free = context::names(&client, &offers).await?.is_empty();
            for path in records.into_iter().chain(is_free.then_some(offers)) {
                if let Some(stat) = client.stat(&path).await.at(&path)? {
                    ops.push(Op::Delete { path, at: stat.version.into() });
                }
            }
            if ops.is_empty() {
                return Ok(if tried { ForgetNode::Forgotten } else { ForgetNode::Unknown });
            }
            ops.push(requests::notify_leader(paths::PLACES));
            match doubt.write(&client, ops, &paths::place(node)).await? {
                Written::Done(_) => return Ok(ForgetNode::Forgotten),
                Written::Superseded => {}
                Written::Unanswered => tried = true,
            }
        }
        Err(busy())
    }

    /// Writes at the version read. The run's owner watches its record.
    async fn killed(&self, run: &RunId, request: KillRequest, doubt: &Doubt) -> Result<Option<RunState>, SessionError> {
        // The state of the run that a try which was not answered would have ended.
        let (mut is_caught_up, mut tried) = (false, None);
        for _ in 0..TRIES {
            let client = self.line().await?;
            let path = paths::running(run);
            let (data, stat) = match client.get(&path).await {
                Ok(found) => found,
                // It may have begun a moment ago.
                Err(Error::Missing) if !is_caught_up => {
                    context::catch_up(&client).await?;
                    is_caught_up = true;
                    continue;
                }
                Err(Error::Missing) => return Ok(tried),
                Err(error) => return Err(error).at(&path),
            };
            let (mut record, version) =
                snapshot::run_record(paths::name(&path), &data, &stat).map_err(SessionError::Again)?;
            if !record.request_to_end(request.clone()) {
                return Ok(Some(record.state));
            }
            let set = write(paths::running(run), json(&record), Some(version));
            match doubt.write(&client, vec![set], &path).await? {
                Written::Done(_) => return Ok(Some(record.state)),
                Written::Superseded => {}
                Written::Unanswered => (is_caught_up, tried) = (false, Some(record.state)),
            }
        }
        Err(busy())
    }

    /// From trigger to run to shares or history everything moves in one transaction, so reading in that order cannot miss
    /// it.
    async fn ended(&self, run: &RunId) -> Result<Followed, SessionError> {
        loop {
            let client = self.line().await?;
            let mut watches: Vec<BoxFuture<'static, ()>> = Vec::new();
            let trigger = run.trigger().map(paths::trigger);
            for path in trigger.into_iter().chain([paths::running(run)]) {
                if let (Some(_), watch) = client.stat_and_watch(&path).await.at(&path)? {
                    watches.push(watch.fired().boxed());
                }
            }
            if let Some(record) = ended(&client, run).await? {
                return Ok(Followed::Ended(Box::new(record)));
            }
            if watches.is_empty() {
                let shares = shares(&client, run).await?;
                return Ok(if shares.is_empty() { Followed::Gone } else { Followed::Shared(shares) });
            }
            select_all(watches).await;
        }
    }
}

/// The run that belongs to a trigger's uuid, be it waiting, in flight or ended; of shares, the run that they are shares
/// of. `job`: whose runs are searched.
async fn known<C: Session>(client: &C, job: &JobName, uuid: Uuid) -> Result<Option<RunId>, SessionError> {
    let names = context::names(client, paths::TRIGGERS).await?;
    let waiting = context::get_small(client, paths::TRIGGERS, names).await?.found;
    let waiting = waiting.into_iter().filter_map(|(name, data, _)| {
        let record: TriggerRecord = serde_json::from_slice(&data).ok()?;
        let seq: TriggerSeq = paths::trigger_seq(&name)?;
        (record.uuid == uuid).then(|| RunId::manual(record.job, record.at, seq))
    });
    if let Some(first) = waiting.min_by_key(RunId::trigger) {
        return Ok(Some(first));
    }
    let names = context::names(client, paths::RUNNING).await?;
    let is_manual = |name: &String| RunId::parse(name).is_ok_and(|run| run.job() == job && run.trigger().is_some());
    let running = names.into_iter().filter(is_manual).collect();
    let running = context::get_small(client, paths::RUNNING, running).await?.found;
    let running = running.into_iter().filter_map(|(_, data, _)| serde_json::from_slice::<RunRecord>(&data).ok());
    if let Some(run) = running.into_iter().find(|run| run.trigger.as_ref().is_some_and(|own| own.uuid == uuid)) {
        return Ok(Some(run.id().on(None)));
    }
    let history = requests::triggered(client, job).await?;
    let record = history.iter().find(|record| record.trigger().is_some_and(|own| own.uuid == uuid));
    Ok(record.map(|record| record.id().on(None)))
}

/// The shares of a run, in flight or ended. They move from one to the other, so they are read in that order.
async fn shares<C: Session>(client: &C, run: &RunId) -> Result<BTreeSet<RunId>, SessionError> {
    let mut names = context::names(client, paths::RUNNING).await?;
    names.extend(context::names(client, &paths::job_history(run.job())).await?);
    let ids = names.iter().filter_map(|name| RunId::parse(name).ok());
    Ok(ids.filter(|id| id.is_share_of(run)).collect())
}

async fn ended<C: Session>(client: &C, run: &RunId) -> Result<Option<HistoryRecord>, SessionError> {
    let path = paths::history(run);
    match client.get(&path).await {
        Ok((data, _)) => bounded::HISTORY.parse(&data).map(Some).map_err(SessionError::Again),
        Err(Error::Missing) => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

/// The write that pauses a job, given its pause as read, and the pause that it replaces.
fn put_pause(job: &JobName, id: Uuid, pause: &Pause, was: Option<ControlEntry>) -> (Op, Option<Pause>) {
    let (at, id) = was.as_ref().map_or((None, id), |entry| (Some(entry.version), entry.record.id));
    let op = write(paths::control(job), json(&ControlRecord::new(id, pause.clone())), at);
    (op, was.map(|entry| entry.record.paused))
}

/// The write that leaves a job's record as read, but gives it a new version.
///
/// What is too large for a record is not sent back: the leader cannot read it either, and writes the record again.
fn touch(job: &JobName, id: Uuid, record: Option<(Vec<u8>, Version)>) -> Op {
    match record {
        Some((data, version)) => {
            let data = if bounded::SMALL.check(data.len()).is_ok() { data } else { Vec::new() };
            write(paths::job(job), data, Some(version))
        }
        None => write(paths::job(job), json(&JobRecord::undecided(id)), None),
    }
}

/// The write that requests the end of a pause as read, and the id of the pause.
fn put_resume(job: &JobName, resume: &Resume, was: ControlEntry) -> (Op, Uuid) {
    let id = was.record.id;
    let record = ControlRecord { resume: Some(resume.clone()), ..was.record };
    (write(paths::control(job), json(&record), Some(was.version)), id)
}

fn is_another(data: &[u8], pause: Uuid) -> bool {
    bounded::SMALL.parse::<ControlRecord>(data).is_ok_and(|record| record.id != pause)
}

fn write(path: String, data: Vec<u8>, at: Option<Version>) -> Op {
    match at {
        Some(version) => Op::Set { path, data, at: version.into() },
        None => Op::Create { path, data, life: Life::Lasting },
    }
}

fn busy() -> SessionError {
    SessionError::Again("other writers keep changing this record, or no write is answered".to_owned())
}

/// After a try that was not answered, the record is neither as it was nor as the try would have made it.
fn overtaken() -> SessionError {
    SessionError::Again("no answer, and somebody has changed the record since".to_owned())
}

/// The result of a request that writes nothing.
fn read<T>(result: Result<T, SessionError>) -> Result<T, OperatorError> {
    result.map_err(|error| OperatorError::Unread(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_too_large_is_not_sent_back() {
        let touched = |bytes: usize| {
            let record = Some((vec![b'x'; bytes], Version(7)));
            let Op::Set { data, at, .. } = touch(&JobName::parse("load").unwrap(), Uuid::nil(), record) else {
                panic!()
            };
            (data.len(), at)
        };
        let most = bounded::SMALL.bytes;
        assert_eq!(
            [touched(most), touched(most + 1), touched(1 << 20)],
            [most, 0, 0].map(|bytes| (bytes, Version(7).into()))
        );
    }
}
