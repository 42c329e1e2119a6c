//! The history beyond what the ledger keeps: the archive, its filters and formats, and a job's own limit.

use rustix::process::Signal;
use serde_json::Value;

use super::fixture::{await_starts, cli, cli_text, leading, node};
use crate::support::node::Spec;
use crate::support::{LONG, until};

/// A job that runs at every second, and fails at every third.
const TICK: &str = "defaults: {overlap: allow}
jobs:
  tick:
    schedule: '* * * * * *'
    command: 'test $(( $(date +%s) % 3 )) -ne 0'
    history_limit: 5
";

fn records(spec: &Spec, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["history", "--json"], arguments].concat();
    cli_text(spec, &arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn runs(spec: &Spec) -> Vec<String> {
    let records = records(spec, &["tick", "-n", "1000"]);
    records.iter().filter(|record| record["kind"] == "run").map(|record| record["run"].to_string()).collect()
}

#[test]
fn the_archive_shows_what_the_ledger_has_trimmed_also_after_a_restart() {
    let spec = node("archive").jobs(TICK);
    let first = leading(&spec);
    await_starts(&first, "tick", 12);
    until("more runs are shown than the ledger keeps", || runs(&spec).len() >= 12);
    let before = runs(&spec);
    let db = rusqlite::Connection::open(spec.state_dir().join("ledger.db")).unwrap();
    let sql = "SELECT count(*) FROM history WHERE kind = 'run'";
    let kept = || db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    // Between two trims a few more are there.
    until("the ledger keeps five", || kept() <= 8);

    let failed = records(&spec, &["--failed", "-n", "1000"]);
    assert!(!failed.is_empty() && failed.iter().all(|record| record["outcome"] == "failure"), "{failed:?}");
    let nothing = records(&spec, &["--job", "t?c*", "--outcome", "timeout", "--since", "1h", "--node", first.name()]);
    assert_eq!(nothing, [] as [Value; 0]);
    let csv = cli_text(&spec, &["history", "--csv", "--outcome", "success", "-n", "3"]);
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("kind,job,run,due,started,ended,"), "{csv}");
    assert!(lines[1..].iter().all(|line| line.starts_with("run,tick,tick.") && line.split(',').count() == 18), "{csv}");
    let few = cli(&spec, &["history", "tick", "-n", "2"]);
    let said = String::from_utf8(few.stderr).unwrap();
    assert!(said.contains("older records") && said.contains("-n"), "{said}");

    first.signal(Signal::TERM);
    first.wait_exit(LONG);
    let second = leading(&spec);
    await_starts(&second, "tick", 1);
    let after = runs(&spec);
    assert!(before.iter().all(|run| after.contains(run)), "{before:?} in {after:?}");
}

#[test]
fn a_node_without_an_archive_shows_what_the_ledger_has() {
    let spec = node("archive").jobs(TICK).option("--history-retention", "none");
    let node = leading(&spec);
    await_starts(&node, "tick", 8);
    let newest = || records(&spec, &["tick", "-n", "1000"]).len();
    until("runs are shown, and not forever", || (1..=8).contains(&newest()));
    assert!(!spec.state_dir().join("archive.db").exists());
}
