//! Separation of jobs: keyrings and audit users, and settings that only the daemon has.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::libc;

use super::{Host, Known, NOBODY, quoted, run_now};
use crate::solo::fixture::{await_end, leading, warden_of};
use crate::support::node::Node;
use crate::support::{Facility, LONG, skipped};

const KEYCTL: i64 = libc::SYS_keyctl;
const ADD_KEY: i64 = libc::SYS_add_key;

/// A command for a node that is started with a session keyring containing a private key.
fn with_a_key() -> String {
    let join = format!("syscall({KEYCTL}, 1, 0)");
    let add =
        format!(r#"my @key = ("user", "admin", "hunter2"); syscall({ADD_KEY}, $key[0], $key[1], $key[2], 7, -3)"#);
    let program = crate::support::command::CRONKEEPER;
    format!("exec perl -e '{join}; {add}; exec @ARGV' -- {program} \"$@\"")
}

/// A job that prints the id of its session keyring and which of the others' keys are in it, and then adds its own key.
fn looker(own: &str) -> String {
    quoted(&format!(
        r#"$| = 1; my @key = ("user", "{own}", "swordfish"); my @names = ("admin", "first", "second");
        print syscall({KEYCTL}, 0, -3, 0), "\n";
        print syscall({KEYCTL}, 10, -3, $key[0], $names[$_], 0), "\n" for (0, 1, 2);
        print syscall({ADD_KEY}, $key[0], $key[1], $key[2], 9, -3) == -1 ? "none" : "mine", "\n";
        print "done\n"; sleep 1000"#
    ))
}

fn said(node: &Node, job: &str) -> Vec<String> {
    let run = run_now(node, job);
    node.await_where("run.output", LONG, |event| event.text("run") == run && event.text("line") == "done");
    let lines = node.events().named("run.output").into_iter();
    lines.filter(|line| line.text("run") == run).map(|line| line.text("line").to_owned()).collect()
}

#[test]
fn each_job_has_a_session_keyring_of_its_own_and_nobody_elses_keys() {
    let Some(host) = Host::new(Known::Cgroup, &with_a_key()) else { return };
    let (first, second) = (looker("first"), looker("second"));
    let node = leading(&host.node().jobs(&format!(
        "jobs:
  first: {{schedule: '@yearly', user: nobody, command: [perl, -e, {first}]}}
  second: {{schedule: '@yearly', user: nobody, command: [perl, -e, {second}]}}
  daemons: {{schedule: '@yearly', user: daemon, command: [perl, -e, {second}]}}
  own: {{schedule: '@yearly', command: [perl, -e, {second}]}}
"
    )));
    let mut keyrings = Vec::new();
    for job in ["first", "second", "daemons", "own"] {
        let lines = said(&node, job);
        let [keyring, admin, first, second, own, _] = lines.as_slice() else { panic!("{lines:?}") };
        if keyring == "-1" {
            return skipped(Facility::Kernel, "the kernel has no keyrings");
        }
        assert_eq!([admin, first, second], ["-1"; 3], "{job} finds a key of another's");
        assert_eq!(own, "mine", "{job} can keep a key");
        keyrings.push(keyring.clone());
    }
    keyrings.sort();
    keyrings.dedup();
    assert_eq!(keyrings.len(), 4, "{keyrings:?}");
}

/// True if this machine allows processes to set their audit user; prints a message if not.
pub fn has_login_user() -> bool {
    // One process writes and reads the number: the value belongs to the process.
    let trial = "echo 4242 >/proc/self/loginuid && read user </proc/self/loginuid; echo $user";
    let has = Command::new("sh").args(["-c", trial]).output().unwrap().stdout.starts_with(b"4242");
    if !has {
        skipped(Facility::Kernel, "the kernel's audit is not to record whose a process is");
    }
    has
}

#[test]
fn in_the_kernels_audit_a_job_is_its_users() {
    if !has_login_user() {
        return;
    }
    let Some(host) = Host::new(Known::Cgroup, "") else { return };
    let command = "command: [cat, /proc/self/loginuid]";
    let node = leading(&host.node().jobs(&format!(
        "jobs:
  nobodys: {{schedule: '@yearly', user: nobody, {command}}}
  own: {{schedule: '@yearly', {command}}}
"
    )));
    for (job, uid) in [("nobodys", NOBODY), ("own", 0)] {
        assert_eq!(lines_of(&node, job), [uid.to_string()], "{job}");
    }
}

fn lines_of(node: &Node, job: &str) -> Vec<String> {
    let run = run_now(node, job);
    assert_eq!(await_end(node, &run).text("outcome"), "success", "{job}: {}", node.events().tail());
    let lines = node.events().named("run.output").into_iter().filter(|line| line.text("run") == run);
    lines.map(|line| line.text("line").to_owned()).collect()
}

/// Settings that protect the daemon's own files must not restrict jobs.
#[test]
fn under_a_daemon_that_others_may_read_nothing_of_a_job_finds_its_umask_and_its_cgroup() {
    let Some(host) = Host::new(Known::Cgroup, "umask 077") else { return };
    let look =
        "findmnt -rn -t cgroup2 -o TARGET | head -n 1 | tr -d '\\n'; sed -n 's/^0:://p' /proc/self/cgroup; umask";
    let node = leading(&host.node().jobs(&format!(
        "jobs:
  nobodys: {{schedule: '@yearly', user: nobody, command: {}}}
",
        quoted(&format!("({look}) | {{ read cgroup; read umask; ls \"$cgroup\" >/dev/null && echo $umask; }}"))
    )));
    assert_eq!(lines_of(&node, "nobodys"), ["0022"]);
    let socket = node.spec().runtime_dir().join("api.sock").metadata().unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
}

#[test]
fn a_daemon_that_is_spared_when_memory_runs_out_spares_no_job() {
    let Some(host) = Host::new(Known::Cgroup, "(echo -500 >/proc/$$/oom_score_adj) 2>/dev/null") else { return };
    let score = "cat /proc/self/oom_score_adj; (echo -500 >/proc/self/oom_score_adj) 2>/dev/null || echo refused";
    let node = leading(&host.node().jobs(&format!(
        "jobs:
  nobodys: {{schedule: '@yearly', user: nobody, command: {0}}}
  own: {{schedule: '@yearly', command: cat /proc/self/oom_score_adj}}
",
        quoted(score)
    )));
    let of = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    if of(node.pid()) != "-500\n" {
        return skipped(Facility::Kernel, "this root may spare nobody when memory runs out");
    }
    assert_eq!(of(warden_of(&node)), "-500\n");
    assert_eq!(
        (lines_of(&node, "nobodys"), lines_of(&node, "own")),
        (vec!["0".into(), "refused".into()], vec!["0".into()])
    );
}
