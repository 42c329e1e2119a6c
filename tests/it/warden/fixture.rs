//! The fixture of these tests: a warden, the processes of one run, and their state as seen from outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cronkeeper::warden::handle::{Handle, Warden};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{
    Deadline, Ending, ExecStrings, Launch, LaunchFiles, Limits, Notice, Order, StartFailure, Stream, TreeId, User,
};

use crate::support::host::WITHOUT_AUDIT;
use crate::support::process::environment;
use crate::support::scratch::write_program;
use crate::support::{Facility, skipped};

/// Longer than anything takes on the slowest machine; only a failing test waits that long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A warden and a run that no other test uses.
pub struct Fixture {
    pub warden: Handle,
    pub run: String,
    pub directory: tempfile::TempDir,
    pub output: Vec<(Stream, String, bool)>,
    next: u64,
}

impl Fixture {
    pub fn new() -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_cronkeeper")), tempfile::tempdir().unwrap())
    }

    /// Starts a warden whose trees cannot have audit sessions of their own.
    pub fn without_audit() -> Self {
        let program = env!("CARGO_BIN_EXE_cronkeeper");
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("warden");
        write_program(&script, &format!("#!/bin/sh\nexec {WITHOUT_AUDIT} {program} \"$@\"\n"));
        Self::of(&script, directory)
    }

    fn of(program: &Path, directory: tempfile::TempDir) -> Self {
        let run = format!("torture-{}.20261120T023000Z", uuid::Uuid::new_v4());
        let warden = Warden::spawn_from(program).unwrap();
        Self { warden: warden.into_async(None).unwrap(), run, directory, output: Vec::new(), next: 0 }
    }

    /// Stops the warden, so that it finds all later orders at once.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let warden = rustix::process::Pid::from_raw(i32::try_from(self.warden.pid()).unwrap()).unwrap();
        rustix::process::kill_process(warden, signal).unwrap();
    }

    pub fn launch(&mut self, argv: &[&str]) -> Launch {
        self.next += 1;
        Launch {
            tree_id: TreeId(self.next),
            argv: argv.iter().collect(),
            environment: ExecStrings::of_variables([
                ("PATH", PATH),
                ("CRONKEEPER_RUN_ID", &self.run),
                ("CRONKEEPER_NODE", "bench"),
            ]),
            input: String::new(),
            streams: None,
            directory: self.directory.path().to_str().unwrap().into(),
            umask: 0o027,
            files: LaunchFiles::default(),
            or_root: false,
            user: None,
            nice: None,
            limits: Limits::default(),
            cgroup: None,
            not_before: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            time_limit: None,
            max_output: 1 << 20,
        }
    }

    pub fn sh(&mut self, script: &str) -> Launch {
        self.launch(&["/bin/sh", "-c", script])
    }

    pub fn order_start(&mut self, launch: &Launch) {
        self.warden.start(launch).unwrap();
    }

    pub fn order(&mut self, order: Order) {
        self.warden.send(order).unwrap();
    }

    pub async fn notice(&mut self) -> Notice {
        tokio::time::timeout(TIMEOUT, self.warden.notice()).await.expect("a notice in time").expect("a living warden")
    }

    pub async fn start(&mut self, launch: Launch) -> (TreeId, i32) {
        self.order_start(&launch);
        loop {
            match self.notice().await {
                Notice::Started { tree_id, pid, .. } => return (tree_id, pid),
                Notice::Output { stream, lines, continues, .. } => self.take_output(stream, lines, continues),
                other => panic!("{other:?} instead of a start"),
            }
        }
    }

    pub async fn refused(&mut self, launch: Launch) -> StartFailure {
        self.order_start(&launch);
        match self.notice().await {
            Notice::NotStarted { why, .. } => why,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    pub async fn end(&mut self) -> Ending {
        loop {
            match self.notice().await {
                Notice::Ended(ending) => return *ending,
                Notice::Output { stream, lines, continues, .. } => self.take_output(stream, lines, continues),
                other => panic!("{other:?} instead of an end"),
            }
        }
    }

    /// Waits for the start and then for the end of the launch.
    pub async fn end_of_start(&mut self) -> Ending {
        match self.notice().await {
            Notice::Started { .. } => self.end().await,
            other => panic!("{other:?} instead of a start"),
        }
    }

    pub async fn run(&mut self, launch: Launch) -> Ending {
        self.start(launch).await;
        self.end().await
    }

    /// Waits until the job has written this line.
    pub async fn line(&mut self, wanted: &str) {
        while !self.output.iter().any(|(_, line, _)| line == wanted) {
            match self.notice().await {
                Notice::Output { stream, lines, continues, .. } => self.take_output(stream, lines, continues),
                other => panic!("{other:?} instead of the line {wanted}"),
            }
        }
    }

    fn take_output(&mut self, stream: Stream, lines: Vec<String>, continues: bool) {
        let count = lines.len();
        self.output.extend((1..).zip(lines).map(|(number, line)| (stream, line, continues && number == count)));
    }

    pub fn lines(&self) -> Vec<&str> {
        self.output.iter().map(|(_, line, _)| line.as_str()).collect()
    }

    pub fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.directory.path().join(name);
        write_program(&path, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Ends the warden and checks that no process is left.
    pub async fn close(self) {
        assert_eq!(living(&self.run), [0; 0]);
        assert_eq!(children(self.warden.pid()), [0; 0]);
        let closed = tokio::time::timeout(TIMEOUT, self.warden.close()).await.expect("an end in time").unwrap();
        assert!(closed.status.success(), "{}", closed.status);
    }
}

/// All processes with the run in their environment, except zombies.
pub fn living(run: &str) -> Vec<i32> {
    let entry = format!("CRONKEEPER_RUN_ID={run}");
    let carries = |pid: &i32| {
        environment(pid.cast_unsigned()).split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes())
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(carries).collect()
}

/// The children of the warden, zombies included.
pub fn children(warden: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{warden}/task/{warden}/children")).unwrap();
    list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The living processes below these, and they themselves.
pub fn descendants(of: &[i32]) -> Vec<i32> {
    let mut all = of.to_vec();
    for at in 0.. {
        let Some(&pid) = all.get(at) else { break };
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        all.extend(list.split_ascii_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
    }
    all
}

pub fn memory_kib(warden: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{warden}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Polls until `is_so` returns true, for changes that no notice reports.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = uptime();
    while !is_so() {
        assert!(uptime().since(started) < TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(Facility::Root, "only root becomes another user");
    }
    is_root
}

pub fn nobody() -> User {
    User { uid: 65_534, gid: 65_533, groups: vec![65_533, 7, 9] }
}

/// Gives a variable of an environment another value.
pub fn replace(environment: &mut ExecStrings, name: &str, value: &str) {
    let replaced = |(other, old)| (other, if other == name { value } else { old });
    *environment = ExecStrings::of_variables(environment.variables().map(replaced));
}
