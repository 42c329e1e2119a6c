//! Gathers a page from this node's files and from other nodes.
//!
//! Every wait is bounded by `until`, by the short time that another node has to answer, or by that of a read of the
//! ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::{Instant, sleep, timeout};

use super::page::{Cursor, Missing, OutputPage, OutputState};
use super::plan::Plan;
use crate::api::history::{MissingNode, Others};
use crate::api::{ApiState, RefusedRequest};
use crate::output::{LocalPage, OutputKey, PageEnd, Reader, Wanted};
use crate::status::HistoryEntry;
use cronkeeper_core::election::Member;
use cronkeeper_core::ledger::{Followed, OperatorError, OperatorFuture};
use cronkeeper_core::run::{RunId, RunRecord};
use cronkeeper_core::term::NodeName;

/// Timeout of a read of the ledger.
const LEDGER: Duration = Duration::from_secs(3);
/// Time after which the ledger is asked again about a run that has written nothing.
const REPLAN: Duration = Duration::from_secs(1);
/// Pause before the files are read again after something was written.
const PACE: Duration = Duration::from_millis(100);
/// Pause before the ledger is asked again about a run that has no attempt to read from.
const PAUSE: Duration = Duration::from_millis(500);
/// The most nodes that are asked for a run that the ledger does not know any more.
const MOST_ASKED: usize = 32;
/// Most attempts of one run that another node can name: the last of them count.
const MOST_LISTED: usize = 32;
/// Most parts of a page that are fetched from other nodes; what is behind them is on the next page.
const MOST_PARTS: usize = 32;
/// Time for other nodes to say where the output of a run is that the ledger cannot be asked about.
const WITHOUT_LEDGER: Duration = Duration::from_secs(4);
/// Time for all nodes that are asked for one page, so that the client still waits for the answer.
const ASKING: Duration = Duration::from_secs(7);

/// One request for a page.
pub(super) struct Gatherer<'a> {
    pub state: &'a ApiState,
    pub run: RunId,
    /// The lines that are wanted of each attempt.
    pub wanted: Wanted,
    /// How long to wait for output.
    pub until: Instant,
}

impl Gatherer<'_> {
    /// The attempts whose output this node keeps.
    pub async fn local_attempts(&self) -> Result<OutputPage, RefusedRequest> {
        let attempts = self.kept()?.attempts(self.run.clone()).await.map_err(unreadable)?;
        Ok(OutputPage { attempts, ..OutputPage::empty(&self.run, Cursor::START, OutputState::End) })
    }

    /// A page of one attempt from this node's files.
    pub async fn local(&self, from: Cursor) -> Result<OutputPage, RefusedRequest> {
        let LocalPage { lines, skipped, next, end } = self.read(from, self.until).await.map_err(unreadable)?;
        let state = match end {
            PageEnd::More => OutputState::More,
            PageEnd::Open => OutputState::Open,
            PageEnd::Ended => OutputState::End,
            PageEnd::Absent => OutputState::Absent,
        };
        let next = Cursor { offset: next, ..from };
        Ok(OutputPage { lines, skipped, ..OutputPage::empty(&self.run, next, state) })
    }

    /// A page of the run, from whichever nodes keep it.
    pub async fn page(&self, from: Cursor) -> Result<OutputPage, RefusedRequest> {
        let mut followed = self.state.sources.operator.followed(self.run.clone());
        let (mut plan, unknown) = self.first_plan(&mut followed).await?;
        loop {
            // Cancellation safety: a page that is dropped is asked for again from the same place. `followed` is not
            // polled again once it is done, because then the plan is over.
            let mut page = tokio::select! {
                page = self.gathered(&plan, from) => page,
                ended = &mut followed, if !plan.is_over => {
                    plan = self.ended(ended).await?.0;
                    continue;
                }
            };
            page.missing.extend(unknown.iter().cloned());
            let is_news = !page.lines.is_empty() || page.state != OutputState::Open || page.next != from;
            let is_late = Instant::now() >= self.until;
            if is_late && plan.is_over && page.lines.is_empty() && page.state == OutputState::Open {
                // Its file was not finished, though the run is over: the node has to do it at its next start.
                page.state = OutputState::End;
            }
            if is_news || is_late {
                return Ok(page);
            }
            sleep(PAUSE).await;
            if !plan.is_over
                && let Some(record) = self.record().await?
            {
                plan = Plan::in_flight(&record);
            }
        }
    }

    /// Where the output is, and what of it cannot be known.
    async fn first_plan(&self, followed: &mut OperatorFuture<'_, Followed>) -> Result<Planned, RefusedRequest> {
        match self.record().await {
            Ok(Some(record)) => Ok((Plan::in_flight(&record), Vec::new())),
            // A client that waits gets the answer later; any other needs it now.
            Ok(None) => match timeout(if self.until > Instant::now() { PAUSE } else { LEDGER }, followed).await {
                Ok(followed) => self.ended(followed).await,
                // It was triggered, and has not begun.
                Err(_) => Ok((Plan::default(), Vec::new())),
            },
            Err(refused) => self.own_plan(refused).await,
        }
    }

    async fn ended(&self, followed: Result<Followed, OperatorError>) -> Result<Planned, RefusedRequest> {
        let found = match followed.map(Plan::followed) {
            Ok(Some(plan)) => return Ok((plan, Vec::new())),
            Ok(None) => self.search().await,
            Err(error) => Err(unavailable(error)),
        };
        match found {
            Err(refused) if refused.code == StatusCode::SERVICE_UNAVAILABLE => self.own_plan(refused).await,
            found => found,
        }
    }

    /// What this node knows and keeps itself, which is there without the ledger too.
    async fn own_plan(&self, refused: RefusedRequest) -> Result<Planned, RefusedRequest> {
        // What the archive's own error is, its thread logs.
        if let Some(record) = self.state.sources.archive.record(self.run.clone(), ()).await.ok().flatten() {
            return Ok((Plan::over(record.into()), Vec::new()));
        }
        let kept = match &self.state.sources.output.kept {
            Some(kept) => kept.attempts(self.run.clone()).await.unwrap_or_default(),
            None => Vec::new(),
        };
        if kept.is_empty() {
            let asked = timeout(WITHOUT_LEDGER, self.plan_elsewhere(&refused)).await;
            return asked.ok().flatten().ok_or(refused);
        }
        let node = self.own_name();
        let attempts = kept.into_iter().map(|attempt| (attempt, node.clone())).collect();
        Ok((Plan { attempts, is_over: true, unread: Some(refused.error), ..Plan::default() }, Vec::new()))
    }

    /// What other nodes know and keep of the run while the ledger cannot be read; `None` if that is nothing.
    async fn plan_elsewhere(&self, refused: &RefusedRequest) -> Option<Planned> {
        if let Some(record) = self.state.record_elsewhere(&self.run).await.0 {
            return Some((Plan::over(record), Vec::new()));
        }
        let (attempts, missing) = self.listed().await.ok().filter(|(attempts, _)| !attempts.is_empty())?;
        let unread = Some(refused.error.clone());
        Some((Plan { attempts, is_over: true, unread, ..Plan::default() }, missing))
    }

    /// Asks all nodes for a run that the ledger has no record of any more: for its output, and for its record, which
    /// has the end of the output also if the output itself was removed.
    async fn search(&self) -> Result<Planned, RefusedRequest> {
        let (listed, record) = futures_util::join!(self.listed(), self.archived());
        let (attempts, missing) = listed?;
        let mut plan = record.map_or(Plan { is_over: true, ..Plan::default() }, Plan::over);
        plan.add(attempts);
        if plan.attempts.is_empty() && plan.note.is_none() {
            let why = missing.iter().map(|missing| format!("; {}", missing.why)).collect::<String>();
            let error = format!("the ledger has no record of run `{}`, and its output is not kept{why}", self.run);
            return Err(RefusedRequest::new(StatusCode::NOT_FOUND, error));
        }
        Ok((plan, missing))
    }

    /// The run's record from an archive, this node's own first.
    async fn archived(&self) -> Option<HistoryEntry> {
        // What the archive's own error is, its thread logs.
        let own = self.state.sources.archive.record(self.run.clone(), ()).await.ok().flatten();
        match own {
            Some(record) => Some(record.into()),
            None => self.state.record_elsewhere(&self.run).await.0,
        }
    }

    /// The attempts whose output is kept somewhere, each with its node.
    async fn listed(&self) -> Result<(Vec<(u32, NodeName)>, Vec<Missing>), RefusedRequest> {
        let (mut attempts, mut missing) = (Vec::new(), Vec::new());
        if let Some(kept) = &self.state.sources.output.kept {
            let own = kept.attempts(self.run.clone()).await.map_err(unreadable)?;
            attempts.extend(own.into_iter().map(|attempt| (attempt, self.own_name())));
        }
        if !self.state.sources.output.is_shared {
            let Others { members, away, is_current } = self.state.others(Instant::now() + LEDGER).await;
            if !is_current {
                missing.extend(away.into_iter().map(|MissingNode { node, why }| Missing { attempt: None, node, why }));
            }
            let asked = members
                .into_iter()
                .take(MOST_ASKED)
                .map(|member| async move { (member.node.clone(), self.list_of(&member).await) });
            for (node, listed) in futures_util::future::join_all(asked).await {
                match listed {
                    Ok((listed, left_out)) => {
                        attempts.extend(listed.into_iter().map(|attempt| (attempt, node.clone())));
                        if left_out > 0 {
                            let why = format!(
                                "{node} lists {left_out} earlier attempts: only its last {MOST_LISTED} are fetched"
                            );
                            missing.push(Missing { attempt: None, node, why });
                        }
                    }
                    Err(why) => missing.push(Missing { attempt: None, node, why }),
                }
            }
        }
        Ok((attempts, missing))
    }

    /// The attempts that a node keeps, and how many earlier ones are left out.
    async fn list_of(&self, member: &Member) -> Result<(Vec<u32>, usize), String> {
        let path = format!("/v1/runs/{}/output?local=true", self.run);
        let listed: OutputPage = self.state.peers()?.get(member, &path, Duration::ZERO).await?;
        Ok(last_of(listed.attempts))
    }

    /// The next page by this plan. Waits only for output of the attempt that has a process.
    async fn gathered(&self, plan: &Plan, from: Cursor) -> OutputPage {
        let mut page = OutputPage::empty(&self.run, from, OutputState::Open);
        // A node that did not answer is not asked again for this page.
        let mut silent: BTreeMap<&NodeName, String> = BTreeMap::new();
        let deadline = Instant::now() + ASKING;
        let mut fetched = 0;
        let mut written_by = None;
        for (attempt, node) in plan.attempts.iter().filter(|(attempt, _)| *attempt >= from.attempt) {
            let attempt = *attempt;
            let place = if attempt == from.attempt { from } else { Cursor { attempt, offset: 0 } };
            let is_running = plan.running == Some(attempt);
            fetched += usize::from(!self.is_kept_here(node));
            if fetched > MOST_PARTS {
                page.state = OutputState::More;
                return page;
            }
            let part = match silent.get(node) {
                Some(why) => Err(why.clone()),
                None if Instant::now() >= deadline => Err(format!("there was no time to ask {node}")),
                None => self.part(node, place, is_running).await,
            };
            let missing = match part {
                Ok(LocalPage { end: PageEnd::Absent, .. }) if !is_running => self.not_kept(plan, attempt, node),
                Ok(LocalPage { lines, skipped, next, end }) => {
                    page.skipped = page.skipped.saturating_add(skipped);
                    page.next = Cursor { offset: next, ..place };
                    page.lines = lines;
                    match end {
                        PageEnd::Ended if page.lines.is_empty() => None,
                        PageEnd::Ended | PageEnd::More => {
                            page.state = OutputState::More;
                            return page;
                        }
                        PageEnd::Open | PageEnd::Absent if is_running => return page,
                        PageEnd::Open | PageEnd::Absent if !page.lines.is_empty() => {
                            page.state = OutputState::More;
                            return page;
                        }
                        // It is not known whether the attempt continues. All that it has written is there.
                        PageEnd::Open if plan.unread.is_some() => {
                            written_by = Some(node);
                            None
                        }
                        // The attempt has ended, but its file is not finished: by then more may have been written.
                        PageEnd::Open | PageEnd::Absent => {
                            let why =
                                format!("{node} has not finished the file of the attempt; its end may be missing");
                            Some(Missing { attempt: Some(attempt), node: node.clone(), why })
                        }
                    }
                }
                Err(why) => {
                    silent.insert(node, why.clone());
                    Some(Missing { attempt: Some(attempt), node: node.clone(), why })
                }
            };
            let has_all = plan.tail_is_whole && plan.is_last(attempt) && place.offset == 0;
            if let Some(missing) = missing.as_ref().filter(|_| has_all) {
                // What the ledger has is as good.
                if !plan.tail.is_empty() {
                    (page.tail, page.tail_is_whole) = (Some(plan.tail.clone()), true);
                    page.note = Some(missing.why.clone());
                }
                page.next = Cursor::next_attempt(attempt);
                continue;
            }
            let is_missing = missing.is_some();
            page.missing.extend(missing);
            if is_missing && is_running {
                // It may be back before the run ends.
                return page;
            }
            if is_missing && plan.is_last(attempt) && !plan.tail.is_empty() {
                page.tail = Some(plan.tail.clone());
            }
            page.next = Cursor::next_attempt(attempt);
        }
        if plan.is_over {
            page.state = OutputState::End;
            page.note = page.note.or_else(|| plan.note.clone());
            page.shares.clone_from(&plan.shares);
        }
        match (&plan.unread, written_by) {
            (Some(_), Some(node)) => page.note = Some(format!("{node} is still writing it")),
            (Some(why), None) => page.missing.push(Missing { attempt: None, node: self.own_name(), why: why.clone() }),
            (None, _) => {}
        }
        page
    }

    /// If an attempt is known to have written something that its node does not have any more, says so.
    fn not_kept(&self, plan: &Plan, attempt: u32, node: &NodeName) -> Option<Missing> {
        let wrote = plan.is_last(attempt) && !plan.tail.is_empty();
        let why = format!("{node} did not keep it, or has removed it: see `--output-retention`");
        wrote.then(|| Missing { attempt: Some(attempt), node: node.clone(), why })
    }

    /// A part of one attempt's output, from the node that ran it; or why it cannot be had.
    async fn part(&self, node: &NodeName, from: Cursor, is_running: bool) -> Result<LocalPage, String> {
        let soon = Instant::now() + REPLAN;
        let until = if is_running { self.until.min(soon) } else { Instant::now() };
        if self.is_kept_here(node) {
            self.kept().map_err(|refused| refused.error)?;
            return self.read(from, until).await.map_err(|error| error.to_string());
        }
        let Others { members, away, .. } = self.state.others(Instant::now() + LEDGER).await;
        let member = members.iter().find(|member| member.node == *node).ok_or_else(|| {
            let known = away.into_iter().find(|away| away.node == *node);
            known.map_or_else(|| format!("{node} is away"), |away| away.why)
        })?;
        let wait = if is_running { self.until.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
        let since = self.wanted.since.map(|since| format!("&since={since}")).unwrap_or_default();
        let last = self.wanted.last.map(|last| format!("&last={last}")).unwrap_or_default();
        let path = format!(
            "/v1/runs/{}/output?local=true&attempt={}&from={from}&wait={}{since}{last}",
            self.run,
            from.attempt,
            wait.as_secs().min(2),
        );
        let page: OutputPage = self.state.peers()?.get(member, &path, wait).await?;
        part_of(page, &self.run, from).map_err(|why| format!("the answer of {node} is garbled: {why}"))
    }

    /// True if this node can read the output that this one keeps.
    fn is_kept_here(&self, node: &NodeName) -> bool {
        *node == self.own_name() || self.state.sources.output.is_shared
    }

    /// Reads this node's files; waits until there is something to read.
    async fn read(&self, from: Cursor, until: Instant) -> std::io::Result<LocalPage> {
        let Some(kept) = &self.state.sources.output.kept else {
            return Ok(LocalPage { lines: Vec::new(), skipped: 0, next: from.offset, end: PageEnd::Absent });
        };
        let key = OutputKey { run: self.run.clone(), attempt: from.attempt };
        loop {
            let page = kept.page(key.clone(), from.offset, self.wanted).await?;
            let waits = matches!(page.end, PageEnd::Open | PageEnd::Absent) && page.lines.is_empty();
            if !waits || page.next != from.offset || Instant::now() >= until {
                return Ok(page);
            }
            // Cancellation safety: nothing is received, only waited for.
            tokio::select! {
                () = kept.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
            // Runs that write all the time, also others than this, are read a few times a second only.
            sleep(PACE).await;
        }
    }

    async fn record(&self) -> Result<Option<RunRecord>, RefusedRequest> {
        let late = |_| Err(unavailable(format!("the ledger did not answer within {} s", LEDGER.as_secs())));
        let read = self.state.sources.reader.run(self.run.clone());
        timeout(LEDGER, read).await.map_or_else(late, |read| read.map_err(unavailable))
    }

    fn kept(&self) -> Result<&Reader, RefusedRequest> {
        let kept = self.state.sources.output.kept.as_ref();
        kept.ok_or_else(|| {
            unavailable(format!("{} keeps no output: see `--output-retention`, and its log", self.own_name()))
        })
    }

    fn own_name(&self) -> NodeName {
        self.state.sources.status.borrow().node.clone()
    }
}

/// The last attempts of those that another node lists, and how many earlier ones are left out.
fn last_of(mut attempts: Vec<u32>) -> (Vec<u32>, usize) {
    attempts.sort_unstable();
    attempts.dedup();
    let left_out = attempts.len().saturating_sub(MOST_LISTED);
    (attempts.split_off(left_out), left_out)
}

/// The part of an attempt that another node's page is. The node may be anybody: what it says is only shown, if it is of
/// this attempt and leads on.
fn part_of(page: OutputPage, run: &RunId, from: Cursor) -> Result<LocalPage, String> {
    page.check_progress(from)?;
    let OutputPage { run: of, lines, skipped, next, state, .. } = page;
    let is_asked = next.attempt == from.attempt && lines.iter().all(|line| line.attempt == from.attempt);
    if of != *run || !is_asked {
        return Err("its page is of another attempt".to_owned());
    }
    let end = match state {
        OutputState::More => PageEnd::More,
        OutputState::Open => PageEnd::Open,
        OutputState::End => PageEnd::Ended,
        OutputState::Absent => PageEnd::Absent,
    };
    Ok(LocalPage { lines, skipped, next: next.offset, end })
}

/// Where the output is, and what of it cannot be known.
type Planned = (Plan, Vec<Missing>);

fn unreadable(error: std::io::Error) -> RefusedRequest {
    RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the kept output cannot be read: {error}"))
}

fn unavailable(error: impl std::fmt::Display) -> RefusedRequest {
    RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::output::{Line, Source};

    const FROM: Cursor = Cursor { attempt: 2, offset: 10 };

    fn run(text: &str) -> RunId {
        RunId::parse(text).unwrap()
    }

    /// A page of one line of this attempt.
    fn page(of: &str, line_attempt: u32, next: Cursor) -> OutputPage {
        let (at, stream, line) = (Timestamp::UNIX_EPOCH, Source::Stdout, "x".to_owned());
        let lines = vec![Line { at, attempt: line_attempt, stream, line, continues: false }];
        OutputPage { lines, ..OutputPage::empty(&run(of), next, OutputState::End) }
    }

    #[test]
    fn the_page_of_another_node_counts_only_if_it_is_what_was_asked_for() {
        let asked = "load.20261120T024000Z";
        let part = |page| part_of(page, &run(asked), FROM);
        let next = Cursor { attempt: 2, offset: 12 };
        assert_eq!(part(page(asked, 2, next)).unwrap().next, 12);
        for forged in [
            page("load.20261120T024100Z", 2, next),
            page(asked, 3, next),
            page(asked, 2, Cursor { attempt: 3, offset: 12 }),
            page(asked, 2, FROM),
            page(asked, 2, Cursor { attempt: 2, offset: 9 }),
        ] {
            assert!(part(forged.clone()).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn of_many_attempts_the_last_are_asked_for() {
        assert_eq!(last_of(vec![3, 1, 3, 2]), (vec![1, 2, 3], 0));
        assert_eq!(last_of((1..=200_000).rev().collect()), ((199_969..=200_000).collect(), 199_968));
    }
}
