//! Waits for the shares of a run on every node: shows the output of one after the other, and tells how the worst ended.

use std::collections::BTreeSet;

use super::{Args, conclude, show_output};
use crate::api::client::Client;
use crate::cli::effects::{Effect, Effects};
use crate::cli::follow::{AwaitedRun, follow};
use crate::cli::{Error, Exit, Io};
use crate::status::{HistoryEntry, Status};
use cronkeeper_core::run::{Outcome, RunId};

impl Args {
    /// Waits until all shares have ended. Ends with the worst exit code.
    pub(super) fn wait_for_shares(
        &self,
        client: &Client,
        mut left: BTreeSet<RunId>,
        io: &mut Io<'_>,
    ) -> Result<Exit, Error> {
        let (mut worst, mut effects) = (((0, 0), Exit::Fine), Vec::new());
        while !left.is_empty() {
            for share in ready(&left, client.get("/v1/status").ok().as_ref()) {
                left.remove(&share);
                let (effect, exit) = self.wait_for_share(client, share, io)?;
                let rank = rank(effect.record.as_deref(), exit);
                if rank > worst.0 {
                    worst = (rank, exit);
                }
                effects.push(effect);
            }
        }
        if self.json {
            effects.sort_by(|a, b| a.run.cmp(&b.run));
            Effects::of("trigger", effects).write(io.out)?;
        }
        Ok(worst.1)
    }

    fn wait_for_share(&self, client: &Client, share: RunId, io: &mut Io<'_>) -> Result<(Effect, Exit), Error> {
        if !self.json {
            if let Some(node) = share.node() {
                writeln!(io.err, "cronkeeper: on {node}:")?;
            }
            show_output(client, &share, io);
        }
        let record = match follow(client, &share)? {
            AwaitedRun::Ended(record) => Some(record),
            AwaitedRun::Gone | AwaitedRun::Shared(_) => None,
        };
        let (effect, exit) = match &record {
            Some(record) => (effect(record), conclude(record, io)?),
            None => {
                writeln!(io.err, "cronkeeper: run `{share}` is no longer in the ledger")?;
                ("ended", Exit::Failed)
            }
        };
        let (job, node) = (Some(self.job.clone()), share.node().cloned());
        Ok((Effect { effect, job, node, run: Some(share), record, ..Effect::default() }, exit))
    }
}

/// What has happened to a run that has this record.
pub(super) fn effect(record: &HistoryEntry) -> &'static str {
    if matches!(record, HistoryEntry::Skip(_)) { "skipped" } else { "ended" }
}

/// The shares that do not wait, as far as the status shows; if all do, the first. So one whose node is away keeps the
/// output of no other back.
fn ready(left: &BTreeSet<RunId>, status: Option<&Status>) -> Vec<RunId> {
    let runs = status.map_or(&[][..], |status| &status.runs);
    let waits = |share: &&RunId| runs.iter().any(|run| run.run == **share && !run.is_running());
    let ready: Vec<RunId> = left.iter().filter(|share| !waits(share)).cloned().collect();
    if ready.is_empty() { left.first().cloned().into_iter().collect() } else { ready }
}

/// How bad an end is: a failure is worse than a skip, which is worse than a success. Among equals, the larger code counts.
fn rank(record: Option<&HistoryEntry>, exit: Exit) -> (u8, u8) {
    let kind = match record {
        Some(HistoryEntry::Run(run)) if run.outcome == Outcome::Success => 0,
        Some(HistoryEntry::Skip(_)) => 1,
        Some(HistoryEntry::Run(_)) | None => 2,
    };
    (kind, exit.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::trigger::exit_of;
    use crate::cli::trigger::tests::ended;
    use crate::status::sample;
    use crate::test_records::skip;
    use cronkeeper_core::run::{HistoryRecord, RunState};
    use cronkeeper_core::term::NodeName;

    #[test]
    fn a_failure_counts_more_than_a_skip_and_that_more_than_a_success() {
        let run = |outcome, code| {
            let run = ended(outcome, Some(code), None, None);
            let exit = exit_of(&run);
            rank(Some(&HistoryEntry::Run(Box::new(run))), exit)
        };
        let skipped = HistoryEntry::from(HistoryRecord::Skip(skip("load", 0)));
        let in_order = [
            run(Outcome::Success, 0),
            // One of `success_exit_codes`.
            run(Outcome::Success, 99),
            rank(Some(&skipped), Exit::TempFail),
            rank(None, Exit::Failed),
            run(Outcome::Failure, 3),
            run(Outcome::Failure, 75),
        ];
        assert!(in_order.is_sorted_by(|a, b| a < b), "{in_order:?}");
    }

    #[test]
    fn a_share_that_waits_for_its_node_comes_last() {
        let mut status = sample::leader();
        let share = |node| status.runs[0].run.clone().on(Some(NodeName::new(node)));
        let left: BTreeSet<RunId> = ["host-a", "host-b", "host-c"].map(share).into();
        let all: Vec<RunId> = left.iter().cloned().collect();
        let run = |share: &RunId, state| {
            let (run, node) = (share.clone(), share.node().unwrap().clone());
            crate::status::RunStatus { run, node, state, ..sample::leader().runs[0].clone() }
        };
        status.runs = vec![run(&all[0], RunState::Queued), run(&all[1], RunState::Running)];
        assert_eq!(ready(&left, Some(&status)), all[1..], "one runs, and one has ended");
        assert_eq!(ready(&left, None), all);
        status.runs = all.iter().map(|share| run(share, RunState::Queued)).collect();
        assert_eq!(ready(&left, Some(&status)), all[..1]);
    }
}
