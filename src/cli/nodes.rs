//! `cronkeeper nodes`: the nodes as places to run jobs.

use std::io;

use super::ask::{AskFailure, ClientArgs};
use super::status::session_ended;
use super::table::Table;
use super::{Error, Io, json};
use crate::status::{NodesDocument, Status};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::escape;

#[derive(Debug, clap::Args)]
pub struct NodesArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientArgs,
}

impl NodesArgs {
    /// Shows the nodes, by name.
    ///
    /// # Errors
    /// When no daemon answers, or the output cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let client = self.client.client().map_err(AskFailure::from)?;
        let status: Status = client.get("/v1/status").map_err(AskFailure::from)?;
        if self.json {
            return Ok(json::pretty(&NodesDocument::from(&status), io.out)?);
        }
        Ok(write(&status, io)?)
    }
}

fn write(status: &Status, io: &mut Io<'_>) -> io::Result<()> {
    if let Some(why) = &status.unread {
        let shown = status.parts_in_words(|at| format!("{}Z", stamp(at)));
        let shown = shown.map(|parts| format!(", showing {parts}")).unwrap_or_default();
        writeln!(io.err, "cronkeeper: the ledger was not read{shown}: {}", escape::plain(why))?;
    }
    let table = table(status);
    if !table.is_empty() {
        return table.write(io.out);
    }
    match status.backend.as_str() {
        "solo" => writeln!(io.err, "without a cluster, all jobs run on the node that leads"),
        _ => writeln!(io.err, "no node is known as a place to run jobs"),
    }
}

/// The nodes; empty if none is known as a place to run jobs.
pub(super) fn table(status: &Status) -> Table {
    let mut table = Table::new(&["NODES", "LABELS", "WEIGHT", "RUNS", "PLACED", "NOTES"]);
    for node in status.nodes() {
        let gone = status.missing.iter().find(|missing| missing.node == node.node);
        let away = |_, _| match gone {
            Some(gone) => format!("away: {}", session_ended(gone, status)),
            None => "away".to_owned(),
        };
        let is_marked = !node.alive || node.same_jobs == Some(false);
        table.marked_row(
            is_marked,
            [
                node.node.to_string(),
                node.labels_in_words(),
                node.weight.to_string(),
                node.running.to_string(),
                node.placed.to_string(),
                node.notes(away),
            ],
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{MissingMember, sample};
    use cronkeeper_core::term::NodeName;

    fn shown(status: &Status) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        write(status, &mut Io { out: &mut out, err: &mut err, is_watched: false }).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn the_nodes_are_shown_with_what_runs_there() {
        let mut status = sample::leader();
        let mut queue = sample::queue();
        (queue.places, queue.drained) = (sample::places(), sample::drained("host-b"));
        status.put_queue(&queue);
        let expected = "\
NODES   LABELS       WEIGHT  RUNS  PLACED  NOTES
host-a  gpu,zone=eu  8       1     0
host-b  -            4       0     0       drained, different jobs file
host-c  db           0       0     0       away
";
        assert_eq!(shown(&status), (expected.to_owned(), String::new()));
    }

    #[test]
    fn a_node_has_been_away_for_as_long_as_the_status_says_that_it_is_missing() {
        let mut status = sample::leader();
        status.places = sample::places();
        let at = |text| sample::at(&format!("2026-11-20T02:{text}Z"));
        status.missing.push(MissingMember {
            node: NodeName::new("host-c"),
            host: "host-c.example".into(),
            gone_since: at("59:00"),
            last_seen: Some(at("58:45")),
            stopped: false,
            was_place: true,
        });
        let (out, _) = shown(&status);
        assert!(out.trim_end().ends_with("  away: its session ended between 1m and 1m 15s ago"), "{out}");
    }

    #[test]
    fn old_nodes_are_shown_with_the_time_at_which_they_were_read() {
        let mut status = sample::leader();
        (status.unread, status.read_at) = (Some("away".into()), Some(sample::at("2026-11-20T02:50:00Z")));
        let (_, err) = shown(&status);
        let expected = "cronkeeper: the ledger was not read, showing what it held at 2026-11-20 02:50:00Z: away\n";
        assert!(err.starts_with(expected), "{err}");
    }

    #[test]
    fn where_nothing_is_placed_that_is_said() {
        let mut status = sample::leader();
        assert_eq!(shown(&status).1, "no node is known as a place to run jobs\n");
        status.backend = "solo".into();
        assert_eq!(shown(&status), (String::new(), "without a cluster, all jobs run on the node that leads\n".into()));
    }
}
