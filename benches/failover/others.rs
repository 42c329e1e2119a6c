//! What users of a service have for the same: programs that wait until they lead, of which one is then ended.
//!
//! `etcdctl elect` queues under a lease of 60 s, which cannot be set. With PostgreSQL each tries ten times a second to
//! lock a row (`SELECT ... FOR UPDATE SKIP LOCKED`), and leads as long as its transaction lasts.

use std::io::Write as _;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::service::Service;
use crate::support::LONG;
use crate::support::node::Events;
use crate::support::process::Process;
use crate::table::Table;

/// The contenders of a trial.
const CONTENDERS: usize = 3;
/// Nothing tells when those that do not lead wait; by then they do.
const SETTLED: Duration = Duration::from_millis(500);

/// A program that prints something once it leads.
struct Contender {
    process: Process,
    said: Arc<Events>,
    /// A program that reads it to its end ends.
    input: ChildStdin,
}

/// Measures those of the service, if it has any.
pub fn measure(servers: &Service, trials: usize, table: &mut Table) {
    let [_, connect] = servers.place();
    match servers {
        Service::Etcd(_) => {
            let members = connect.rsplit_once('/').map_or(connect.as_str(), |(members, _)| members);
            let start = |trial: usize| elect(members, &format!("{trial}"));
            row("etcdctl elect: SIGTERM", Signal::TERM, trials, start, table);
            row("etcdctl elect: kill -9 alone", Signal::KILL, trials, start, table);
        }
        Service::Postgres(_) => row("SKIP LOCKED: kill -9", Signal::KILL, trials, |trial| lock(&connect, trial), table),
        Service::ZooKeeper(_) | Service::Redis(_) => {}
    }
}

/// All trials at once, because some only wait.
fn row(name: &str, signal: Signal, trials: usize, start: impl Fn(usize) -> Contender + Sync, table: &mut Table) {
    if !table.wants(name) {
        return;
    }
    let took = thread::scope(|scope| {
        let begin = |trial| {
            scope.spawn({
                let start = &start;
                move || pass(signal, || start(trial))
            })
        };
        let trials: Vec<_> = (0..trials).map(begin).collect();
        trials.into_iter().map(|trial| trial.join().expect("a trial does not panic")).collect()
    });
    table.times(name, took, &[], &[]);
}

/// From the signal to the leader until another leads.
fn pass(signal: Signal, start: impl Fn() -> Contender) -> Duration {
    let contenders: Vec<Contender> = (0..CONTENDERS).map(|_| start()).collect();
    let first = leader(&contenders, None);
    thread::sleep(SETTLED);
    let at = Instant::now();
    contenders[first].process.signal(signal);
    leader(&contenders, Some(first));
    at.elapsed()
}

/// The first that leads, other than this one.
fn leader(contenders: &[Contender], but: Option<usize>) -> usize {
    let until = Instant::now() + 2 * LONG;
    while Instant::now() < until {
        let leads = |i: &usize| Some(*i) != but && contenders[*i].said.len() > 0;
        if let Some(i) = (0..contenders.len()).find(leads) {
            return i;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody leads");
}

fn elect(members: &str, name: &str) -> Contender {
    contender("etcdctl", &["--endpoints", members, "elect", name, "x"])
}

fn lock(connect: &str, trial: usize) -> Contender {
    let mut contender = contender("psql", &["-XqAt", "-v", "ON_ERROR_STOP=1", connect]);
    // The server may work for one that is gone until it has the row, so each trial has its own.
    let script = format!(
        "SET client_min_messages = error;
         SELECT pg_advisory_lock({trial}) \\g /dev/null
         CREATE TABLE IF NOT EXISTS task_{trial} AS SELECT 1;
         SELECT pg_advisory_unlock({trial}) \\g /dev/null
         BEGIN;
         DO $$ BEGIN
             LOOP
                 PERFORM 1 FROM task_{trial} FOR UPDATE SKIP LOCKED;
                 EXIT WHEN FOUND;
                 PERFORM pg_sleep(0.1);
             END LOOP;
         END $$;
         SELECT 'leads';\n"
    );
    contender.input.write_all(script.as_bytes()).expect("psql reads");
    contender
}

fn contender(program: &str, line: &[&str]) -> Contender {
    let prepare = |command: &mut std::process::Command| {
        command.env("ETCDCTL_API", "3").args(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    };
    let mut process = Process::spawn(program, prepare).expect("the program can be started");
    let said = Events::read(process.take(|child| child.stdout.take()));
    let input = process.take(|child| child.stdin.take());
    Contender { process, said, input }
}
