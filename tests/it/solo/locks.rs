//! `lock` of jobs on one host: the same files as for `cronkeeper lock` and flock(1), held until the processes are dead.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::node::{Node, Spec};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::{LONG, command, poll, until};

use super::fixture::{Gate, PROGRAM, await_end, await_run, await_start, following, leading, node, of, warden_of};

const PATH: &str = "/locks/orders";

/// A job every second that holds [`PATH`], with further keys.
fn job(name: &str, command: &str, keys: &str) -> String {
    format!("  {name}: {{schedule: '* * * * * *', command: {command:?}, lock: {PATH}, {keys}}}\n")
}

/// Nodes with these jobs.
fn with_jobs(name: &str, jobs: &[String]) -> Spec {
    node(name).option("--drain-timeout", "2m").jobs(&format!("jobs:\n{}", jobs.concat()))
}

/// The file that is locked.
fn file(spec: &Spec) -> PathBuf {
    spec.state_dir().join("locks/locks%2Forders")
}

/// `cronkeeper lock` on the host of the node, less the path and the command.
fn lock(spec: &Spec, options: &[&str]) -> Command {
    let mut command = command::command(&[&["lock"], options].concat());
    command.env("STATE_DIRECTORY", spec.state_dir());
    command
}

fn is_free(spec: &Spec) -> bool {
    match lock(spec, &["--timeout", "0s", PATH, "--", "true"]).output().unwrap().status.code() {
        Some(0) => true,
        Some(75) => false,
        other => panic!("{other:?}"),
    }
}

/// A script under the lock, in the background. What it prints goes into a file.
struct Script {
    process: Process,
    output: PathBuf,
    _dir: Scratch,
}

impl Script {
    fn start(spec: &Spec, script: &str) -> Self {
        let dir = Scratch::new("script");
        let output = dir.path().join("output");
        let process = Process::spawn("sh", |command| {
            let line = format!("exec \"$0\" lock {PATH} -- sh -c \"$1\" >{} 2>&1", output.display());
            command.args(["-c", &line, PROGRAM, script]).env("STATE_DIRECTORY", spec.state_dir());
        });
        Self { process: process.unwrap(), output, _dir: dir }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    #[track_caller]
    fn await_text(&self, text: &str) {
        let found = poll(LONG, || self.text().contains(text).then_some(()));
        assert!(found.is_some(), "no `{text}`: {}", self.text());
    }

    #[track_caller]
    fn await_success(&self) {
        let status = self.process.wait_exit(LONG).expect("it ends");
        assert!(status.success(), "{status:?}: {}", self.text());
    }
}

/// True if the process has the file open.
fn has_open(pid: u32, file: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let file = file.canonicalize().unwrap();
    open.filter_map(|open| std::fs::read_link(open.path()).ok()).any(|open| open == file)
}

/// A job whose processes ignore SIGTERM, one of them in a session of its own. Each appends its pid to a file.
struct Stubborn {
    dir: Scratch,
}

impl Stubborn {
    fn new() -> Self {
        Self { dir: Scratch::new("stubborn") }
    }

    fn pids(&self) -> PathBuf {
        self.dir.path().join("pids")
    }

    /// Starts two of them.
    fn command(&self) -> String {
        let beat = format!("trap '' TERM; echo $$ >> {}; while :; do sleep 0.05; done", self.pids().display());
        let script = self.dir.write("beat.sh", &beat).display().to_string();
        format!("setsid sh {script} & exec sh {script}")
    }

    fn count(&self) -> usize {
        std::fs::read_to_string(self.pids()).unwrap_or_default().lines().count()
    }

    /// A script that says which of the processes are alive. A zombie is not: its parent may be slow to notice.
    fn check(&self) -> String {
        let is_alive = "state=$(cat /proc/$pid/stat 2>&1) && case $state in *') Z '*|*') X '*) false;; esac";
        format!("for pid in $(cat {}); do {is_alive} && echo alive $pid; done; echo checked", self.pids().display())
    }
}

/// A node whose only job is stubborn and running.
fn stubborn_job() -> (Stubborn, Spec, Node) {
    let stubborn = Stubborn::new();
    let spec = with_jobs("only", &[job("load", &stubborn.command(), "overlap: skip")]);
    let a = leading(&spec);
    await_start(&a, 0, "load");
    until("both processes run", || stubborn.count() >= 2);
    (stubborn, spec, a)
}

#[test]
fn two_jobs_with_one_lock_never_run_at_once() {
    let dir = Scratch::new("two");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let alone = format!(
        "mkdir {0} || echo together >> {1}; sleep 0.1; rmdir {0}; echo $CRONKEEPER_JOB >> {2}",
        at("inside"),
        at("faults"),
        at("ran")
    );
    let jobs = [job("one", &alone, "overlap: queue"), job("other", &alone, "overlap: queue")];
    let _a = leading(&with_jobs("only", &jobs));
    let ran = |job: &str| std::fs::read_to_string(at("ran")).unwrap_or_default().matches(job).count();
    until("both have run", || ran("one") >= 3 && ran("other") >= 3);
    assert!(!dir.path().join("faults").exists());
}

/// A script holds the lock: no run of the job starts before its end, and occurrences are skipped for this reason.
fn assert_waits_for_a_script(overlap: &str, reason: &str) {
    let gate = Gate::new();
    let spec = with_jobs("only", &[job("load", "true", &format!("overlap: {overlap}"))]);
    let script = Script::start(&spec, &format!("echo held; {}", gate.command()));
    script.await_text("held");
    let a = leading(&spec);
    let skipped = a.await_where("run.skipped", LONG, of("load"));
    assert_eq!(skipped.text("reason"), reason);
    assert!(a.events().named("run.started").is_empty());
    gate.open();
    script.await_success();
    let run = await_start(&a, 0, "load");
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
}

#[test]
fn a_script_keeps_a_job_waiting_that_queues() {
    // One run waits for the lock, so the next ones are skipped.
    assert_waits_for_a_script("queue", "overlap");
}

#[test]
fn a_script_has_a_job_skipped_that_does_not_queue() {
    assert_waits_for_a_script("skip", "locked");
}

#[test]
fn a_job_keeps_scripts_out_and_says_who_it_is() {
    let gate = Gate::new();
    let spec = with_jobs("only", &[job("load", &gate.command(), "overlap: skip")]);
    let a = leading(&spec);
    let run = await_start(&a, 0, "load");
    assert!(!is_free(&spec));
    let flock = || Command::new("flock").arg("-n").arg(file(&spec)).arg("true").status().unwrap().code();
    assert_eq!(flock(), Some(1));
    let listed = command::command(&["locks", "--json"]).env("STATE_DIRECTORY", spec.state_dir()).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let holder = &listed["entries"][0];
    assert_eq!((listed["path"].as_str(), holder["role"].as_str()), (Some(PATH), Some("holds")), "{listed}");
    let text = listed.to_string();
    assert!(text.contains("job load") && text.contains(&a.pid().to_string()), "{text}");
    let waiting = Script::start(&spec, "echo in");
    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    waiting.await_success();
    let warden = warden_of(&a);
    until("the warden has closed the file between two runs", || !has_open(warden, &file(&spec)));
    // After the end of the node, nothing is locked.
    a.signal(Signal::TERM);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    assert_eq!(flock(), Some(0));
}

#[test]
fn the_lock_of_a_killed_daemon_is_free_only_when_its_jobs_are_dead() {
    let (stubborn, spec, a) = stubborn_job();
    assert!(has_open(warden_of(&a), &file(&spec)), "the warden holds the lock");
    let waiting = Script::start(&spec, &stubborn.check());
    a.kill9();
    waiting.await_success();
    waiting.await_text("checked");
    assert!(!waiting.text().contains("alive"), "{}", waiting.text());
}

#[test]
fn the_lock_of_a_daemon_without_its_warden_is_free_only_when_its_jobs_are_dead() {
    let (stubborn, spec, a) = stubborn_job();
    let waiting = Script::start(&spec, &stubborn.check());
    let warden = Pid::from_raw(warden_of(&a).cast_signed()).unwrap();
    kill_process(warden, Signal::KILL).unwrap();
    waiting.await_success();
    waiting.await_text("checked");
    assert!(!waiting.text().contains("alive"), "{}", waiting.text());
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
}

#[test]
fn a_lock_inside_the_job_is_had_at_once_and_no_descriptor_is_inherited() {
    let dir = Scratch::new("nested");
    let open = dir.path().join("open");
    let spec = node("only");
    let state = spec.state_dir();
    let inside = format!(
        "ls -l /proc/$$/fd > {}; echo token $CRONKEEPER_FENCING_TOKEN; \
         STATE_DIRECTORY={} {PROGRAM} lock --timeout 0s {PATH} -- sh -c 'echo inner $CRONKEEPER_FENCING_TOKEN'",
        open.display(),
        state.display()
    );
    let spec = spec.jobs(&format!("jobs:\n{}", job("load", &inside, "overlap: skip")));
    let a = leading(&spec);
    let run = await_start(&a, 0, "load");
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    let open = std::fs::read_to_string(open).unwrap();
    assert!(open.contains("pipe:") && !open.contains("orders"), "{open}");
    let lines = a.events().named("run.output");
    let token = |word: &str| {
        let line = lines.iter().find_map(|line| line.text("line").strip_prefix(word).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no `{word}`: {lines:?}"))
    };
    assert_eq!(token("token "), token("inner "));
}

#[test]
fn the_next_leader_gets_the_lock_when_the_processes_of_the_killed_one_are_dead() {
    let witness = crate::support::witness::Witness::new();
    let command = witness.command(&["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"]);
    let keys = format!("command: {command}, lock: {PATH}, interrupted: rerun");
    let first = node("first").jobs(&format!("jobs: {{load: {{schedule: '* * * * * *', {keys}}}}}"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "load");
    a.kill9();
    let again = b.await_where("run.started", LONG, |event| event.text("run") == run);
    assert_eq!(again.number("attempt"), Some(2));
    assert_eq!(a.job_processes(), Vec::<u32>::new());
    assert!(!is_free(&first));
    witness.assert_fine(&[]);
}

#[test]
fn a_leader_that_resigns_holds_the_lock_until_its_run_has_ended() {
    let gate = Gate::new();
    let jobs = [job("load", &gate.command(), "overlap: skip"), job("then", "true", "overlap: skip")];
    let first = with_jobs("first", &jobs);
    let a = leading(&first);
    // Either job may be first; the other one, which is short, does not matter.
    let run = await_start(&a, 0, "load");
    let second = node("second").beside(&first);
    let b = following(&second);
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    let seen = b.events().len();
    let skipped = b.await_after(seen, "run.skipped", LONG, of("then"));
    assert_eq!(skipped.text("reason"), "locked");
    assert!(!is_free(&first));
    gate.open();
    assert_eq!(await_run(&second, &run)["outcome"], "success");
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    // Either job may be the first to have it.
    let next = b.await_after(seen, "run.started", LONG, |_| true);
    assert_eq!(await_end(&b, next.text("run")).text("outcome"), "success");
}
