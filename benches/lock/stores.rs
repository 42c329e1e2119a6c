//! Locks on stores: cronkeeper's, and what the users of the service have.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use cronkeeper_cluster::etcd::Etcd;
use cronkeeper_cluster::observed::{Observed, OnTokio};
use cronkeeper_cluster::postgres::Postgres;
use cronkeeper_cluster::redis::Redis;
use cronkeeper_cluster::store::Rewinds;
use cronkeeper_core::clock::system::SystemClock;
use uuid::Uuid;

use super::service::{Service, name};
use super::{CONTENDERS, Measure, SESSION, contend, counted, free, hand_offs, python};

/// Measures the service that the command line names.
pub fn measure(word: &str) {
    let servers = Service::start();
    let [_, connect] = servers.place();
    match servers {
        Service::Postgres(_) => {
            hand_offs(&[("cronkeeper", postgres as Measure), ("advisory lock", advisory)], &connect, word);
            free(&on(Postgres::new(parsed(&connect), SESSION, Rewinds::Accepted)));
        }
        Service::Etcd(_) => {
            hand_offs(&[("cronkeeper", etcd as Measure), ("etcdctl lock", etcdctl)], &connect, word);
            free(&on(Etcd::new(parsed(&connect), SESSION, Rewinds::Accepted)));
        }
        Service::Redis(_) => {
            hand_offs(&[("cronkeeper", redis as Measure), ("redis-py", redis_py)], &connect, word);
            free(&on(Redis::new(parsed(&connect), SESSION, Rewinds::Accepted)));
        }
        Service::ZooKeeper(_) => unreachable!("{} is no store", name()),
    }
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(connect: &str) -> T {
    connect.parse().expect("the settings are correct")
}

fn on<S>(store: S) -> Observed<S, SystemClock, OnTokio> {
    let (clock, uuid, heads) = (SystemClock::default(), Arc::new(Uuid::new_v4), Arc::default());
    Observed { store, clock, spawn: OnTokio, timeout: SESSION, uuid, heads }
}

fn postgres(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    Some(contend(|| on(Postgres::new(parsed(connect), SESSION, Rewinds::Accepted)), path, sessions))
}

fn etcd(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    Some(contend(|| on(Etcd::new(parsed(connect), SESSION, Rewinds::Accepted)), path, sessions))
}

fn redis(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    Some(contend(|| on(Redis::new(parsed(connect), SESSION, Rewinds::Accepted)), path, sessions))
}

/// One that wants it after the other, each on a connection: what pgbench counts.
fn advisory(connect: &str, _path: &str, sessions: usize) -> Option<f64> {
    // Contenders on one connection would all have it at once.
    if sessions == 1 {
        return None;
    }
    let folder = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().next()?.path();
    let script = std::env::temp_dir().join(format!("advisory-{}.sql", std::process::id()));
    fs::write(&script, "SELECT pg_advisory_lock(1);\nSELECT pg_advisory_unlock(1);\n").expect("a file can be written");
    let settings: Vec<(&str, &str)> = connect.split(' ').filter_map(|word| word.split_once('=')).collect();
    let of = |name: &str| settings.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value);
    let clients = CONTENDERS.to_string();
    let mut pgbench = Command::new(folder.join("bin/pgbench"));
    pgbench.args(["-n", "-h", of("host"), "-p", of("port"), "-U", of("user"), "-c", &clients, "-j", "2", "-f"]);
    pgbench.arg(&script).args(["-T", &counted().0.as_secs().to_string(), of("dbname")]);
    let output = pgbench.stdin(Stdio::null()).output().ok()?;
    fs::remove_file(script).expect("the file can be removed");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("tps = "));
    line?.split(' ').next()?.parse().ok()
}

/// `etcdctl lock`, which makes a lease and starts a program for each hand-off.
fn etcdctl(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    if sessions == 1 {
        return None;
    }
    let members = connect.rsplit_once('/').map_or(connect, |(members, _)| members);
    let (mark, until) = (Mark::new(), Instant::now() + counted().0);
    let contend = || {
        while Instant::now() < until {
            let line = ["--endpoints", members, "lock", path, "--", "sh", "-c", &mark.script()];
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").args(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(command.status().is_ok_and(|status| status.success()), "`etcdctl lock` fails");
        }
    };
    thread::scope(|scope| (0..CONTENDERS).for_each(|_| drop(scope.spawn(contend))));
    Some(mark.count() as f64 / counted().0.as_secs_f64())
}

/// A file with a line for each who has had the lock.
struct Mark(PathBuf);

impl Mark {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("lock-{}", Uuid::new_v4()));
        fs::write(&path, "").expect("a file can be written");
        Self(path)
    }

    fn script(&self) -> String {
        format!("echo >>{}", self.0.display())
    }

    fn count(&self) -> usize {
        fs::read(&self.0).map_or(0, |lines| lines.len())
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn redis_py(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    python("redis", connect.split('?').next().unwrap_or(connect), path, sessions)
}
