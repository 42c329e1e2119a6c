//! Three nodes on PostgreSQL while nodes and servers fail; see [`stores`](crate::nemesis::stores).

mod audit;

use std::time::Duration;

use rustix::process::Signal;

use self::audit::Audit;
use crate::ledger::txn::Txn;
use crate::nemesis::stores::{Servers, faults};
use crate::support::node::Spec;
use crate::support::postgres::Server;

faults! {
    Postgres:
    /// With all its processes, by SIGKILL.
    Killed the_promises_hold_when_the_server_is_killed
    /// It is stopped, the standby that each commit waits for takes its place, and then it goes on, a second server that
    /// accepts connections.
    Replaced the_promises_hold_when_the_server_is_replaced_and_goes_on
    /// Everybody, again and again.
    Disconnects the_promises_hold_when_the_server_disconnects_everybody
    Stopped the_promises_hold_when_the_server_is_stopped
    Restarted the_promises_hold_when_the_server_is_restarted
}

enum Step {
    Continue,
    Start,
    Disconnect,
    EndOld,
}

struct Postgres {
    server: Server,
    audit: Audit,
    standby: Option<Server>,
    /// A server that another one has replaced.
    old: Option<Server>,
}

impl Servers for Postgres {
    type Fault = Fault;
    type Step = Step;

    const FAULTS: &'static [Fault] = FAULTS;

    fn start(fault: Fault, _seed: u64) -> Self {
        let server = Server::start(&[], &[]);
        let audit = Audit::begin(&server);
        let standby = (fault == Fault::Replaced).then(|| server.standby());
        if standby.is_some() {
            server.set("synchronous_standby_names", "*");
        }
        Self { server, audit, standby, old: None }
    }

    fn place(&self, spec: Spec, _node: usize) -> Spec {
        let servers = [Some(&self.server), self.standby.as_ref()];
        let ports: Vec<String> = servers.into_iter().flatten().map(|it| it.port().to_string()).collect();
        let hosts = vec!["127.0.0.1"; ports.len()].join(",");
        spec.postgres(&format!("host={hosts} port={} dbname=postgres user=postgres", ports.join(",")))
    }

    fn hit(&mut self, fault: Fault, lasts: Duration) -> (String, Vec<(Duration, Step)>) {
        let (done, later) = match fault {
            Fault::Killed => {
                self.server.kill();
                ("the server is killed", vec![(lasts, Step::Start)])
            }
            Fault::Stopped => {
                self.server.signal(Signal::STOP);
                ("the server is stopped", vec![(lasts, Step::Continue)])
            }
            Fault::Restarted => {
                self.server.end();
                ("the server ends", vec![(Duration::ZERO, Step::Start)])
            }
            Fault::Disconnects => {
                let each = (0..8).map(|i| (lasts.mul_f64(f64::from(i) / 8.0), Step::Disconnect));
                ("the server begins to disconnect everybody", each.collect())
            }
            Fault::Replaced => {
                self.server.signal(Signal::STOP);
                let standby = self.standby.take().expect("a server that is to be replaced has a standby");
                standby.promote();
                let old = std::mem::replace(&mut self.server, standby);
                old.signal(Signal::CONT);
                self.old = Some(old);
                ("the standby is promoted, and the old server goes on", vec![(lasts, Step::EndOld)])
            }
        };
        (done.to_owned(), later)
    }

    fn take(&mut self, step: Step) -> &'static str {
        match step {
            Step::Continue => {
                self.server.signal(Signal::CONT);
                "the server goes on"
            }
            Step::Start => {
                self.server.start_again();
                "the server is started again"
            }
            Step::Disconnect => {
                let all =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cronkeeper'";
                self.server.sql("postgres", all);
                "the server disconnects everybody"
            }
            Step::EndOld => {
                self.old = None;
                "the old server ends"
            }
        }
    }

    fn write(&self) {
        self.server.sql("postgres", "SELECT pg_logical_emit_message(true, 'busy', '')");
    }

    fn records(&self, folders: &[&str]) -> Vec<(String, Vec<u8>)> {
        // One statement, because each starts a program.
        let folders: Vec<String> = folders.iter().map(|folder| format!("'{folder}'")).collect();
        let text = self.server.sql(
            "postgres",
            &format!(
                "SELECT path, encode(data, 'hex') FROM cronkeeper.record WHERE parent IN ({})",
                folders.join(", ")
            ),
        );
        let rows = text.lines().filter_map(|line| line.split_once('|'));
        rows.map(|(path, hex)| (path.to_owned(), audit::bytes(hex))).collect()
    }

    fn committed(&self) -> Vec<Txn> {
        self.audit.committed(&self.server)
    }
}
