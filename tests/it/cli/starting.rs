//! The command `run` when it cannot start: the message names the remedy.

use std::os::unix::fs::MetadataExt as _;

use super::{WorkingDirectory, assert_printed, transcript};
use crate::support::LONG;
use crate::support::command::{CRONKEEPER, command};
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::zookeeper::shared;

const JOBS: &str = "jobs: {}\n";

/// No server listens there, and no test here gets as far as connecting.
const ZOOKEEPER: &str = "127.0.0.1:1/chroot";

#[test]
fn the_error_for_a_directory_of_another_backend_names_the_remedy() {
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    let solo = Spec::new(CRONKEEPER, "solo");
    let node = solo.start();
    node.await_event("leader.elected", LONG);
    node.signal(rustix::process::Signal::TERM);
    node.wait_exit(LONG);
    let state = solo.state_dir();
    let state = state.to_str().unwrap();
    for command in ["run", "release"] {
        let mut line = vec![command, "--zookeeper", ZOOKEEPER, "--state-dir", state];
        line.extend(if command == "run" { &["--jobs", "jobs.yaml"][..] } else { &[] });
        assert_printed(&context.enter(&line).replace(state, "<state>"), "
        | cronkeeper: state directory `<state>` belongs to the solo backend, which has no service, but the settings name ZooKeeper under `/chroot`: correct --zookeeper (CRONKEEPER_ZOOKEEPER), or empty the directory, or set another --state-dir
        exit 78");
    }
}

#[test]
fn the_error_for_a_directory_in_use_names_its_holder() {
    let spec = Spec::new(CRONKEEPER, "holder").zookeeper(&shared());
    let node = spec.start();
    node.await_event("leader.elected", LONG);
    let (state, jobs) = (spec.state_dir(), spec.jobs_file());
    let (state, jobs) = (state.to_str().unwrap(), jobs.to_str().unwrap());
    let printed =
        WorkingDirectory::new().enter(&["run", "--zookeeper", ZOOKEEPER, "--jobs", jobs, "--state-dir", state]);
    let printed =
        printed.replace(state, "<state>").replace(&node.pid().to_string(), "<pid>").replace(node.name(), "<node>");
    assert_printed(&printed, "
        | cronkeeper: state directory `<state>` is in use by process <pid> (node <node>): stop that process, or set another --state-dir
        exit 78");
}

#[test]
fn the_error_for_a_missing_or_invalid_secret_names_its_file() {
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    context.dir.write("auth", "no colon");
    let line =
        ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--zookeeper", ZOOKEEPER, "--zookeeper-auth-file"];
    assert_printed(
        &context.enter(&[&line[..], &["absent"]].concat()),
        "
        | cronkeeper: `--zookeeper-auth-file`: cannot read absent: No such file or directory (os error 2)
        | hint: the user that cronkeeper runs as must be able to read it
        exit 78",
    );
    assert_printed(
        &context.enter(&[&line[..], &["auth"]].concat()),
        "
        | cronkeeper: `--zookeeper-auth-file`: auth must hold one `scheme:credential` per line
        | hint: for the scheme `digest` a line is `digest:user:password`
        exit 78",
    );
    let line =
        ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--zookeeper", ZOOKEEPER, "--zookeeper-ca", "auth"];
    assert_printed(
        &context.enter(&line),
        "
        | cronkeeper: `--zookeeper-ca`: auth is not PEM: it must be text with a certificate between lines `-----BEGIN ...-----` and `-----END ...-----`
        exit 78",
    );
}

#[test]
fn the_error_for_an_address_in_use_names_it() {
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--log", "error", "--listen", &address];
    assert_printed(
        &context.enter(&line).replace(&address, "<address>"),
        "
        | cronkeeper: cannot listen on <address>: Address already in use (os error 98)
        | hint: another process may use the port; choose another with `--listen`
        exit 1",
    );
}

#[test]
fn a_path_that_can_never_be_a_directory_is_refused_by_every_command() {
    use std::os::unix::fs::symlink;
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    for (link, target) in [("dangling", "nowhere"), ("circle", "circle")] {
        symlink(target, context.dir.path().join(link)).unwrap();
    }
    let run = &["run", "--jobs", "jobs.yaml"][..];
    let asking = [&["status"][..], &["history"], &["logs", "tick"], &["trigger", "tick"], &["pause", "--all"]];
    let asking = asking.into_iter().chain([&["check", "jobs.yaml", "--diff"][..], &["drain"], &["kill", "tick"]]);
    for (path, why) in [
        ("jobs.yaml", "is not a directory"),
        ("jobs.yaml/state", "is below `jobs.yaml`, which is not a directory"),
        ("dangling", "is a link to something that does not exist"),
        ("circle", "is a link that leads back to itself"),
    ] {
        let refused = |line: &[&str], option: &str| {
            let expected = format!(
                "
                | cronkeeper: `{option}`: `{path}` {why}; name a directory, or a path where one can be created
                exit 78"
            );
            assert_printed(&context.enter(&[line, &[option, path]].concat()), &expected);
        };
        refused(run, "--state-dir");
        refused(&["release"], "--state-dir");
        refused(&[run, &["--state-dir", "state"]].concat(), "--runtime-dir");
        for line in asking.clone() {
            refused(line, "--state-dir");
            refused(line, "--runtime-dir");
        }
    }
    let mut line = context.line(&["release"]);
    let printed = transcript(line.env("CRONKEEPER_STATE_DIR", "jobs.yaml"));
    assert!(printed.contains("`--state-dir` (CRONKEEPER_STATE_DIR): `jobs.yaml` is not"), "{printed}");
    assert!(!context.dir.path().join("nowhere").exists(), "what a link leads to is not created");
}

#[test]
fn a_file_of_the_address_that_cannot_be_used_is_named_with_its_option() {
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    let empty = context.dir.write("empty", "");
    std::fs::set_permissions(&empty, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let line = ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--listen", "127.0.0.1:0"];
    let with = |more: &[&str]| context.enter(&[&line[..], more].concat());
    for (options, option) in [
        (&["--listen-cert", "empty", "--listen-key", "empty"][..], "--listen-cert"),
        (&["--api-token-file", "empty"], "--api-token-file"),
        (&["--api-token-file", "none"], "--api-token-file"),
        (&["--peer-ca", "empty"], "--peer-ca"),
        (&["--peer-ca", "/dev/null"], "--peer-ca"),
    ] {
        let printed = with(options);
        assert!(printed.contains(&format!("| cronkeeper: `{option}`: ")), "{options:?}: {printed}");
        assert!(printed.trim_end().ends_with("exit 78"), "{options:?}: {printed}");
    }
    let mut command = context.line(&line);
    let printed = transcript(command.env("CRONKEEPER_PEER_CA", "empty"));
    assert!(printed.contains("`--peer-ca` (CRONKEEPER_PEER_CA): empty is empty"), "{printed}");
    for (options, option) in [(&["--token-file", "empty"][..], "--token-file"), (&["--cacert", "empty"], "--cacert")] {
        let printed = context.enter(&[&["status", "--host", "https://127.0.0.1:1"], options].concat());
        assert!(printed.contains(&format!("`{option}`")), "{printed}");
    }
}

/// What a command writes to a stream that leads to the journal.
fn on_the_journal(line: &[&str]) -> String {
    let dir = Scratch::new("journal");
    let path = dir.write("stderr", "");
    let stream = std::fs::File::options().append(true).open(&path).unwrap();
    let facts = stream.metadata().unwrap();
    let name = format!("{}:{}", facts.dev(), facts.ino());
    command(line).env("JOURNAL_STREAM", name).stderr(stream).status().unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn why_it_does_not_start_is_an_error_in_the_journal() {
    let wrong = on_the_journal(&["run", "--jobs", "/nowhere/jobs.yaml", "--state-dir", "/nowhere/state", "--strict"]);
    let usage = on_the_journal(&["run", "--zookeeper", ""]);
    for text in [wrong, usage] {
        assert!(text.lines().count() > 0 && text.lines().all(|line| line.starts_with("<3>")), "{text}");
    }
}

#[test]
fn settings_can_come_from_the_environment() {
    let context = WorkingDirectory::new();
    let printed = transcript(context.line(&["run"]).env("CRONKEEPER_JOBS", "elsewhere.yaml"));
    assert!(printed.starts_with("| cronkeeper: cannot read elsewhere.yaml"), "{printed}");
}
