//! Records in ZooKeeper that somebody else damages, closes or deletes, and names that cronkeeper would never give. Each
//! must harm only itself, and a log must name it.
//!
//! A job that runs every second shows that the cluster goes on. Many records are damaged at once, and none must hide
//! another. A closed parent hides its children, so each parent is tested on a cluster of its own.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use zookeeper_client::{Client, Permission};

use super::cluster::{Place, Zk, again, in_line, job, jobs, token, usual};
use crate::support::command::run;
use crate::support::node::{Event, Node, Spec};
use crate::support::witness::{Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll, test_name, until};

const GARBAGE: &[u8] = b"}{ no record \xff";
/// A job that is never due.
pub const SELDOM: &str = "@at 2099-01-01T00:00:00Z";
/// The time of runs that nobody has begun.
pub const AT: &str = "20260101T000000Z";

/// What is done to a record, or written where there was none.
enum Damage {
    Garbage,
    Unreadable,
    Unwritable,
    Deleted,
    Made(Vec<u8>),
    /// The record is created first, and then closed to everybody else.
    MadeUnreadable,
    MadeUnwritable(Vec<u8>),
}

struct Fault {
    path: String,
    damage: Damage,
    /// Text that a line of some log must contain; `None` if there is nothing to report.
    named: Option<String>,
}

impl Fault {
    fn new(path: &str, damage: Damage) -> Self {
        Self { path: path.into(), damage, named: Some(path.into()) }
    }

    /// Nothing needs to be logged.
    fn silent(self) -> Self {
        Self { named: None, ..self }
    }

    /// The part of the name that the log contains, if it does not contain the name as it is.
    fn named(self, part: &str) -> Self {
        Self { named: Some(part.into()), ..self }
    }

    fn strike(&self, place: &Place, stranger: &Zk) {
        let path = &place.path(&self.path);
        match &self.damage {
            Damage::Garbage => until("garbage is written", || stranger.set(path, GARBAGE).is_ok()),
            Damage::Unreadable => stranger.seize(path, Permission::NONE),
            Damage::Unwritable => stranger.seize(path, Permission::READ),
            Damage::Deleted => stranger.delete_all(path),
            Damage::Made(data) => stranger.make(path, data),
            Damage::MadeUnreadable => {
                stranger.make(path, GARBAGE);
                stranger.seize(path, Permission::NONE);
            }
            Damage::MadeUnwritable(data) => {
                stranger.make(path, data);
                stranger.seize(path, Permission::READ);
            }
        }
    }
}

/// Jobs whose records are damaged. Each runs every two seconds.
const BUSY: [&str; 10] = [
    "jobs-garbage",
    "jobs-unreadable",
    "jobs-unwritable",
    "jobs-deleted",
    "history-unreadable",
    "history-unwritable",
    "history-deleted",
    "history-records",
    "control-garbage",
    "control-unreadable",
];
/// Jobs with records of runs that nobody began.
const FOUND: [&str; 10] = [
    "run-unwritable",
    "run-rerun",
    "run-empty-owner",
    "run-owner-above",
    "run-owner-control",
    "run-owner-long",
    "run-attempts",
    "run-keep",
    "run-far",
    "run-retry",
];

fn of_folders() -> Vec<Fault> {
    use Damage::{Deleted, Garbage, Made, MadeUnreadable, Unreadable, Unwritable};
    let made = || Made(GARBAGE.to_vec());
    let long = "n".repeat(2_000);
    vec![
        Fault::new("/cronkeeper/jobs/jobs-garbage", Garbage),
        Fault::new("/cronkeeper/jobs/jobs-unreadable", Unreadable),
        Fault::new("/cronkeeper/jobs/jobs-unwritable", Unwritable),
        Fault::new("/cronkeeper/jobs/jobs-deleted", Deleted).silent(),
        Fault::new("/cronkeeper/jobs/odd name of a job", made()),
        Fault::new("/cronkeeper/jobs/..odd", made()),
        Fault::new("/cronkeeper/jobs/stranger", MadeUnreadable),
        Fault::new("/cronkeeper/history/history-unreadable", Unreadable),
        Fault::new("/cronkeeper/history/history-unwritable", Unwritable),
        Fault::new("/cronkeeper/history/history-deleted", Deleted).silent(),
        Fault::new("/cronkeeper/history/history-records/odd name", made()).silent(),
        Fault::new("/cronkeeper/history/history-records/stranger", MadeUnreadable).silent(),
        Fault::new("/cronkeeper/history/odd name of a folder", made()).silent(),
        Fault::new("/cronkeeper/control/control-garbage", made()),
        Fault::new("/cronkeeper/control/control-unreadable", MadeUnreadable),
        Fault::new("/cronkeeper/control/odd name of a pause", made()),
        Fault::new("/cronkeeper/triggers/odd name of a trigger", made()),
        Fault::new("/cronkeeper/triggers/0000000900", made()),
        Fault::new("/cronkeeper/triggers/0000000901", MadeUnreadable),
        Fault::new("/cronkeeper/nodes/ghost", MadeUnreadable),
        Fault::new("/cronkeeper/nodes/odd name of a node", made()).silent(),
        Fault::new("/cronkeeper/cluster", Unwritable).silent(),
        Fault::new("/leader", Garbage).silent(),
        Fault::new("/leader/odd name of an entry", made()).silent(),
        Fault::new("/leader/stranger-0000000900", MadeUnreadable).silent(),
        Fault::new("/leader/stranger-2147483647", made()).silent(),
        Fault::new(&format!("/leader/{long}"), made()).silent(),
        Fault::new("/cronkeeper/running/run-garbage.20260101T000000Z", made()),
        Fault::new("/cronkeeper/running/run-unreadable.20260101T000000Z", MadeUnreadable),
        Fault::new("/cronkeeper/running/odd name of a run", made()),
    ]
}

/// Records of runs that are partly wrong. `record` is a valid one, of a run that may be begun again.
fn of_runs(record: &Value) -> Vec<Fault> {
    let path = |job: &str| format!("/cronkeeper/running/{job}.{AT}");
    let with = |job: &str, parts: Value| {
        let mut record = record.clone();
        let own = json!({"job": job, "scheduled_at": "2026-01-01T00:00:00Z", "node": "gone"});
        for (key, value) in own.as_object().into_iter().chain(parts.as_object()).flatten() {
            record[key] = value.clone();
        }
        record.to_string().into_bytes()
    };
    let made = |job: &str, parts: Value| Fault::new(&path(job), Damage::Made(with(job, parts)));
    let owned_by = |job: &str, node: &str| made(job, json!({"node": node}));
    let taken = |job: &str, parts: Value| Fault::new(&path(job), Damage::MadeUnwritable(with(job, parts)));
    vec![
        taken("run-unwritable", json!({"on_loss": "keep"})),
        taken("run-rerun", json!({})),
        owned_by("run-empty-owner", ""),
        owned_by("run-owner-above", "../../zookeeper"),
        owned_by("run-owner-control", "a\u{1}\nb\u{7f}"),
        owned_by("run-owner-long", &"n".repeat(10_000)),
        made("run-attempts", json!({"attempt": u32::MAX})).silent(),
        made("run-keep", json!({"on_loss": "keep", "keep_until": "9999-12-30T21:59:59Z"})).silent(),
        made("run-far", json!({"scheduled_at": "9999-12-30T21:59:59Z"})).named("run-far"),
        made("run-retry", json!({"state": "retrying", "retry_at": "9999-12-30T21:59:59Z"})).silent(),
    ]
}

fn file(witness: &Witness) -> String {
    let busy = BUSY.map(|name| job(name, "*/2 * * * * *", "['true']", ""));
    let found = FOUND.map(|name| job(name, SELDOM, "['true']", "interrupted: rerun"));
    let own = [
        job("tick", "* * * * * *", &witness.command(&[]), ""),
        job("long", "* * * * * *", "[sleep, '3600']", "interrupted: rerun"),
    ];
    jobs(&[&busy[..], &found, &own].concat())
}

pub fn stranger(ensemble: &Ensemble) -> Zk {
    Zk::with(Client::connector().with_auth("digest", b"other:secret"), &ensemble.connect_string())
}

/// Waits until the leader has run the job that is due every second a few more times.
pub fn await_ticks(witness: &Witness, nodes: &[&Node]) {
    let seen = witness.entries().len();
    let of = |node: &Node| {
        let entries = witness.entries();
        entries[seen..].iter().filter(|entry| entry.mark == Mark::End && entry.node == node.name()).count()
    };
    let gone_on = poll(LONG, || nodes.iter().any(|node| of(node) >= 3).then_some(()));
    let logs: String = nodes.iter().map(|node| format!("{}:\n{}", node.name(), node.events().tail())).collect();
    assert!(gone_on.is_some(), "the job of every second is not run; {logs}");
    nodes.iter().for_each(|node| assert!(node.status().is_none(), "{} ended:\n{}", node.name(), node.events().tail()));
}

/// Starts a new process of the node and waits until it is in the queue.
pub fn start_again(node: Node) -> Node {
    let node = again(node);
    let stands = |event: &Event| ["election.following", "takeover.done"].contains(&event.name());
    let found = node.events().wait(0, LONG, stands);
    assert!(found.is_some(), "{} finds no place:\n{}", node.name(), node.events().tail());
    node
}

/// The leader is killed; the other one leads, and is asked to stop. Each starts again, and the jobs go on.
pub fn lose_each_leader(witness: &Witness, [a, b]: [Node; 2]) -> [Node; 2] {
    a.kill9();
    await_ticks(witness, &[&b]);
    let a = start_again(a);
    b.signal(Signal::TERM);
    b.wait_exit(LONG);
    await_ticks(witness, &[&a]);
    [a, start_again(b)]
}

#[test]
fn a_bad_record_harms_itself_alone_and_is_named() {
    let ensemble = Ensemble::start(1);
    let (place, witness, stranger) = (Place::on(&ensemble), Witness::new(), stranger(&ensemble));
    let file = file(&witness);
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name)).jobs(&file)));
    await_ticks(&witness, &[&a]);
    until("the damaged jobs have a history", || BUSY.iter().all(|job| !place.history(job).is_empty()));
    let long = a.await_where("run.started", LONG, |event| event.text("job") == "long");
    let record = place.running(long.text("run")).expect("it goes on");

    let mut faults = of_folders();
    faults.extend(of_runs(&record));
    let member = |node: &Node| format!("/cronkeeper/nodes/{}", node.name());
    faults.push(Fault::new(&member(&c), Damage::Garbage).silent());
    faults.push(Fault::new(&format!("/leader/{}", place.queue()[2]), Damage::Garbage).silent());
    faults.push(Fault::new(&format!("/cronkeeper/running/{}", long.text("run")), Damage::Deleted).named("superseded"));
    faults.iter().for_each(|fault| fault.strike(&place, &stranger));
    await_ticks(&witness, &[&a, &b, &c]);

    // The periodic read of the queue and of the members, every 15 s, finds what no takeover reads.
    let mut logs: Vec<_> = [&a, &b, &c].map(Node::log).into();
    until("the members are looked at", || names(&logs, "/cronkeeper/nodes/ghost"));
    a.kill9();
    await_ticks(&witness, &[&b, &c]);
    let a = start_again(a);
    b.signal(Signal::TERM);
    b.wait_exit(LONG);
    await_ticks(&witness, &[&a, &c]);
    let b = start_again(b);
    c.kill9();
    await_ticks(&witness, &[&a, &b]);
    let c = start_again(c);
    await_ticks(&witness, &[&a, &b, &c]);
    logs.extend([&a, &b, &c].map(Node::log));

    let wanted = faults.iter().filter_map(|fault| fault.named.as_deref());
    let unnamed: Vec<&str> = wanted.filter(|name| !names(&logs, name)).collect();
    assert!(unnamed.is_empty(), "no log names {unnamed:#?}");
    let strange = logs.iter().flat_map(|log| log.all()).filter(|event| !event.plain().is_empty()).collect::<Vec<_>>();
    assert!(strange.is_empty(), "a panic, or what else is no event: {strange:#?}");
    [&a, &b, &c].iter().for_each(|node| assert_answers(node.spec()));
    assert!([&a, &b, &c].iter().any(|node| !node.events().named("leader.elected").is_empty() && token(node) > 0));
    witness.assert_fine(&[]);
}

pub fn names(logs: &[std::sync::Arc<crate::support::node::Events>], what: &str) -> bool {
    let has = |event: &Event| texts(event.json()).any(|text| text.contains(what));
    logs.iter().any(|log| log.all().iter().any(has))
}

/// The texts in an event's fields.
fn texts(event: &Value) -> impl Iterator<Item = &str> {
    event.as_object().into_iter().flat_map(|fields| fields.values()).filter_map(Value::as_str)
}

pub fn assert_answers(spec: &Spec) {
    let directory = spec.runtime_dir();
    let output = run(&["status", "--runtime-dir", directory.to_str().expect("a text")]);
    assert!(output.status.success(), "{output:?}");
}

/// Parents of the cluster's records. Each is in turn closed to everybody else, filled with garbage and deleted.
const FOLDERS: [&str; 8] = [
    "/leader",
    "/cronkeeper",
    "/cronkeeper/nodes",
    "/cronkeeper/jobs",
    "/cronkeeper/running",
    "/cronkeeper/history",
    "/cronkeeper/control",
    "/cronkeeper/triggers",
];

/// Tests one parent on a cluster of its own. While it is closed there may be no leader; afterwards everything must go
/// on.
fn folder(ensemble: &Ensemble, folder: &str) {
    let (place, witness, stranger) = (Place::on(ensemble), Witness::new(), stranger(ensemble));
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    await_ticks(&witness, &[&a]);
    let path = &place.path(folder);

    stranger.set(path, GARBAGE).expect("it is open to all");
    stranger.seize(path, Permission::NONE);
    let candidate =
        stranger.children(&place.path("/leader")).into_iter().min_by_key(|name| name[name.len() - 10..].to_owned());
    let candidate = candidate.expect("the leader is a candidate");
    a.kill9();
    // Nobody reads these while there is nothing new to write there.
    if !["/cronkeeper", "/cronkeeper/history"].contains(&folder) {
        until(&format!("{folder} is named"), || names(&[b.log()], folder));
    }
    until("the dead node's session is over", || !stranger.children(&place.path("/leader")).contains(&candidate));
    assert!(b.status().is_none(), "{} ended:\n{}", b.name(), b.events().tail());
    stranger.give_back(path);
    await_ticks(&witness, &[&b]);
    let a = start_again(a);

    // Deleting the other one also deletes the cluster id, which makes it another cluster.
    if folder != "/cronkeeper" {
        stranger.delete_all(path);
    }
    b.signal(Signal::TERM);
    b.wait_exit(LONG);
    await_ticks(&witness, &[&a]);
    let b = start_again(b);
    await_ticks(&witness, &[&a, &b]);
    witness.assert_fine(&[]);
}

#[test]
fn a_closed_folder_ends_no_node_and_all_goes_on_when_it_is_open_again() {
    let ensemble = Ensemble::start(1);
    // All at once: each waits most of the time.
    let failed: Vec<&str> = thread::scope(|scope| {
        let named = || thread::Builder::new().name(test_name());
        let each = FOLDERS
            .map(|path| (path, named().spawn_scoped(scope, || folder(&ensemble, path)).expect("a thread can be had")));
        each.into_iter().filter_map(|(path, test)| test.join().is_err().then_some(path)).collect()
    });
    assert!(failed.is_empty(), "not as promised: {failed:?}");
}
