//! Starting a job's process: what it inherits, and how failures are reported.

use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{
    Deadline, Exit, InheritedStreams, InterpreterFault, Limits, Order, StartFailure, StartStep, User,
};

use super::fixture::{Fixture, is_root, nobody, replace};

#[tokio::test]
async fn a_job_has_its_directory_environment_and_umask_and_nothing_else() {
    let mut fixture = Fixture::new();
    let directory = fixture.launch(&[]).directory;
    let launch = fixture.sh("pwd; umask; env | sort; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0; grep -E '^Sig(Blk|Ign)' /proc/self/status");
    let ending = fixture.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    let text = fixture.lines().join("\n");
    assert!(text.starts_with(&format!("{directory}\n0027\n")), "{text}");
    let set_by_sh = ["PWD=", "OLDPWD=", "SHLVL=", "_="];
    let variables = fixture
        .lines()
        .into_iter()
        .filter(|line| line.contains('=') && !set_by_sh.iter().any(|own| line.starts_with(own)));
    assert_eq!(variables.count(), 3, "{text}");
    // The standard streams, and the directory that `ls` reads.
    assert!(text.contains("\n4\n/dev/null\nSigBlk:\t0000000000000000\n"), "{text}");
    let ignored = text.rsplit_once("SigIgn:\t").map(|(_, mask)| u64::from_str_radix(mask, 16).unwrap()).unwrap();
    // 32 and 33 belong to the C library, which lets nobody change them.
    assert_eq!(ignored & !(0b11 << 31), 0, "{text}");
    fixture.close().await;
}

#[tokio::test]
async fn the_limit_of_open_files_is_the_daemons_unless_another_is_given_back() {
    let mut fixture = Fixture::new();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    let launch = fixture.sh("ulimit -n");
    fixture.run(launch).await;
    let mut launch = fixture.sh("ulimit -n");
    launch.limits.open_files = Some((77, 99));
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), [own.to_string(), "77".to_owned()]);
    fixture.close().await;
}

#[tokio::test]
async fn a_job_is_its_user_with_the_groups_of_that_user_and_nobody_else() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new();
    let mut launch =
        fixture.sh("id -ru; id -rg; id -G; grep -E '^(Uid|Gid|CapEff)' /proc/self/status; echo ready; sleep 1000");
    launch.user = Some(nobody());
    launch.directory = "/".into();
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    let uid = "Uid:\t65534\t65534\t65534\t65534";
    let gid = "Gid:\t65533\t65533\t65533\t65533";
    assert_eq!(fixture.lines(), ["65534", "65533", "65533 7 9", uid, gid, "CapEff:\t0000000000000000", "ready"]);
    fixture.order(Order::Kill { tree_id });
    fixture.end().await;
    fixture.close().await;
}

#[tokio::test]
async fn limits_and_nice_value_hold_for_the_job() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("nice; ulimit -d; ulimit -t; ulimit -Ht; cat /proc/self/limits | grep processes");
    launch.nice = Some(15);
    let memory = Some(512 << 20);
    launch.limits = Limits { memory, processes: Some(12_345), open_files: None, cpu_time: Some(60) };
    fixture.run(launch).await;
    assert_eq!(fixture.lines()[..4], ["15", "524288", "60", "65"]);
    assert!(fixture.lines()[4].contains(" 12345 "), "{:?}", fixture.lines());
    fixture.close().await;
}

#[tokio::test]
async fn a_job_that_exceeds_its_memory_or_time_limit_is_killed() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("x=x; while :; do x=$x$x; done");
    launch.limits.memory = Some(64 << 20);
    assert_ne!(fixture.run(launch).await.exit, Exit::Code(0));
    let mut launch = fixture.sh("while :; do :; done");
    launch.limits.cpu_time = Some(1);
    let ending = fixture.run(launch).await;
    assert!(matches!(ending.exit, Exit::Signal { signal: 24, .. }), "{ending:?}");
    fixture.close().await;
}

#[tokio::test]
async fn a_home_that_cannot_be_entered_is_replaced_by_the_root_directory() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("pwd");
    (launch.directory, launch.or_root) = ("/no/such/home".into(), true);
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["/"]);
    fixture.close().await;
}

#[tokio::test]
async fn each_step_that_can_fail_is_named() {
    let mut fixture = Fixture::new();
    let plain = fixture.file("plain", "exit 0\n", 0o644);
    let step = |step, errno| StartFailure::Step { step, errno };
    let launch = fixture.launch(&["no-such-program-anywhere"]);
    assert_eq!(fixture.refused(launch).await, step(StartStep::Exec, 2));
    let launch = fixture.launch(&[plain.to_str().unwrap()]);
    assert_eq!(fixture.refused(launch).await, step(StartStep::Exec, 13));
    for (name, text, fault) in [
        ("dos", "#!/bin/sh\r\nexit 0\r\n", InterpreterFault::CarriageReturn),
        ("bsh", "#!/bin/bsh -e\nexit 0\n", InterpreterFault::Missing),
    ] {
        let script = fixture.file(name, text, 0o755);
        let launch = fixture.launch(&[script.to_str().unwrap()]);
        assert_eq!(fixture.refused(launch).await, step(StartStep::Interpreter(fault), 2));
        let mut launch = fixture.launch(&[name]);
        let path = format!("/no/such/folder:{}:/bin", script.parent().unwrap().display());
        replace(&mut launch.environment, "PATH", &path);
        assert_eq!(fixture.refused(launch).await, step(StartStep::Interpreter(fault), 2), "found in PATH");
    }
    let launch = fixture.launch(&["a\0b"]);
    assert_eq!(fixture.refused(launch).await, step(StartStep::Exec, 22));
    let mut launch = fixture.launch(&["true"]);
    launch.directory = "/no/such/folder".into();
    assert_eq!(fixture.refused(launch).await, step(StartStep::Directory, 2));
    let mut launch = fixture.launch(&["true"]);
    launch.streams = Some(InheritedStreams { stdin: 0, stdout: 1, stderr: 2, locks: vec![3, -1] });
    assert_eq!(fixture.refused(launch).await, step(StartStep::Prepare, 9));
    for [stdin, stdout, stderr] in [[-1, 1, 2], [0, i32::MIN, 2], [0, 1, -1]] {
        let mut launch = fixture.launch(&["true"]);
        launch.streams = Some(InheritedStreams { stdin, stdout, stderr, locks: Vec::new() });
        assert_eq!(fixture.refused(launch).await, step(StartStep::Prepare, 9));
    }
    fixture.close().await;
}

#[tokio::test]
async fn an_invalid_user_or_group_id_is_refused() {
    if !is_root() {
        return;
    }
    const INVALID_ID: u32 = u32::MAX;
    let mut fixture = Fixture::new();
    for user in [
        User { uid: INVALID_ID, ..nobody() },
        User { gid: INVALID_ID, ..nobody() },
        User { groups: vec![INVALID_ID], ..nobody() },
    ] {
        let mut launch = fixture.launch(&["true"]);
        launch.user = Some(user);
        assert_eq!(fixture.refused(launch).await, StartFailure::Step { step: StartStep::User, errno: 22 });
    }
    fixture.close().await;
}

#[tokio::test]
async fn the_program_is_searched_in_the_jobs_own_path() {
    let mut fixture = Fixture::new();
    let script = fixture.file("hello-there", "#!/bin/sh\necho found $1\n", 0o755);
    let mut launch = fixture.launch(&["hello-there", "me"]);
    replace(&mut launch.environment, "PATH", &format!("/nowhere:{}", script.parent().unwrap().display()));
    launch.environment.push_variable("HOME", "/");
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["found me"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_script_without_a_shebang_is_run_by_sh() {
    let mut fixture = Fixture::new();
    let script = fixture.file("script", "echo \"$1 of $0\"\n", 0o755);
    let launch = fixture.launch(&[script.to_str().unwrap(), "one"]);
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    assert_eq!(fixture.lines(), [format!("one of {}", script.display())]);
    fixture.close().await;
}

#[tokio::test]
async fn nothing_starts_when_it_is_too_late() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("echo started");
    launch.not_after = uptime();
    assert_eq!(fixture.refused(launch).await, StartFailure::TooLate);
    // The warden has not received any lease yet.
    let mut launch = fixture.sh("echo started");
    launch.deadline = Deadline::Lease;
    assert_eq!(fixture.refused(launch).await, StartFailure::TooLate);
    fixture.close().await;
}
