//! Deaths of daemon and warden, alone and together: the survivor kills the process trees, and a restart works at once.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cgroup::OwnCgroup;
use crate::support::node::{Node, Spec};
use crate::support::process::stop_all;
use crate::support::{LONG, until};

use super::fixture::{await_end, await_run, await_start, leading, node, warden_of, watcher_of};

/// A process tree that ignores SIGTERM, with a process in its own session and an orphan.
const PROCESSES: &str =
    r#"trap "" TERM; setsid sleep 1000 & (setsid sh -c "sleep 1000 & sleep 1000" &); echo up; sleep 1000"#;

fn process_table() -> (Spec, Node, String) {
    process_table_of(node("only"))
}

fn process_table_of(spec: Spec) -> (Spec, Node, String) {
    let spec = spec.jobs(&format!("jobs: {{trees: {{schedule: '* * * * * *', command: {PROCESSES:?}}}}}"));
    let a = leading(&spec);
    let run = await_start(&a, 0, "trees");
    until("the whole tree stands", || a.job_processes().len() >= 5);
    (spec, a, run)
}

fn assert_a_restart_settles(spec: &Spec, run: &str) {
    let again = leading(spec);
    let ended = await_end(&again, run);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("interrupted", "node-died"));
    assert_eq!(await_run(spec, run)["outcome"], "interrupted");
    assert!(await_start(&again, 0, "trees").as_str() > run);
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn the_warden_ends_the_trees_of_a_killed_daemon() {
    let (spec, a, run) = process_table();
    let warden = warden_of(&a);
    a.kill9();
    assert_eq!(a.await_no_job_processes(LONG), Vec::<u32>::new());
    until("the warden ends", || !std::path::Path::new(&format!("/proc/{warden}/cmdline")).exists());
    drop(a);
    assert_a_restart_settles(&spec, &run);
}

#[test]
fn a_daemon_without_its_warden_ends_the_trees_and_itself() {
    let (spec, a, run) = process_table();
    kill(warden_of(&a));
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
    assert_eq!(a.job_processes(), Vec::<u32>::new());
    assert_eq!(a.await_event("node.stopped", LONG).text("reason"), "the warden is gone");
    drop(a);
    assert_a_restart_settles(&spec, &run);
}

/// Sends a daemon, its watcher and its warden, or some of them, SIGKILL while all are stopped, so that none of them can
/// clean up after the first; the others then go on.
fn kill_together(a: &Node, killed: &[u32]) {
    let all = [a.pid(), watcher_of(a), warden_of(a)];
    let send = |pid: u32, signal| kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    stop_all(&all);
    killed.iter().for_each(|&pid| send(pid, Signal::KILL));
    all.iter().filter(|pid| !killed.contains(pid)).for_each(|&pid| send(pid, Signal::CONT));
}

#[test]
fn of_daemon_watcher_and_warden_the_last_one_ends_the_trees() {
    for survivor in 0..3 {
        let (spec, a, run) = process_table();
        let mut killed = vec![a.pid(), watcher_of(&a), warden_of(&a)];
        killed.remove(survivor);
        kill_together(&a, &killed);
        assert_eq!(a.await_no_job_processes(LONG), Vec::<u32>::new(), "by {survivor}");
        a.wait_exit(LONG);
        drop(a);
        assert_a_restart_settles(&spec, &run);
    }
}

#[test]
fn a_child_of_a_command_string_dies_with_daemon_and_warden() {
    let spec = node("only").jobs("jobs: {child: {schedule: '* * * * * *', command: 'sleep 1000; true'}}");
    let a = leading(&spec);
    await_start(&a, 0, "child");
    until("the child runs", || a.job_processes().len() >= 2);
    kill_together(&a, &[a.pid(), warden_of(&a)]);
    assert_eq!(a.await_no_job_processes(LONG), Vec::<u32>::new());
}

#[test]
fn what_all_three_leave_is_dead_before_the_next_leads() {
    // Without a cgroup of its own, a daemon of another test could find the dead one's and kill its processes first.
    let apart = OwnCgroup::if_possible();
    let (spec, a, run) = process_table_of(Spec::new(OwnCgroup::program(apart.as_ref()), "only"));
    let killed = [a.pid(), watcher_of(&a), warden_of(&a)];
    kill_together(&a, &killed);
    until("they are gone", || !killed.iter().any(|pid| is_alive(*pid)));
    // Its other threads hold its files for a moment longer than its main thread.
    a.wait_exit(LONG);
    assert!(!a.job_processes().is_empty(), "nobody is left to kill them");
    let again = spec.start();
    again.await_event("leader.elected", LONG);
    let run_of = |pid: &u32| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_left = |pid: &u32| run_of(pid).windows(run.len()).any(|window| window == run.as_bytes());
    assert!(!again.job_processes().iter().any(is_left));
    assert_eq!(await_end(&again, &run).text("outcome"), "interrupted");
}

#[test]
fn a_timeout_comes_while_the_daemon_is_stopped() {
    let job = r#"{schedule: "@every 1s", command: "trap '' TERM; sleep 1000", timeout: 2s, kill_grace: 1s}"#;
    let a = leading(&node("only").jobs(&format!("jobs: {{slow: {job}}}")));
    let run = await_start(&a, 0, "slow");
    until("the job runs", || !a.job_processes().is_empty());
    a.stop();
    assert_eq!(a.await_no_job_processes(LONG), Vec::<u32>::new());
    a.cont();
    assert_eq!(await_end(&a, &run).text("outcome"), "timeout");
}

#[test]
fn a_stopped_warden_is_no_dead_one() {
    let spec = node("only").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}");
    let a = leading(&spec);
    await_start(&a, 0, "tick");
    let warden = Pid::from_raw(warden_of(&a).cast_signed()).unwrap();
    kill_process(warden, Signal::STOP).unwrap();
    // The daemon's orders wait until the warden goes on.
    a.await_where("run.skipped", LONG, |skip| skip.text("reason") == "overlap");
    let seen = a.events().len();
    kill_process(warden, Signal::CONT).unwrap();
    a.await_after(seen, "run.finished", LONG, |event| event.text("outcome") == "success");
}
