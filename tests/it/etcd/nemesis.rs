//! Three nodes on three members of etcd while nodes and members fail; see [`stores`](crate::nemesis::stores).
//!
//! The nodes reach each member through a tap, which keeps what passes. Each commit has a nonce, and etcd's history of
//! the key that each commit writes shows by their nonces which commits took effect.

mod requests;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde::Deserialize;

use self::requests::{Bytes, data, nonce};
use crate::ledger::txn::Txn;
use crate::nemesis::stores::commits::carried_out;
use crate::nemesis::stores::{Servers, faults};
use crate::support::LONG;
use crate::support::etcd::Etcd;
use crate::support::node::{Events, Spec};
use crate::support::process::Process;
use crate::support::proxy::Proxy;

const MEMBERS: usize = 3;
/// All keys begin with it, unless the settings name another.
const PREFIX: &str = "/cronkeeper";
/// Each commit writes it.
const HEAD: &str = "/cronkeeper/head";

faults! {
    Members:
    MemberKilled the_promises_hold_when_a_member_is_killed
    /// The member that leads the others.
    LeaderStopped the_promises_hold_when_the_leading_member_is_stopped
    AllKilled the_promises_hold_when_all_members_are_killed
    /// No node reaches a member, which goes on.
    CutOff the_promises_hold_when_a_member_is_cut_off
}

enum Step {
    Continue(usize),
    Start(Vec<usize>),
    Join(usize),
}

struct Members {
    etcd: Etcd,
    /// One for each member.
    taps: Vec<Proxy>,
    /// The member that one of them alone is hit by.
    victim: usize,
}

impl Servers for Members {
    type Fault = Fault;
    type Step = Step;

    const FAULTS: &'static [Fault] = FAULTS;

    fn start(_fault: Fault, seed: u64) -> Self {
        let etcd = Etcd::start(MEMBERS);
        let taps = (0..MEMBERS).map(|i| Proxy::recording(etcd.address_of(i))).collect();
        let chance = usize::try_from(seed).unwrap_or(0) / Self::FAULTS.len();
        Self { etcd, taps, victim: chance % MEMBERS }
    }

    fn place(&self, spec: Spec, node: usize) -> Spec {
        // Each node begins with another member.
        let in_turn = (0..MEMBERS).map(|i| &self.taps[(node + i) % MEMBERS]);
        let urls: Vec<String> = in_turn.map(|tap| format!("http://{}", tap.address())).collect();
        spec.on_service(&["--etcd".to_owned(), urls.join(",")])
    }

    fn hit(&mut self, fault: Fault, lasts: Duration) -> (String, Vec<(Duration, Step)>) {
        let victim = self.victim;
        let (done, later) = match fault {
            Fault::MemberKilled => {
                self.etcd.kill(victim);
                (format!("member {victim} is killed"), Step::Start(vec![victim]))
            }
            Fault::LeaderStopped => {
                let leader = self.etcd.leader().unwrap_or(victim);
                self.etcd.signal(leader, Signal::STOP);
                (format!("member {leader}, which leads, is stopped"), Step::Continue(leader))
            }
            Fault::AllKilled => {
                (0..MEMBERS).for_each(|i| self.etcd.kill(i));
                ("all members are killed".to_owned(), Step::Start((0..MEMBERS).collect()))
            }
            Fault::CutOff => {
                self.taps[victim].part();
                (format!("member {victim} is cut off"), Step::Join(victim))
            }
        };
        (done, vec![(lasts, later)])
    }

    fn take(&mut self, step: Step) -> &'static str {
        match step {
            Step::Continue(i) => {
                self.etcd.signal(i, Signal::CONT);
                "the member goes on"
            }
            Step::Start(members) => {
                members.into_iter().for_each(|i| self.etcd.start_member(i));
                self.etcd.await_serving();
                "all members serve again"
            }
            Step::Join(i) => {
                self.taps[i].pass();
                "the member can be reached again"
            }
        }
    }

    fn write(&self) {
        self.etcd.etcdctl(&["put", "/busy", ""]);
    }

    fn records(&self, _folders: &[&str]) -> Vec<(String, Vec<u8>)> {
        // All that are as deep as the children of the folders, because each call starts a program.
        let (from, to) = (format!("{PREFIX}/02"), format!("{PREFIX}/04"));
        let text = self.etcd.etcdctl(&["get", &from, &to, "-w", "json"]).unwrap_or_default();
        let found: Range = serde_json::from_str(&text).unwrap_or_default();
        found.kvs.iter().filter_map(|kv| Some((kv.key.path(PREFIX)?, data(&kv.value.0).to_vec()))).collect()
    }

    fn committed(&self) -> Vec<Txn> {
        // Read first: whatever the members have done was recorded before.
        let nonces = self.nonces();
        let requests = self.taps.iter().flat_map(|tap| requests::commits(&tap.record(), PREFIX));
        carried_out(requests.collect(), &nonces)
    }
}

/// What `etcdctl get` prints.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Range {
    kvs: Vec<KeyValue>,
}

/// A line that `etcdctl watch` prints.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Watched {
    events: Vec<Changed>,
}

#[derive(Deserialize)]
struct Changed {
    kv: KeyValue,
}

#[derive(Deserialize)]
struct KeyValue {
    key: Bytes,
    mod_revision: i64,
    value: Bytes,
}

impl Members {
    /// The nonces of all commits that took effect, by revision.
    fn nonces(&self) -> BTreeMap<i64, u64> {
        let text = self.etcd.etcdctl(&["get", HEAD, "-w", "json"]).expect("etcd serves");
        let newest: Range = serde_json::from_str(&text).expect("it is what is printed");
        let newest = newest.kvs.first().expect("something is committed").mod_revision;
        let mut watching = Process::spawn("etcdctl", |command| {
            command.env("ETCDCTL_API", "3").args(["--endpoints", &self.etcd.address_of(0).to_string()]);
            command.args(["watch", HEAD, "--rev", "1", "-w", "json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        })
        .expect("etcdctl can be started");
        let history = Events::read(watching.take(|child| child.stdout.take()));
        let events = |line: &serde_json::Value| Watched::deserialize(line).unwrap_or_default().events;
        let is_newest = |changed: &Changed| changed.kv.mod_revision >= newest;
        let last = history.wait(0, LONG, |line| events(line.json()).iter().any(is_newest));
        assert!(last.is_some(), "etcd does not show its history up to {newest}: {}", history.tail());
        let all = history.all();
        let changes = all.iter().flat_map(|line| events(line.json()));
        changes.map(|it| (it.kv.mod_revision, nonce(&it.kv.value.0).expect("it has a nonce"))).collect()
    }
}
