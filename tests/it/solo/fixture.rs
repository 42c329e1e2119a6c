//! Helpers for tests with real daemons: starting nodes, sending requests, and jobs that end on demand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Output;

use cronkeeper_core::run::RunId;
use serde_json::Value;

use crate::support::node::{Event, Node, Spec};
use crate::support::process::{output, watcher_and_warden_of};
use crate::support::scratch::Scratch;
use crate::support::{LONG, poll};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_cronkeeper");

/// A node on the solo backend.
pub fn node(name: &str) -> Spec {
    Spec::new(PROGRAM, name)
}

/// Starts a node, and waits until it leads and can be asked.
pub fn leading(spec: &Spec) -> Node {
    let node = spec.start();
    node.await_event("takeover.done", LONG);
    node.await_event("api.listening", LONG);
    node
}

/// Starts a node, and waits until it follows.
pub fn following(spec: &Spec) -> Node {
    let node = spec.start();
    node.await_event("election.following", LONG);
    node
}

/// A file that jobs wait for.
pub struct Gate(Scratch);

impl Gate {
    pub fn new() -> Self {
        Self(Scratch::new("gate"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("open")
    }

    /// A shell command that ends once the gate is open.
    pub fn command(&self) -> String {
        format!("until [ -e {} ]; do sleep 0.05; done", self.path().display())
    }

    pub fn open(&self) {
        std::fs::write(self.path(), "").unwrap();
    }

    /// Closes the gate if it is open.
    pub fn close(&self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// Sends one API request on the socket. `None` while nobody serves it.
pub fn get(spec: &Spec, path: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(spec.runtime_dir().join("api.sock")).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: cronkeeper\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Sends a request with a body. Returns the status code and the document.
pub fn post(spec: &Spec, path: &str, body: &Value) -> (u16, Value) {
    let (body, socket) = (body.to_string(), spec.runtime_dir().join("api.sock"));
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.1\r\nHost: cronkeeper\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

pub fn get_json(spec: &Spec, path: &str) -> Value {
    let (code, body) = poll(LONG, || get(spec, path)).unwrap_or_else(|| panic!("nobody answers {path}"));
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// `GET /v1/status` of the leader.
pub fn status(spec: &Spec) -> Value {
    get_json(spec, "/v1/status")
}

/// The records of a job, newest first.
pub fn history(spec: &Spec, job: &str) -> Vec<Value> {
    let Value::Array(records) = get_json(spec, &format!("/v1/jobs/{job}/history?limit=1000"))["records"].take() else {
        panic!("no records")
    };
    records
}

/// Waits for a record of a job.
pub fn await_record(spec: &Spec, job: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = poll(LONG, || history(spec, job).into_iter().find(&wanted));
    found.unwrap_or_else(|| panic!("no such record of {job}: {:#?}", history(spec, job)))
}

/// Waits for the record of a run.
pub fn await_run(spec: &Spec, run: &str) -> Value {
    let id = RunId::parse(run).unwrap();
    await_record(spec, id.job().as_str(), |record| record["kind"] == "run" && record["run"] == run)
}

/// A command that sends a request to the daemon.
pub fn cli(spec: &Spec, arguments: &[&str]) -> Output {
    output(PROGRAM, |command| {
        command.args(arguments).arg("--runtime-dir").arg(spec.runtime_dir());
    })
}

/// Runs such a command, which must succeed. Returns what it printed.
pub fn cli_text(spec: &Spec, arguments: &[&str]) -> String {
    let output = cli(spec, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// True if an event is about this job.
pub fn of(job: &str) -> impl Fn(&Event) -> bool {
    move |event| event.text("job") == job
}

/// Waits for the start of a job's first run after the first `seen` events. Returns the run.
pub fn await_start(node: &Node, seen: usize, job: &str) -> String {
    node.await_after(seen, "run.started", LONG, of(job)).text("run").to_owned()
}

/// Waits for the end of a run that this node ran or settled.
pub fn await_end(node: &Node, run: &str) -> Event {
    node.await_where("run.finished", LONG, |event| event.text("run") == run)
}

/// Waits until this many further runs of a job have started.
pub fn await_starts(node: &Node, job: &str, count: usize) {
    let mut seen = node.events().len();
    for _ in 0..count {
        await_start(node, seen, job);
        seen = node.events().len();
    }
}

/// The warden of a daemon.
pub fn warden_of(node: &Node) -> u32 {
    let [_, warden] = watcher_and_warden_of(node.pid()).expect("a daemon has a watcher, and that a warden");
    warden
}

/// The parent of the warden.
pub fn watcher_of(node: &Node) -> u32 {
    let [watcher, _] = watcher_and_warden_of(node.pid()).expect("a daemon has a watcher, and that a warden");
    watcher
}

/// A figure of /proc/<pid>/status, in KiB.
pub fn kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
