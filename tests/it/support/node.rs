//! A real `cronkeeper run`, seen from outside: its log events, its signals, its end.
//!
//! The program is a parameter, so that tests give `env!("CARGO_BIN_EXE_cronkeeper")` and the harness's own tests a
//! script. When a node is dropped, no process of its jobs may be left, or the test fails.

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
use super::{LONG, poll};

mod events;

/// What a node is started with. Started again, it is the same node: name, directories, jobs.
#[derive(Clone, Debug)]
pub struct Spec {
    program: String,
    name: String,
    home: Arc<Scratch>,
    state: Option<PathBuf>,
    zookeeper: Option<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    host: Option<Arc<Host>>,
}

impl Spec {
    /// A node of `program` on no ZooKeeper, with directories of its own and no jobs. Its name begins with `name` and
    /// is no other's, so that its jobs' processes can be told from those of tests beside it.
    pub fn new(program: &str, name: &str) -> Self {
        let suffix = Uuid::new_v4().simple().to_string();
        let spec = Self {
            program: program.into(),
            name: format!("{name}-{}", &suffix[..8]),
            home: Arc::new(home(name)),
            state: None,
            zookeeper: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            host: None,
        };
        spec.write_jobs("jobs: {}\n");
        spec
    }

    /// On ZooKeeper.
    pub fn zookeeper(mut self, connect: &str) -> Self {
        self.zookeeper = Some(connect.into());
        self
    }

    /// On a host of its own. Directories are the same there.
    pub fn on(mut self, host: &Arc<Host>) -> Self {
        self.host = Some(Arc::clone(host));
        self
    }

    /// In another's state directory: replicas of the solo backend share one.
    pub fn beside(mut self, other: &Self) -> Self {
        self.home = Arc::clone(&other.home);
        self
    }

    /// The same name and jobs, in directories of its own: another host that says it is this one.
    pub fn elsewhere(mut self) -> Self {
        let jobs = std::fs::read_to_string(self.jobs_file()).expect("it has a jobs file");
        self.home = Arc::new(home(&self.name));
        self.write_jobs(&jobs);
        self
    }

    /// With this state directory, which somebody else keeps.
    pub fn state(mut self, folder: &Path) -> Self {
        self.state = Some(folder.to_owned());
        self
    }

    /// One more option of `run`, with its value.
    pub fn option(mut self, option: &str, value: &str) -> Self {
        self.arguments.extend([option.into(), value.into()]);
        self
    }

    /// One more environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// With these jobs.
    pub fn jobs(self, yaml: &str) -> Self {
        self.write_jobs(yaml);
        self
    }

    /// Replaces the jobs file, at once for whoever reads it.
    pub fn write_jobs(&self, yaml: &str) {
        let new = self.home.write("jobs.yaml.new", yaml);
        std::fs::rename(new, self.jobs_file()).expect("a file can be renamed");
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where ZooKeeper is, if it is on one.
    pub fn servers(&self) -> Option<&str> {
        self.zookeeper.as_deref()
    }

    /// Its jobs file.
    pub fn jobs_file(&self) -> PathBuf {
        self.home.path().join("jobs.yaml")
    }

    /// Its state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(|| self.home.path().join("state"))
    }

    /// Its runtime directory, where the socket is.
    pub fn runtime_dir(&self) -> PathBuf {
        self.home.path().join("run")
    }

    /// Starts it.
    pub fn start(&self) -> Node {
        let process = Process::spawn_on(self.host.as_deref(), &self.program, |command| {
            // What the tests' own environment says must not change a node.
            for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("CRONKEEPER_")) {
                command.env_remove(key);
            }
            command.args(["run", "--log-format", "json", "--node", &self.name]);
            command.arg("--jobs").arg(self.jobs_file());
            command.arg("--state-dir").arg(self.state_dir());
            command.arg("--runtime-dir").arg(self.runtime_dir());
            if let Some(connect) = &self.zookeeper {
                command.args(["--zookeeper", connect]);
            }
            command.args(&self.arguments).envs(self.environment.iter().cloned());
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
    /// What is left of its jobs is for another process of the node to see to.
    has_successor: bool,
}

impl Node {
    fn new(spec: Spec, mut process: Process) -> Self {
        let events = Events::read(process.take(|child| child.stderr.take()));
        Self { spec, process, events, has_successor: false }
    }

    /// What it was started with.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.spec.name()
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All that it logged so far.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The same, to be read also when the node is dropped.
    pub fn log(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    /// Waits for the first event of this name since the start.
    pub fn await_event(&self, name: &str, timeout: Duration) -> Event {
        self.await_where(name, timeout, |_| true)
    }

    /// Waits for the first event of this name since the start that is as wanted.
    pub fn await_where(&self, name: &str, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Event {
        self.await_after(0, name, timeout, wanted)
    }

    /// The same, among the events after the first `seen` (see [`Events::len`]).
    pub fn await_after(&self, seen: usize, name: &str, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Event {
        let found = self.events.wait(seen, timeout, |event| event.name() == name && wanted(event));
        found.unwrap_or_else(|| panic!("{}: no {name} as wanted; its log:\n{}", self.name(), self.events.tail()))
    }

    /// How the daemon ended; `None` while it lives.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Starts it again after its end, be it with processes of its jobs left: those are for the new process to see to.
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

    /// Kills the daemon alone, as the kernel would: the warden is left to see to the rest.
    pub fn kill9(&self) {
        self.process.kill();
    }

    /// Stops the daemon as SIGSTOP does.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a stopped daemon go on.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the daemon's end, and a moment for its last words; a warden may outlive it, and holds the log open.
    pub fn wait_exit(&self, timeout: Duration) -> ExitStatus {
        let status = self.process.wait_exit(timeout);
        self.events.await_end(Duration::from_secs(1));
        status.unwrap_or_else(|| panic!("{} does not end; its log:\n{}", self.name(), self.events.tail()))
    }

    /// Processes of its jobs that live.
    pub fn job_processes(&self) -> Vec<u32> {
        job_processes(self.name())
    }

    /// Waits until no process of its jobs lives; those that still do.
    pub fn await_no_job_processes(&self, timeout: Duration) -> Vec<u32> {
        // They are nobody's children here, and unknown until found: there is nothing to wait on.
        poll(timeout, || self.job_processes().is_empty().then_some(()));
        self.job_processes()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name(), self.events.tail());
        }
        self.kill9();
        if self.has_successor {
            return;
        }
        // The warden's work comes first: the group, which may hold the warden, is killed only when `process` is dropped.
        let left = self.await_no_job_processes(LONG / 4);
        for pid in left.iter().filter_map(|&pid| Pid::from_raw(pid.cast_signed())) {
            // One that has ended meanwhile is as good as killed.
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

/// Living processes with this node's name in the environment that jobs are given.
fn job_processes(node: &str) -> Vec<u32> {
    let wanted = format!("CRONKEEPER_NODE={node}");
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| has_in_environment(pid, wanted.as_bytes())).collect()
}

fn has_in_environment(pid: u32, wanted: &[u8]) -> bool {
    environment(pid).split(|&byte| byte == 0).any(|variable| variable == wanted)
}
