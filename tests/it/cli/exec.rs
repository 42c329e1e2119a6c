//! `exec` in all its endings.

use std::io::Read as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{SessionContext, assert_said, transcript};
use crate::support::command::CRONKEEPER;
use crate::support::until;

const JOBS: &str = "\
jobs:
  code: {schedule: '@daily', command: 'echo out; echo err >&2; exit 3'}
  asks: {schedule: '@daily', environment: {TARGET: here}, umask: '027', working_directory: /tmp,
    command: 'echo $TARGET; pwd; umask; echo $CRONKEEPER_JOB $CRONKEEPER_ATTEMPT $CRONKEEPER_FENCING_TOKEN; echo [$SECRET]'}
  disabled: {schedule: '@daily', enabled: false, command: [echo, done]}
  signal: {schedule: '@daily', command: 'kill -KILL $$'}
  slow: {schedule: '@daily', command: [sleep, '1000'], timeout: 1s}
  stubborn: {schedule: '@daily', command: 'trap \"\" TERM; while :; do sleep 0.1; done', timeout: 1s, kill_grace: 1s}
  missing: {schedule: '@daily', command: [no-such-program, --full]}
  plain: {schedule: '@daily', command: [./jobs.yaml], working_directory: DIR}
  nowhere: {schedule: '@daily', command: [ls], working_directory: /no/such/directory}
  flood: {schedule: '@daily', command: 'echo 12345678; echo 12345678', max_output: 10B}
  daemonizes: {schedule: '@daily', command: 'sleep 1000 & exit 0'}
  waits: {schedule: '@daily', command: 'trap \"echo asked; exit 7\" TERM; echo ready; while :; do sleep 0.1; done'}
  dies: {schedule: '@daily', environment: {CONTEXT: DIR}, command: 'echo ready; exec sleep 1000'}
  script: {schedule: '@daily', command: [./script, one], working_directory: DIR}
  limited: {schedule: '@daily', command: 'ulimit -n; nice', nice: 19, limits: {open_files: 77}}
  stranger: {schedule: '@daily', command: id, user: no-such-user}
  paints: {schedule: '@daily', command: 'printf \"\\033[2Jred\\342\\200\\213\\tok\\n\"'}
  last: {schedule: '@daily', command: 'printf \"no end of line\"'}
";

fn context() -> SessionContext {
    let context = SessionContext::new();
    let here = context.path().to_str().unwrap().to_owned();
    context.dir.write("jobs.yaml", &JOBS.replace("DIR", &here));
    context
}

fn line(job: &str) -> [&str; 4] {
    ["exec", "--jobs", "jobs.yaml", job]
}

#[track_caller]
fn assert_ends(job: &str, expected: &str) {
    assert_said(&context().enter(&line(job)), expected);
}

#[test]
fn output_and_exit_code_are_the_commands_own() {
    assert_ends("code", "out\n| err\nexit 3");
    assert_ends("last", "no end of line\nexit 0");
}

#[test]
fn the_job_finds_what_the_daemon_would_give_it_and_nothing_else() {
    let said = transcript(context().line(&line("asks")).env("SECRET", "of the shell"));
    assert_said(&said, "here\n/tmp\n0027\nasks 1 0\n[]\nexit 0");
}

#[test]
fn a_terminal_is_not_given_what_it_would_obey() {
    let context = context();
    // Debian's `script` gives a command a terminal; it writes what the command wrote there.
    let command = format!("{CRONKEEPER} {}", line("paints").join(" "));
    let said =
        Command::new("script").args(["-qec", &command, "/dev/null"]).current_dir(context.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "\\u{1b}[2Jred\\u{200b}\tok\r\n");
    assert_said(&context.enter(&line("paints")), "\u{1b}[2Jred\u{200b}\tok\nexit 0");
}

#[test]
fn a_disabled_job_runs() {
    assert_ends("disabled", "done\nexit 0");
}

#[test]
fn an_unknown_job_is_wrong_usage_with_the_nearest_name() {
    assert_ends("singal", "| cronkeeper: no job is called `singal`\n| hint: did you mean `signal`?\nexit 2");
}

#[test]
fn a_signal_is_128_and_its_number() {
    assert_ends("signal", "exit 137");
}

#[test]
fn a_timeout_is_124_also_where_it_takes_a_kill() {
    assert_ends("slow", "| cronkeeper: job `slow` took longer than its `timeout` of 1s and was ended\nexit 124");
    assert_ends(
        "stubborn",
        "| cronkeeper: job `stubborn` took longer than its `timeout` of 1s and was ended\nexit 124",
    );
}

#[test]
fn a_program_that_is_not_there_is_127_and_one_that_cannot_be_executed_126() {
    assert_ends(
        "missing",
        "
        | cronkeeper: job `missing` cannot be started: no-such-program: No such file or directory (os error 2)
        | hint: a program without a slash is searched in the job's own PATH; a script needs the interpreter it names
        exit 127",
    );
    assert_ends(
        "plain",
        "
        | cronkeeper: job `plain` cannot be started: ./jobs.yaml: Permission denied (os error 13)
        exit 126",
    );
    assert_ends(
        "nowhere",
        "
        | cronkeeper: job `nowhere` cannot be started: its working directory: No such file or directory (os error 2)
        exit 126",
    );
}

#[test]
fn a_user_that_is_missing_is_126() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root runs jobs as other users");
        return;
    }
    assert_ends(
        "stranger",
        "
        | cronkeeper: job `stranger` cannot be started: its user or group is missing: no user `no-such-user` on this host
        exit 126",
    );
}

#[test]
fn limits_and_nice_value_are_those_of_the_job() {
    assert_ends("limited", "77\n19\nexit 0");
}

#[test]
fn a_script_without_a_shebang_runs_as_in_a_shell() {
    use std::os::unix::fs::PermissionsExt as _;
    let context = context();
    let script = context.dir.write("script", "echo $1; exit 9\n");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_said(&context.enter(&line("script")), "one\nexit 9");
}

#[test]
fn what_max_output_drops_is_said() {
    assert_ends(
        "flood",
        "
        12345678
        1
        | cronkeeper: job `flood`: 8 bytes of output beyond `max_output` (10 bytes) were dropped
        exit 0",
    );
}

#[test]
fn what_outlives_the_command_is_killed_and_said() {
    assert_ends(
        "daemonizes",
        "
        | cronkeeper: job `daemonizes`: 1 of its processes outlived the command and were killed
        exit 0",
    );
}

/// Sends the command a signal once the job has said that it is ready.
fn interrupted(job: &str, signal: Signal) -> (String, Option<i32>) {
    let context = context();
    let mut child = context.line(&line(job)).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    out.read_exact(&mut ready).unwrap();
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    (rest, child.wait().unwrap().code())
}

#[test]
fn a_signal_ends_the_job_as_its_timeout_would() {
    assert_eq!(interrupted("waits", Signal::TERM), ("asked\n".to_owned(), Some(7)));
    assert_eq!(interrupted("waits", Signal::INT), ("asked\n".to_owned(), Some(7)));
    assert_eq!(interrupted("dies", Signal::INT), (String::new(), Some(128 + 15)));
}

#[test]
fn a_reader_who_has_enough_changes_no_exit_code() {
    let context = context();
    let mut child = context.line(&line("code")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn killed_outright_it_leaves_nothing_behind() {
    let context = context();
    let mut child = context.line(&line("dies")).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let job = || is_alive("CRONKEEPER_JOB=dies", &here(&context));
    assert!(job());
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    until("nothing is left", || !job());
}

fn here(context: &SessionContext) -> String {
    format!("DESK={}", context.path().display())
}

/// A process with both in its environment.
fn is_alive(one: &str, other: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut environments = all.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    let has = |environment: &[u8], wanted: &str| environment.split(|&byte| byte == 0).any(|it| it == wanted.as_bytes());
    environments.any(|environment| has(&environment, one) && has(&environment, other))
}
