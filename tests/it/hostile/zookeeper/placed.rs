//! A client that may write wherever the cluster does, and places runs by hand.
//!
//! What it can have run is less than a forged trigger can: a job that the node's own file lists for placement, on a node
//! with the labels. What it writes by the thousand is refused, skipped or removed, and holds up nothing else.

use std::time::Duration;

use serde_json::{Value, json};

use crate::failover::cluster::{Place, in_line, is_long, job, jobs, run_id, usual};
use crate::failover::control::asked;
use crate::failover::records::{SELDOM, assert_answers, await_ticks, lose_each_leader, stranger};
use crate::support::node::Node;
use crate::support::witness::{Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// Runs that are placed by hand: ten times as many in long runs.
const MANY: usize = 300;
/// Offers without a run, on each node: more than a node reads at a time.
const BARE: usize = 1_500;
/// Nodes that there are not.
const PLACES: usize = 200;

/// Where, as paths and data.
type Planted = Vec<(String, Vec<u8>)>;

struct Forger<'p> {
    place: &'p Place,
    /// The record of a real run that was placed and accepted.
    record: Value,
}

impl Forger<'_> {
    /// The record of a run, as if the leader had placed it on the node, with the offer, or without it.
    fn placed(&self, run: &str, node: &Node, with_offer: bool, more: &Value) -> Planted {
        let (job, at) = run.split_once('.').expect("it is an id");
        let at = format!("{}-{}-{}T{}:{}:{}Z", &at[..4], &at[4..6], &at[6..8], &at[9..11], &at[11..13], &at[13..15]);
        let mut record = self.record.clone();
        for key in ["trigger", "retry_at", "ready_at", "keep_until"] {
            record.as_object_mut().expect("a record").remove(key);
        }
        let (job, state) = (job.into(), "placed".into());
        record["job"] = job;
        record["state"] = state;
        record["scheduled_at"] = at.into();
        record["node"] = node.name().into();
        record["attempt"] = 1.into();
        for (key, value) in more.as_object().into_iter().flatten() {
            record[key] = value.clone();
        }
        let mut planted = vec![(self.path(&format!("running/{run}")), record.to_string().into_bytes())];
        planted.extend(with_offer.then(|| (self.path(&format!("offers/{}/{run}", node.name())), Vec::new())));
        planted
    }

    fn path(&self, below: &str) -> String {
        self.place.path(&format!("/cronkeeper/{below}"))
    }
}

/// A time before all that is due here.
fn long_ago(number: usize) -> String {
    let at: jiff::Timestamp = "2020-01-01T00:00:00Z".parse().expect("a time");
    run_id("x", at + Duration::from_secs(number as u64)).split_off("x.".len())
}

/// The nodes on which the job began.
fn begun(witness: &Witness, job: &str) -> Vec<String> {
    let entries = witness.entries();
    let of = entries.iter().filter(|entry| entry.job == job && entry.mark == Mark::Start);
    of.map(|entry| entry.node.clone()).collect()
}

#[test]
fn what_is_placed_by_hand_runs_only_where_the_own_file_and_the_labels_say_so_and_holds_up_nothing() {
    let ensemble = Ensemble::start(1);
    let (place, witness, stranger) = (Place::on(&ensemble), Witness::new(), stranger(&ensemble));
    let command = witness.command(&[]);
    let file = jobs(&[
        job("tick", "* * * * * *", &command, ""),
        job("spread", "* * * * * *", &command, "run_on: any"),
        job("own", SELDOM, &command, ""),
        job("gpu", SELDOM, &command, "run_on: any\nrun_where: gpu"),
        job("share", SELDOM, &command, "run_on: every"),
        job("other", SELDOM, &command, "run_on: any\nnice: 1"),
    ]);
    let [a, b] =
        in_line([usual(place.node("a")), usual(place.node("b")).option("--label", "gpu")].map(|spec| spec.jobs(&file)));
    await_ticks(&witness, &[&a]);
    // A real run, whose record is the pattern: its digest is that of `gpu`.
    let run = asked(a.spec(), &["trigger", "gpu"]);
    b.await_where("run.started", LONG, |started| started.text("run") == run);
    let forger = Forger { place: &place, record: place.await_end(&run)["run"].clone() };

    // A job that runs on the leader, on another node; a node without the label; the share of another node; and a
    // definition that is not the node's.
    let at = long_ago(0);
    let share = format!("share.{at}@{}", a.name());
    let refused = [
        (forger.placed(&format!("own.{at}"), &b, true, &json!({})), &b, "definition"),
        (forger.placed(&format!("gpu.{at}"), &a, true, &json!({})), &a, "labels"),
        (forger.placed(&share, &b, true, &json!({"on": a.name()})), &b, "definition"),
        (forger.placed(&format!("other.{at}"), &b, true, &json!({})), &b, "definition"),
    ];
    for (planted, node, reason) in &refused {
        stranger.make_all_with(planted);
        stranger.set(&forger.path(&format!("offers/{}", node.name())), b"").expect("it is open to all");
        let run = planted[0].0.rsplit('/').next().expect("a name");
        node.await_where("run.refused", LONG, |event| event.text("run") == run && event.text("reason") == *reason);
        until("the leader has ended it", || place.running(run).is_none());
    }

    let bare: Vec<String> = (0..BARE)
        .flat_map(|number| {
            let run = format!("gpu.{}", long_ago(100_000 + number));
            [&a, &b].map(|node| forger.path(&format!("offers/{}/{run}", node.name())))
        })
        .collect();
    stranger.make_all(&bare);
    let many = if is_long() { 10 * MANY } else { MANY };
    let placed: Planted = (1..=many)
        .flat_map(|number| {
            let (job, node) = (["gpu", "ghost"][number % 2], [&a, &b][number / 2 % 2]);
            forger.placed(&format!("{job}.{}", long_ago(number)), node, false, &json!({}))
        })
        .collect();
    stranger.make_all_with(&placed);
    let places: Planted = (0..PLACES)
        .map(|number| {
            let data = json!({"v": 1, "labels": ["gpu"], "weight": 1_000_000});
            (forger.path(&format!("places/ghost-{number}")), data.to_string().into_bytes())
        })
        .collect();
    stranger.make_all_with(&places);
    await_ticks(&witness, &[&a, &b]);
    let seen = begun(&witness, "spread").len();
    until("the other jobs go on", || begun(&witness, "spread").len() > seen + 2);

    let [a, b] = lose_each_leader(&witness, [a, b]);
    until("what was placed by hand is over", || {
        let running = stranger.children(&place.path("/cronkeeper/running"));
        running.iter().all(|run| !run.starts_with("gpu.2020") && !run.starts_with("ghost."))
    });
    for node in [&a, &b] {
        until("no offer is left", || stranger.children(&forger.path(&format!("offers/{}", node.name()))).len() < 10);
    }
    assert_eq!(begun(&witness, "gpu"), [b.name()]);
    for job in ["own", "share", "other"] {
        assert_eq!(begun(&witness, job), Vec::<String>::new(), "{job}");
    }
    assert_eq!(asked(a.spec(), &["trigger", "gpu", "--wait"]).lines().count(), 1, "and the job still runs");
    [&a, &b].iter().for_each(|node| assert_answers(node.spec()));
    witness.assert_fine(&[]);
}
