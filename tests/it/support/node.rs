//! A real `cronkeeper run`, observed from outside: its log events, its signals, its end.
//!
//! The program is a parameter: tests pass `env!("CARGO_BIN_EXE_cronkeeper")`, and the harness's own tests a script.
//! When a node is dropped and a process of its jobs is left, the test fails.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

pub use self::events::{Event, Events};
use super::host::Host;
use super::process::{Process, environment};
use super::scratch::Scratch;
use super::{LONG, evidence, poll};

mod events;

/// The configuration of a node. Starting it again starts the same node: name, directories, jobs.
#[derive(Clone, Debug)]
pub struct Spec {
    program: String,
    name: String,
    home: Arc<Scratch>,
    state: Option<PathBuf>,
    /// The option that names the service, and its value.
    service: Option<[String; 2]>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    host: Option<Arc<Host>>,
}

impl Spec {
    /// A node of `program` without ZooKeeper, with its own directories and no jobs. Its name begins with `name` and is
    /// unique, so that its jobs' processes can be distinguished from those of concurrent tests.
    pub fn new(program: &str, name: &str) -> Self {
        let suffix = Uuid::new_v4().simple().to_string();
        let spec = Self {
            program: program.into(),
            name: format!("{name}-{}", &suffix[..8]),
            home: Arc::new(home(name)),
            state: None,
            service: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            host: None,
        };
        spec.write_jobs("jobs: {}\n");
        spec
    }

    /// Uses ZooKeeper.
    pub fn zookeeper(self, connect: &str) -> Self {
        self.on_service(&["--zookeeper".into(), connect.into()])
    }

    /// Uses a database of PostgreSQL, whatever its commits are worth.
    pub fn postgres(self, connect: &str) -> Self {
        self.env("CRONKEEPER_ACCEPT_REWIND", "true").on_service(&["--postgres".into(), connect.into()])
    }

    /// Uses the service that this option names.
    pub fn on_service(mut self, option: &[String; 2]) -> Self {
        self.service = Some(option.clone());
        self
    }

    /// Runs on a host of its own. Directories are the same there.
    pub fn on(mut self, host: &Arc<Host>) -> Self {
        self.host = Some(Arc::clone(host));
        self
    }

    /// Uses another node's state directory: nodes of the solo backend share one.
    pub fn beside(mut self, other: &Self) -> Self {
        self.home = Arc::clone(&other.home);
        self
    }

    /// The same name and jobs with different directories: another host that claims to be this one.
    pub fn elsewhere(mut self) -> Self {
        let jobs = std::fs::read_to_string(self.jobs_file()).expect("it has a jobs file");
        self.home = Arc::new(home(&self.name));
        self.write_jobs(&jobs);
        self
    }

    /// Uses this state directory, which the caller keeps.
    pub fn state(mut self, folder: &Path) -> Self {
        self.state = Some(folder.to_owned());
        self
    }

    /// Adds an option of `run` with its value.
    pub fn option(mut self, option: &str, value: &str) -> Self {
        self.arguments.extend([option.into(), value.into()]);
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Sets the jobs file.
    pub fn jobs(self, yaml: &str) -> Self {
        self.write_jobs(yaml);
        self
    }

    /// Replaces the jobs file atomically.
    pub fn write_jobs(&self, yaml: &str) {
        let new = self.home.write("jobs.yaml.new", yaml);
        std::fs::rename(new, self.jobs_file()).expect("a file can be renamed");
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The option that names the service, and its value.
    pub fn service(&self) -> Option<&[String; 2]> {
        self.service.as_ref()
    }

    pub fn jobs_file(&self) -> PathBuf {
        self.home.path().join("jobs.yaml")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(|| self.home.path().join("state"))
    }

    /// The runtime directory, which contains the socket.
    pub fn runtime_dir(&self) -> PathBuf {
        self.home.path().join("run")
    }

    pub fn start(&self) -> Node {
        let process = Process::spawn_on(self.host.as_deref(), &self.program, |command| {
            // The environment of the tests must not affect the node.
            for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("CRONKEEPER_")) {
                command.env_remove(key);
            }
            command.args(["run", "--log-format", "json", "--node", &self.name]);
            command.arg("--jobs").arg(self.jobs_file());
            command.arg("--state-dir").arg(self.state_dir());
            command.arg("--runtime-dir").arg(self.runtime_dir());
            command.args(self.service.iter().flatten()).args(&self.arguments).envs(self.environment.iter().cloned());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        });
        let process = process.unwrap_or_else(|error| panic!("{} does not start: {error}", self.program));
        Node::new(self.clone(), process)
    }
}

fn home(name: &str) -> Scratch {
    let home = Scratch::new(name);
    for folder in ["state", "run"] {
        std::fs::create_dir(home.path().join(folder)).expect("a directory can be made");
    }
    home
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    spec: Spec,
    process: Process,
    events: Arc<Events>,
    /// Another process of the node cleans up its jobs, so leftover processes are allowed.
    has_successor: bool,
}

impl Node {
    fn new(spec: Spec, mut process: Process) -> Self {
        let events = Events::read(process.take(|child| child.stderr.take()));
        Self { spec, process, events, has_successor: false }
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub fn name(&self) -> &str {
        self.spec.name()
    }

    /// PID of the daemon.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All that the node has logged so far.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The node's log, which can be read even after the node is dropped.
    pub fn log(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    /// Waits for the first event of this name since the start.
    pub fn await_event(&self, name: &str, timeout: Duration) -> Event {
        self.await_where(name, timeout, |_| true)
    }

    /// Waits for the first event of this name since the start that `wanted` accepts.
    pub fn await_where(&self, name: &str, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Event {
        self.await_after(0, name, timeout, wanted)
    }

    /// Waits for an event of this name that `wanted` accepts, after the first `seen` events (see [`Events::len`]).
    pub fn await_after(&self, seen: usize, name: &str, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Event {
        let found = self.events.wait(seen, timeout, |event| event.name() == name && wanted(event));
        found.unwrap_or_else(|| panic!("{}: no {name} as wanted; its log:\n{}", self.name(), self.events.tail()))
    }

    /// Waits until a freshly started node leads or follows.
    pub fn await_in_queue(&self) {
        let is_in_queue = |event: &Event| ["takeover.done", "election.following"].contains(&event.name());
        let found = self.events.wait(0, LONG, is_in_queue);
        assert!(found.is_some(), "{} is not in the queue; its log:\n{}", self.name(), self.events.tail());
    }

    /// The daemon's exit status; `None` while it is running.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Starts the node again after its end. The new process cleans up leftover processes of its jobs.
    pub fn again(mut self) -> Self {
        self.has_successor = true;
        let spec = self.spec.clone();
        drop(self);
        spec.start()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Kills only the daemon, as the kernel would: the warden cleans up.
    pub fn kill9(&self) {
        self.process.kill();
    }

    /// Stops the daemon with SIGSTOP. Returns once it stands still.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Continues a stopped daemon.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the daemon's end, and a moment for its last log lines: a warden may outlive it and keep the log open.
    pub fn wait_exit(&self, timeout: Duration) -> ExitStatus {
        let status = self.process.wait_exit(timeout);
        self.events.await_end(Duration::from_secs(1));
        status.unwrap_or_else(|| panic!("{} does not end; its log:\n{}", self.name(), self.events.tail()))
    }

    /// The live processes of the node's jobs.
    pub fn job_processes(&self) -> Vec<u32> {
        job_processes(self.name())
    }

    /// Waits until no process of the node's jobs is alive. Returns those that still are.
    pub fn await_no_job_processes(&self, timeout: Duration) -> Vec<u32> {
        // They are not children of the test, and are only found in /proc, so polling is the only way to wait.
        let are_gone = poll(timeout, || self.job_processes().is_empty().then_some(()));
        // Read once: whoever is killed just then may have begun a run meanwhile, which its warden ends.
        are_gone.map_or_else(|| self.job_processes(), |()| Vec::new())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name(), self.events.tail());
        }
        self.kill9();
        // Several processes of one node have one name. The test may fail later, and keeps its directories then.
        let name = format!("{}.{}.log", self.name(), self.pid());
        // Without the file, the tail above must do.
        drop(std::fs::write(self.spec.home.path().join(&name), self.events.text()));
        if let Some(folder) = evidence() {
            drop(std::fs::write(folder.join(name), self.events.text()));
        }
        if self.has_successor {
            return;
        }
        // The warden must work first. The group, which may contain it, is killed only when `process` is dropped.
        let left = self.await_no_job_processes(LONG / 4);
        for pid in left.iter().filter_map(|&pid| Pid::from_raw(pid.cast_signed())) {
            // An error means that the process has ended in the meantime.
            let _ended = kill_process(pid, Signal::KILL);
        }
        let complaint = format!("{} left processes of jobs behind: {left:?}", self.name());
        match (left.is_empty(), thread::panicking()) {
            (true, _) => {}
            (false, true) => eprintln!("{complaint}"),
            (false, false) => panic!("{complaint}; its log:\n{}", self.events.tail()),
        }
    }
}

/// The live processes with this node's name in CRONKEEPER_NODE.
fn job_processes(node: &str) -> Vec<u32> {
    let wanted = format!("CRONKEEPER_NODE={node}");
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| has_in_environment(pid, wanted.as_bytes())).collect()
}

fn has_in_environment(pid: u32, wanted: &[u8]) -> bool {
    environment(pid).split(|&byte| byte == 0).any(|variable| variable == wanted)
}
