//! A job that forks endlessly: it is refused processes, and daemon and warden have all they need.
//!
//! In a cgroup that is delegated to the node and has a process limit, as systemd creates it (`Delegate=`, `TasksMax=`).

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{XattrFlags, setxattr};

use super::local::run_now;
use crate::solo::fixture::{await_end, cli_text, leading, of};
use crate::support::cgroup::{OwnCgroup, mounted};
use crate::support::command::CRONKEEPER;
use crate::support::node::{Node, Spec};
use crate::support::{Facility, LONG, skipped, until};

/// Process limit of the whole cgroup.
const LIMIT: u64 = 400;

/// Number of processes that must stay free, whatever jobs do.
const ROOM: u64 = 100;

/// A program that forks endlessly, as does each of its children.
const BOMB: &str = r#"[perl, -e, 'for (;;) { sleep 1 unless defined fork }']"#;

struct Unit {
    cgroup: OwnCgroup,
}

impl Unit {
    /// The cgroup; `None`, with a message, if this machine cannot have one.
    fn or_skip() -> Option<Self> {
        let or_say = |why| skipped(Facility::Controllers, &format!("no cgroup with a limit on processes: {why}"));
        Self::new().map_err(or_say).ok()
    }

    fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("this is not root".into());
        }
        let root = mounted().ok_or("no cgroup2 file system is mounted here")?;
        let in_use = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
        if ["memory", "pids"].iter().any(|wanted| !in_use.split_whitespace().any(|name| name == *wanted)) {
            return Err(format!("the controllers of memory and processes are not in use in {}", root.display()));
        }
        let cgroup = OwnCgroup::below(&root)?;
        fs::write(cgroup.path().join("pids.max"), LIMIT.to_string()).map_err(|error| error.to_string())?;
        setxattr(cgroup.path(), "trusted.delegate", b"1", XattrFlags::empty()).map_err(|error| error.to_string())?;
        Ok(Self { cgroup })
    }

    fn leading(&self, jobs: &str) -> Node {
        leading(&Spec::new(OwnCgroup::program(Some(&self.cgroup)), "unit").jobs(jobs))
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.cgroup.path().join(file)).unwrap().trim().parse().unwrap()
    }

    /// True if jobs cannot start another process.
    fn is_full(&self) -> bool {
        let folders = fs::read_dir(self.cgroup.path()).unwrap().flatten().map(|entry| entry.path().join("jobs"));
        let with_all = [self.cgroup.path().to_owned()].into_iter().chain(folders.filter(|jobs| jobs.exists()));
        let number = |at: &Path, file| fs::read_to_string(at.join(file)).ok()?.trim().parse::<u64>().ok();
        with_all.into_iter().any(|at| number(&at, "pids.current") >= Some(number(&at, "pids.max").unwrap_or(LIMIT)))
    }

    /// Runs a command beside the node, as systemd does for `ExecReload=`.
    fn beside(&self, command: &str) -> Output {
        let control = self.cgroup.path().join(".control");
        // It is kept for the next command.
        let _ = fs::create_dir(&control);
        // A shell forks for each of its commands except the last one.
        let line = format!("echo 0 >{}/cgroup.procs && {command} && :", control.display());
        Command::new("sh").args(["-c", &line]).output().unwrap()
    }
}

#[test]
fn a_job_that_forks_without_end_leaves_room_for_daemon_and_warden() {
    let Some(unit) = Unit::or_skip() else { return };
    let node = unit.leading(&format!(
        "jobs:
  bomb: {{schedule: '@yearly', command: {BOMB}}}
  other: {{schedule: '@yearly', command: ['true']}}
"
    ));
    let bomb = run_now(&node, "bomb");
    until("it is refused more", || unit.is_full());
    let free = LIMIT - unit.number("pids.current");
    assert!(free >= ROOM, "{free} are free");
    let checked = unit.beside(&format!("{CRONKEEPER} check {}", node.spec().jobs_file().display()));
    assert!(checked.status.success(), "{checked:?}");

    // Another job must wait, and the log names the reason.
    let seen = node.events().len();
    cli_text(node.spec(), &["trigger", "other"]);
    let unstarted = node.await_after(seen, "run.unstarted", LONG, of("other"));
    assert_eq!(unstarted.text("reason"), "no-memory");
    let is_reported = |event: &crate::support::node::Event| event.text("message").contains("`TasksMax=`");
    node.await_after(seen, "run.not_started", LONG, is_reported);

    cli_text(node.spec(), &["kill", &bomb]);
    assert_eq!(await_end(&node, &bomb).text("outcome"), "killed");
    assert_eq!(await_end(&node, unstarted.text("run")).text("outcome"), "success", "it was started by itself");
}

#[test]
fn a_job_that_is_refused_processes_fails_by_itself() {
    let Some(unit) = Unit::or_skip() else { return };
    // One of the jobs also has a cgroup limit of its own, a wider one.
    let refused = "command: [perl, -e, 'while (defined($child = fork)) { $child or sleep 1000 } exit 7']";
    let node = unit.leading(&format!(
        "jobs:
  free: {{schedule: '@yearly', {refused}}}
  limited: {{schedule: '@yearly', limits: {{processes: 100000}}, {refused}}}
"
    ));
    for job in ["free", "limited"] {
        let run = run_now(&node, job);
        let end = await_end(&node, &run);
        assert_eq!((end.text("outcome"), end.number("exit_code")), ("failure", Some(7)), "{job}");
        assert!(end.number("leftovers") > Some(100), "{job}: all that it had forked are ended: {end:?}");
    }
}
