//! ZooKeeper servers: they start, die, restart, check certificates and passwords, and end with the test process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::support::process::Process;
use crate::support::tls::ClientCertificate;
use crate::support::zookeeper::{Ensemble, shared};
use crate::support::{scratch::Scratch, until};

#[tokio::test]
async fn another_server_leads_when_the_leader_is_killed_and_the_data_is_still_there() {
    let ensemble = Ensemble::start(3);
    let client = Client::connect(&ensemble.connect_string()).await.unwrap();
    client.create("/kept", b"data", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    let old = ensemble.leader();
    assert_eq!(ensemble.followers().len(), 2);

    ensemble.kill(old);
    let new = ensemble.leader();
    assert_ne!(new, old);
    let client = Client::connect(&ensemble.connect_string_of(new)).await.unwrap();
    assert_eq!(client.get_data("/kept").await.unwrap().0, b"data");

    ensemble.restart(old);
    ensemble.await_serving();
    assert_eq!(ensemble.mode(old).as_deref(), Some("follower"));
}

#[test]
fn another_server_leads_when_the_leader_is_paused_and_it_follows_afterwards() {
    let ensemble = Ensemble::start(3);
    let old = ensemble.leader();
    ensemble.pause(old);
    assert_eq!(ensemble.four_letter(old, "srvr"), "", "a paused server is silent");
    let new = ensemble.leader_other_than(old);
    ensemble.cont(old);
    ensemble.await_serving();
    assert_ne!(new, old);
}

#[tokio::test]
async fn tests_that_share_a_server_do_not_see_each_other() {
    let (one, other) = (shared(), shared());
    let (one, other) = (Client::connect(&one).await.unwrap(), Client::connect(&other).await.unwrap());
    one.create("/leader", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    assert!(one.check_stat("/leader").await.unwrap().is_some());
    assert!(other.check_stat("/leader").await.unwrap().is_none());
}

#[tokio::test]
async fn a_server_reports_its_watches_and_ephemeral_nodes() {
    let ensemble = Ensemble::start(1);
    let client = Client::connect(&ensemble.connect_string()).await.unwrap();
    client.create("/a", b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await.unwrap();
    let (_, _watch) = client.check_and_watch_stat("/a").await.unwrap();
    assert_eq!((ensemble.ephemerals(0), ensemble.watch_count(0)), (1, 1));
    assert_eq!(ensemble.watches(0)["/a"].len(), 1);
}

#[tokio::test]
async fn a_server_that_needs_certificates_accepts_a_client_with_one_and_no_other() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::Needed).start();
    let (connect, certificates) = (ensemble.secure_connect_string(), ensemble.certificates());
    let known = Client::connector().with_tls(certificates.identified()).secure_connect(&connect).await;
    assert!(known.unwrap().check_stat("/").await.unwrap().is_some());

    let connector = Client::connector().with_session_timeout(Duration::from_secs(2)).with_fail_eagerly();
    let stranger = connector.with_tls(certificates.anonymous()).secure_connect(&connect).await;
    assert!(stranger.is_err(), "a client without a certificate was let in");
}

#[tokio::test]
async fn a_server_with_tls_alone_accepts_who_trusts_it() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::NotAsked).start();
    let connector = Client::connector().with_tls(ensemble.certificates().anonymous());
    let client = connector.secure_connect(&ensemble.secure_connect_string()).await.unwrap();
    assert!(client.check_stat("/").await.unwrap().is_some());
}

#[tokio::test]
async fn the_secured_place_is_open_to_its_credential_only() {
    let ensemble = Ensemble::start(1);
    let place = ensemble.secured("cron:secret").await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());

    let stranger = Client::connector().with_auth("digest", b"cron:guess").connect(&place).await.unwrap();
    assert_eq!(stranger.create("/a", b"", &options).await.unwrap_err(), Error::NoAuth);
    let nobody = Client::connect(&place).await.unwrap();
    assert_eq!(nobody.list_children("/").await.unwrap_err(), Error::NoAuth);
    let known = Client::connector().with_auth("digest", b"cron:secret").connect(&place).await.unwrap();
    known.create("/a", b"", &options).await.unwrap();
}

#[test]
fn nothing_is_left_of_an_ensemble_that_was_dropped() {
    let ensemble = Ensemble::start(1);
    let (dir, pid) = (ensemble.dir().to_owned(), ensemble.pid_of(0));
    drop(ensemble);
    assert!(!dir.exists());
    assert!(!Path::new("/proc").join(pid.to_string()).exists());
}

/// The next test runs this one in a process of its own and kills it.
#[test]
#[ignore = "waits to be killed"]
fn a_test_that_is_killed() {
    let ensemble = Ensemble::start(1);
    let line = format!("{} {}", ensemble.pid_of(0), ensemble.dir().display());
    let report = std::env::var_os("HARNESS_REPORT").expect("the next test starts this one");
    std::fs::write(Path::new(&report).with_extension("new"), line).unwrap();
    std::fs::rename(Path::new(&report).with_extension("new"), report).unwrap();
    std::thread::park();
}

#[test]
fn nothing_is_left_of_an_ensemble_whose_test_process_was_killed() {
    let scratch = Scratch::new("killed");
    let report = scratch.path().join("report");
    let own = std::env::current_exe().unwrap();
    let test = Process::spawn(own.to_str().unwrap(), |command: &mut Command| {
        command
            .args(["--ignored", "--exact", "harness::servers::a_test_that_is_killed"])
            .env("HARNESS_REPORT", &report);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    let test = test.unwrap();
    until("the ensemble was started", || report.exists());
    let line = std::fs::read_to_string(&report).unwrap();
    let (pid, dir) = line.split_once(' ').unwrap();

    test.kill();
    until("the server is gone", || !is_alive(pid));
    until("its directory is gone", || !Path::new(dir).exists());
}

fn is_alive(pid: &str) -> bool {
    // If nobody reaps orphans, a zombie remains.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
