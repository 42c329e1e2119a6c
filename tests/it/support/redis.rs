//! A real Redis on 127.0.0.1, and Sentinels that watch it: Debian's packages `redis-server` and `redis-sentinel`.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cronkeeper_cluster::redis::Settings;
use rustix::process::Signal;

use super::kept::Kept;
use super::port::Port;
use super::process::output;
use super::scratch::Scratch;
use super::until;

/// Each commit is on the disk before it is answered. A replica copies what its master has at once.
const DURABLE: [&str; 10] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--repl-diskless-sync-delay",
    "0",
    "--save",
    "",
    "--repl-ping-replica-period",
    "1",
];

/// Where a server keeps what it has acknowledged, in its folder.
const FILES: &str = "appendonlydir";

/// A server. It ends when this value is dropped.
pub struct Server {
    port: Port,
    line: Vec<String>,
    kept: Option<Kept>,
    prefixes: AtomicU32,
    dir: Scratch,
}

/// The server that is shared by tests that do it no harm.
pub fn shared() -> &'static Server {
    static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start(&[]));
    &SHARED
}

impl Server {
    /// Starts a server that keeps what it acknowledges, with these options besides. Returns when it serves.
    pub fn start(options: &[&str]) -> Self {
        Self::launch(&[&DURABLE[..], options].concat())
    }

    /// Starts a server that serves with TLS only, with this certificate and key in one file.
    pub fn start_with_tls(pair: &str, ca: &str) -> Self {
        let tls =
            ["--tls-cert-file", pair, "--tls-key-file", pair, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no"];
        let mut server = Self::new("redis-server", &[&DURABLE[..], &tls].concat());
        // The port is the one of TLS.
        server.line.iter_mut().filter(|word| *word == "--port").for_each(|word| *word = "--tls-port".to_owned());
        server.line.extend(["--port".to_owned(), "0".to_owned()]);
        server.start_again();
        server
    }

    /// Starts a server with these options only.
    pub fn launch(options: &[&str]) -> Self {
        let mut server = Self::new("redis-server", options);
        server.start_again();
        server
    }

    /// Starts a server that copies this one. Returns when it does.
    pub fn replica(&self) -> Self {
        let port = self.port().to_string();
        let replica = Self::start(&["--replicaof", "127.0.0.1", &port]);
        until("the replica copies its master", || replica.info("master_link_status") == "up");
        // The master counts it once it has confirmed something.
        until("the master knows the replica", || self.info("slave0").contains("state=online"));
        replica
    }

    fn new(program: &str, options: &[&str]) -> Self {
        let (port, dir) = (Port::hold(), Scratch::new("redis"));
        let number = port.number().to_string();
        let folder = dir.path().to_str().expect("the path is text");
        let file = dir.write("settings", "");
        let file = file.to_str().expect("the path is text");
        let own = [program, file, "--port", &number, "--bind", "127.0.0.1", "--dir", folder];
        let line = own.iter().chain(options).map(|word| (*word).to_owned()).collect();
        Self { port, line, kept: None, prefixes: AtomicU32::new(0), dir }
    }

    /// Starts a server that has ended. Returns when it serves.
    pub fn start_again(&mut self) {
        let line: Vec<&str> = self.line.iter().map(String::as_str).collect();
        self.kept = Some(Kept::start(&[], &line, "KILL", &self.dir.path().join("log")));
        let port = self.port();
        until("Redis accepts connections", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.kept = None;
    }

    /// Copies the server's files.
    pub fn back_up(&self) -> Scratch {
        let backup = Scratch::new("backup");
        copy(self.dir.path(), backup.path());
        backup
    }

    /// Kills the server, and starts it with the files of a backup.
    pub fn restore(&mut self, backup: &Scratch) {
        self.kill();
        fs::remove_dir_all(self.dir.path().join(FILES)).expect("the server's files can be removed");
        copy(backup.path(), self.dir.path());
        self.start_again();
    }

    pub fn signal(&self, signal: Signal) {
        self.kept.iter().for_each(|kept| kept.signal(signal));
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// What `redis-cli` prints.
    pub fn cli(&self, words: &[&str]) -> String {
        let number = self.port().to_string();
        let done = output("redis-cli", |command| _ = command.args(["-p", &number]).args(words));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// A line of `INFO`.
    pub fn info(&self, name: &str) -> String {
        let all = self.cli(&["info"]);
        let line = all.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
        line.unwrap_or_default()
    }

    /// The settings of a cluster with a prefix of its own, as `--redis` takes them.
    pub fn place(&self) -> String {
        let number = self.prefixes.fetch_add(1, Ordering::Relaxed);
        format!("redis://127.0.0.1:{}/0?prefix=test-{number}", self.port())
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = output("cp", |command| _ = command.arg("-r").arg(from.join(FILES)).arg(to));
    assert!(copied.status.success(), "{}", copied.stderr.escape_ascii());
}

/// Sentinels that watch a master, and promote a replica when it is gone.
pub struct Sentinels(Vec<Server>);

impl Sentinels {
    /// Three that watch this server.
    pub fn watch(master: &Server) -> Self {
        let sentinel = |_| {
            let mut sentinel = Server::new("redis-sentinel", &[]);
            let settings = format!(
                "sentinel monitor main 127.0.0.1 {} 2\nsentinel down-after-milliseconds main 1000\n\
                 sentinel failover-timeout main 10000\n",
                master.port()
            );
            sentinel.dir.write("settings", &settings);
            sentinel.start_again();
            sentinel
        };
        let all: Vec<Server> = (0..3).map(sentinel).collect();
        for sentinel in &all {
            let is_complete = |master: &str| master.contains("sentinels=3") && master.contains("slaves=2");
            until("the Sentinels know each other and the replicas", || is_complete(&sentinel.info("master0")));
        }
        Self(all)
    }

    /// The port of the master.
    pub fn master(&self) -> u16 {
        let address = self.0[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
        address.lines().nth(1).and_then(|port| port.parse().ok()).expect("the Sentinel knows it")
    }

    /// As `--redis` takes them.
    pub fn place(&self, wait: usize) -> String {
        let urls: Vec<String> =
            self.0.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port())).collect();
        format!("{}?sentinel=main&wait={wait}", urls.join(","))
    }
}

/// The settings of a place.
pub fn settings(place: &str) -> Settings {
    place.parse().expect("they are correct")
}
