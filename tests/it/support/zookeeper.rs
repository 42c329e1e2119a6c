//! A real ZooKeeper: one server, or an ensemble of three, on 127.0.0.1 or on hosts of their own.
//!
//! Needs Debian's package `libzookeeper-java` (or its jars in `$ZK_JARS`) and `java`. fsync stays on. Servers are counted
//! from 0. Their processes and ports are in [`server`], their answers to four-letter words in [`four_letter`].

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

/// One server or three.
pub struct Ensemble {
    // Dropped in this order: servers before their directories.
    servers: Vec<Server>,
    certificates: Option<Certificates>,
    dir: Scratch,
}

/// What an ensemble shall be like.
#[derive(Clone, Debug)]
pub struct Builder {
    servers: usize,
    tick: Duration,
    tls: Option<ClientCertificate>,
    properties: Vec<(String, String)>,
    hosts: Vec<Arc<Host>>,
}

impl Ensemble {
    /// Starts `servers` (1 or 3) of them; returns when all serve.
    pub fn start(servers: usize) -> Self {
        Self::builder(servers).start()
    }

    /// `servers` of them, with a tick of 500 ms and without TLS.
    pub fn builder(servers: usize) -> Builder {
        Builder { servers, tick: Duration::from_millis(500), tls: None, properties: Vec::new(), hosts: Vec::new() }
    }

    /// How many servers there are, running or not.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// All servers.
    pub fn connect_string(&self) -> String {
        let each: Vec<String> = (0..self.len()).map(|i| self.connect_string_of(i)).collect();
        each.join(",")
    }

    /// One server.
    pub fn connect_string_of(&self, i: usize) -> String {
        self.address_of(i).to_string()
    }

    /// One server's address.
    pub fn address_of(&self, i: usize) -> SocketAddr {
        self.servers[i].client.address
    }

    /// All servers' TLS ports, without a scheme in front.
    pub fn secure_connect_string(&self) -> String {
        let each: Vec<String> = self.servers.iter().map(|server| server.secure.address.to_string()).collect();
        each.join(",")
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where a server keeps its log of transactions and its snapshots.
    pub fn data_of(&self, i: usize) -> PathBuf {
        self.servers[i].dir.join("data/version-2")
    }

    /// The process id of a running server.
    pub fn pid_of(&self, i: usize) -> u32 {
        self.servers[i].process().as_ref().expect("the server was started").pid()
    }

    /// The certificates that the builder's `tls` made.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the builder was asked for tls")
    }

    /// Kills a server, and waits until it is gone.
    pub fn kill(&self, i: usize) {
        if let Some(process) = self.servers[i].process().take() {
            process.kill();
        }
    }

    /// Stops a server as SIGSTOP does: its connections stay open and silent.
    pub fn pause(&self, i: usize) {
        self.servers[i].signal(Signal::STOP);
    }

    /// Lets a paused server go on.
    pub fn cont(&self, i: usize) {
        self.servers[i].signal(Signal::CONT);
    }

    /// Starts a killed server again, on its old data and ports; does not wait until it serves.
    pub fn restart(&self, i: usize) {
        self.kill(i);
        self.servers[i].launch();
    }

    /// Waits until every server that was started and not killed serves, as part of a quorum. A paused one would be waited for in vain.
    pub fn await_serving(&self) {
        let running = (0..self.len()).filter(|&i| self.servers[i].process().is_some());
        for i in running {
            self.await_serving_of(i);
        }
    }

    /// Waits until all servers serve. One that ended by itself, as one may that was paused for long, is started again, as by
    /// its supervisor.
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
        // A server that has ended will not serve any more: no need to wait for that.
        poll(LONG, || (self.mode(i).is_some() || self.servers[i].ended()).then_some(()));
        assert!(self.mode(i).is_some(), "{}", self.report(i));
    }

    /// Waits until a server leads (a single one does by itself), and says which.
    pub fn leader(&self) -> usize {
        self.leader_other_than(usize::MAX)
    }

    /// Waits until a server other than `old` leads: a paused leader still calls itself one.
    pub fn leader_other_than(&self, old: usize) -> usize {
        let leads = |&i: &usize| i != old && matches!(self.mode(i).as_deref(), Some("leader" | "standalone"));
        poll(LONG, || (0..self.len()).find(leads)).expect("an ensemble with a quorum gets a leader")
    }

    /// Servers that follow.
    pub fn followers(&self) -> Vec<usize> {
        (0..self.len()).filter(|&i| self.mode(i).as_deref() == Some("follower")).collect()
    }

    /// Makes `/secured`, open to `user:password` by digest only, and returns the connect string with it behind.
    pub async fn secured(&self, credential: &str) -> String {
        let client = Client::connector().with_auth("digest", credential.as_bytes());
        let client = client.connect(&self.connect_string()).await.expect("the servers serve");
        // "auth" stands for whoever the session is authenticated as.
        let own = [Acl::new(Permission::ALL, AuthId::new("auth", ""))];
        let options = CreateMode::Persistent.with_acls(Acls::new(&own));
        client.create("/secured", b"", &options).await.expect("a new ensemble has no such node");
        format!("{}/secured", self.connect_string())
    }

    /// Makes a path for one cluster of its own, `/…`, to be put behind the servers.
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
    /// Another tick. Sessions are negotiated between 2 and 20 of them.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// A TLS port beside the plain one.
    pub fn tls(mut self, client: ClientCertificate) -> Self {
        self.tls = Some(client);
        self
    }

    /// Each server on a host of its own. Only who is on the same network as those can ask them anything.
    pub fn on(mut self, hosts: &[Arc<Host>]) -> Self {
        self.hosts = hosts.to_vec();
        self
    }

    /// A line of zoo.cfg.
    pub fn property(mut self, key: &str, value: &str) -> Self {
        self.properties.push((key.into(), value.into()));
        self
    }

    /// Starts the servers; returns when all serve.
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
        (0..self.servers).map(|i| Server::new(dir.join(format!("s{i}")), self.hosts.get(i).cloned())).collect()
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

/// A place of its own on the server that all tests of this process share: a connect string with a fresh chroot, made.
///
/// Never pause or kill that server. It ends with the process.
pub fn shared() -> String {
    static SHARED: OnceLock<Ensemble> = OnceLock::new();
    let shared = SHARED.get_or_init(|| Ensemble::start(1));
    format!("{}{}", shared.connect_string(), shared.chroot())
}

/// Runs a future to its end on a thread and runtime of its own, so that a caller may or may not be on one.
fn aside(future: impl Future<Output = ()> + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be had").block_on(future);
    };
    thread::spawn(run).join().expect("the thread did not panic");
}
