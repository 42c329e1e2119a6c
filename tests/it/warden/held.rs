//! Processes that are prepared before their time, and held until it has come.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Deadline, Exit, Launch, Notice, Order, StartFailure, TreeId};

use super::fixture::{Fixture, eventually, state};

const FAR: Duration = Duration::from_secs(600);

impl Fixture {
    /// A program that creates a directory, to be begun after `after`.
    fn marking(&mut self, after: Duration) -> (Launch, PathBuf) {
        let mark = self.directory.path().join(uuid::Uuid::new_v4().to_string());
        let launch = self.launch(&["mkdir", mark.to_str().unwrap()]);
        (Launch { not_before: Some(uptime() + after), ..launch }, mark)
    }

    /// Orders the start and waits until it is held. Returns the pid.
    async fn hold(&mut self, launch: Launch) -> i32 {
        let wanted = launch.tree_id;
        self.order_start(&launch);
        match self.notice().await {
            Notice::Held { tree_id, pid } if tree_id == wanted => pid,
            other => panic!("{other:?}"),
        }
    }

    async fn assert_too_late(&mut self, tree_id: TreeId) {
        assert_eq!(self.notice().await, Notice::NotStarted { tree_id, why: StartFailure::TooLate });
    }

    /// The next notice is the end of a tree that a signal from elsewhere has ended.
    async fn assert_ended_by(&mut self, tree_id: TreeId, signal: Signal) {
        match self.notice().await {
            Notice::Ended(ending) if ending.tree_id == tree_id => {
                assert!(matches!(ending.exit, Exit::Signal { signal: its, .. } if its == signal.as_raw()));
                assert_eq!(ending.ended_by, None);
            }
            other => panic!("{other:?}"),
        }
    }

    async fn began(&mut self, wanted: TreeId) -> (i32, Uptime) {
        match self.notice().await {
            Notice::Started { tree_id, pid, at, .. } if tree_id == wanted => (pid, at),
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a signal to a process that the warden has not reaped yet, or that has ended a moment ago.
fn kill(pid: i32, signal: Signal) {
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal);
}

#[tokio::test]
async fn a_program_begins_at_its_time_and_not_before() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::from_millis(300));
    let (tree_id, not_before) = (launch.tree_id, launch.not_before.unwrap());
    let held = fixture.hold(launch).await;
    assert!(!mark.exists() || uptime() >= not_before);
    let (pid, at) = fixture.began(tree_id).await;
    assert_eq!(pid, held);
    assert!(at >= not_before);
    fixture.end().await;
    assert!(mark.exists());
    fixture.close().await;
}

#[tokio::test]
async fn a_program_whose_time_has_come_before_its_start_is_not_held() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::ZERO);
    let tree_id = launch.tree_id;
    fixture.order_start(&launch);
    fixture.began(tree_id).await;
    fixture.end().await;
    assert!(mark.exists());
    fixture.close().await;
}

#[tokio::test]
async fn a_cancelled_program_never_begins() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(FAR);
    let tree_id = launch.tree_id;
    let pid = fixture.hold(launch).await;
    fixture.order(Order::Cancel { tree_id });
    fixture.assert_too_late(tree_id).await;
    assert_eq!((state(pid), mark.exists()), (None, false));
    fixture.close().await;
}

#[tokio::test]
async fn a_start_that_is_cancelled_before_it_is_read_does_not_take_place() {
    let mut fixture = Fixture::new();
    fixture.stop();
    let (launch, mark) = fixture.marking(FAR);
    let tree_id = launch.tree_id;
    fixture.order_start(&launch);
    fixture.order(Order::Cancel { tree_id });
    fixture.go_on();
    fixture.assert_too_late(tree_id).await;
    assert!(!mark.exists());
    fixture.close().await;
}

#[tokio::test]
async fn a_cancelled_start_is_never_reported_as_an_end_wherever_the_cancel_meets_it() {
    const STARTS: usize = 400;
    let mut fixture = Fixture::new();
    for _ in 0..STARTS / 10 {
        let launches = [(); 10].map(|()| fixture.marking(FAR).0);
        let tree_ids = launches.each_ref().map(|launch| launch.tree_id);
        launches.into_iter().for_each(|launch| fixture.order_start(&launch));
        tree_ids.into_iter().for_each(|tree_id| fixture.order(Order::Cancel { tree_id }));
    }
    let mut cancelled = 0;
    while cancelled < STARTS {
        match fixture.notice().await {
            Notice::Held { .. } => {}
            Notice::NotStarted { why: StartFailure::TooLate, .. } => cancelled += 1,
            other => panic!("{other:?}"),
        }
    }
    fixture.close().await;
}

/// The cancel comes right after the fork, when the child may not have begun to wait yet.
#[tokio::test]
async fn a_start_that_is_cancelled_as_soon_as_it_is_held_is_never_reported_as_an_end() {
    const STARTS: usize = 300;
    let mut fixture = Fixture::new();
    for _ in 0..STARTS / 10 {
        for launch in [(); 10].map(|()| fixture.marking(FAR).0) {
            fixture.order_start(&launch);
        }
        let mut cancelled = 0;
        while cancelled < 10 {
            match fixture.notice().await {
                Notice::Held { tree_id, .. } => fixture.order(Order::Cancel { tree_id }),
                Notice::NotStarted { why: StartFailure::TooLate, .. } => cancelled += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_program_that_has_begun_is_not_cancelled() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("read go < gate; exit 7");
    rustix::fs::mkfifoat(rustix::fs::CWD, fixture.directory.path().join("gate"), 0o600.into()).unwrap();
    let (tree_id, _) = fixture.start(launch).await;
    fixture.order(Order::Cancel { tree_id });
    fixture.order(Order::Ping);
    assert_eq!(fixture.notice().await, Notice::Pong);
    std::fs::write(fixture.directory.path().join("gate"), "go\n").unwrap();
    assert_eq!(fixture.end().await.exit, cronkeeper_core::process::Exit::Code(7));
    fixture.close().await;
}

#[tokio::test]
async fn whatever_ends_a_held_tree_keeps_its_program_from_beginning() {
    let mut fixture = Fixture::new();
    fixture.order(Order::Lease { until: Uptime::NEVER });
    for how in 0..4 {
        let (mut launch, mark) = fixture.marking(FAR);
        let tree_id = launch.tree_id;
        if how == 3 {
            launch.deadline = Deadline::Lease;
        }
        let pid = fixture.hold(launch).await;
        fixture.order(match how {
            0 => Order::Kill { tree_id },
            1 => Order::Stop { tree_id, grace_ms: 60_000 },
            2 => Order::Deadline { tree_id, deadline: Deadline::At(uptime()) },
            _ => Order::Lease { until: Uptime::ZERO },
        });
        fixture.assert_too_late(tree_id).await;
        assert_eq!((state(pid), mark.exists()), (None, false), "{how}");
    }
    fixture.close().await;
}

/// Whoever ended it, its program never began, and that distinguishes its end from any other.
#[tokio::test]
async fn a_held_program_that_somebody_kills_has_an_end_and_no_start() {
    let mut fixture = Fixture::new();
    for signal in [Signal::TERM, Signal::KILL, Signal::HUP, Signal::ABORT] {
        let (launch, mark) = fixture.marking(FAR);
        let tree_id = launch.tree_id;
        let pid = fixture.hold(launch).await;
        kill(pid, signal);
        fixture.assert_ended_by(tree_id, signal).await;
        assert_eq!((state(pid), mark.exists()), (None, false), "{signal:?}");
    }
    fixture.close().await;
}

/// It stood still while its time came, and the token is still there.
#[tokio::test]
async fn a_held_program_that_is_killed_after_its_time_has_an_end_and_no_start() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::from_millis(300));
    let (tree_id, not_before) = (launch.tree_id, launch.not_before.unwrap());
    let pid = fixture.hold(launch).await;
    kill(pid, Signal::STOP);
    eventually("its time has come", || uptime() > not_before).await;
    kill(pid, Signal::KILL);
    fixture.assert_ended_by(tree_id, Signal::KILL).await;
    assert!(!mark.exists());
    fixture.close().await;
}

/// Their times are spread so far that some have begun and others wait whenever the kills come, and so close at first that
/// some are just about to.
#[tokio::test]
async fn whoever_is_killed_at_the_very_time_has_a_start_or_has_done_nothing() {
    const MANY: usize = 60;
    let mut fixture = Fixture::new();
    let at = uptime() + Duration::from_millis(500);
    let (mut marks, mut times) = (BTreeMap::new(), BTreeMap::new());
    for number in 0..MANY {
        let (launch, mark) = fixture.marking(Duration::ZERO);
        let not_before = at + Duration::from_micros(100).mul_f64(1.2_f64.powi(number as i32));
        marks.insert(launch.tree_id, mark);
        times.insert(launch.tree_id, not_before);
        fixture.order_start(&Launch { not_before: Some(not_before), ..launch });
    }
    let (mut pids, mut began, mut ended) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let mut killed_at = None;
    while ended.len() < MANY {
        match fixture.notice().await {
            Notice::Held { tree_id, pid } => drop(pids.insert(tree_id, pid)),
            Notice::Started { tree_id, pid, .. } => {
                pids.insert(tree_id, pid);
                began.insert(tree_id);
            }
            Notice::Ended(ending) => drop(ended.insert(ending.tree_id)),
            other => panic!("{other:?}"),
        }
        if pids.len() == MANY && killed_at.is_none() {
            let first = marks.values().next().unwrap();
            eventually("the first has begun", || first.exists()).await;
            pids.iter().filter(|(tree_id, _)| !ended.contains(tree_id)).for_each(|(_, &pid)| kill(pid, Signal::KILL));
            killed_at = Some(uptime());
        }
    }
    let killed_at = killed_at.expect("all were there");
    for (tree_id, mark) in &marks {
        assert!(began.contains(tree_id) || !mark.exists(), "{tree_id:?} has worked, and no start says so");
        let is_too_late = times[tree_id] > killed_at;
        assert!(!(is_too_late && began.contains(tree_id)), "{tree_id:?} was killed before its time, and has a start");
    }
    let waited = times.values().filter(|&&not_before| not_before > killed_at).count();
    assert!(!began.is_empty() && waited > 0, "{} of {MANY} have begun, {waited} waited", began.len());
    fixture.close().await;
}

#[tokio::test]
async fn a_program_whose_time_comes_after_its_lease_does_not_begin() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::from_millis(200));
    let tree_id = launch.tree_id;
    let launch = Launch { not_after: launch.not_before.unwrap(), ..launch };
    fixture.hold(launch).await;
    fixture.assert_too_late(tree_id).await;
    assert!(!mark.exists());
    fixture.close().await;
}

#[tokio::test]
async fn a_warden_that_hangs_delays_no_held_program() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::from_millis(200));
    let tree_id = launch.tree_id;
    fixture.hold(launch).await;
    fixture.stop();
    eventually("the program has begun", || mark.exists()).await;
    let seen = uptime();
    fixture.go_on();
    let (_, at) = fixture.began(tree_id).await;
    assert!(at <= seen, "it reports when it began, not when the warden looked");
    fixture.end().await;
    fixture.close().await;
}

#[tokio::test]
async fn a_held_program_dies_with_its_daemon_or_its_warden() {
    for kills_the_warden in [false, true] {
        let mut fixture = Fixture::new();
        let (launch, mark) = fixture.marking(FAR);
        let pid = fixture.hold(launch).await;
        let Fixture { mut warden, directory: _kept, .. } = fixture;
        if kills_the_warden {
            warden.kill().unwrap();
        }
        drop(warden);
        eventually("it is gone", || state(pid).is_none_or(|state| state == 'Z')).await;
        assert!(!mark.exists());
    }
}

/// Of each tree either the program begins or the cancel counts, never both and never none.
#[tokio::test]
async fn a_cancel_at_the_very_time_either_counts_or_does_not() {
    const MANY: usize = 60;
    let mut fixture = Fixture::new();
    let at = uptime() + Duration::from_millis(500);
    let mut marks = Vec::new();
    for number in 0..MANY {
        let (launch, mark) = fixture.marking(Duration::ZERO);
        marks.push((launch.tree_id, mark));
        let not_before = Some(at + Duration::from_micros(100) * number as u32);
        fixture.order_start(&Launch { not_before, ..launch });
    }
    let (mut held, mut ended) = (0, 0);
    let (mut began, mut not_started) = (BTreeSet::new(), BTreeSet::new());
    while ended + not_started.len() < MANY {
        match fixture.notice().await {
            Notice::Held { .. } => held += 1,
            Notice::Started { tree_id, .. } => drop(began.insert(tree_id)),
            Notice::Ended(_) => ended += 1,
            Notice::NotStarted { tree_id, why: StartFailure::TooLate } => drop(not_started.insert(tree_id)),
            other => panic!("{other:?}"),
        }
        if held == MANY {
            held = 0;
            while uptime() < at {
                tokio::task::yield_now().await;
            }
            marks.iter().for_each(|&(tree_id, _)| fixture.order(Order::Cancel { tree_id }));
        }
    }
    assert!(began.is_disjoint(&not_started));
    marks.iter().for_each(|(tree_id, mark)| assert_eq!(mark.exists(), began.contains(tree_id), "{tree_id:?}"));
    fixture.close().await;
}

#[tokio::test]
async fn programs_have_the_timer_slack_that_the_daemon_was_started_with() {
    let ours = rustix::thread::current_timer_slack().unwrap();
    let mut fixture = Fixture::new();
    for after in [Duration::ZERO, Duration::from_millis(100)] {
        let launch = fixture.sh("cat /proc/self/timerslack_ns");
        let launch = Launch { not_before: Some(uptime() + after), ..launch };
        fixture.order_start(&launch);
        let lines = loop {
            if let Notice::Output { lines, .. } = fixture.notice().await {
                break lines;
            }
        };
        assert_eq!(lines, [ours.to_string()]);
        fixture.end().await;
    }
    fixture.close().await;
}

/// Its successor could begin the run again, and would not find the process: it has no environment yet.
#[tokio::test]
async fn a_held_program_does_not_begin_without_its_daemon_even_if_the_warden_hangs() {
    let mut fixture = Fixture::new();
    let (launch, mark) = fixture.marking(Duration::from_millis(300));
    let pid = fixture.hold(launch).await;
    fixture.stop();
    let Fixture { warden, directory: _kept, .. } = fixture;
    let of_warden = rustix::process::Pid::from_raw(i32::try_from(warden.pid()).unwrap()).unwrap();
    drop(warden);
    eventually("the child has ended by itself", || matches!(state(pid), None | Some('Z'))).await;
    assert!(!mark.exists());
    rustix::process::kill_process(of_warden, rustix::process::Signal::CONT).unwrap();
    eventually("the warden has ended", || matches!(state(of_warden.as_raw_nonzero().get()), None | Some('Z'))).await;
}
