//! A fake daemon with a real API, and a ledger that behaves as each test requires.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::api::network::{Files, Network};
use crate::api::nodes::Handover;
use crate::api::peers::Peers;
use crate::api::serve::Serving;
use crate::api::socket::{ApiSocket, Claim, NAME};
use crate::api::{LastReads, OutputSources, Sources, router};
use crate::archive::Archive;
use crate::metrics::Recorder;
use crate::option_file::OptionFile;
use crate::status::{LedgerPart, NodeState, Status, sample};
use crate::test_records::skip;
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::coordination::{ReadError, ReadFuture, Reader};
use cronkeeper_core::election::{Defined, Member, Place, Queue};
use cronkeeper_core::job::{JobName, JobSet};
use cronkeeper_core::ledger::{
    ControlEntry, Each, Filter, Followed, ForgetNode, Last, Newest, Operator, OperatorError, OperatorFuture, Snapshot,
    Window,
};
use cronkeeper_core::run::{
    Drain, HandoverRequest, HistoryRecord, KillRequest, NotRecounted, Pause, RecountRequest, Recounted, Resume, RunId,
    RunState, Skip, TriggerRecord, TriggerSeq,
};
use cronkeeper_core::term::NodeName;

/// How the ledger answers.
#[derive(Clone, Copy)]
pub enum Behaviour {
    Well,
    Away,
    /// Reads are answered by a server that has lost its quorum, and nothing else is.
    Stale,
    Hung,
    Broken,
}

pub struct Ledger {
    behaviour: Behaviour,
    /// Since when its history is complete.
    pub complete_since: Mutex<Option<Timestamp>>,
    /// The nodes that are alive, if they are not the usual ones.
    pub members: Mutex<Option<Vec<Member>>>,
    pub queues: AtomicUsize,
    /// The first of the queue does not lead yet.
    pub leaderless: AtomicBool,
    /// The nodes as places to run jobs.
    pub places: Mutex<BTreeMap<NodeName, Place>>,
    /// How each job's runs ended last, and how often that was read.
    pub lasts: Mutex<BTreeMap<JobName, Last>>,
    pub reads_of_lasts: AtomicUsize,
    requests: Mutex<Vec<String>>,
    /// How long a read of a history takes.
    pub slowness: Mutex<Duration>,
    /// Those of the last trigger.
    pub parameters: Mutex<BTreeMap<String, String>>,
}

impl Ledger {
    fn note(&self, request: String) {
        self.requests.lock().unwrap().push(request);
    }

    fn write<T: Send + 'static>(&self, answer: T) -> OperatorFuture<'_, T> {
        match self.behaviour {
            Behaviour::Away | Behaviour::Stale => {
                Box::pin(async { Err(OperatorError::Unwritten("nobody answers".into())) })
            }
            Behaviour::Hung => Box::pin(std::future::pending()),
            Behaviour::Well | Behaviour::Broken => Box::pin(async { Ok(answer) }),
        }
    }

    fn answer<T: Send + 'static>(&self, answer: T) -> ReadFuture<'_, T> {
        match self.behaviour {
            Behaviour::Well | Behaviour::Stale => Box::pin(async { Ok(answer) }),
            Behaviour::Away => Box::pin(async { Err(ReadError("nobody answers".into())) }),
            Behaviour::Hung => Box::pin(std::future::pending()),
            Behaviour::Broken => Box::pin(async { panic!("a bug of the reader") }),
        }
    }
}

impl Reader for Ledger {
    fn queue(&self) -> ReadFuture<'_, Queue> {
        self.queues.fetch_add(1, Ordering::Relaxed);
        let usual = sample::queue();
        let members = self.members.lock().unwrap().clone().unwrap_or(usual.members);
        let places = self.places.lock().unwrap().clone();
        let leader = usual.leader.filter(|_| !self.leaderless.load(Ordering::Relaxed));
        self.answer(Queue { members, places, leader, ..usual })
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        self.answer(Snapshot::default())
    }

    fn record(&self, _: RunId) -> ReadFuture<'_, Option<HistoryRecord>> {
        self.answer(None)
    }

    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest> {
        let at = sample::at("2026-11-20T02:40:00Z").as_second();
        let missed = |age| HistoryRecord::Skip(Skip { node: NodeName::new("host-a"), ..skip("load", at - age) });
        let missed = (0..3).map(missed);
        let records = missed.filter(|record| filter.matches(record)).take(window.records).collect();
        let (answer, slowness) = (self.answer(Newest { records, ..Newest::default() }), *self.slowness.lock().unwrap());
        Box::pin(async move {
            tokio::time::sleep(slowness).await;
            answer.await
        })
    }

    fn history_since(
        &self,
        filter: Filter,
        window: Window,
        _: Arc<Defined>,
    ) -> ReadFuture<'_, (Newest, Option<Timestamp>)> {
        let newest = self.history(filter, window);
        Box::pin(async move { Ok((newest.await?, *self.complete_since.lock().unwrap())) })
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>> {
        self.reads_of_lasts.fetch_add(1, Ordering::Relaxed);
        self.answer(self.lasts.lock().unwrap().clone())
    }
}

impl Operator for Ledger {
    fn pause(&self, job: JobName, _: Uuid, pause: Pause) -> OperatorFuture<'_, Option<Pause>> {
        self.note(format!("pause {job} by {} for {:?}", pause.by, pause.reason));
        self.write(None)
    }

    fn pause_all(&self, jobs: Vec<(JobName, Uuid)>, pause: Pause) -> OperatorFuture<'_, Each<Option<Pause>>> {
        self.note(format!("pause {} jobs by {}", jobs.len(), pause.by));
        let done = jobs.into_iter().map(|(job, _)| (job, None)).collect();
        self.write(Each { done, ..Each::default() })
    }

    fn pauses(&self) -> OperatorFuture<'_, BTreeMap<JobName, ControlEntry>> {
        self.write(BTreeMap::new())
    }

    fn request_resumes(&self, jobs: Vec<JobName>, _: Resume) -> OperatorFuture<'_, Each<Option<Uuid>>> {
        let done = jobs.into_iter().map(|job| (job, None)).collect();
        self.write(Each { done, ..Each::default() })
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>> {
        self.note(format!("resume {job} by {}", resume.by));
        self.write((job == sample::job("load")).then(Uuid::nil))
    }

    fn resumed(&self, _: JobName, _: Uuid) -> OperatorFuture<'_, ()> {
        self.write(())
    }

    fn recount(&self, job: JobName, request: RecountRequest) -> OperatorFuture<'_, Result<Recounted, NotRecounted>> {
        self.note(format!("recount {job} by {}", request.by));
        let mark = request.at + SignedDuration::from_hours(24 * 365);
        let listed = vec![mark - SignedDuration::from_mins(1), mark];
        let in_flight = vec![RunId::scheduled(job.clone(), mark)];
        self.write(match job == sample::job("load") {
            true => Ok(Recounted { from: request.at, listed, in_flight }),
            false => Err(NotRecounted::NotAhead(request.at)),
        })
    }

    fn forget_node(&self, node: NodeName) -> OperatorFuture<'_, ForgetNode> {
        self.note(format!("forget {node}"));
        self.write(if node.as_str() == "host-z" { ForgetNode::Forgotten } else { ForgetNode::Unknown })
    }

    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId> {
        let on: String = request.on.iter().map(|node| format!(" on {node}")).collect();
        self.note(format!("trigger {}{on} by {}", request.job, request.by));
        *self.parameters.lock().unwrap() = request.parameters.clone().into();
        self.write(RunId::manual(request.job, request.at, TriggerSeq(7)))
    }

    fn triggered(&self, job: JobName, uuid: Uuid) -> OperatorFuture<'_, Option<RunId>> {
        let known = RunId::manual(job, sample::at("2026-11-20T02:40:00Z"), TriggerSeq(7));
        self.write((uuid == Uuid::from_u128(1)).then_some(known))
    }

    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>> {
        self.note(format!("kill {run} by {}{}", request.by, if request.force { " by force" } else { "" }));
        self.write((*run.job() == sample::job("load")).then_some(RunState::Running))
    }

    fn drain(&self, node: NodeName, drain: Drain) -> OperatorFuture<'_, Option<Drain>> {
        self.note(format!("drain {node} by {} for {:?}", drain.by, drain.reason));
        self.write(None)
    }

    fn undrain(&self, node: NodeName) -> OperatorFuture<'_, Option<Drain>> {
        self.note(format!("undrain {node}"));
        self.write(None)
    }

    fn request_handover(&self, node: NodeName, request: HandoverRequest) -> OperatorFuture<'_, ()> {
        self.note(format!("handover by {node} to {:?}", request.to));
        self.write(())
    }

    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed> {
        if *run.job() == sample::job("shared") && run.node().is_none() {
            return self.write(Followed::Shared([run.on(Some(NodeName::new("host-a")))].into()));
        }
        let missed = |run: &RunId| HistoryRecord::Skip(skip("load", run.scheduled_at().as_second()));
        self.write(if run.trigger().is_some() { Followed::Ended(Box::new(missed(&run))) } else { Followed::Gone })
    }
}

pub struct Daemon {
    pub directory: tempfile::TempDir,
    pub ledger: Arc<Ledger>,
    pub status: watch::Sender<Arc<Status>>,
    pub led: watch::Sender<Option<Arc<Status>>>,
    pub turns: watch::Sender<Uptime>,
    pub jobs: watch::Sender<Arc<JobSet>>,
    pub sources: Sources,
    pub handovers: mpsc::UnboundedReceiver<Handover>,
    pub recorder: Recorder,
    _serving: Serving,
}

impl Daemon {
    pub async fn start(behaviour: Behaviour) -> Self {
        Self::start_with(behaviour, Archive::off()).await
    }

    pub async fn start_with(behaviour: Behaviour, archive: Archive) -> Self {
        Self::start_among(behaviour, archive, None).await
    }

    /// A daemon that can ask others.
    pub async fn start_among(behaviour: Behaviour, archive: Archive, peers: Option<Peers>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger {
            behaviour,
            complete_since: Mutex::default(),
            members: Mutex::default(),
            queues: AtomicUsize::new(0),
            leaderless: AtomicBool::new(false),
            places: Mutex::default(),
            lasts: Mutex::default(),
            reads_of_lasts: AtomicUsize::new(0),
            requests: Mutex::default(),
            slowness: Mutex::default(),
            parameters: Mutex::default(),
        });
        let status = watch::Sender::new(Arc::new(published()));
        let led = watch::Sender::default();
        let turns = watch::Sender::new(system::uptime());
        let jobs = watch::Sender::default();
        let (handovers, requested) = mpsc::unbounded_channel();
        let recorder = Recorder::default();
        let sources = Sources {
            status: status.subscribe(),
            led: led.subscribe(),
            lease: watch::channel(Some(system::uptime() + Duration::from_secs(3_600))).1,
            turns: turns.subscribe(),
            jobs: jobs.subscribe(),
            // So that a turn at boot counts as too long ago, but one at the start of a test does not.
            stall: system::uptime().since(Uptime::ZERO) / 2,
            reader: ledger.clone(),
            last_reads: LastReads::default(),
            operator: ledger.clone(),
            archive,
            handovers,
            metrics: recorder.metrics(),
            wrong_tokens: Arc::default(),
            output: OutputSources { peers: peers.map(Arc::new), ..OutputSources::default() },
        };
        let socket = ApiSocket::open(directory.path(), Claim::IfFree).await.unwrap();
        let serving = Serving::on_socket(socket, router(sources.clone()));
        Self { directory, ledger, status, led, turns, jobs, sources, handovers: requested, recorder, _serving: serving }
    }

    /// Also serves on TCP, at the returned address, until the returned value is dropped.
    pub async fn listen(&self) -> (SocketAddr, Serving) {
        self.listen_with(Files::default()).await
    }

    /// The same with a token or certificates.
    pub async fn listen_with(&self, files: Files) -> (SocketAddr, Serving) {
        self.listen_as("host-a", files).await
    }

    /// The same as the node of this name, for which other nodes make their proofs.
    pub async fn listen_as(&self, node: &str, files: Files) -> (SocketAddr, Serving) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let network = Network::new(address, Vec::new(), files, NodeName::new(node)).unwrap();
        let sources = Sources { wrong_tokens: network.wrong_tokens(), ..self.sources.clone() };
        (address, Serving::on_tcp(listener, router(sources), Arc::new(network)))
    }

    /// A file with this token, in the daemon's directory.
    pub fn file_with(&self, token: &str) -> OptionFile {
        OptionFile::given("--api-token-file", private_file(&self.directory.path().join("token"), token))
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Sends `request` unchanged; returns the status code and the body.
    pub async fn send(&self, request: impl Into<Vec<u8>>) -> (u16, Value) {
        let socket = self.socket();
        exchange(move || UnixStream::connect(socket), request).await
    }

    /// The head and the body of the answer to a request with the additional header lines `more`.
    pub async fn get_text(&self, path: &str, more: &str) -> (String, String) {
        let socket = self.socket();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
        let exchanged = spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.to_owned(), body.to_owned())
        });
        exchanged.await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &str) -> (u16, Value) {
        self.send(post(path, body)).await
    }

    /// Takes the requests that the ledger has received since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.ledger.requests.lock().unwrap())
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await
    }
}

/// Writes a file that only its owner may read.
pub fn private_file(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

/// The status that a daemon publishes. It has no queue and no members, which the API reads from the ledger.
pub fn published() -> Status {
    let mut status = sample::leader();
    status.queue.clear();
    status.members.clear();
    status.drift.clear();
    status.unknown = vec![LedgerPart::Queue, LedgerPart::Ends];
    status
}

/// The same of a node that follows host-a.
pub fn follower() -> Status {
    let mut status = published();
    status.node = NodeName::new("host-b");
    (status.state, status.role.token) = (NodeState::Following, None);
    status.runs.clear();
    status.unknown = LedgerPart::ALL.to_vec();
    status
}

pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// Sends `request` unchanged; returns the status code and the body.
pub async fn exchange<S: Read + Write>(
    connect: impl FnOnce() -> io::Result<S> + Send + 'static,
    request: impl Into<Vec<u8>>,
) -> (u16, Value) {
    let request = request.into();
    let exchanged = spawn_blocking(move || {
        let mut stream = connect().unwrap();
        // The write may fail: the daemon may refuse the request before all of it is sent.
        drop(stream.write_all(&request));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        parse(&answer)
    });
    exchanged.await.unwrap()
}

fn parse(answer: &[u8]) -> (u16, Value) {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, serde_json::from_str(body).unwrap_or(Value::Null))
}
