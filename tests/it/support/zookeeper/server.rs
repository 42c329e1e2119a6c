//! One ZooKeeper server: its process and its reserved ports.
//!
//! On a host of its own the server uses the usual ports, on this machine reserved ones.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::process::Signal;

use super::super::host::Host;
use super::super::port::Port;
use super::super::process::Process;

/// One server, running or not.
pub(super) struct Server {
    pub(super) dir: PathBuf,
    pub(super) client: Port,
    pub(super) secure: Port,
    pub(super) quorum: Port,
    pub(super) election: Port,
    host: Option<Arc<Host>>,
    runs_long: bool,
    process: Mutex<Option<Process>>,
}

/// Jars besides zookeeper.jar, whose manifest lists most dependencies: logging to stderr, and netty's parts for TLS.
const JARS: [&str; 6] =
    ["zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common", "snappy-java"];

/// JVM options for a small server that starts quickly.
const JAVA: [&str; 10] = [
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-cp",
];

/// Compiles quickly and not well, for a server that does not run for long.
const QUICK: &str = "-XX:TieredStopAtLevel=1";

impl Server {
    /// `runs_long`: the JVM takes its time to compile well, as it does in production.
    pub(super) fn new(dir: PathBuf, host: Option<Arc<Host>>, runs_long: bool) -> Self {
        let [client, secure, quorum, election] = match &host {
            Some(host) => USUAL.map(|port| Port::usual(host, port)),
            None => std::array::from_fn(|_| Port::hold()),
        };
        Self { dir, client, secure, quorum, election, host, runs_long, process: Mutex::new(None) }
    }

    pub(super) fn launch(&self) {
        let log = File::options().create(true).append(true).open(self.dir.join("log")).expect("a log can be opened");
        let also = log.try_clone().expect("a descriptor can be doubled");
        let process = Process::spawn_on(self.host.as_deref(), "java", |command| {
            command
                .args(Some(QUICK).filter(|_| !self.runs_long))
                .args(JAVA)
                .arg(class_path(&JARS))
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
            command.arg(self.dir.join("zoo.cfg")).current_dir(&self.dir);
            command.stdin(Stdio::null()).stdout(also).stderr(log);
        });
        *self.process() = Some(process.expect("java and setpriv are installed: tests/run.sh sees to it"));
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.process().as_ref().expect("the server was started").signal(signal);
    }

    pub(super) fn ended(&self) -> bool {
        self.process().as_ref().is_none_or(|process| process.status().is_some())
    }

    pub(super) fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A class path of Debian's jars.
pub fn class_path(jars: &[&str]) -> String {
    let folder = std::env::var("ZK_JARS").unwrap_or_else(|_| "/usr/share/java".into());
    let paths: Vec<String> = jars.iter().map(|jar| format!("{folder}/{jar}.jar")).collect();
    paths.join(":")
}

/// The usual ports: for clients, clients with TLS, followers and elections.
const USUAL: [u16; 4] = [2181, 2281, 2888, 3888];
