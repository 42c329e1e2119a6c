//! The command `exec`: output, exit codes, limits and signals.

use std::io::Read as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{WorkingDirectory, assert_printed, transcript};
use crate::support::command::CRONKEEPER;
use crate::support::{Facility, skipped, until};

const JOBS: &str = "\
jobs:
  code: {schedule: '@daily', command: 'echo out; echo err >&2; exit 3'}
  asks: {schedule: '@daily', environment: {TARGET: here}, umask: '027', working_directory: /tmp,
    command: 'echo $TARGET; pwd; umask; echo $CRONKEEPER_JOB $CRONKEEPER_ATTEMPT $CRONKEEPER_FENCING_TOKEN; echo [$SECRET]'}
  disabled: {schedule: '@daily', enabled: false, command: [echo, done]}
  signal: {schedule: '@daily', command: 'kill -KILL $$'}
  slow: {schedule: '@daily', command: [sleep, '1000'], timeout: 1s}
  stubborn: {schedule: '@daily', command: 'trap \"\" TERM; while :; do sleep 0.1; done', timeout: 1s, kill_grace: 1s}
  tells: {schedule: '@daily', command: 'echo $$ >DIR/new; mv DIR/new DIR/pid; exec sleep 1000', timeout: 1s, kill_grace: 1s}
  missing: {schedule: '@daily', command: [no-such-program, --full]}
  plain: {schedule: '@daily', command: [./jobs.yaml], working_directory: DIR}
  nowhere: {schedule: '@daily', command: [ls], working_directory: /no/such/directory}
  flood: {schedule: '@daily', command: 'echo 12345678; echo 12345678', max_output: 10B}
  daemonizes: {schedule: '@daily', command: 'sleep 1000 & exit 0'}
  waits: {schedule: '@daily', command: 'trap \"echo asked; exit 7\" TERM; echo ready; while :; do sleep 0.1; done'}
  dies: {schedule: '@daily', environment: {CONTEXT: DIR}, command: 'echo ready; exec sleep 1000'}
  script: {schedule: '@daily', command: [./script, one], working_directory: DIR}
  dos: {schedule: '@daily', command: [./dos, one], working_directory: DIR}
  bsh: {schedule: '@daily', command: [./bsh], working_directory: DIR}
  limited: {schedule: '@daily', command: 'ulimit -n; nice', nice: 19, limits: {open_files: 77}}
  stranger: {schedule: '@daily', command: id, user: no-such-user}
  paints: {schedule: '@daily', command: 'printf \"\\033[2Jred\\342\\200\\213\\tok\\n\"'}
  last: {schedule: '@daily', command: 'printf \"no end of line\"'}
";

fn context() -> WorkingDirectory {
    let context = WorkingDirectory::new();
    let here = context.path().to_str().unwrap().to_owned();
    context.dir.write("jobs.yaml", &JOBS.replace("DIR", &here));
    context
}

fn line(job: &str) -> [&str; 4] {
    ["exec", "--jobs", "jobs.yaml", job]
}

#[track_caller]
fn assert_ends(job: &str, expected: &str) {
    assert_printed(&context().enter(&line(job)), expected);
}

#[test]
fn output_and_exit_code_are_those_of_the_job() {
    assert_ends("code", "out\n| err\nexit 3");
    assert_ends("last", "no end of line\nexit 0");
}

#[test]
fn the_environment_is_that_of_the_job_only() {
    let printed = transcript(context().line(&line("asks")).env("SECRET", "of the shell"));
    assert_printed(&printed, "here\n/tmp\n0027\nasks 1 0\n[]\nexit 0");
}

#[test]
fn control_characters_are_escaped_on_a_terminal() {
    let context = context();
    // script(1) runs a command on a terminal, and prints what the command writes there.
    let command = format!("{CRONKEEPER} {}", line("paints").join(" "));
    let printed =
        Command::new("script").args(["-qec", &command, "/dev/null"]).current_dir(context.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "\\u{1b}[2Jred\\u{200b}\tok\r\n");
    assert_printed(&context.enter(&line("paints")), "\u{1b}[2Jred\u{200b}\tok\nexit 0");
}

#[test]
fn a_disabled_job_runs() {
    assert_ends("disabled", "done\nexit 0");
}

#[test]
fn an_unknown_job_is_wrong_usage_with_the_nearest_name() {
    assert_ends("singal", "| cronkeeper: there is no job `singal`\n| hint: did you mean `signal`?\nexit 2");
}

#[test]
fn a_signal_is_128_and_its_number() {
    assert_ends("signal", "exit 137");
}

#[test]
fn a_timeout_is_124_even_if_the_job_must_be_killed() {
    assert_ends("slow", "| cronkeeper: job `slow` exceeded its `timeout` of 1s and was stopped\nexit 124");
    assert_ends("stubborn", "| cronkeeper: job `stubborn` exceeded its `timeout` of 1s and was stopped\nexit 124");
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_be_executed_126() {
    assert_ends(
        "missing",
        "
        | cronkeeper: job `missing` cannot be started: no-such-program: No such file or directory (os error 2)
        | hint: a program without a slash is searched for in the job's own PATH; a script needs the interpreter that it names
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
fn a_missing_user_is_126() {
    if !rustix::process::geteuid().is_root() {
        skipped(Facility::Root, "only root runs jobs as other users");
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
    let context = context();
    context.dir.program("script", "echo $1; exit 9\n");
    assert_printed(&context.enter(&line("script")), "one\nexit 9");
}

#[test]
fn a_script_that_is_there_is_not_called_missing() {
    let context = context();
    for (name, text) in [("dos", "#!/bin/sh\r\necho $1\r\n"), ("bsh", "#!/bin/bsh\necho $1\n")] {
        context.dir.program(name, text);
    }
    assert_printed(
        &context.enter(&line("dos")),
        "
        | cronkeeper: job `dos` cannot be started: ./dos: its first line ends with a carriage return, as on Windows, so its interpreter is not found; remove those with `sed -i 's/\\r$//'`
        exit 127",
    );
    let missing = "./bsh: the interpreter that its first line names does not exist";
    assert_printed(
        &context.enter(&line("bsh")),
        &format!("\n| cronkeeper: job `bsh` cannot be started: {missing}\nexit 127"),
    );
}

#[test]
fn output_beyond_max_output_is_dropped_and_reported() {
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
fn processes_left_by_the_command_are_killed_and_reported() {
    assert_ends(
        "daemonizes",
        "
        | cronkeeper: job `daemonizes`: 1 of its processes outlived the command and were killed
        exit 0",
    );
}

/// Sends the command a signal once the job has printed `ready`; returns the rest of the output and the exit code.
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
fn a_timeout_comes_while_the_caller_is_stopped() {
    let context = context();
    let child = context.line(&line("tells")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let caller = Pid::from_child(&child);
    until("the job runs", || context.path().join("pid").exists());
    let job = std::fs::read_to_string(context.path().join("pid")).unwrap();
    kill_process(caller, Signal::STOP).unwrap();
    until("the job is dead", || !std::path::Path::new(&format!("/proc/{}", job.trim())).exists());
    kill_process(caller, Signal::CONT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(124) && text.contains("exceeded its `timeout`"), "{output:?}");
}

#[test]
fn a_signal_ends_the_job_as_its_timeout_would() {
    assert_eq!(interrupted("waits", Signal::TERM), ("asked\n".to_owned(), Some(7)));
    assert_eq!(interrupted("waits", Signal::INT), ("asked\n".to_owned(), Some(7)));
    assert_eq!(interrupted("dies", Signal::INT), (String::new(), Some(128 + 15)));
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let context = context();
    let mut child = context.line(&line("code")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn sigkill_leaves_no_process_behind() {
    let context = context();
    let mut child = context.line(&line("dies")).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let is_running = || is_alive("CRONKEEPER_JOB=dies", &variable(&context));
    assert!(is_running());
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    until("no process is left", || !is_running());
}

/// The variable that distinguishes this test's job from those of other tests.
fn variable(context: &WorkingDirectory) -> String {
    format!("CONTEXT={}", context.path().display())
}

/// True if a process has both variables in its environment.
fn is_alive(one: &str, other: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut environments = all.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    let has = |environment: &[u8], wanted: &str| environment.split(|&byte| byte == 0).any(|it| it == wanted.as_bytes());
    environments.any(|environment| has(&environment, one) && has(&environment, other))
}
