//! The API over real sockets, with a ledger that does as it is told.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::client::{AskError, Client, Places};
use super::serve::Serving;
use super::socket::{ApiSocket, Claim, NAME};
use super::*;
use crate::clock::system;
use crate::election::{Queue, Unappointable};
use crate::job::JobName;
use crate::ledger::{Asking, Followed, Operator, OperatorError, ReadError, Reading, Snapshot};
use crate::run::{
    HistoryRecord, KillRequest, Pause, Resume, RunId, RunState, Skip, SkipReason, TriggerRecord, TriggerSeq,
};
use crate::status::sample;
use crate::term::{FencingToken, NodeName};

/// What the ledger does when it is asked.
#[derive(Clone, Copy)]
enum Mood {
    Well,
    Away,
    Hung,
    Broken,
}

struct Ledger {
    mood: Mood,
    queues: AtomicUsize,
    /// What was asked for.
    wishes: Mutex<Vec<String>>,
}

fn skip_at(at: jiff::Timestamp) -> Skip {
    Skip {
        v: 1,
        job: sample::job("load"),
        reason: SkipReason::Missed,
        first: at,
        last: at,
        count: 1,
        trigger: None,
        token: FencingToken(7),
        node: NodeName::new("host-a"),
        decided_at: at,
    }
}

impl Ledger {
    fn note(&self, wish: String) {
        self.wishes.lock().unwrap().push(wish);
    }

    fn do_it<T: Send + 'static>(&self, answer: T) -> Asking<'_, T> {
        match self.mood {
            Mood::Away => Box::pin(async { Err(OperatorError("nobody answers".into())) }),
            Mood::Hung => Box::pin(std::future::pending()),
            Mood::Well | Mood::Broken => Box::pin(async { Ok(answer) }),
        }
    }

    fn answer<T: Send + 'static>(&self, answer: T) -> Reading<'_, T> {
        match self.mood {
            Mood::Well => Box::pin(async { Ok(answer) }),
            Mood::Away => Box::pin(async { Err(ReadError("nobody answers".into())) }),
            Mood::Hung => Box::pin(std::future::pending()),
            Mood::Broken => Box::pin(async { panic!("a bug of the reader") }),
        }
    }
}

impl Reader for Ledger {
    fn queue(&self) -> Reading<'_, Queue> {
        self.queues.fetch_add(1, Ordering::Relaxed);
        self.answer(sample::queue())
    }

    fn snapshot(&self) -> Reading<'_, Snapshot> {
        self.answer(Snapshot::default())
    }

    fn history(&self, job: Option<JobName>, limit: usize) -> Reading<'_, Vec<HistoryRecord>> {
        let at = sample::at("2026-11-20T02:40:00Z");
        let known = job.is_none_or(|job| job == sample::job("load"));
        let skip = HistoryRecord::Skip(skip_at(at));
        self.answer(vec![skip; if known { limit.min(3) } else { 0 }])
    }
}

impl Operator for Ledger {
    fn pause(&self, job: JobName, _: Uuid, pause: Pause) -> Asking<'_, ()> {
        self.note(format!("pause {job} by {} for {:?}", pause.by, pause.reason));
        self.do_it(())
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> Asking<'_, Option<Uuid>> {
        self.note(format!("resume {job} by {}", resume.by));
        self.do_it((job == sample::job("load")).then(Uuid::nil))
    }

    fn resumed(&self, _: JobName, _: Uuid) -> Asking<'_, ()> {
        self.do_it(())
    }

    fn trigger(&self, wish: TriggerRecord) -> Asking<'_, RunId> {
        self.note(format!("trigger {} by {}", wish.job, wish.by));
        self.do_it(RunId::manual(wish.job, wish.at, TriggerSeq(7)))
    }

    fn kill(&self, run: RunId, wish: KillRequest) -> Asking<'_, Option<RunState>> {
        self.note(format!("kill {run} by {}{}", wish.by, if wish.force { " by force" } else { "" }));
        self.do_it((*run.job() == sample::job("load")).then_some(RunState::Running))
    }

    fn followed(&self, run: RunId) -> Asking<'_, Followed> {
        let skip = |run: &RunId| HistoryRecord::Skip(skip_at(run.scheduled_at()));
        self.do_it(if run.trigger().is_some() { Followed::Ended(Box::new(skip(&run))) } else { Followed::Gone })
    }
}

/// A daemon of which nothing but its API is real.
struct Daemon {
    directory: tempfile::TempDir,
    ledger: Arc<Ledger>,
    status: watch::Sender<Arc<Status>>,
    turns: watch::Sender<Uptime>,
    router: Router,
    wanted: mpsc::UnboundedReceiver<Handover>,
    _serving: Serving,
}

impl Daemon {
    async fn start(mood: Mood) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger { mood, queues: AtomicUsize::new(0), wishes: Mutex::default() });
        let status = watch::Sender::new(Arc::new(published()));
        let turns = watch::Sender::new(system::uptime());
        let (handovers, wanted) = mpsc::unbounded_channel();
        let router = router(Sources {
            status: status.subscribe(),
            turns: turns.subscribe(),
            // A turn at boot is too long ago, one at the start of a test is not.
            stall: system::uptime().since(Uptime::ZERO) / 2,
            reader: ledger.clone(),
            operator: ledger.clone(),
            handovers,
        });
        let socket = ApiSocket::open(directory.path(), Claim::IfFree).await.unwrap();
        let serving = Serving::on_socket(socket, router.clone());
        Self { directory, ledger, status, turns, router, wanted, _serving: serving }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Sends `request` as it is; the code and the body of the answer.
    async fn send(&self, request: impl Into<Vec<u8>>) -> (u16, Value) {
        let (socket, request) = (self.socket(), request.into());
        spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            // The daemon may have heard enough before all is sent.
            drop(stream.write_all(&request));
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer));
            parse(&answer)
        })
        .await
        .unwrap()
    }

    async fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let length = body.len();
        self.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")).await
    }

    /// What was asked of the ledger since the last look.
    fn wishes(&self) -> Vec<String> {
        std::mem::take(&mut *self.ledger.wishes.lock().unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }
}

/// What a daemon publishes: the queue and the members it leaves to the ledger.
fn published() -> Status {
    let mut status = sample::leader();
    status.queue.clear();
    status.members.clear();
    status.drift.clear();
    if let Some(session) = &mut status.session {
        session.lease_until = Some(system::uptime() + Duration::from_secs(3_600));
    }
    status
}

fn parse(answer: &[u8]) -> (u16, Value) {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_status_joins_what_the_daemon_says_with_what_the_ledger_knows() {
    let daemon = Daemon::start(Mood::Well).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["state"], &status["role"]["token"]), (200, &"leading".into(), &4_294_967_301_i64.into()));
    assert_eq!(status["queue"][2]["predecessor"], status["queue"][1]["candidate"]);
    assert_eq!(status["members"][1]["node"], "host-b");
    assert_eq!(status["drift"], serde_json::json!(["host-b"]));
    assert_eq!(status["unread"], Value::Null);
    let left = status["session"]["lease_remaining_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_status_is_had_also_when_the_ledger_is_away() {
    let daemon = Daemon::start(Mood::Away).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["unread"]), (200, &"nobody answers".into()));
    assert_eq!(status["jobs"][0]["name"], "nightly-backup");
    let (code, refusal) = daemon.get("/v1/history").await;
    assert_eq!((code, &refusal["error"]), (503, &"the ledger cannot be read: nobody answers".into()));
}

#[tokio::test]
async fn a_ledger_that_gives_no_answer_is_not_waited_for_long() {
    let daemon = Daemon::start(Mood::Hung).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["unread"]), (200, &"no answer within 3 s".into()));
}

#[tokio::test]
async fn many_who_ask_cost_one_read() {
    let daemon = Daemon::start(Mood::Well).await;
    futures_util::future::join_all((0..10).map(|_| daemon.get("/v1/status"))).await;
    // A loaded machine may take longer over ten than an answer stays fresh.
    assert!(daemon.ledger.queues.load(Ordering::Relaxed) < 10);
}

#[tokio::test]
async fn health_is_the_loops_and_readiness_the_nodes() {
    let daemon = Daemon::start(Mood::Well).await;
    assert_eq!(daemon.get("/healthz").await.0, 200);
    assert_eq!(daemon.get("/readyz").await.0, 200);

    daemon.status.send_replace(Arc::new(sample::cut_off()));
    let (code, readiness) = daemon.get("/readyz").await;
    assert_eq!((code, &readiness["awaiting"]), (503, &"ZooKeeper at zk1:2181,zk2:2181".into()));
    assert_eq!(daemon.get("/healthz").await.0, 200);

    daemon.turns.send_replace(Uptime::ZERO);
    assert_eq!(daemon.get("/healthz").await.0, 503);
}

#[tokio::test]
async fn a_history_is_of_one_job_or_of_all_and_bounded() {
    let daemon = Daemon::start(Mood::Well).await;
    let (code, history) = daemon.get("/v1/jobs/load/history?limit=2").await;
    assert_eq!((code, history["records"].as_array().unwrap().len()), (200, 2));
    assert_eq!(history["records"][0]["kind"], "skip");
    assert_eq!(history["records"][0]["first"], "2026-11-20T02:40:00Z");
    assert_eq!(daemon.get("/v1/history").await.1["records"].as_array().unwrap().len(), 3);
    for path in ["/v1/history?limit=0", "/v1/history?limit=1001", "/v1/history?limit=x"] {
        assert_eq!(daemon.get(path).await.0, 400, "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_in_json() {
    let daemon = Daemon::start(Mood::Well).await;
    let unknown = daemon.get("/v1/jobs/nothing/history").await;
    assert_eq!(unknown, (404, serde_json::json!({ "error": "there is no job `nothing`" })));
    let defined = daemon.get("/v1/jobs/nightly-backup/history").await;
    assert_eq!(defined, (200, serde_json::json!({ "records": [] })));
    for path in ["/", "/metrics", "/v1/jobs/..%2f..%2fetc/history", "/v1/jobs//history"] {
        let (code, refusal) = daemon.get(path).await;
        assert!(code == 404 && refusal["error"].is_string(), "{path}: {code} {refusal}");
    }
    let (code, refusal) = daemon.get("/v1/jobs/%ff/history").await;
    assert!(code == 400 && refusal["error"].is_string());
    let (code, refusal) = daemon.send("POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
    assert!(code == 405 && refusal["error"].is_string());
}

#[tokio::test]
async fn a_panic_is_one_requests_affair() {
    let daemon = Daemon::start(Mood::Broken).await;
    for _ in 0..2 {
        let (code, refusal) = daemon.get("/v1/status").await;
        assert!(code == 500 && refusal["error"].is_string());
        assert_eq!(daemon.get("/healthz").await.0, 200);
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_or_none_is_cut_off() {
    let daemon = Daemon::start(Mood::Well).await;
    let large = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(daemon.send(large).await.0, 431);
    assert_eq!(daemon.send(vec![0x16, 3, 1, 2, 0, 1, 0, 0]).await.0, 400);
    let endless = "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(daemon.send(endless).await.0, 200);
}

#[tokio::test]
async fn slow_clients_on_tcp_shut_nobody_out_of_the_socket() {
    let daemon = Daemon::start(Mood::Well).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _tcp = Serving::on_tcp(listener, daemon.router.clone());
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /healthz HTT").unwrap();
            stream
        })
        .collect();
    assert_eq!(daemon.get("/healthz").await.0, 200);
    drop(slow);
    let answer = spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        parse(&answer)
    });
    assert_eq!(answer.await.unwrap().0, 200);
}

#[tokio::test]
async fn a_command_reads_what_the_daemon_writes() {
    let daemon = Daemon::start(Mood::Well).await;
    let directory = daemon.directory.path().to_owned();
    let asked = spawn_blocking(move || {
        let client = Client::new(Places::new(Some(&directory), None)).unwrap();
        (client.get::<Status>("/v1/status"), client.get::<Value>("/v1/jobs/nothing/history"))
    });
    let (status, history) = asked.await.unwrap();
    let (status, history) = (status.unwrap(), history.unwrap_err());
    assert_eq!((status.queue.len(), status.drift.len()), (3, 1));
    assert_eq!((history.to_string().as_str(), history.is_unreachable()), ("there is no job `nothing`", false));
}

#[test]
fn no_daemon_is_said_with_what_was_tried() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(Places::new(Some(directory.path()), None)).unwrap();
    let error = client.get::<Status>("/v1/status").unwrap_err();
    assert!(matches!(error, AskError::NoDaemon(_)));
    assert!(error.is_unreachable());
    let socket = directory.path().join(NAME);
    assert!(error.to_string().contains(&socket.display().to_string()), "{error}");
}

const TRIGGER: &str = r#"{"uuid":"6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d"}"#;

#[tokio::test]
async fn a_wish_is_written_with_the_callers_name() {
    let daemon = Daemon::start(Mood::Well).await;
    let uid = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(uid).unwrap().map(|user| format!(" ({})", user.name)).unwrap_or_default();
    let by = format!("by uid {uid}{user} on host-a");

    let (code, triggered) = daemon.post("/v1/jobs/load/trigger", TRIGGER).await;
    let run = triggered["run"].as_str().unwrap_or_default();
    assert!(code == 200 && run.starts_with("load.") && run.ends_with("Z.m7"), "{code} {triggered}");
    assert_eq!(daemon.wishes(), [format!("trigger load {by}")]);

    let (code, paused) = daemon.post("/v1/jobs/load/pause", r#"{"reason":"new disks"}"#).await;
    assert_eq!((code, &paused["paused"]["reason"]), (200, &"new disks".into()));
    assert_eq!(daemon.post("/v1/jobs/load/pause", "").await.0, 200);
    let paused = |reason: &str| format!("pause load {by} for {reason}");
    assert_eq!(daemon.wishes(), [paused(r#"Some("new disks")"#), paused("None")]);

    let resumed = daemon.post("/v1/jobs/load/resume", "{}").await;
    assert_eq!(resumed, (200, serde_json::json!({ "was_paused": true })));
    let resumed = daemon.post("/v1/jobs/nightly-backup/resume", "{}").await;
    assert_eq!(resumed, (200, serde_json::json!({ "was_paused": false })));
    daemon.wishes();

    let run = "load.20261120T024000Z";
    let killing = daemon.post(&format!("/v1/runs/{run}/kill"), r#"{"force":true}"#).await;
    assert_eq!(killing, (200, serde_json::json!({ "state": "running" })));
    assert_eq!(daemon.wishes(), [format!("kill {run} {by} by force")]);
    let (code, refusal) = daemon.post("/v1/runs/nightly-backup.20261120T024000Z/kill", "").await;
    let error = "run `nightly-backup.20261120T024000Z` is not in flight";
    assert_eq!((code, &refusal["error"]), (404, &error.into()));
}

#[tokio::test]
async fn a_wish_for_a_job_that_is_not_there_is_refused_with_the_nearest_name() {
    let daemon = Daemon::start(Mood::Well).await;
    for (wish, body) in [("trigger", TRIGGER), ("pause", "{}"), ("resume", "{}")] {
        let (code, refusal) = daemon.post(&format!("/v1/jobs/nightly-backp/{wish}"), body).await;
        let error = "there is no job `nightly-backp`, did you mean `nightly-backup`?";
        assert_eq!((code, &refusal["error"]), (404, &error.into()), "{wish}");
    }
    assert!(daemon.wishes().iter().all(|wish| wish.starts_with("resume")), "nothing but the resume is looked for");
}

#[tokio::test]
async fn a_wish_that_is_none_is_refused_and_a_large_one_is_not_read() {
    let daemon = Daemon::start(Mood::Well).await;
    for body in ["{}", "x", r#"{"uuid":"7"}"#, r#"{"uuid":"6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d","at":0}"#] {
        assert_eq!(daemon.post("/v1/jobs/load/trigger", body).await.0, 400, "{body}");
    }
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1_001));
    assert_eq!(daemon.post("/v1/jobs/load/pause", &long).await.0, 400);
    let large = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(daemon.post("/v1/jobs/load/pause", &large).await.0, 413);
    assert_eq!(daemon.get("/v1/jobs/load/pause").await.0, 405);
    assert!(daemon.wishes().is_empty());
}

#[tokio::test]
async fn nothing_can_be_asked_for_over_tcp() {
    let daemon = Daemon::start(Mood::Well).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _tcp = Serving::on_tcp(listener, daemon.router.clone());
    let answer = spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = TRIGGER.len();
        write!(stream, "POST /v1/jobs/load/trigger HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{TRIGGER}")
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        parse(&answer)
    });
    assert_eq!(answer.await.unwrap().0, 403);
    assert!(daemon.wishes().is_empty());
}

#[tokio::test]
async fn a_wish_that_the_ledger_does_not_take_is_not_said_to_be_taken() {
    for mood in [Mood::Away, Mood::Hung] {
        let daemon = Daemon::start(mood).await;
        let (code, refusal) = daemon.post("/v1/jobs/load/trigger", TRIGGER).await;
        assert!(code == 503 && refusal["error"].is_string(), "{code} {refusal}");
    }
}

#[tokio::test]
async fn what_became_of_a_run_can_be_waited_for() {
    let daemon = Daemon::start(Mood::Well).await;
    let (code, fate) = daemon.get("/v1/runs/load.20261120T024000Z.m7").await;
    assert_eq!((code, &fate["state"], &fate["record"]["reason"]), (200, &"ended".into(), &"missed".into()));
    assert_eq!(daemon.get("/v1/runs/load.20261120T024000Z").await.1["state"], "gone");
    assert_eq!(daemon.get("/v1/runs/load").await.0, 404);
}

#[tokio::test]
async fn a_handover_goes_to_the_loop_and_its_answer_comes_back() {
    let mut daemon = Daemon::start(Mood::Well).await;
    let mut wanted = std::mem::replace(&mut daemon.wanted, mpsc::unbounded_channel().1);
    let looped = tokio::spawn(async move {
        let mut asked = Vec::new();
        for how in [Ok(()), Err(Unappointable::NotQueued), Err(Unappointable::NotLeading)] {
            let Handover { to, answer } = wanted.recv().await.expect("three are asked for");
            asked.push(to);
            answer.send(how).expect("the caller waits");
        }
        asked
    });
    assert_eq!(daemon.post("/v1/handover", "").await, (200, serde_json::json!({ "node": "host-a" })));
    let (code, refused) = daemon.post("/v1/handover", r#"{"to":"host-z"}"#).await;
    assert_eq!((code, &refused["error"]), (409, &"leadership stays: it has no place in the queue".into()));
    let mut follower = published();
    follower.role.leader_node = Some(NodeName::new("host-b"));
    daemon.status.send_replace(Arc::new(follower));
    let (code, refused) = daemon.post("/v1/handover", "").await;
    assert_eq!((code, &refused["error"]), (409, &"host-a does not lead: host-b does, ask there".into()));
    assert_eq!(looped.await.unwrap(), [None, Some(NodeName::new("host-z")), None]);
    assert_eq!(daemon.post("/v1/handover", "").await.0, 503, "the loop is gone");
}
