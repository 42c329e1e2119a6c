//! Runs in a cgroup of their own: no process leaves it, and none is left of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cronkeeper::warden::cgroup::hierarchy::{self, Cgroups};
use cronkeeper::warden::recover::start_time;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Cgroup, Deadline, Exit, Launch, Limits, Order, TreeId};

use crate::support::{Facility, skipped};

use super::fixture::{Fixture, TIMEOUT, eventually};

/// The cgroups of these tests. The next daemon that starts removes those that are left.
///
/// The cgroup `unused` keeps the first warden that ends from removing the directory.
static CGROUPS: LazyLock<Option<Cgroups>> = LazyLock::new(|| {
    Cgroups::make(false).inspect(|cgroups| fs::create_dir(cgroups.path().join("jobs/free/unused")).unwrap())
});

/// A cgroup for a run; `None`, with a message, if this machine has none.
fn cgroup() -> Option<Cgroup> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let tree_id = TreeId(COUNT.fetch_add(1, Ordering::Relaxed));
    if CGROUPS.is_none() {
        skipped(Facility::Cgroups, "no cgroup v2 that can be written to");
    }
    Some(CGROUPS.as_ref()?.place(tree_id, &Limits::default()))
}

#[tokio::test]
async fn a_run_has_a_cgroup_of_its_own_which_is_removed_with_it() {
    let Some(wanted) = cgroup() else { return };
    let mut fixture = Fixture::new();
    // The process starts in its cgroup: the first thing it reads is the name of the cgroup.
    let mut launch = fixture.launch(&["grep", "^0::", "/proc/self/cgroup"]);
    launch.cgroup = Some(wanted.clone());
    let ending = fixture.run(launch).await;
    assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 0));
    let (_, named) = wanted.path.split_once("/cronkeeper.").unwrap();
    assert!(fixture.lines()[0].ends_with(named), "{:?} in {named}", fixture.lines());
    assert!(!Path::new(&wanted.path).exists());
    fixture.close().await;
}

#[tokio::test]
async fn a_start_without_a_process_leaves_no_cgroup_behind() {
    let mut fixture = Fixture::new();
    let by_lease = Launch { deadline: Deadline::Lease, ..fixture.launch(&["true"]) };
    let too_late = Launch { not_after: uptime(), ..fixture.launch(&["true"]) };
    for launch in [by_lease, too_late, fixture.launch(&["no-such-program"]), fixture.launch(&["a\0b"])] {
        let Some(wanted) = cgroup() else { return };
        fixture.refused(Launch { cgroup: Some(wanted.clone()), ..launch }).await;
        assert!(!Path::new(&wanted.path).exists());
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_process_that_escaped_every_other_check_is_found_by_its_cgroup() {
    let Some(wanted) = cgroup() else { return };
    let mut fixture = Fixture::new();
    // With another run beside it, only the cgroup identifies the escaped process.
    let other = fixture.sh("echo ready; sleep 1000");
    let (other, _) = fixture.start(other).await;
    fixture.line("ready").await;
    let mut launch = fixture.sh("sleep 0.05; (setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); exit 3");
    launch.cgroup = Some(wanted);
    let ending = fixture.run(launch).await;
    let pid: i32 = fs::read_to_string(fixture.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((ending.exit, ending.leftovers, start_time(pid)), (Exit::Code(3), 1, None));
    fixture.order(Order::Kill { tree_id: other });
    fixture.end().await;
    fixture.close().await;
}

#[tokio::test]
async fn a_fork_storm_in_a_cgroup_is_killed_at_once() {
    let Some(wanted) = cgroup() else { return };
    let mut fixture = Fixture::new();
    // Each process leaves session and parent at once and starts one successor: some dozens are alive at a time.
    let forker = fixture.file("forker", "echo 1 >>count\nsetsid -f \"$0\" >/dev/null 2>&1\nsleep 0.05\n", 0o755);
    let mut launch = fixture.sh("for i in 1 2 3; do setsid -f ./forker >/dev/null 2>&1; done; echo ready; sleep 1000");
    launch.cgroup = Some(wanted.clone());
    let count = fixture.directory.path().join("count");
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    eventually("the processes fork without end", || fs::metadata(&count).is_ok_and(|count| count.len() > 200)).await;
    fixture.order(Order::Kill { tree_id });
    fixture.end().await;
    assert!(!Path::new(&wanted.path).exists());
    drop(forker);
    fixture.close().await;
}

#[tokio::test]
async fn a_cgroup_that_the_job_created_below_its_own_is_removed_too() {
    let Some(wanted) = cgroup() else { return };
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh(&format!("mkdir -p {0}/a/b; sleep 1000 & echo $! >{0}/a/b/cgroup.procs", wanted.path));
    launch.cgroup = Some(wanted.clone());
    let ending = fixture.run(launch).await;
    assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 1));
    assert!(!Path::new(&wanted.path).exists());
    fixture.close().await;
}

#[test]
fn processes_in_the_cgroup_of_a_dead_daemon_are_killed_but_not_those_of_a_living_one() {
    let (Some(cgroups), Some(own)) = (CGROUPS.as_ref(), cgroup()) else { return };
    let start = |path: &Path| {
        fs::create_dir_all(path).unwrap();
        let mut command = std::process::Command::new("sh");
        let child = command.arg("-c").arg(format!("echo $$ >{}/cgroup.procs; echo; exec sleep 1000", path.display()));
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    };
    // The directory of an earlier process that had the same pid.
    let dead = PathBuf::from(format!("{}0", cgroups.path().display()));
    let (mut left, mut kept) = (start(&dead.join("jobs/free/1/deeper")), start(Path::new(&own.path)));
    assert_eq!(hierarchy::reap(TIMEOUT), [0; 0]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&left.wait().unwrap()), Some(9));
    assert!(!dead.exists());
    assert!(kept.try_wait().unwrap().is_none() && Path::new(&own.path).exists());
    kept.kill().unwrap();
    kept.wait().unwrap();
}

#[tokio::test]
async fn a_job_starts_even_if_its_cgroup_cannot_be_created() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("ulimit -d");
    launch.limits.memory = Some(512 << 20);
    launch.cgroup = Some(Cgroup { path: "/no/such/cgroup".into(), memory: Some(512 << 20), processes: None });
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    assert_eq!(fixture.lines(), ["524288"]);
    fixture.close().await;
}
