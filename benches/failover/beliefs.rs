//! Times during which each node believed that it led, from the nodes' own logs; and whether that was a violation.
//!
//! A term is over when its node reports it, is killed, or is stopped: a stopped process believes nothing. After it
//! wakes up, it is judged by its actions. A start counts from when its program began, not from when it was logged: a
//! process that is held begins on time although its daemon is stopped, and the daemon logs it once it goes on. In
//! addition the jobs report themselves in one file that no node can influence.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::replicas::instant;
use crate::support::node::{Event, Events};
use crate::support::witness::{Entry, faults};

/// The log of one process, and what was done to the process.
#[derive(Clone, Debug)]
pub struct Account {
    pub node: String,
    pub log: Arc<Events>,
    /// Times at which it was stopped.
    pub stops: Vec<Timestamp>,
    /// The time at which it was killed.
    pub ended: Option<Timestamp>,
}

/// A time during which a process believed that it led.
struct Belief<'a> {
    node: &'a str,
    token: i64,
    from: Timestamp,
    until: Timestamp,
    /// The time at which the process reported that it lost leadership.
    lost: Option<Timestamp>,
}

/// All violations.
pub fn broken(accounts: &[Account], seen: &[Entry]) -> Vec<String> {
    let logs: Vec<Vec<Event>> = accounts.iter().map(|account| account.log.all()).collect();
    let all = || accounts.iter().zip(&logs);
    let mut beliefs: Vec<Belief<'_>> = all().flat_map(|(account, log)| beliefs(account, log)).collect();
    beliefs.sort_by_key(|belief| belief.from);
    let mut broken = overlaps(&beliefs);
    broken.extend(all().flat_map(|(account, log)| stale_starts(&account.node, log, &beliefs)));
    broken.extend(faults(seen, &[]).iter().map(|fault| format!("the jobs saw {fault:?}")));
    broken
}

fn beliefs<'a>(account: &'a Account, log: &[Event]) -> Vec<Belief<'a>> {
    let elected = log.iter().filter(|event| event.name() == "leader.elected");
    elected.map(|event| account.belief(event, log)).collect()
}

impl Account {
    fn belief(&self, elected: &Event, log: &[Event]) -> Belief<'_> {
        let (token, from) = (token(elected), instant(elected));
        let over =
            |name: &str| log.iter().find(|event| event.name() == name && self::token(event) == token).map(instant);
        let stopped = self.stops.iter().copied().find(|&at| at > from);
        let lost = over("leader.lost");
        let ends = [over("leader.resigned"), lost, stopped, self.ended];
        let until = ends.into_iter().flatten().min().unwrap_or(Timestamp::MAX);
        Belief { node: &self.node, token, from, until, lost }
    }
}

impl fmt::Display for Belief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by token {} from {} until {}", self.node, self.token, self.from, self.until)
    }
}

/// Two that led at the same time.
fn overlaps(beliefs: &[Belief<'_>]) -> Vec<String> {
    let mut broken = Vec::new();
    for (i, later) in beliefs.iter().enumerate() {
        let still = beliefs[..i].iter().filter(|earlier| earlier.until > later.from);
        broken.extend(still.map(|earlier| format!("two leaders: {earlier} and {later}")));
    }
    broken
}

/// Runs that a node started for a term that it had lost, or that another's had followed while this one was cut off.
fn stale_starts(node: &str, log: &[Event], beliefs: &[Belief<'_>]) -> Vec<String> {
    let is_stale = |run: &Event| {
        let (token, at) = (token(run), began(run));
        let lost = beliefs.iter().find(|belief| belief.token == token).and_then(|belief| belief.lost);
        let followed = beliefs.iter().filter(|belief| belief.token > token).map(|belief| belief.from).min();
        lost.is_some_and(|lost| at > lost || followed.is_some_and(|followed| at > followed))
    };
    let starts = log.iter().filter(|event| event.name() == "run.started" && is_stale(event));
    starts.map(|run| format!("{node} was no leader any more and started {}", run.json())).collect()
}

/// When a run's program began, however late that was logged.
fn began(run: &Event) -> Timestamp {
    run.text("started_at").parse().expect("the event tells when the program began")
}

fn token(event: &Event) -> i64 {
    event.number("token").expect("the event names its term")
}
