//! What a run waits for before its first attempt, in words.

use crate::api::client::Client;
use crate::cli::status::run_state;
use crate::status::Status;
use cronkeeper_core::run::RunId;

/// What a run that has no attempt yet waits for; `None` if it runs, or if that is unknown for now.
pub(super) fn awaited(client: &Client, run: &RunId) -> Option<String> {
    before_start(&client.get("/v1/status").ok()?, run)
}

/// The same, as this status has it.
pub(super) fn before_start(status: &Status, run: &RunId) -> Option<String> {
    match status.runs.iter().find(|shown| shown.run == *run) {
        Some(shown) if shown.is_running() => None,
        Some(shown) => Some(run_state(shown, status)),
        None if status.is_all_drained() => Some("nobody leads: every node is drained".to_owned()),
        None if status.unread.is_some() => Some(format!("{} to read the ledger again", status.node)),
        None if status.role.leader_node.is_none() => Some("nobody leads".to_owned()),
        None => Some("the leader has not begun it yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::run::RunState;

    #[test]
    fn a_run_that_does_not_run_yet_waits_for_something() {
        let mut status = sample::leader();
        let run = status.runs[0].run.clone();
        assert_eq!(before_start(&status, &run), None);
        status.runs[0].unconfirmed = true;
        assert_eq!(before_start(&status, &run).as_deref(), Some("not begun yet, waits for the ledger"));
        status.runs[0].state = RunState::Queued;
        assert_eq!(before_start(&status, &run).as_deref(), Some("waits for its group, its locks or a node"));
        status.runs.clear();
        assert_eq!(before_start(&status, &run).as_deref(), Some("the leader has not begun it yet"));
        status.role.leader_node = None;
        assert_eq!(before_start(&status, &run).as_deref(), Some("nobody leads"));
    }
}
