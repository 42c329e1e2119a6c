//! The classic: fifteen clients sell ten orders from a table, by reading, thinking and writing, without a transaction.
//!
//! Under the lock nothing is sold twice and no more than there is, whatever dies meanwhile: clients by SIGKILL, clients
//! that are stopped for longer than their session lasts, and servers. Without the lock, the same program oversells.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;

use super::fixture::{call, printed};
use crate::support::command::CRONKEEPER;
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

pub const CLIENTS: usize = 15;
pub const ORDERS: usize = 10;
/// Rounds of selling; with CRONKEEPER_LONG=1 the larger number.
const ROUNDS: [usize; 2] = [25, 100];

/// Sells one order, if any is left.
const SELL: &str = "
import sqlite3, sys, time, random
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
(left,) = db.execute('select left from stock').fetchone()
time.sleep(random.uniform(0, 0.01))
if left > 0:
    db.execute('update stock set left = ?', (left - 1,))
    db.execute('insert into sold (number) values (?)', (left,))
";

/// The table with the orders.
pub struct Shop {
    dir: Scratch,
}

impl Shop {
    pub fn open() -> Self {
        let dir = Scratch::new("orders");
        let shop = Self { dir };
        let tables =
            "create table stock (left integer); create table sold (number integer); insert into stock values (0)";
        shop.database().execute_batch(tables).unwrap();
        shop
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("shop.db")
    }

    fn database(&self) -> Connection {
        let database = Connection::open(self.path()).unwrap();
        database.busy_timeout(LONG).unwrap();
        database
    }

    pub fn restock(&self) {
        self.database().execute_batch(&format!("delete from sold; update stock set left = {ORDERS}")).unwrap();
    }

    /// The numbers of the orders that were sold, in order.
    pub fn sold(&self) -> Vec<i64> {
        let database = self.database();
        let mut query = database.prepare("select number from sold order by number").unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

/// The command of a client.
pub fn seller(database: &Path) -> [String; 5] {
    ["/usr/bin/python3", "-IS", "-c", SELL, database.to_str().unwrap()].map(str::to_owned)
}

/// What happens to the clients or the servers of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Clients are killed.
    Kill,
    /// Clients are stopped for longer than their session lasts.
    Stop,
    /// A server is killed and started again.
    Server,
}

impl Fault {
    fn of(round: usize) -> Self {
        match round % 12 {
            3 | 9 => Self::Kill,
            6 => Self::Stop,
            11 => Self::Server,
            _ => Self::None,
        }
    }
}

#[test]
fn nothing_is_sold_twice_whatever_dies() {
    let (ensemble, shop) = (Ensemble::start(3), Shop::open());
    let rounds = ROUNDS[usize::from(std::env::var("CRONKEEPER_LONG").is_ok_and(|long| long == "1"))];
    let mut all_sold = 0;
    for round in 0..rounds {
        let fault = Fault::of(round);
        shop.restock();
        sell(&ensemble, &shop, fault, round);
        let sold = shop.sold();
        let mut distinct = sold.clone();
        distinct.dedup();
        assert_eq!(sold, distinct, "round {round}, {fault:?}: an order was sold twice");
        assert!(sold.len() <= ORDERS && sold.iter().all(|number| (1..=ORDERS as i64).contains(number)), "{sold:?}");
        if matches!(fault, Fault::None | Fault::Server) {
            assert_eq!(sold.len(), ORDERS, "round {round}, {fault:?}: nobody died, so all were sold");
            all_sold += 1;
        }
    }
    assert!(all_sold > rounds / 2);
}

/// One round: all clients at once, and what happens to them.
fn sell(ensemble: &Ensemble, shop: &Shop, fault: Fault, round: usize) {
    let clients: Vec<Process> = (0..CLIENTS).map(|_| client(ensemble, shop, fault)).collect();
    // Different ones in each round, at different moments.
    let (victim, moment) = (round % CLIENTS, Duration::from_millis(20 * (round as u64 % 10)));
    match fault {
        Fault::None => {}
        Fault::Kill => {
            thread::sleep(moment);
            clients[victim].signal(Signal::KILL);
            clients[(victim + 5) % CLIENTS].signal(Signal::KILL);
        }
        Fault::Stop => {
            thread::sleep(moment);
            let stopped = [&clients[victim], &clients[(victim + 5) % CLIENTS]];
            stopped.iter().for_each(|client| client.stop());
            let listed = |client: &&Process, entries: &[u32]| entries.contains(&client.pid());
            until("the servers have ended the sessions of those that are stopped", || {
                let entries = entries(ensemble);
                entries.is_some_and(|entries| !stopped.iter().any(|client| listed(client, &entries)))
            });
            clients.iter().for_each(|client| client.signal(Signal::CONT));
        }
        Fault::Server => {
            thread::sleep(moment);
            let server = round / 12 % ensemble.len();
            ensemble.kill(server);
            ensemble.restart(server);
            ensemble.await_healed();
        }
    }
    for client in &clients {
        assert!(client.wait_exit(LONG * 2).is_some(), "round {round}, {fault:?}: a client waits forever");
    }
}

/// The clients that the servers know to hold the lock or to wait for it. `None` if they cannot be asked.
fn entries(ensemble: &Ensemble) -> Option<Vec<u32>> {
    let (code, text) = printed(&ensemble.connect_string(), &["locks", "--json", "/locks/orders"]);
    let pid = |entry: &Value| entry["client"]["pid"].as_u64()?.try_into().ok();
    let pids = |line: &str| -> Vec<u32> {
        let lock: Value = serde_json::from_str(line).expect("each line is an object");
        lock["entries"]
            .as_array()
            .expect("it has entries")
            .iter()
            .map(|entry| pid(entry).expect("all are ours"))
            .collect()
    };
    (code == Some(0)).then(|| text.lines().filter(|line| line.starts_with('{')).flat_map(pids).collect())
}

fn client(ensemble: &Ensemble, shop: &Shop, fault: Fault) -> Process {
    let session = match fault {
        // Where no client dies, none may lose the lock because the machine is busy.
        Fault::None | Fault::Server => "10s",
        Fault::Kill | Fault::Stop => "2s",
    };
    let seller = seller(&shop.path());
    let mut line = vec!["lock", "/locks/orders", "--"];
    line.extend(seller.iter().map(String::as_str));
    let prepared = call(&ensemble.connect_string(), &line);
    Process::spawn(CRONKEEPER, |command| {
        command.args(prepared.get_args()).env("CRONKEEPER_SESSION_TIMEOUT", session);
        // The program refuses variables that it does not know.
        command.env_remove("CRONKEEPER_LONG");
        command.env("CRONKEEPER_ZOOKEEPER", ensemble.connect_string()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
    })
    .expect("cronkeeper can be started")
}

#[test]
fn without_the_lock_the_same_program_oversells() {
    let shop = Shop::open();
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        shop.restock();
        let [program, arguments @ ..] = seller(&shop.path());
        let spawn = |_| Command::new(&program).args(&arguments).stdin(Stdio::null()).spawn().unwrap();
        let sellers: Vec<_> = (0..CLIENTS).map(spawn).collect();
        for mut seller in sellers {
            assert!(seller.wait().unwrap().success());
        }
        let sold = shop.sold();
        let mut distinct = sold.clone();
        distinct.dedup();
        if distinct.len() < sold.len() || sold.len() > ORDERS {
            return;
        }
    }
    panic!("the test proves nothing: the program never oversells");
}
