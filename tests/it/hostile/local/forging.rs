//! Jobs without a cgroup that remove or forge the marks of their run: they are recognized all the same.

use cronkeeper::warden::recover::start_time;
use cronkeeper_core::process::{Exit, Order, User};

use super::{Known, apart};
use crate::warden::fixture::{Fixture, is_root, nobody, replace};

/// Another user without any other processes.
fn games() -> User {
    User { uid: 5, gid: 60, groups: vec![60] }
}

/// A warden on a host with this method of recognition; no launch of these tests names a cgroup.
fn fixture(known: Known) -> Fixture {
    if known == Known::Environment { Fixture::without_audit() } else { Fixture::new() }
}

/// A run of nobody leaves a process behind while an older run of `older` goes on.
///
/// Returns the number of its leftovers, and whether the process outlived its run.
async fn left_behind(known: Known, older: User, leaves: &str) -> (u32, bool) {
    let mut fixture = fixture(known);
    let mut launch = fixture.sh("echo ready; sleep 1000");
    (launch.user, launch.directory) = (Some(older), "/".into());
    let other = launch.environment.variable("CRONKEEPER_RUN_ID").unwrap().to_owned();
    let (older, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    // Start times have a resolution of a hundredth of a second: the process must be younger than both runs by more than
    // that. When the run ends, it has printed its pid and lost its parent.
    let script = "exec 4>&1; sleep 0.1; \
        (setsid LEAVES sh -c 'trap \"\" TERM; echo $$; echo up >&3; exec sleep 1000 2>&- 3>&- 4>&-' 3>&1 >&4 &) | read up";
    let script = script.replace("LEAVES", leaves).replace("OTHER", &other);
    let mut launch = fixture.sh(&script);
    replace(&mut launch.environment, "CRONKEEPER_RUN_ID", &format!("another-{other}"));
    (launch.user, launch.directory) = (Some(nobody()), "/".into());
    let ending = fixture.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    let pid: i32 = fixture.lines().iter().find_map(|line| line.parse().ok()).expect("it said its number");
    let overdue = start_time(pid).is_some();
    fixture.order(Order::Kill { tree_id: older });
    fixture.end().await;
    assert_eq!(start_time(pid), None, "it dies with the last at the latest");
    fixture.close().await;
    (ending.leftovers, overdue)
}

const SCRUBBED: &str = "env -i PATH=/bin:/usr/bin";
const FORGED: &str = "env CRONKEEPER_RUN_ID=OTHER";

#[tokio::test]
async fn whoever_scrubs_or_forges_his_environment_dies_with_his_own_run() {
    if !is_root() {
        return;
    }
    for known in [Known::AuditSession, Known::Environment] {
        for leaves in [SCRUBBED, FORGED] {
            let (leftovers, overdue) = left_behind(known, games(), leaves).await;
            assert!(leftovers > 0 && !overdue, "{known:?}, {leaves}: {leftovers}");
        }
    }
}

#[tokio::test]
async fn in_its_audit_session_it_is_known_also_beside_another_run_of_its_user() {
    if !is_root() || !apart::has_login_user() {
        return;
    }
    for leaves in [SCRUBBED, FORGED] {
        let (leftovers, overdue) = left_behind(Known::AuditSession, nobody(), leaves).await;
        assert!(leftovers > 0 && !overdue, "{leaves}: {leftovers}");
    }
}

/// On a host where only the environment distinguishes two runs of a user.
#[tokio::test]
async fn of_two_runs_of_one_user_it_dies_with_the_last_at_the_latest() {
    if !is_root() {
        return;
    }
    left_behind(Known::Environment, nobody(), SCRUBBED).await;
}
