//! A run on every node has no output of its own: lists its shares, each with its state.

use std::collections::BTreeSet;

use crate::api::client::{AskError, Client};
use crate::api::control::RunAnswer;
use crate::cli::history::show::ending_of;
use crate::cli::status::run_state;
use crate::cli::table::Table;
use crate::cli::{Error, Io};
use crate::status::Status;
use cronkeeper_core::run::RunId;
use cronkeeper_core::suggest::counted;

/// Lists the shares, and says that one of them must be named.
///
/// # Errors
/// If the result cannot be written.
pub(super) fn list(client: &Client, run: &RunId, shares: &BTreeSet<RunId>, io: &mut Io<'_>) -> Result<(), Error> {
    let status: Option<Status> = client.get("/v1/status").ok();
    let mut table = Table::new(&["SHARE", "STATE"]);
    for share in shares {
        table.row([share.to_string(), state(client, share, status.as_ref())]);
    }
    writeln!(io.err, "cronkeeper: run `{run}` has {}; name one:", counted(shares.len(), "share"))?;
    table.write(io.err)?;
    Ok(())
}

/// What the share does or waits for, or how it ended.
fn state(client: &Client, share: &RunId, status: Option<&Status>) -> String {
    let in_flight = status.and_then(|status| Some((status.runs.iter().find(|run| run.run == *share)?, status)));
    if let Some((run, status)) = in_flight.filter(|(run, _)| run.ended.is_none()) {
        return run_state(run, status);
    }
    match client.get(&format!("/v1/runs/{share}")) {
        Ok(RunAnswer::Ended { record }) => ending_of(&record),
        Ok(RunAnswer::Pending | RunAnswer::Shared { .. }) => "in flight".to_owned(),
        Err(AskError::NotFound(_)) => "no longer in the ledger".to_owned(),
        Err(error) => format!("unknown: {error}"),
    }
}
