//! A daemon that is killed just before jobs are due: its warden holds their processes, ends them, and leaves a note that
//! none of their programs has begun.

use jiff::Timestamp;
use serde_json::Value;

use super::cluster::{Place, again, job, jobs, run_id, usual};
use crate::support::node::Node;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// As many as are due at once, so that their processes are prepared well ahead of their time.
const JOBS: usize = 40;
/// Kills that come before the time of what is held.
const CAUGHT: usize = 2;
/// Most kills, as some come too late.
const KILLS: usize = 40;

/// The time of the newest begin that the node has noted, if it is still to come.
fn begun_ahead(node: &Node) -> Option<Timestamp> {
    let journal = std::fs::read_to_string(node.spec().state_dir().join("journal")).ok()?;
    let entries = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let due = entries.filter_map(|entry| entry.pointer("/begun/record/scheduled_at")?.as_str()?.parse().ok());
    due.max().filter(|due: &Timestamp| *due > Timestamp::now())
}

#[test]
fn what_is_held_when_the_daemon_is_killed_is_no_run_that_was_interrupted() {
    let (place, witness) = (Place::shared(), Witness::new());
    let names: Vec<String> = (0..JOBS).map(|number| format!("tick{number}")).collect();
    let each = names.iter().map(|name| job(name, "*/2 * * * * *", &witness.command(&[]), ""));
    let mut a = usual(place.node("a")).jobs(&jobs(&each.collect::<Vec<_>>())).start();
    let mut caught = 0;
    for _ in 0..KILLS {
        until("processes are prepared for a time to come", || begun_ahead(&a).is_some());
        let due = begun_ahead(&a);
        a.kill9();
        a.wait_exit(LONG);
        let in_time = due.filter(|due| *due > Timestamp::now());
        a = again(a);
        let Some(due) = in_time else { continue };
        until("what is due later has run", || {
            let entries = witness.entries();
            let has_run =
                |name: &String| entries.iter().any(|entry| entry.job == *name && entry.run > run_id(name, due));
            names.iter().all(has_run)
        });
        for name in &names {
            let run = run_id(name, due);
            assert!(place.running(&run).is_none(), "{run} is decided on");
            let record = place.history(name).remove(&run);
            let has_begun = witness.entries().iter().any(|entry| entry.run == run);
            let counts = record.as_ref().is_some_and(|record| record.get("outcome").is_some());
            assert!(has_begun || !counts, "no program ran: {record:?}");
        }
        caught += 1;
        if caught == CAUGHT {
            return witness.assert_fine(&[]);
        }
    }
    panic!("{caught} of {KILLS} kills came before the time of what was held");
}
