//! Support for failover tests: nodes on an ensemble of three servers, the servers' contents, and jobs whose runs leave
//! traces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use cronkeeper_core::run::RunId;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::runtime::Runtime;
use uuid::Uuid;
use zookeeper_client::{Acl, Acls, AuthId, Client, Connector, CreateMode, Error, Permission, TlsOptions};

use crate::support::node::{Node, Spec};
use crate::support::proxy::Proxy;
use crate::support::witness::{Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// Session timeout of the nodes, unless a test sets another.
///
/// The servers give shorter ones, but a loaded machine does not keep them. And the tests would not be over sooner: they
/// are bound by the processor, and wait beside each other.
pub const TIMEOUT: Duration = Duration::from_secs(4);

/// True if the long tests are wanted.
pub fn is_long() -> bool {
    std::env::var_os("CRONKEEPER_LONG").is_some()
}

/// The ensemble shared by tests that do not interfere with the servers.
pub fn shared() -> &'static Ensemble {
    static SHARED: OnceLock<Ensemble> = OnceLock::new();
    SHARED.get_or_init(|| Ensemble::start(3))
}

/// A chroot of its own on an ensemble, as seen by the servers and by the nodes.
pub struct Place {
    servers: String,
    pub chroot: String,
    /// A client without chroot, so that paths are those that the servers report.
    pub zk: Zk,
}

impl Place {
    /// A chroot on the shared ensemble.
    pub fn shared() -> Self {
        Self::on(shared())
    }

    pub fn on(ensemble: &Ensemble) -> Self {
        let servers = ensemble.connect_string();
        let chroot = format!("/{}", Uuid::new_v4());
        let zk = Zk::connect(&servers);
        zk.create(&chroot);
        Self { servers, chroot, zk }
    }

    /// Opens a new session for this client: the old one may not have survived what was done to the servers.
    pub fn reconnect(&mut self) {
        self.zk = Zk::connect(&self.servers);
    }

    pub fn connect(&self) -> String {
        format!("{}{}", self.servers, self.chroot)
    }

    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// A node in this chroot.
    pub fn node(&self, name: &str) -> Spec {
        node(name, &self.connect())
    }

    /// The queue's entries, in order.
    pub fn queue(&self) -> Vec<String> {
        let mut names = self.zk.children(&self.path("/leader"));
        names.sort_by_key(|name| name[name.len() - 10..].to_owned());
        names
    }

    /// A job's history, by run and kind of record.
    pub fn history(&self, job: &str) -> BTreeMap<String, Value> {
        let folder = self.path(&format!("/cronkeeper/history/{job}"));
        let read = |name: String| Some((name.clone(), self.zk.json(&format!("{folder}/{name}"))?));
        self.zk.children(&folder).into_iter().filter_map(read).collect()
    }

    /// Waits for the end of a run and returns its record.
    pub fn await_end(&self, run: &str) -> Value {
        let id = RunId::parse(run).expect("it is the id of a run");
        let job = id.job().as_str();
        until(&format!("the end of {run} is written"), || self.history(job).contains_key(run));
        self.history(job).remove(run).expect("it was there")
    }

    /// The record of a run in flight.
    pub fn running(&self, run: &str) -> Option<Value> {
        self.zk.json(&self.path(&format!("/cronkeeper/running/{run}")))
    }

    /// The sessions that watch paths in this chroot, as reported by all servers.
    pub fn watches(&self, ensemble: &Ensemble) -> BTreeMap<String, BTreeSet<String>> {
        let mut all = BTreeMap::<String, BTreeSet<String>>::new();
        for (path, sessions) in (0..ensemble.len()).flat_map(|i| ensemble.watches(i)) {
            if let Some(path) = path.strip_prefix(&self.chroot) {
                all.entry(path.to_owned()).or_default().extend(sessions);
            }
        }
        all
    }
}

/// A node on ZooKeeper.
pub fn node(name: &str, connect: &str) -> Spec {
    Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), name).zookeeper(connect)
}

/// A node with the default session timeout of these tests.
pub fn usual(spec: Spec) -> Spec {
    spec.option("--session-timeout", "4s")
}

/// Starts nodes one after the other, so that they queue in this order.
pub fn in_line<const N: usize>(specs: [Spec; N]) -> [Node; N] {
    let mut is_first = true;
    specs.map(|spec| {
        let node = spec.start();
        if std::mem::take(&mut is_first) {
            node.await_event("takeover.done", LONG);
        } else {
            node.await_where("election.following", LONG, |said| !said.text("leader_node").is_empty());
        }
        node
    })
}

/// Restarts a node once all its processes are gone. It keeps its name and directories.
pub fn again(node: Node) -> Node {
    let spec = node.spec().clone();
    drop(node);
    spec.start()
}

/// The token of the newest term that a node has logged.
pub fn token(node: &Node) -> i64 {
    let terms = node.events().named("leader.elected");
    terms.last().and_then(|event| event.number("token")).expect("it was elected")
}

/// Gives nodes other jobs, and waits until all have loaded them.
pub fn give(nodes: &[&Node], jobs: &str) {
    let seen: Vec<usize> = nodes.iter().map(|node| node.events().len()).collect();
    for node in nodes {
        node.spec().write_jobs(jobs);
        node.signal(rustix::process::Signal::HUP);
    }
    for (node, seen) in nodes.iter().zip(seen) {
        node.await_after(seen, "jobs.loaded", LONG, |_| true);
    }
}

/// A whole second in the near future: late enough to give nodes a job that is due then.
pub fn soon() -> Timestamp {
    let at = Timestamp::now() + SignedDuration::from_secs(4);
    Timestamp::from_second(at.as_second()).expect("it is a time")
}

pub fn run_id(job: &str, at: Timestamp) -> String {
    format!("{job}.{}", at.strftime("%Y%m%dT%H%M%SZ"))
}

pub fn job(name: &str, schedule: &str, command: &str, more: &str) -> String {
    format!("  {name}:\n    schedule: \"{schedule}\"\n    command: {command}\n{}", indented(more))
}

/// A job that is due exactly once.
pub fn once(name: &str, at: Timestamp, command: &str, more: &str) -> String {
    job(name, &format!("@at {at}"), command, more)
}

pub fn jobs(each: &[String]) -> String {
    format!("jobs:\n{}", each.concat())
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("    {}\n", line.trim())).collect()
}

/// Waits until an attempt of a job has begun.
pub fn await_begun(witness: &Witness, job: &str, attempt: u32) {
    until(&format!("attempt {attempt} of {job} begins"), || {
        let entries = witness.entries();
        entries.iter().any(|entry| entry.mark == Mark::Start && entry.job == job && entry.attempt == attempt)
    });
}

/// The living main processes of these runs.
pub fn living(witness: &Witness, job: &str) -> Vec<u32> {
    let entries = witness.entries();
    let begun = entries.iter().filter(|entry| entry.mark == Mark::Start && entry.job == job);
    begun.map(|entry| entry.pid).filter(|&pid| is_alive(pid)).collect()
}

fn is_alive(pid: u32) -> bool {
    // A zombie counts as dead.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A proxy line to each server of an ensemble; all can be cut together.
pub struct Lines {
    proxies: Vec<Proxy>,
    chroot: String,
}

impl Lines {
    pub fn new(ensemble: &Ensemble, place: &Place) -> Self {
        Self { chroot: place.chroot.clone(), ..Self::to(ensemble) }
    }

    /// Lines to the servers themselves, without a chroot.
    pub fn to(ensemble: &Ensemble) -> Self {
        let proxies = (0..ensemble.len()).map(|i| Proxy::to(ensemble.address_of(i))).collect();
        Self { proxies, chroot: String::new() }
    }

    pub fn connect(&self) -> String {
        let each: Vec<String> = self.proxies.iter().map(Proxy::connect_string).collect();
        format!("{}{}", each.join(","), self.chroot)
    }

    /// Leaves a way to one server only, until [`Self::pass`].
    pub fn only(&self, server: usize) {
        let others = self.proxies.iter().enumerate().filter(|(i, _)| *i != server);
        others.for_each(|(_, proxy)| proxy.refuse());
    }

    pub fn part(&self) {
        // Cut all lines first: a client whose line is cut tries the next server at once.
        self.proxies.iter().for_each(Proxy::refuse);
        self.proxies.iter().for_each(Proxy::cut);
    }

    pub fn cut(&self) {
        self.proxies.iter().for_each(Proxy::cut);
    }

    pub fn swallow_requests(&self) {
        self.proxies.iter().for_each(Proxy::swallow_requests);
    }

    pub fn swallow_replies(&self) {
        self.proxies.iter().for_each(Proxy::swallow_replies);
    }

    pub fn delay_requests(&self, delay: Duration) {
        self.proxies.iter().for_each(|proxy| proxy.delay_requests(delay));
    }

    pub fn swallow_events(&self) {
        self.proxies.iter().for_each(Proxy::swallow_events);
    }

    /// Keeps the sessions of nodes that stand still.
    pub fn ping(&self) {
        self.proxies.iter().for_each(Proxy::ping);
    }

    pub fn pass(&self) {
        self.proxies.iter().for_each(Proxy::pass);
    }
}

/// A plain client for tests that are not async.
pub struct Zk {
    client: Client,
    runtime: Runtime,
}

impl Zk {
    pub fn connect(connect: &str) -> Self {
        Self::with(Client::connector(), connect)
    }

    pub fn with(connector: Connector, connect: &str) -> Self {
        Self::on(async move { connector.with_session_timeout(Duration::from_secs(10)).connect(connect).await })
    }

    /// Over TLS.
    pub fn secure(tls: TlsOptions, connect: &str) -> Self {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(10)).with_tls(tls);
        Self::on(async move { connector.secure_connect(connect).await })
    }

    fn on(connecting: impl Future<Output = Result<Client, Error>>) -> Self {
        // A separate worker thread keeps the session alive between calls.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be had");
        let client = runtime.block_on(connecting).expect("the servers serve");
        Self { client, runtime }
    }

    pub fn create(&self, path: &str) {
        self.make(path, b"");
    }

    /// Creates a znode.
    pub fn make(&self, path: &str, data: &[u8]) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let made = self.runtime.block_on(self.client.create(path, data, &options));
        made.unwrap_or_else(|error| panic!("{path} cannot be made: {error}"));
    }

    /// Writes a znode, whether or not it exists.
    pub fn put(&self, path: &str, data: &[u8]) {
        match self.set(path, data) {
            Ok(()) => {}
            Err(Error::NoNode) => self.make(path, data),
            Err(error) => panic!("{path} cannot be written: {error}"),
        }
    }

    /// Creates many znodes at once, without data.
    pub fn make_all(&self, paths: &[String]) {
        let each: Vec<(String, Vec<u8>)> = paths.iter().map(|path| (path.clone(), Vec::new())).collect();
        self.make_all_with(&each);
    }

    /// Creates many znodes at once, with these data.
    pub fn make_all_with(&self, each: &[(String, Vec<u8>)]) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let each = each.iter().map(|(path, data)| self.client.create(path, data, &options));
        let made = self.runtime.block_on(futures_util::future::try_join_all(each));
        made.unwrap_or_else(|error| panic!("they cannot be made: {error}"));
    }

    /// Creates a znode that goes with this client's session, as a member does.
    pub fn make_ephemeral(&self, path: &str, data: &[u8]) {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let made = self.runtime.block_on(self.client.create(path, data, &options));
        made.unwrap_or_else(|error| panic!("{path} cannot be made: {error}"));
    }

    /// Restricts a znode: full rights for this client's credential, only these for everybody else.
    pub fn seize(&self, path: &str, others: Permission) {
        let own = Acl::new(Permission::ALL, AuthId::authed());
        let rest = Acl::new(others, AuthId::anyone());
        let acl = if others == Permission::NONE { vec![own] } else { vec![own, rest] };
        self.set_acl(path, &acl);
    }

    /// Opens a restricted znode to everybody.
    pub fn give_back(&self, path: &str) {
        self.set_acl(path, &[Acl::new(Permission::ALL, AuthId::anyone())]);
    }

    fn set_acl(&self, path: &str, acl: &[Acl]) {
        let set = self.runtime.block_on(self.client.set_acl(path, acl, None));
        set.unwrap_or_else(|error| panic!("the list of {path} cannot be set: {error}"));
    }

    /// Deletes a znode with all its descendants. A node may recreate some of them meanwhile.
    pub fn delete_all(&self, path: &str) {
        until(&format!("{path} is deleted"), || {
            self.children(path).iter().for_each(|child| self.delete_all(&format!("{path}/{child}")));
            matches!(self.delete(path), Ok(()) | Err(Error::NoNode))
        });
    }

    /// Creates a queue entry and watches the one before it. Returns its name.
    pub fn queue_up(&self, folder: &str, before: Option<&str>) -> String {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{folder}/_c_{}-lock-", Uuid::new_v4());
        let made = self.runtime.block_on(self.client.create(&prefix, b"", &options));
        let (_, sequence) = made.expect("an entry can be made");
        if let Some(before) = before {
            let path = format!("{folder}/{before}");
            let watch = self.runtime.block_on(self.client.check_and_watch_stat(&path)).expect("it can be watched").1;
            // A task holds the watch until it fires: dropping it would remove it.
            self.runtime.spawn(watch.changed());
        }
        format!("{}{sequence}", &prefix[folder.len() + 1..])
    }

    pub fn children(&self, path: &str) -> Vec<String> {
        match self.runtime.block_on(self.client.list_children(path)) {
            Ok(names) => names,
            Err(Error::NoNode) => Vec::new(),
            Err(error) => panic!("{path} cannot be listed: {error}"),
        }
    }

    pub fn json(&self, path: &str) -> Option<Value> {
        self.data(path).map(|data| serde_json::from_slice(&data).expect("records are JSON"))
    }

    pub fn data(&self, path: &str) -> Option<Vec<u8>> {
        match self.runtime.block_on(self.client.get_data(path)) {
            Ok((data, _)) => Some(data),
            Err(Error::NoNode) => None,
            Err(error) => panic!("{path} cannot be read: {error}"),
        }
    }

    /// The session that a znode belongs to.
    pub fn owner(&self, path: &str) -> i64 {
        let stat = self.runtime.block_on(self.client.check_stat(path)).expect("the servers answer");
        stat.expect("it is there").ephemeral_owner
    }

    pub fn set(&self, path: &str, data: &[u8]) -> Result<(), Error> {
        self.runtime.block_on(self.client.set_data(path, data, None)).map(drop)
    }

    /// True unless the servers deny this client a write. Nothing is written: no znode has the version used.
    pub fn may_set(&self, path: &str) -> bool {
        !matches!(self.runtime.block_on(self.client.set_data(path, b"", Some(i32::MAX))), Err(Error::NoAuth))
    }

    /// The rights that the servers grant this client on a znode. Except for the child that it creates, nothing is
    /// changed, because no znode has the version used.
    pub fn may(&self, path: &str) -> Vec<&'static str> {
        const NO_VERSION: Option<i32> = Some(i32::MAX);
        let open = [Acl::new(Permission::ALL, AuthId::anyone())];
        let child = format!("{path}/intruder");
        let options = CreateMode::Persistent.with_acls(Acls::new(&open));
        let tried = self.runtime.block_on(async {
            [
                ("list", self.client.list_children(path).await.map(drop)),
                ("read", self.client.get_data(path).await.map(drop)),
                ("read the access list of", self.client.get_acl(path).await.map(drop)),
                ("write", self.client.set_data(path, b"intruder", NO_VERSION).await.map(drop)),
                ("create below", self.client.create(&child, b"", &options).await.map(drop)),
                ("delete", self.client.delete(path, NO_VERSION).await),
                ("set the access list of", self.client.set_acl(path, &open, NO_VERSION).await.map(drop)),
            ]
        });
        // A znode that is gone meanwhile is open to nobody.
        let refused = |result: &Result<(), Error>| matches!(result, Err(Error::NoAuth | Error::NoNode));
        tried.into_iter().filter(|(_, result)| !refused(result)).map(|(what, _)| what).collect()
    }

    /// A znode and all its descendants.
    pub fn walk(&self, path: &str) -> Vec<String> {
        let below = self.children(path).into_iter().flat_map(|name| self.walk(&format!("{path}/{name}")));
        std::iter::once(path.to_owned()).chain(below).collect()
    }

    pub fn is_there(&self, path: &str) -> bool {
        self.runtime.block_on(self.client.check_stat(path)).expect("the servers answer").is_some()
    }

    pub fn delete(&self, path: &str) -> Result<(), Error> {
        self.runtime.block_on(self.client.delete(path, None))
    }

    /// Deletes a znode that may be gone already.
    pub fn remove(&self, path: &str) {
        match self.delete(path) {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => panic!("{path} cannot be removed: {error}"),
        }
    }
}
