//! Processes that outlive daemon and warden: nothing is released before they are dead.

use rustix::process::{Pid, kill_process};

use super::*;
use crate::support::cgroup::OwnCgroup;
use crate::support::process::{stop_all, watcher_and_warden_of};
use crate::support::{Facility, skipped};

/// A node whose daemon, watcher and warden are dead while a child of its run is alive; and the run.
fn overdue(spec: &Spec, jobs: &str) -> (Node, String) {
    let node = spec.clone().jobs(jobs).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    until("the job has its child", || node.job_processes().len() >= 3);
    let pids = watcher_and_warden_of(node.pid()).expect("they live");
    // Stopped first: otherwise each of the three would notice the end of another and kill the processes itself.
    stop_all(&[&pids[..], &[node.pid()]].concat());
    for pid in pids {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    node.kill9();
    until("a child is left alone", || !node.job_processes().is_empty());
    (node, run)
}

#[test]
fn on_one_host_the_processes_that_overdue_daemon_and_warden_are_killed() {
    // Without a cgroup of its own, a daemon of another test could find the dead one's and kill its processes first.
    let apart = OwnCgroup::if_possible();
    let spec = Spec::new(OwnCgroup::program(apart.as_ref()), "solo");
    let (node, _) = overdue(&spec, "jobs: {parent: {schedule: '@every 1s', command: 'sleep 1000 & sleep 1000'}}");
    assert_quiet(&release(&spec, None));
    assert_eq!(node.job_processes(), Vec::<u32>::new());
}

/// Runs its arguments where no cgroups are visible: otherwise other tests would kill what a dead daemon left in its
/// cgroup.
const WITHOUT_CGROUPS: &str = r#"#!/bin/sh
exec unshare --mount --propagation private sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' sh "$@"
"#;

/// Prefix of a command: root without the right to kill other users' processes.
const HARMLESS: [&str; 4] = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", "--"];

/// A process that SIGKILL does not end is in uninterruptible sleep, for example because its disk is gone. Here it
/// belongs to another user, which looks the same to the process that tries to kill it.
#[tokio::test]
async fn while_a_process_does_not_die_nothing_is_given_up() {
    let scripts = Scratch::new("scripts");
    let script = |name: &str, text: &str| scripts.program(name, text).to_str().unwrap().to_owned();
    let apart = script("apart", WITHOUT_CGROUPS);
    let can = Command::new(&apart).args(HARMLESS).arg("true").output().unwrap();
    if !can.status.success() {
        skipped(Facility::Namespaces, &format!("only root with all rights can be without one: {can:?}"));
        return;
    }
    let connect = shared();
    let program = script("cronkeeper", &WITHOUT_CGROUPS.replace("sh \"$@\"\n", &format!("sh {CRONKEEPER} \"$@\"\n")));
    let spec = Spec::new(&program, "node").zookeeper(&connect).option("--session-timeout", "10s");
    let jobs = "jobs: {parent: {schedule: '@every 1s', user: nobody, command: 'sleep 1000 & sleep 1000'}}";
    let (node, run) = overdue(&spec, jobs);
    let (code, out, err) = command::texts(&harmless(&apart, &command(&spec, Some(&connect))));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("survived SIGKILL"), "{err}");
    let client = Client::connect(&connect).await.unwrap();
    assert_eq!(client.list_children("/leader").await.unwrap().len(), 1);
    assert!(is_in_flight(&connect, &run).await);
    assert_eq!(recorded_sessions(&spec), 1);

    assert_released(&spec, &release(&spec, Some(&connect)));
    assert_eq!(node.job_processes(), Vec::<u32>::new());
}

fn harmless(apart: &str, command: &Command) -> Output {
    Command::new(apart).args(HARMLESS).arg(command.get_program()).args(command.get_args()).output().unwrap()
}
