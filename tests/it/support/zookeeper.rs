//! A real ZooKeeper: one server or an ensemble of three, on 127.0.0.1 or on separate hosts.
//!
//! Needs Debian's package `libzookeeper-java` (or its jars in `$ZK_JARS`) and `java`. fsync is on. Servers are numbered
//! from 0. See [`server`] for their processes and ports, and [`four_letter`] for four-letter commands.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use uuid::Uuid;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use self::server::Server;
pub use self::server::class_path;
use super::host::Host;
use super::scratch::Scratch;
use super::tls::{Certificates, ClientCertificate};
use super::{LONG, poll};

mod four_letter;
mod server;

/// An ensemble of one server or three.
pub struct Ensemble {
    // The order matters for dropping: servers before their directories.
    servers: Vec<Server>,
    certificates: Option<Certificates>,
    dir: Scratch,
}

/// The configuration of an ensemble.
#[derive(Clone, Debug)]
pub struct Builder {
    servers: usize,
    tick: Duration,
    tls: Option<ClientCertificate>,
    properties: Vec<(String, String)>,
    hosts: Vec<Arc<Host>>,
    runs_long: bool,
}

impl Ensemble {
    /// Starts `servers` (1 or 3) servers. Returns when all serve.
    pub fn start(servers: usize) -> Self {
        Self::builder(servers).start()
    }

    /// A builder for `servers` servers, with a tick of 500 ms and without TLS.
    pub fn builder(servers: usize) -> Builder {
        Builder {
            servers,
            tick: Duration::from_millis(500),
            tls: None,
            properties: Vec::new(),
            hosts: Vec::new(),
            runs_long: false,
        }
    }

    /// The number of servers, running or not.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// The connect string of all servers.
    pub fn connect_string(&self) -> String {
        let each: Vec<String> = (0..self.len()).map(|i| self.connect_string_of(i)).collect();
        each.join(",")
    }

    /// The connect string of one server.
    pub fn connect_string_of(&self, i: usize) -> String {
        self.address_of(i).to_string()
    }

    pub fn address_of(&self, i: usize) -> SocketAddr {
        self.servers[i].client.address
    }

    /// The connect string of all servers' TLS ports, without a scheme.
    pub fn secure_connect_string(&self) -> String {
        let each: Vec<String> = self.servers.iter().map(|server| server.secure.address.to_string()).collect();
        each.join(",")
    }

    /// The directory of the ensemble's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of a server's transaction log and snapshots.
    pub fn data_of(&self, i: usize) -> PathBuf {
        self.servers[i].dir.join("data/version-2")
    }

    /// PID of a running server.
    pub fn pid_of(&self, i: usize) -> u32 {
        self.servers[i].process().as_ref().expect("the server was started").pid()
    }

    /// The certificates that the builder's `tls` created.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the builder was asked for tls")
    }

    /// Kills a server, and waits until it is gone.
    pub fn kill(&self, i: usize) {
        if let Some(process) = self.servers[i].process().take() {
            process.kill();
        }
    }

    /// Stops a server with SIGSTOP: its connections stay open and silent.
    pub fn pause(&self, i: usize) {
        self.servers[i].signal(Signal::STOP);
    }

    /// Continues a paused server.
    pub fn cont(&self, i: usize) {
        self.servers[i].signal(Signal::CONT);
    }

    /// Starts a killed server again, with its data and ports. Does not wait until it serves.
    pub fn restart(&self, i: usize) {
        self.kill(i);
        self.servers[i].launch();
    }

    /// Waits until every server that was started and not killed serves, as part of a quorum. None of them may be
    /// paused.
    pub fn await_serving(&self) {
        let running = (0..self.len()).filter(|&i| self.servers[i].process().is_some());
        for i in running {
            self.await_serving_of(i);
        }
    }

    /// Waits until all servers serve. Starts servers again that ended by themselves, as may happen after a long pause.
    pub fn await_healed(&self) {
        let serves = |i: usize| {
            if self.servers[i].ended() {
                self.restart(i);
            }
            self.mode(i).is_some()
        };
        poll(LONG, || (0..self.len()).all(serves).then_some(()));
        self.await_serving();
    }

    /// Waits until this server serves.
    pub fn await_serving_of(&self, i: usize) {
        // A server that has ended will never serve, so stop waiting.
        poll(LONG, || (self.mode(i).is_some() || self.servers[i].ended()).then_some(()));
        assert!(self.mode(i).is_some(), "{}", self.report(i));
    }

    /// Waits until this server has noticed that it has no quorum.
    pub fn await_alone(&self, i: usize) {
        let has_noticed = || self.four_letter(i, "srvr").contains("not currently serving").then_some(());
        assert!(poll(LONG, has_noticed).is_some(), "{}", self.report(i));
    }

    /// Waits until a server leads, and returns its number. A single server always leads.
    pub fn leader(&self) -> usize {
        self.leader_other_than(usize::MAX)
    }

    /// Waits until a server other than `old` leads. A paused leader still reports that it leads.
    pub fn leader_other_than(&self, old: usize) -> usize {
        let leads = |&i: &usize| i != old && matches!(self.mode(i).as_deref(), Some("leader" | "standalone"));
        poll(LONG, || (0..self.len()).find(leads)).expect("an ensemble with a quorum gets a leader")
    }

    /// The servers that follow.
    pub fn followers(&self) -> Vec<usize> {
        (0..self.len()).filter(|&i| self.mode(i).as_deref() == Some("follower")).collect()
    }

    /// Creates `/secured`, accessible only to `user:password` by digest. Returns the connect string with that chroot.
    pub async fn secured(&self, credential: &str) -> String {
        let client = Client::connector().with_auth("digest", credential.as_bytes());
        let client = client.connect(&self.connect_string()).await.expect("the servers serve");
        // The scheme "auth" means the identities of the session itself.
        let own = [Acl::new(Permission::ALL, AuthId::new("auth", ""))];
        let options = CreateMode::Persistent.with_acls(Acls::new(&own));
        client.create("/secured", b"", &options).await.expect("a new ensemble has no such node");
        format!("{}/secured", self.connect_string())
    }

    /// Creates a new chroot for one cluster. Returns it as `/…`, to be appended to the servers.
    pub fn chroot(&self) -> String {
        let (servers, chroot) = (self.connect_string(), format!("/{}", Uuid::new_v4()));
        let made = chroot.clone();
        aside(async move {
            let client = Client::connect(&servers).await.expect("the servers serve");
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            client.create(&made, b"", &options).await.expect("a new name can be made");
        });
        chroot
    }

    fn report(&self, i: usize) -> String {
        let log = std::fs::read_to_string(self.servers[i].dir.join("log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!("ZooKeeper server {i} does not serve; its log ends:\n{}", tail.join("\n"))
    }
}

impl Builder {
    /// Sets the tick. Session timeouts are negotiated between 2 and 20 ticks.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Adds a TLS port to each server.
    pub fn tls(mut self, client: ClientCertificate) -> Self {
        self.tls = Some(client);
        self
    }

    /// Runs each server on a host of its own. They are reachable only from the network of those hosts.
    pub fn on(mut self, hosts: &[Arc<Host>]) -> Self {
        self.hosts = hosts.to_vec();
        self
    }

    /// Lets the servers' Java compile as well as in production, instead of quickly.
    pub fn runs_long(mut self) -> Self {
        self.runs_long = true;
        self
    }

    /// Adds a line to zoo.cfg.
    pub fn property(mut self, key: &str, value: &str) -> Self {
        self.properties.push((key.into(), value.into()));
        self
    }

    /// Starts the servers. Returns when all serve.
    pub fn start(self) -> Ensemble {
        let dir = Scratch::new("zookeeper");
        let certificates = self.tls.map(|_| Certificates::new());
        let servers: Vec<Server> = self.servers(dir.path());
        for (i, server) in servers.iter().enumerate() {
            let config = self.config(&servers, server, certificates.as_ref());
            std::fs::create_dir_all(server.dir.join("data")).expect("a directory can be made");
            std::fs::write(server.dir.join("data/myid"), format!("{}\n", i + 1)).expect("a file can be written");
            std::fs::write(server.dir.join("zoo.cfg"), config).expect("a file can be written");
        }
        servers.iter().for_each(Server::launch);
        let ensemble = Ensemble { servers, certificates, dir };
        ensemble.await_serving();
        ensemble
    }

    fn servers(&self, dir: &Path) -> Vec<Server> {
        let server = |i| Server::new(dir.join(format!("s{i}")), self.hosts.get(i).cloned(), self.runs_long);
        (0..self.servers).map(server).collect()
    }

    fn config(&self, all: &[Server], own: &Server, certificates: Option<&Certificates>) -> String {
        let mut config = format!(
            "tickTime={}\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={}\nclientPortAddress={}\n\
             maxClientCnxns=0\n4lw.commands.whitelist=*\nadmin.enableServer=false\n",
            self.tick.as_millis(),
            own.dir.join("data").display(),
            own.client.number(),
            own.client.address.ip(),
        );
        if all.len() > 1 {
            for (i, server) in all.iter().enumerate() {
                line(
                    &mut config,
                    &format!("server.{}", i + 1),
                    &format!("{}:{}", server.quorum.address, server.election.number()),
                );
            }
        }
        if let (Some(certificates), Some(client)) = (certificates, self.tls) {
            for (key, value) in tls_properties(own, certificates, client) {
                line(&mut config, key, &value);
            }
        }
        for (key, value) in &self.properties {
            line(&mut config, key, value);
        }
        config
    }
}

fn line(config: &mut String, key: &str, value: &str) {
    writeln!(config, "{key}={value}").expect("a string takes all");
}

fn tls_properties(own: &Server, files: &Certificates, client: ClientCertificate) -> [(&'static str, String); 8] {
    let client_auth = match client {
        ClientCertificate::NotAsked => "none",
        ClientCertificate::Needed => "need",
    };
    [
        ("secureClientPort", own.secure.number().to_string()),
        ("secureClientPortAddress", own.secure.address.ip().to_string()),
        ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory".into()),
        ("ssl.keyStore.location", files.server_store.display().to_string()),
        ("ssl.keyStore.type", "PEM".into()),
        ("ssl.trustStore.location", files.ca.display().to_string()),
        ("ssl.trustStore.type", "PEM".into()),
        ("ssl.clientAuth", client_auth.into()),
    ]
}

/// A new chroot on the server that all tests of this process share, as a connect string.
///
/// Tests must not pause or kill that server. It ends with the process.
pub fn shared() -> String {
    static SHARED: OnceLock<Ensemble> = OnceLock::new();
    let shared = SHARED.get_or_init(|| Ensemble::start(1));
    format!("{}{}", shared.connect_string(), shared.chroot())
}

/// Runs a future on a thread and runtime of its own, so that it works both inside and outside of a runtime.
fn aside(future: impl Future<Output = ()> + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be had").block_on(future);
    };
    thread::spawn(run).join().expect("the thread did not panic");
}
