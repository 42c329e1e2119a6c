//! Three nodes on Redis while nodes and servers fail; see [`stores`](crate::nemesis::stores).
//!
//! The nodes reach each server through a tap, which keeps what passes. Each commit has a nonce, and the server that
//! accepts writes at the end knows by their nonces which commits took effect.

mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use cronkeeper_cluster::store::KEPT_NONCES;
use rustix::process::Signal;

use self::requests::Asked;
use crate::ledger::txn::Txn;
use crate::nemesis::stores::commits::carried_out;
use crate::nemesis::stores::{Servers, faults, noticed};
use crate::support::node::{Event, Spec};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;

faults! {
    Redis:
    Killed the_promises_hold_when_the_server_is_killed
    /// It is stopped, the replica that each commit waits for takes its place, and then it goes on, a second server that
    /// accepts writes. At last it becomes the other's replica.
    Replaced the_promises_hold_when_the_server_is_replaced_and_goes_on
    /// Everybody, again and again.
    Disconnects the_promises_hold_when_the_server_disconnects_everybody
    Stopped the_promises_hold_when_the_server_is_stopped
}

enum Step {
    Continue,
    Start,
    Disconnect,
    Demote,
}

/// All keys begin with it, unless the settings name another.
const TAG: &str = "{cronkeeper}";

/// Paths and data of the records in folders, each pair on a line.
const RECORDS: &str = "
    local found = {}
    for at = 2, #ARGV do
        for _, name in ipairs(redis.call('HKEYS', ARGV[1] .. ':folder:' .. ARGV[at])) do
            local path = ARGV[at] .. '/' .. name
            table.insert(found, cjson.encode({ path, redis.call('GET', ARGV[1] .. ':record:' .. path) }))
        end
    end
    return found";

struct Redis {
    /// With the tap of each, in the order in which nodes try them.
    all: Vec<(Server, Proxy)>,
    /// The place of the one that accepts writes.
    master: usize,
}

impl Servers for Redis {
    type Fault = Fault;
    type Step = Step;

    const FAULTS: &'static [Fault] = FAULTS;

    fn start(fault: Fault, _seed: u64) -> Self {
        let master = Server::start(&[]);
        let replica = (fault == Fault::Replaced).then(|| master.replica());
        let tapped = |server: Server| {
            let tap = Proxy::recording((Ipv4Addr::LOCALHOST, server.port()).into());
            (server, tap)
        };
        let all = [Some(master), replica].into_iter().flatten().map(tapped).collect();
        Self { all, master: 0 }
    }

    fn place(&self, spec: Spec, _node: usize) -> Spec {
        let urls: Vec<String> = self.all.iter().map(|(_, tap)| format!("redis://{}", tap.address())).collect();
        let wait = if urls.len() > 1 { "?wait=1" } else { "" };
        spec.on_service(&["--redis".to_owned(), format!("{}/0{wait}", urls.join(","))])
    }

    fn hit(&mut self, fault: Fault, lasts: Duration) -> (String, Vec<(Duration, Step)>) {
        let (done, later) = match fault {
            Fault::Killed => {
                self.all[self.master].0.kill();
                ("the server is killed", vec![(lasts, Step::Start)])
            }
            Fault::Stopped => {
                self.server().signal(Signal::STOP);
                ("the server is stopped", vec![(lasts, Step::Continue)])
            }
            Fault::Disconnects => {
                let each = (0..8).map(|i| (lasts.mul_f64(f64::from(i) / 8.0), Step::Disconnect));
                ("the server begins to disconnect everybody", each.collect())
            }
            Fault::Replaced => {
                self.server().signal(Signal::STOP);
                let old = std::mem::replace(&mut self.master, 1);
                assert_eq!(self.server().cli(&["replicaof", "no", "one"]), "OK");
                self.all[old].0.signal(Signal::CONT);
                ("the replica is promoted, and the old server goes on", vec![(lasts, Step::Demote)])
            }
        };
        (done.to_owned(), later)
    }

    fn take(&mut self, step: Step) -> &'static str {
        match step {
            Step::Continue => {
                self.server().signal(Signal::CONT);
                "the server goes on"
            }
            Step::Start => {
                self.all[self.master].0.start_again();
                "the server is started again"
            }
            Step::Disconnect => {
                self.server().cli(&["client", "kill", "type", "normal"]);
                "the server disconnects everybody"
            }
            Step::Demote => {
                let port = self.server().port().to_string();
                assert_eq!(self.all[0].0.cli(&["replicaof", "127.0.0.1", &port]), "OK");
                "the old server becomes a replica"
            }
        }
    }

    fn write(&self) {
        self.server().cli(&["set", "busy", ""]);
    }

    fn records(&self, folders: &[&str]) -> Vec<(String, Vec<u8>)> {
        let text = self.server().cli(&[&["eval", RECORDS, "0", TAG], folders].concat());
        let pairs = text.lines().filter_map(|line| serde_json::from_str::<(String, String)>(line).ok());
        pairs.map(|(path, data)| (path, data.into_bytes())).collect()
    }

    fn committed(&self) -> Vec<Txn> {
        // Read first: whatever the server has done was recorded before.
        let nonces = self.nonces();
        carried_out(self.asked().into_iter().map(|asked| asked.request).collect(), &nonces)
    }

    fn lost(&self, rewound: &[&Event]) -> Vec<String> {
        // Read first: the nodes go on meanwhile.
        let asked = self.asked();
        let there: BTreeSet<u64> = self.nonces().into_values().collect();
        let lost = asked.into_iter().filter(|asked| asked.is_acknowledged && !there.contains(&asked.request.nonce));
        let lost = lost.map(|asked| format!("an acknowledged commit is lost: {asked:?}"));
        lost.chain(noticed(rewound)).collect()
    }
}

impl Redis {
    /// The one that accepts writes.
    fn server(&self) -> &Server {
        &self.all[self.master].0
    }

    /// The nonces of all commits that took effect, by revision.
    fn nonces(&self) -> BTreeMap<i64, u64> {
        let text = self.server().cli(&["hgetall", &format!("{TAG}:nonces")]);
        let lines: Vec<&str> = text.lines().collect();
        let (pairs, _) = lines.as_chunks::<2>();
        let nonces: BTreeMap<i64, u64> = pairs
            .iter()
            .map(|[revision, nonce]| (revision.parse().expect("it is a number"), nonce.parse().expect("it is one too")))
            .collect();
        let newest = nonces.keys().last().copied().unwrap_or(0);
        assert!(newest < KEPT_NONCES && nonces.len() == usize::try_from(newest).unwrap_or(0), "some are not kept");
        nonces
    }

    /// All commits that clients have asked for.
    fn asked(&self) -> Vec<Asked> {
        self.all.iter().flat_map(|(_, tap)| requests::commits(&tap.record())).collect()
    }
}
