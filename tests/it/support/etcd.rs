//! A real etcd on 127.0.0.1: Debian's package `etcd-server`.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cronkeeper_cluster::etcd::Settings;
use rustix::process::Signal;
use serde_json::Value;

use super::kept::Kept;
use super::port::Port;
use super::process::output;
use super::scratch::Scratch;
use super::until;

/// Members of one cluster. They end when this value is dropped.
pub struct Etcd {
    members: Vec<Member>,
    /// The certificate and key with which they serve, if they do with TLS.
    pair: Option<PathBuf>,
    prefixes: AtomicU32,
    dir: Scratch,
}

struct Member {
    client: Port,
    peer: Port,
    kept: Option<Kept>,
}

/// The cluster of one member that is shared by tests that do it no harm.
pub fn shared() -> &'static Etcd {
    static SHARED: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1));
    &SHARED
}

impl Etcd {
    /// Starts so many members. Returns when they serve.
    pub fn start(members: usize) -> Self {
        let etcd = Self::begin(members, None);
        etcd.await_serving();
        etcd
    }

    /// Starts a member that serves with TLS, with this certificate and key.
    pub fn start_with_tls(pair: &Path) -> Self {
        let etcd = Self::begin(1, Some(pair.to_owned()));
        let port = etcd.members[0].client.number();
        until("etcd accepts connections", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        etcd
    }

    fn begin(members: usize, pair: Option<PathBuf>) -> Self {
        let member = |_| Member { client: Port::hold(), peer: Port::hold(), kept: None };
        let members: Vec<Member> = (0..members).map(member).collect();
        let mut etcd = Self { members, pair, prefixes: AtomicU32::new(0), dir: Scratch::new("etcd") };
        (0..etcd.members.len()).for_each(|i| etcd.start_member(i));
        etcd
    }

    /// Starts a member that does not run.
    pub fn start_member(&mut self, i: usize) {
        let peers = self.members.iter().enumerate();
        let peers: Vec<String> = peers.map(|(i, member)| format!("m{i}={}", url(&member.peer))).collect();
        let (member, data) = (&self.members[i], self.dir.path().join(format!("m{i}")));
        let (client, peer) = (url(&member.client), url(&member.peer));
        let client = if self.pair.is_some() { client.replace("http:", "https:") } else { client };
        let name = format!("m{i}");
        let peers = peers.join(",");
        let mut line = vec![
            "etcd",
            "--name",
            &name,
            "--data-dir",
            data.to_str().expect("the path is text"),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &peers,
            // By default leadership flaps where the processors are busy.
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
        ];
        let pair = self.pair.as_deref().map(|pair| pair.to_str().expect("the path is text"));
        line.extend(pair.iter().flat_map(|pair| ["--cert-file", pair, "--key-file", pair]));
        let kept = Kept::start(&[], &line, "KILL", &self.dir.path().join(format!("m{i}.log")));
        self.members[i].kept = Some(kept);
    }

    /// Replaces the only member by one with the state of this snapshot.
    pub fn restore(&mut self, snapshot: &Path) {
        self.kill(0);
        let (data, peer) = (self.dir.path().join("m0"), url(&self.members[0].peer));
        std::fs::remove_dir_all(&data).expect("the member's files can be removed");
        let restored = output("etcdctl", |command| {
            command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(snapshot).arg("--data-dir").arg(&data);
            let peers = format!("m0={peer}");
            command.args(["--name", "m0", "--initial-cluster", &peers, "--initial-advertise-peer-urls", &peer]);
        });
        assert!(restored.status.success(), "{}", restored.stderr.escape_ascii());
        self.start_member(0);
        self.await_serving();
    }

    /// Waits until all members serve.
    pub fn await_serving(&self) {
        let all = self.urls().join(",");
        until("etcd serves", || self.etcdctl(&["--endpoints", &all, "endpoint", "health"]).is_some());
    }

    /// The member that leads the others; `None` if that is not known.
    pub fn leader(&self) -> Option<usize> {
        let number = |status: &Value, name: &str| status.pointer(name).and_then(Value::as_u64);
        let leads = |url: &String| {
            let said = self.etcdctl(&["--endpoints", url, "endpoint", "status", "-w", "json"]);
            let said: Vec<Value> = said.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let is_leader = |it: &Value| {
                let leader = number(it, "/Status/leader");
                leader.is_some() && leader == number(it, "/Status/header/member_id")
            };
            said.iter().any(is_leader)
        };
        self.urls().iter().position(leads)
    }

    /// Kills a member.
    pub fn kill(&mut self, i: usize) {
        self.members[i].kept = None;
    }

    /// Sends a signal to a member.
    pub fn signal(&self, i: usize, signal: Signal) {
        self.members[i].kept.iter().for_each(|kept| kept.signal(signal));
    }

    /// What `etcdctl` prints with these arguments; `None` if it fails.
    pub fn etcdctl(&self, arguments: &[&str]) -> Option<String> {
        let first = url(&self.members[0].client);
        let done = output("etcdctl", |command| {
            command.env("ETCDCTL_API", "3");
            if !arguments.contains(&"--endpoints") {
                command.args(["--endpoints", &first]);
            }
            command.args(arguments);
        });
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// The settings of a cluster with a prefix of its own, as `--etcd` takes them.
    pub fn place(&self) -> String {
        format!("{}/test-{}", self.urls().join(","), self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    /// Where a member serves.
    pub fn address_of(&self, i: usize) -> SocketAddr {
        self.members[i].client.address
    }

    fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| url(&member.client)).collect()
    }

    /// The port of the first member.
    pub fn port(&self) -> u16 {
        self.members[0].client.number()
    }
}

/// The settings of a place.
pub fn settings(place: &str) -> Settings {
    place.parse().expect("they are correct")
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}
