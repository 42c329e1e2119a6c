//! What a job is given from files at its start.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use cronkeeper_core::environment_file::{BadLine, EnvironmentFile, LineFault};
use cronkeeper_core::process::{
    Exit, FileFault, FileProblem, Launch, Notice, Order, SecretFile, StartFailure, StartStep, UnusableFile,
};

use super::fixture::{Fixture, is_root, nobody};

fn file(path: &Path) -> EnvironmentFile {
    EnvironmentFile { path: path.to_owned(), is_optional: false }
}

/// A launch that prints this, with the variables of a file.
fn with_file(fixture: &mut Fixture, script: &str, path: &Path) -> Launch {
    let mut launch = fixture.sh(script);
    launch.files.environment = vec![file(path)];
    launch.files.replaceable = vec!["PATH".into()];
    launch
}

fn as_nobody(launch: Launch) -> Launch {
    Launch { user: Some(nobody()), directory: "/".into(), ..launch }
}

#[tokio::test]
async fn the_later_file_and_above_all_the_launch_determine_a_variable_which_occurs_once() {
    let mut fixture = Fixture::new();
    let first =
        fixture.file("first", "A=1\nB='two\n lines'\nCRONKEEPER_NODE=forged\nCRONKEEPER_RUN_ID=forged\n", 0o600);
    let second = fixture.file("second", "A=2\nOWN=file\n", 0o644);
    let mut launch = with_file(&mut fixture, "env | sort | grep -E '^(A|B|OWN|CRONKEEPER)'; echo \"$B\"", &first);
    launch.files.environment.extend([EnvironmentFile::of("-/no/such/file"), file(&second)]);
    launch.environment.push_variable("OWN", "launch");
    fixture.run(launch).await;
    let run = format!("CRONKEEPER_RUN_ID={}", fixture.run);
    assert_eq!(fixture.lines(), ["A=2", "B=two", "CRONKEEPER_NODE=bench", &run, "OWN=launch", "two", " lines"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_value_may_be_any_bytes_and_a_new_one_counts_from_the_next_start() {
    let mut fixture = Fixture::new();
    let path = fixture.file("env", "", 0o600);
    for (value, shown) in [(&b"\xff\xfe"[..], "fffe"), (b"new", "6e6577")] {
        fs::write(&path, [b"A=", value].concat()).unwrap();
        let launch = with_file(&mut fixture, "printf %s \"$A\" | od -An -tx1 | tr -d ' '", &path);
        fixture.run(launch).await;
        assert_eq!(fixture.lines().last(), Some(&shown));
    }
    fixture.close().await;
}

#[tokio::test]
async fn the_program_is_searched_in_the_path_of_a_file() {
    let mut fixture = Fixture::new();
    let script = fixture.file("hello-there", "#!/bin/sh\necho found\n", 0o755);
    let path = fixture.file("env", &format!("PATH=/nowhere:{}\n", script.parent().unwrap().display()), 0o644);
    let mut launch = fixture.launch(&["hello-there"]);
    launch.files.environment = vec![file(&path)];
    assert!(matches!(fixture.refused(launch.clone()).await, StartFailure::Step { step: StartStep::Exec, errno: 2 }));
    launch.files.replaceable = vec!["PATH".into()];
    launch.tree_id.0 += 100;
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["found"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_file_that_is_closed_to_the_jobs_user_is_read_by_the_daemon_and_he_may_own_it_too() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new();
    let path = fixture.file("env", "TOKEN=hunter2\n", 0o600);
    let launch = with_file(&mut fixture, "id -u; echo $TOKEN", &path);
    fixture.run(as_nobody(launch)).await;
    assert_eq!(fixture.lines(), ["65534", "hunter2"]);
    chown(&path, Some(nobody().uid), None).unwrap();
    let launch = with_file(&mut fixture, "echo again $TOKEN", &path);
    fixture.run(as_nobody(launch)).await;
    assert_eq!(fixture.lines().last(), Some(&"again hunter2"));
    // What such a user could have put there is not followed with the daemon's rights.
    let home = fixture.directory.path().join("home");
    fs::create_dir(&home).unwrap();
    let link = home.join("env");
    std::os::unix::fs::symlink("/etc/shadow", &link).unwrap();
    chown(&home, Some(nobody().uid), None).unwrap();
    let launch = with_file(&mut fixture, "env", &link);
    assert_eq!(fixture.refused(as_nobody(launch)).await, refusal(0, FileFault::Unsafe, 0));
    fixture.close().await;
}

fn refusal(index: u8, fault: FileFault, errno: i32) -> StartFailure {
    StartFailure::Step { step: StartStep::Environment(FileProblem { index, fault }), errno }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_with_the_reason_and_delays_nobody() {
    let mut fixture = Fixture::new();
    let directory = fixture.directory.path().to_owned();
    let launch = with_file(&mut fixture, "echo started", &directory.join("missing"));
    assert_eq!(fixture.refused(launch).await, refusal(0, FileFault::System, 2));
    let open = fixture.file("open", "A=1\n", 0o666);
    let launch = with_file(&mut fixture, "echo started", &open);
    assert_eq!(fixture.refused(launch).await, refusal(0, FileFault::Unsafe, 0));
    let good = fixture.file("good", "A=1\n", 0o600);
    let bad = fixture.file("bad", "A=1\nB='\n", 0o600);
    let mut launch = with_file(&mut fixture, "echo started", &good);
    launch.files.environment.push(file(&bad));
    let unclosed = FileFault::Line(BadLine { line: 2, fault: LineFault::Unclosed });
    assert_eq!(fixture.refused(launch).await, refusal(1, unclosed, 0));
    // Opened like a regular file, it would wait for a writer.
    let fifo = directory.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::set_permissions(&fifo, fs::Permissions::from_mode(0o600)).unwrap();
    let launch = with_file(&mut fixture, "echo started", &fifo);
    assert_eq!(fixture.refused(launch).await, refusal(0, FileFault::NoFile, 0));
    let launch = fixture.sh("echo alive");
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    assert_eq!(fixture.lines(), ["alive"]);
    fixture.close().await;
}

#[tokio::test]
async fn the_limits_of_a_job_are_not_those_of_its_files() {
    let mut fixture = Fixture::new();
    let path = fixture.file("env", "A=1\n", 0o600);
    let mut launch = with_file(&mut fixture, "ulimit -n; echo $A", &path);
    launch.limits.open_files = Some((4, 4));
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["4", "1"]);
    fixture.close().await;
}

/// A launch that runs this with the secret `DB` in a file.
fn with_secret(fixture: &mut Fixture, script: &str, path: &Path) -> Launch {
    let mut launch = fixture.sh(script);
    launch.files.secrets = vec![SecretFile { name: "DB".into(), path: path.to_owned() }];
    launch
}

#[tokio::test]
async fn a_secret_is_in_a_sealed_file_whose_path_descendants_can_open_too() {
    let mut fixture = Fixture::new();
    let path = fixture.file("secret", "hunter2\n", 0o600);
    let script = r#"cat "$DB_FILE"; (exec 3<&-; cat "$DB_FILE"); stat -Lc %a "$DB_FILE"
        (echo forged > "$DB_FILE") 2>&- || echo sealed; tr '\0' '\n' < /proc/self/environ | grep -c hunter2
        [ "$DB_FILE" = "/proc/$$/fd/3" ] && cat /dev/fd/3; env | grep DB | cut -d= -f1"#;
    let mut launch = with_secret(&mut fixture, script, &path);
    launch.environment.push_variable("DB_FILE", "other");
    let environment = fixture.file("env", "DB_FILE=another\n", 0o600);
    launch.files.environment = vec![file(&environment)];
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["hunter2", "hunter2", "400", "sealed", "0", "hunter2", "DB_FILE"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "hunter2\n");
    fixture.close().await;
}

#[tokio::test]
async fn many_secrets_have_the_numbers_behind_the_streams_also_in_a_held_job() {
    let mut fixture = Fixture::new();
    let path = fixture.file("secret", "x", 0o600);
    for is_held in [false, true] {
        // Without a pipe, of which the shell itself would have the ends for a moment.
        let mut launch = fixture.sh("ls -v /proc/$$/fd; cat \"$S31_FILE\"");
        let secret = |number| SecretFile { name: format!("S{number}"), path: path.clone() };
        launch.files.secrets = (0..32).map(secret).collect();
        let at = cronkeeper_core::clock::system::uptime() + std::time::Duration::from_millis(300);
        launch.not_before = is_held.then_some(at);
        fixture.order_start(&launch);
        match fixture.notice().await {
            Notice::Held { .. } => fixture.end_of_start().await,
            // At once, or its time had come before it was forked.
            Notice::Started { .. } => fixture.end().await,
            other => panic!("{other:?} instead of a start"),
        };
        let expected: Vec<String> = (0..35).map(|number| number.to_string()).chain(["x".to_owned()]).collect();
        let lines = fixture.lines();
        assert_eq!(lines[lines.len() - expected.len()..], expected);
    }
    fixture.close().await;
}

#[tokio::test]
async fn only_the_jobs_user_can_read_a_secret_that_only_the_daemon_could() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new();
    let path = fixture.file("secret", "hunter2\n", 0o600);
    let script = "cat \"$DB_FILE\"; stat -Lc '%u %g %a' \"$DB_FILE\"; echo \"$DB_FILE\"; sleep 1000";
    let launch = as_nobody(with_secret(&mut fixture, script, &path));
    let (tree_id, pid) = fixture.start(launch).await;
    let in_memory = format!("/proc/{pid}/fd/3");
    fixture.line(&in_memory).await;
    assert_eq!(fixture.lines()[..2], ["hunter2", "65534 65533 400"]);
    let mut stranger = fixture.sh(&format!("cat {in_memory} || echo refused"));
    stranger.user = Some(cronkeeper_core::process::User { uid: 65_532, gid: 65_532, groups: vec![65_532] });
    stranger.directory = "/".into();
    fixture.start(stranger).await;
    fixture.line("refused").await;
    fixture.end().await;
    fixture.order(Order::Kill { tree_id });
    fixture.end().await;
    fixture.close().await;
}

#[tokio::test]
async fn a_secret_that_others_can_read_is_refused_and_an_empty_one_is_not() {
    let mut fixture = Fixture::new();
    let open = fixture.file("open", "hunter2", 0o640);
    let launch = with_secret(&mut fixture, "echo started", &open);
    let problem = |fault| StartStep::Secret(FileProblem { index: 0, fault });
    let refused = fixture.refused(launch).await;
    assert_eq!(refused, StartFailure::Step { step: problem(FileFault::Open), errno: 0 });
    let launch = with_secret(&mut fixture, "echo started", Path::new("/no/such/secret"));
    let refused = fixture.refused(launch).await;
    assert_eq!(refused, StartFailure::Step { step: problem(FileFault::System), errno: 2 });
    let empty = fixture.file("empty", "", 0o400);
    let launch = with_secret(&mut fixture, "wc -c < \"$DB_FILE\"", &empty);
    fixture.run(launch).await;
    assert_eq!(fixture.lines(), ["0"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_process_that_can_do_without_its_files_starts_with_those_that_can_be_used() {
    let mut fixture = Fixture::new();
    let script = r#"echo "$GOOD $BAD-"; cat "$DB_FILE"; env | grep -c ^GONE_FILE; echo "$CRONKEEPER_UNUSABLE_FILES""#;
    let bad = fixture.file("bad", "BAD=1\nX='\n", 0o600);
    let mut launch = with_file(&mut fixture, script, &bad);
    let good = fixture.file("good", "GOOD=good\nGONE_FILE=of-another\nCRONKEEPER_UNUSABLE_FILES=forged\n", 0o600);
    launch.files.environment.push(file(&good));
    let secret = fixture.file("secret", "hunter2\n", 0o600);
    let gone = Path::new("/no/such/secret");
    let of = |name: &str, path: &Path| SecretFile { name: name.into(), path: path.to_owned() };
    launch.files.secrets = vec![of("GONE", gone), of("DB", &secret)];
    launch.environment.push_variable("CRONKEEPER_UNUSABLE_FILES", "");
    let unclosed = FileFault::Line(BadLine { line: 2, fault: LineFault::Unclosed });
    assert_eq!(fixture.refused(launch.clone()).await, refusal(0, unclosed, 0));
    launch.tree_id.0 += 100;
    launch.files.are_dispensable = true;
    let tree_id = launch.tree_id;
    fixture.order_start(&launch);
    let missing = FileProblem { index: 0, fault: FileFault::System };
    let files = vec![
        UnusableFile { step: StartStep::Environment(FileProblem { index: 0, fault: unclosed }), errno: 0 },
        UnusableFile { step: StartStep::Secret(missing), errno: 2 },
    ];
    assert_eq!(fixture.notice().await, Notice::WithoutFiles { tree_id, files });
    fixture.end_of_start().await;
    let bad = bad.display().to_string();
    assert_eq!(fixture.lines(), ["good -", "hunter2", "0", &bad, "/no/such/secret"]);
    fixture.close().await;
}

#[tokio::test]
async fn a_process_that_can_do_without_its_files_starts_although_they_are_too_large_together() {
    let mut fixture = Fixture::new();
    let large = |name: &str| {
        let lines = (0..10).map(|number| format!("{name}{number}={}\n", "x".repeat(100_000)));
        fixture.file(name, &lines.collect::<String>(), 0o600)
    };
    // More than the 6 MiB that the kernel takes at most, whatever the limit of the stack.
    let files = ["A", "B", "C", "D", "E", "F", "G"].map(large);
    let mut launch = fixture.sh("echo ${#A9} ${#B9} ${#C9}");
    launch.files.environment = files.iter().map(|path| file(path)).collect();
    let too_large = nix::libc::E2BIG;
    let refused = fixture.refused(launch.clone()).await;
    assert_eq!(refused, StartFailure::Step { step: StartStep::Exec, errno: too_large });
    launch.tree_id.0 += 100;
    launch.files.are_dispensable = true;
    let tree_id = launch.tree_id;
    fixture.order_start(&launch);
    let without = |index| UnusableFile {
        step: StartStep::Environment(FileProblem { index, fault: FileFault::System }),
        errno: too_large,
    };
    assert_eq!(fixture.notice().await, Notice::WithoutFiles { tree_id, files: (1..7).map(without).collect() });
    fixture.end_of_start().await;
    assert_eq!(fixture.lines(), ["100000 0 0"]);
    fixture.close().await;
}
