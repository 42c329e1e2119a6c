//! `run` that cannot start: it says what to change, and ends at once.

use super::{SessionContext, assert_said, transcript};
use crate::support::LONG;
use crate::support::command::CRONKEEPER;
use crate::support::node::Spec;
use crate::support::zookeeper::shared;

const JOBS: &str = "jobs: {}\n";

/// Nobody listens there; it is not asked either.
const ZOOKEEPER: &str = "127.0.0.1:1/chroot";

#[test]
fn a_directory_of_another_backend_says_what_to_change() {
    let context = SessionContext::with("jobs.yaml", JOBS);
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
        assert_said(&context.enter(&line).replace(state, "<state>"), "
        | cronkeeper: state directory `<state>` belongs to the solo backend (no --zookeeper), but this start asks for ZooKeeper under `/chroot`: correct --zookeeper (CRONKEEPER_ZOOKEEPER), or give another --state-dir
        exit 78");
    }
}

#[test]
fn a_taken_directory_names_its_holder() {
    let spec = Spec::new(CRONKEEPER, "holder").zookeeper(&shared());
    let node = spec.start();
    node.await_event("leader.elected", LONG);
    let (state, jobs) = (spec.state_dir(), spec.jobs_file());
    let (state, jobs) = (state.to_str().unwrap(), jobs.to_str().unwrap());
    let said = SessionContext::new().enter(&["run", "--zookeeper", ZOOKEEPER, "--jobs", jobs, "--state-dir", state]);
    let said = said.replace(state, "<state>").replace(&node.pid().to_string(), "<pid>").replace(node.name(), "<node>");
    assert_said(&said, "
        | cronkeeper: state directory `<state>` is in use by process <pid> (node <node>): give this one another by --state-dir, or stop that one
        exit 78");
}

#[test]
fn a_file_with_a_secret_that_is_not_there_or_not_one_is_named() {
    let context = SessionContext::with("jobs.yaml", JOBS);
    context.dir.write("auth", "no colon");
    let line =
        ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--zookeeper", ZOOKEEPER, "--zookeeper-auth-file"];
    assert_said(
        &context.enter(&[&line[..], &["absent"]].concat()),
        "
        | cronkeeper: cannot read absent: No such file or directory (os error 2)
        | hint: the user that cronkeeper runs as must be able to read it
        exit 78",
    );
    assert_said(
        &context.enter(&[&line[..], &["auth"]].concat()),
        "
        | cronkeeper: auth does not hold `scheme:credential`, one identity a line
        | hint: for the scheme digest it reads `digest:user:password`
        exit 78",
    );
    let line =
        ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--zookeeper", ZOOKEEPER, "--zookeeper-ca", "auth"];
    assert_said(
        &context.enter(&line),
        "
        | cronkeeper: the options for ZooKeeper cannot be used: bad arguments: no valid tls trust anchor in pem
        | hint: certificates and keys are read as PEM
        exit 78",
    );
}

#[test]
fn an_address_that_cannot_be_listened_on_is_named() {
    let context = SessionContext::with("jobs.yaml", JOBS);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = ["run", "--jobs", "jobs.yaml", "--state-dir", "state", "--log", "error", "--listen", &address];
    assert_said(
        &context.enter(&line).replace(&address, "<address>"),
        "
        | cronkeeper: cannot listen on <address>: Address already in use (os error 98)
        | hint: another process may have the port; `--listen` names another
        exit 1",
    );
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let context = SessionContext::with("jobs.yaml", JOBS);
    let said = context.enter(&["run", "--jobs", "jobs.yaml", "--state-dir", "jobs.yaml/state"]);
    assert_said(&said, "
        | cronkeeper: state directory `jobs.yaml/state` cannot be made: Not a directory (os error 20)
        | hint: the state directory must belong to the user that cronkeeper runs as, on a disk with room; `--state-dir` names another
        exit 1");
}

#[test]
fn settings_come_from_the_environment_too() {
    let context = SessionContext::new();
    let said = transcript(context.line(&["run"]).env("CRONKEEPER_JOBS", "elsewhere.yaml"));
    assert!(said.starts_with("| cronkeeper: cannot read elsewhere.yaml"), "{said}");
}
