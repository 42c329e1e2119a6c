//! The cases: what is done to a leader, and what is measured.
//!
//! A trial returns one time for each row of its case, and leaves all nodes in the queue.

use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;

use crate::TICK;
use crate::replicas::{Replicas, instant, since};
use crate::service;
use crate::support::command::{self, CRONKEEPER};
use crate::support::node::Spec;
use crate::support::{LONG, until};
use crate::table::{Bound, ms};

/// A way for leadership to pass on.
pub struct Case {
    /// Session timeout of the nodes.
    pub session: Duration,
    /// The rows, each with its goal.
    pub rows: Vec<(String, Vec<Bound>)>,
    /// True if the nodes reach the servers through links that can be cut.
    pub has_lines: bool,
    /// True if it takes as long as a session.
    pub is_long: bool,
    /// One trial.
    pub trial: fn(&mut Replicas) -> Vec<Duration>,
}

/// Cases on the solo backend, where the kernel reports a death.
pub fn on_one_host() -> [Case; 2] {
    let case = |name: &str, trial| Case {
        session: Duration::ZERO,
        rows: vec![(format!("solo: {name}"), vec![Bound::Median(ms(100))])],
        has_lines: false,
        is_long: false,
        trial,
    };
    [case("kill -9", kill), case("SIGTERM", end)]
}

/// What another service is held to, each by what it can do.
struct Goals {
    /// From SIGTERM to the next leader, at the median.
    ended: Duration,
    /// From the end of the session timeout of a leader that died to the next leader, at most.
    after_session: Duration,
}

fn goals() -> Goals {
    // On a store, who looks at the sessions sees the last beat late, and the end of the timeout.
    let looks = ms(500);
    match service::name() {
        service::POSTGRES => Goals { ended: ms(30), after_session: looks },
        service::ETCD | service::REDIS => Goals { ended: ms(20), after_session: looks },
        // ZooKeeper learns about a session up to half a tick late, and ends sessions once a tick; then comes an election.
        _ => Goals { ended: ms(8), after_session: TICK * 3 / 2 + ms(100) },
    }
}

/// Cases with this session timeout.
pub fn on_service(session: Duration) -> [Case; 6] {
    let case = |rows: &[(&str, &[Bound])], trial| Case {
        session,
        rows: rows.iter().map(|&(name, bounds)| (format!("{} s: {name}", session.as_secs()), bounds.into())).collect(),
        has_lines: false,
        is_long: false,
        trial,
    };
    let Goals { ended, after_session } = goals();
    let expiry = Bound::Each(session + after_session);
    // The longest a lease lasts (see `lease`).
    let lease = Bound::Each(session * 17 / 20 + ms(50));
    let quick = [Bound::Each(ms(150))];
    [
        case(&[("SIGTERM", &[Bound::Median(ended), Bound::P99(ms(50))])], end),
        case(&[("kill -9, started again", &quick)], kill_and_restart),
        case(&[("kill -9, cronkeeper release", &quick)], kill_and_release),
        Case { is_long: true, ..case(&[("kill -9 alone", &[expiry])], kill) },
        Case {
            is_long: true,
            ..case(&[("SIGSTOP", &[expiry]), ("SIGSTOP: belief after SIGCONT", &[Bound::Each(ms(104))])], stop)
        },
        Case {
            is_long: true,
            has_lines: true,
            ..case(&[("partition", &[expiry]), ("partition: belief after the cut", &[lease])], part)
        },
    ]
}

/// From SIGTERM to the successor's election.
fn end(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.node(old).signal(Signal::TERM);
    let took = replicas.await_leader(at);
    replicas.node(old).wait_exit(LONG);
    replicas.restart(old);
    vec![took]
}

/// From the kill to the successor's election. The dead node is started again only afterwards.
fn kill(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.kill(old);
    let took = replicas.await_leader(at);
    replicas.restart(old);
    vec![took]
}

/// From the kill to the next election of any node; the supervisor starts the node on its state directory at once.
fn kill_and_restart(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.kill(old);
    replicas.start_again(old);
    let took = replicas.await_leader(at);
    replicas.settle(old);
    vec![took]
}

/// From the kill to the successor's election; the supervisor calls `cronkeeper release` at once.
fn kill_and_release(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.kill(old);
    release(replicas.node(old).spec());
    let took = replicas.await_leader(at);
    replicas.restart(old);
    vec![took]
}

fn release(spec: &Spec) {
    let state = spec.state_dir().display().to_string();
    let [option, place] = spec.service().expect("the node is on a service");
    let line = ["release", "--node", spec.name(), "--state-dir", &state, option, place];
    let output = command::command(&line).output().expect("the program can be started");
    assert!(output.status.success() && output.stderr.is_empty(), "{CRONKEEPER} {line:?}: {output:?}");
}

/// From SIGSTOP to the successor's election; and from SIGCONT, after that, until the old leader reports that it no
/// longer leads.
fn stop(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.stop(old);
    let took = replicas.await_leader(at);
    let (node, woken) = (replicas.node(old), Timestamp::now());
    node.cont();
    let lost = node.await_where("leader.lost", LONG, |event| instant(event) > at);
    replicas.await_following(old, woken);
    vec![took, since(instant(&lost), woken)]
}

/// From the cut to the successor's election; and until the old leader reports that it no longer leads.
fn part(replicas: &mut Replicas) -> Vec<Duration> {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.part(old);
    let took = replicas.await_leader(at);
    let lost = replicas.node(old).await_where("leader.lost", LONG, |event| instant(event) > at);
    let healed = Timestamp::now();
    replicas.heal(old);
    replicas.await_following(old, healed);
    until("no other leads meanwhile", || replicas.elections(at) == 1);
    vec![took, since(instant(&lost), at)]
}
