//! Benchmark of locks: `cargo bench --bench lock -- [--service NAME] [WORD]`.
//!
//! It measures hand-offs a second between 15 contenders on three real ZooKeeper servers, each with a session of its own,
//! and then all with one session, as programs often do. All contenders of a row are in one process: cronkeeper's
//! library, the lock of the crate `zookeeper-client`, and, if they are installed, Curator's InterProcessMutex and kazoo's
//! Lock, as their users write it. Then it measures how long a free lock takes, and the memory of a client that waits. With
//! a word, it measures only the rows whose name contains it. The run fails if two contenders ever held the lock at once.
//! On another service than ZooKeeper, the others are what its users have: advisory locks of PostgreSQL, `etcdctl lock`,
//! redis-py's Lock.

#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "lock/stores.rs"]
mod stores;
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cronkeeper_cluster::recipes::lock::{LockEvent, LockRequest, LockSession, Recipe};
use cronkeeper_cluster::tree::Connect;
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_core::clock::Clock as _;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, LockPrefix};

use self::short::pick;
use self::support::command::CRONKEEPER;
use self::support::process::Process;
use self::support::zookeeper::{Ensemble, class_path};
use self::support::{LONG, poll};

const CONTENDERS: usize = 15;
/// Each library is measured so often, one after the other, because the machine's speed changes.
const ROUNDS: usize = 3;
/// Uses of a free lock.
const FREE: usize = 1_000;

/// How long each row counts, and how long it runs before.
fn counted() -> (Duration, Duration) {
    let whole = (Duration::from_secs(10), Duration::from_secs(2));
    pick(whole, (Duration::from_secs(1), Duration::from_millis(100)))
}

/// Measures the hand-offs a second at this path with this many sessions. `None` if the library is not installed.
type Measure = fn(&str, &str, usize) -> Option<f64>;

const LIBRARIES: [(&str, Measure); 4] =
    [("cronkeeper", cronkeeper), ("bare crate", bare_crate), ("Curator", curator), ("kazoo", kazoo)];

fn main() -> ExitCode {
    let word = service::words().into_iter().next().unwrap_or_default();
    if service::is_another() {
        stores::measure(&word);
        return ExitCode::SUCCESS;
    }
    let ensemble = Ensemble::builder(3).runs_long().start();
    let connect = ensemble.connect_string();
    if LIBRARIES.iter().any(|(name, _)| name.contains(&word)) {
        // A freshly started Java is slow.
        for round in 0..pick(3, 1) {
            cronkeeper(&connect, &format!("/locks/warm-up-{round}"), CONTENDERS);
        }
        hand_offs(&LIBRARIES, &connect, &word);
    }
    if "free".contains(&word) {
        free(&on_zookeeper(&connect));
    }
    if "memory".contains(&word) {
        memory(&connect);
    }
    ExitCode::SUCCESS
}

/// Prints a row for each library, with sessions of their own and with one.
fn hand_offs(libraries: &[(&str, Measure)], connect: &str, word: &str) {
    println!("{:<28} {:>16} {:>24}", "", "hand-offs/s", "rounds");
    for sessions in [CONTENDERS, 1] {
        with_sessions(libraries, connect, sessions, word);
    }
}

fn with_sessions(libraries: &[(&str, Measure)], connect: &str, sessions: usize, word: &str) {
    let mut rates = vec![Vec::new(); libraries.len()];
    for round in 0..pick(ROUNDS, 1) {
        for ((name, measure), rates) in libraries.iter().zip(&mut rates) {
            if name.contains(word) {
                let path = format!("/locks/{}-{sessions}-{round}", name.replace(' ', "-"));
                rates.extend(measure(connect, &path, sessions));
            }
        }
    }
    for ((name, _), rates) in libraries.iter().zip(&mut rates) {
        let rounds: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        rates.sort_by(f64::total_cmp);
        if let Some(median) = rates.get(rates.len() / 2) {
            let name = format!("{name}, {}", if sessions == 1 { "one session" } else { "own sessions" });
            println!("{name:<28} {median:>16.0} {:>24}", rounds.join(" "));
        }
    }
}

/// What the contenders of one row share.
#[derive(Default)]
struct Contest {
    hand_offs: AtomicU64,
    is_held: AtomicBool,
    is_over: AtomicBool,
}

impl Contest {
    /// What a contender does while it holds the lock.
    fn hold(&self) {
        assert!(!self.is_held.swap(true, Ordering::SeqCst), "two contenders hold the lock");
        self.hand_offs.fetch_add(1, Ordering::SeqCst);
        self.is_held.store(false, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Counts, and then ends the contest. Returns the hand-offs a second.
    async fn count(&self) -> f64 {
        let (time, warm_up) = counted();
        tokio::time::sleep(warm_up).await;
        let (before, started) = (self.hand_offs.load(Ordering::SeqCst), Instant::now());
        tokio::time::sleep(time).await;
        let counted = self.hand_offs.load(Ordering::SeqCst) - before;
        let rate = counted as f64 / started.elapsed().as_secs_f64();
        self.is_over.store(true, Ordering::SeqCst);
        rate
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had")
}

/// The session timeout of each contender.
const SESSION: Duration = Duration::from_secs(10);

fn on_zookeeper(connect: &str) -> Znodes<Connector> {
    let settings =
        ConnectionSettings { connect: connect.to_owned(), session_timeout: SESSION, ..ConnectionSettings::default() };
    Znodes(Connector::closing(settings).expect("the settings are fine"))
}

async fn session<C: Connect>(connect: &C) -> LockSession<C::Session, SystemClock> {
    let clock = SystemClock::default();
    let requested = clock.now().up;
    LockSession::new(connect.connect().await.expect("the servers serve"), clock, requested)
}

fn request(path: &str) -> LockRequest {
    LockRequest {
        paths: vec![LockPath::parse(path).expect("a path of a lock")],
        kind: LockKind::Mutex,
        recipe: Recipe::Curator,
        uuid: LockKey::draw().uuid(),
        data: b"bench".to_vec(),
        waits: true,
    }
}

fn cronkeeper(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    Some(contend(|| on_zookeeper(connect), path, sessions))
}

/// The hand-offs a second of contenders, each of which has one of the sessions.
fn contend<C: Connect>(connect: impl Fn() -> C, path: &str, sessions: usize) -> f64
where
    C::Session: Clone + Send + Sync + 'static,
{
    let contest = Arc::new(Contest::default());
    runtime().block_on(async {
        let mut upkeeps = JoinSet::new();
        let mut contenders = Vec::new();
        for _ in 0..sessions {
            let mut session = session(&connect()).await;
            session.renew_at(&LockPath::parse(path).expect("a path of a lock"));
            contenders.push(session.contender());
            upkeeps.spawn(async move { while session.event().await != LockEvent::SessionOver {} });
        }
        let mut contending = JoinSet::new();
        for n in 0..CONTENDERS {
            let (contest, contender, request) = (contest.clone(), contenders[n % sessions].clone(), request(path));
            contending.spawn(async move {
                while !contest.is_over() {
                    let held = contender.acquire(&request).await.expect("the lock can be had");
                    contest.hold();
                    // Queue again without waiting for the answer: it comes before that of the next request.
                    tokio::spawn(contender.release(&held));
                }
            });
        }
        let rate = contest.count().await;
        while contending.join_next().await.transpose().expect("no contender panics").is_some() {}
        rate
    })
}

fn bare_crate(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    let contest = Arc::new(Contest::default());
    let rate = runtime().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..sessions {
            clients.push(Client::connect(connect).await.expect("the servers serve"));
        }
        let mut contending = JoinSet::new();
        for n in 0..CONTENDERS {
            let (contest, client, path) = (contest.clone(), clients[n % sessions].clone(), path.to_owned());
            contending.spawn(async move {
                let options = zookeeper_client::LockOptions::new(Acls::anyone_all())
                    .with_ancestor_options(zookeeper_client::CreateMode::Persistent.with_acls(Acls::anyone_all()))
                    .expect("the options are fine");
                while !contest.is_over() {
                    let prefix = LockPrefix::new_curator(&path, "lock-").expect("a path of a lock");
                    let lock = client.lock(prefix, b"bench", options.clone()).await.expect("the lock can be had");
                    contest.hold();
                    let held = lock.lock_path().to_owned();
                    client.delete(&held, None).await.expect("the lock can be released");
                    drop(lock);
                }
            });
        }
        let rate = contest.count().await;
        while contending.join_next().await.transpose().expect("no contender panics").is_some() {}
        rate
    });
    Some(rate)
}

fn curator(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    const JARS: [&str; 6] =
        ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "slf4j-simple"];
    if !Path::new("/usr/share/java/curator-recipes.jar").exists() {
        return None;
    }
    let mut command = Command::new("java");
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &class_path(&JARS)]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/lock/CuratorHandOffs.java"));
    measured_by(command, connect, path, sessions)
}

fn kazoo(connect: &str, path: &str, sessions: usize) -> Option<f64> {
    python("kazoo", connect, path, sessions)
}

fn python(library: &str, connect: &str, path: &str, sessions: usize) -> Option<f64> {
    let mut command = Command::new("/usr/bin/python3");
    command.args([concat!(env!("CARGO_MANIFEST_DIR"), "/benches/lock/hand_offs.py"), library]);
    measured_by(command, connect, path, sessions)
}

/// The rate that a program with another library prints. `None` if the library is missing.
fn measured_by(mut command: Command, connect: &str, path: &str, sessions: usize) -> Option<f64> {
    let [contenders, seconds, sessions] = [CONTENDERS, counted().0.as_secs() as usize, sessions].map(|n| n.to_string());
    command.args([connect, path, &contenders, &seconds, &sessions]);
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("two contenders hold the lock"), "{said}");
    let rate = text.lines().last().and_then(|line| line.trim().parse().ok());
    if rate.is_none() {
        eprintln!("no figure: {text}{said}");
    }
    rate
}

/// Prints how long it takes to acquire and to release a lock that nobody else wants.
fn free<C: Connect>(connect: &C) {
    let (mut acquired, mut released) = (Vec::new(), Vec::new());
    let uses = pick(FREE, 20);
    runtime().block_on(async {
        let (mut session, request) = (session(connect).await, request("/locks/free"));
        for _ in 0..uses {
            let started = Instant::now();
            let held = session.acquire(&request).await.expect("the lock can be had");
            let had = Instant::now();
            session.release(&held).await.expect("the lock can be released");
            acquired.push(had - started);
            released.push(had.elapsed());
        }
    });
    for (name, mut times) in [("acquire", acquired), ("release", released)] {
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, p99) = (ms(times[uses / 2]), ms(times[uses * 99 / 100]));
        println!("free lock: {name:<10} p50 {median:.2} ms, p99 {p99:.2} ms");
    }
}

/// Prints the memory of `cronkeeper lock` while it waits, with all its processes.
fn memory(connect: &str) {
    let lock = |seconds: &str| {
        Process::spawn(CRONKEEPER, |command| {
            let line = ["lock", "--zookeeper", connect, "/locks/memory", "--", "sleep", seconds];
            command.args(line).env_remove(short::VARIABLE).stdin(Stdio::null());
        })
        .expect("cronkeeper can be started")
    };
    let holder = lock("1000");
    poll(LONG, || support::process::watcher_and_warden_of(holder.pid())).expect("it holds the lock");
    let waiting = lock("0");
    // Nothing tells when it waits; by then it does.
    thread::sleep(Duration::from_secs(pick(5, 1)));
    for (name, process) in [("holder", &holder), ("waiting client", &waiting)] {
        let own = support::process::watcher_and_warden_of(process.pid());
        let all = std::iter::once(process.pid()).chain(own.into_iter().flatten());
        let figures: Vec<String> = all.map(|pid| format!("{:.1}", rss_mb(pid))).collect();
        println!("memory of a {name:<15} {} MB (RSS of each process)", figures.join(" + "));
    }
}

fn rss_mb(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb: f64 = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or_default();
    kb / 1024.0
}
