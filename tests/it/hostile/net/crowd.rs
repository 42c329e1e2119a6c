//! Many greedy clients at once: readers of all history, clients that never read, incomplete requests. The leader keeps
//! its lease, its memory and its schedule.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use zookeeper_client::{Acls, Client, CreateMode};

use super::{apart, dial, exchange, listening, remote, request};
use crate::failover::cluster::{Place, is_long, job, jobs, usual};
use crate::solo::fixture::{get as get_local, kib};
use crate::support::host::Host;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// Jobs whose history is filled with twenty records of maximum size each.
const JOBS: usize = 40;
const RECORDS: usize = 20;
/// Allowed growth of the leader's memory.
const MOST_MEMORY_KIB: u64 = 64 << 10;
/// Allowed lateness of its jobs on an otherwise idle machine.
const MOST_LATENESS_MS: i64 = 50;

/// Fills the histories of undefined jobs with copies of a record whose output becomes six times as long in JSON.
fn fill(connect: &str, record: &Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connector().connect(connect).await.unwrap();
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for number in 0..JOBS {
            let name = format!("old-{number}");
            let mut writer = client.new_multi_writer();
            writer.add_create(&format!("/cronkeeper/history/{name}"), b"", &options).unwrap();
            for second in 0..RECORDS {
                let mut record = record.clone();
                record["run"]["job"] = name.as_str().into();
                record["run"]["scheduled_at"] = format!("2026-11-20T02:40:{second:02}Z").into();
                record["tail"] = "\u{1}".repeat(4_000).into();
                let run = format!("/cronkeeper/history/{name}/{name}.20261120T0240{second:02}Z");
                writer.add_create(&run, record.to_string().as_bytes(), &options).unwrap();
            }
            writer.commit().await.unwrap();
        }
    });
}

/// The behaviour of a client until it is stopped.
#[derive(Clone, Copy)]
enum Harm {
    /// Requests everything and reads nothing.
    NeverReads,
    /// Sends an incomplete request.
    NeverAsks,
    /// Requests everything again and again.
    ReadsAll,
}

struct Crowd {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Crowd {
    /// Starts `count` clients, each with an address of its own.
    fn of(count: u16, at: SocketAddrV4) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |number: u16| {
            let harm = [Harm::NeverReads, Harm::NeverAsks, Harm::ReadsAll][usize::from(number % 3)];
            let from = remote(256 + number);
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    harm.once(from, at, &stop, &answered);
                }
            })
        };
        let threads = (0..count).map(client).collect();
        Self { stop, answered, threads }
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no client panics"));
        self.answered.load(Ordering::Relaxed)
    }
}

impl Harm {
    fn once(self, from: Ipv4Addr, at: SocketAddrV4, stop: &AtomicBool, answered: &AtomicUsize) {
        let Ok(mut stream) = dial(from, at) else { return };
        let all = request("/v1/history?limit=1000", "");
        match self {
            Self::ReadsAll => {
                let is_had = exchange(stream, &all).is_some_and(|answer| answer.code == 200);
                answered.fetch_add(usize::from(is_had), Ordering::Relaxed);
            }
            Self::NeverReads | Self::NeverAsks => {
                let end = if matches!(self, Self::NeverAsks) { all.len() / 2 } else { all.len() };
                drop(stream.write_all(&all.as_bytes()[..end]));
                // Until the node closes the connection.
                drop(stream.set_read_timeout(Some(Duration::from_millis(200))));
                let began = Instant::now();
                while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20) {
                    thread::sleep(Duration::from_millis(100));
                    // Checks whether the connection is closed; reads only one byte of an answer.
                    if matches!(stream.read(&mut [0]), Ok(0)) {
                        return;
                    }
                }
            }
        }
    }
}

#[test]
fn a_crowd_takes_neither_the_lease_nor_the_memory_nor_the_socket() {
    apart(crowd_on);
}

fn crowd_on(host: &Arc<Host>, at: SocketAddrV4) {
    let (clients, lasts) = if is_long() { (300, Duration::from_secs(60)) } else { (90, Duration::from_secs(8)) };
    let ensemble = Ensemble::builder(1).on(std::slice::from_ref(host)).start();
    let place = Place::on(&ensemble);
    let file = jobs(&[job("tick", "* * * * * *", "true", "")]);
    let a = listening(usual(place.node("a")).on(host).jobs(&file), at).start();
    a.await_event("takeover.done", LONG);
    until("a run has ended", || !place.history("tick").is_empty());
    let record = place.history("tick").into_values().next().expect("there is one");
    fill(&place.connect(), &record);
    let before = kib(a.pid(), "VmRSS");
    let seen = a.events().len();

    let crowd = Crowd::of(clients, at);
    let (began, mut asked, mut most) = (Instant::now(), 0, before);
    while began.elapsed() < lasts {
        let (code, _) = get_local(a.spec(), "/v1/status").expect("the socket answers");
        assert_eq!(code, 200);
        let (code, _) = get_local(a.spec(), "/healthz").expect("the socket answers");
        assert_eq!(code, 200);
        asked += 1;
        most = most.max(kib(a.pid(), "VmRSS"));
        thread::sleep(Duration::from_millis(50));
    }
    let answered = crowd.end();

    let begun = a.events().all().into_iter().skip(seen).filter(|event| event.name() == "run.started");
    let late: Vec<i64> = begun.filter_map(|event| event.number("lateness_ms")).collect();
    let worst = late.iter().max().copied().unwrap_or_default();
    let more = most.saturating_sub(before);
    println!(
        "{clients} clients for {lasts:?}: {more} KiB more than {before}, at most {worst} ms late of {} runs; the socket answered {asked} times, {answered} histories were read",
        late.len()
    );
    assert!(a.events().named("leader.lost").is_empty(), "{}", a.events().tail());
    assert!(!late.is_empty() && answered > 0, "{}", a.events().tail());
    assert!(more < MOST_MEMORY_KIB, "{more} KiB more");
    if is_long() {
        assert!(worst < MOST_LATENESS_MS, "{worst} ms late: {late:?}");
    }
    // A busy machine may still need a moment to read the ledger.
    until("it answers when they are gone, and says that there was more", || {
        let answer = exchange(dial(remote(1), at).unwrap(), &request("/v1/history?limit=1000", ""));
        answer.is_some_and(|answer| {
            assert!(answer.body.len() <= 1 << 20, "{} bytes", answer.body.len());
            answer.code == 200 && answer.body.ends_with(r#""cut":true}"#)
        })
    });
}
