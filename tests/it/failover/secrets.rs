//! Passwords, access lists and certificates between the daemon and the servers.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use zookeeper_client::{Client, Error};

use super::cluster::{Place, Zk, in_line, job, jobs, node, usual};
use super::standing_open::{said, the_line_of};
use super::start::{refused, with_credential};
use crate::support::node::Spec;
use crate::support::tls::ClientCertificate;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

#[test]
fn with_a_credential_nobody_else_may_change_what_cronkeeper_made() {
    let ensemble = Ensemble::start(1);
    let witness = Witness::new();
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let (_dir, spec) = with_credential(node("a", &ensemble.connect_string()), "digest:cron:secret");
    let [_node] = in_line([usual(spec).jobs(&file)]);
    let owner = Zk::with(Client::connector().with_auth("digest", b"cron:secret"), &ensemble.connect_string());
    until("a run has ended", || !owner.children("/cronkeeper/history/tick").is_empty());

    let stranger = Zk::with(Client::connector().with_auth("digest", b"other:secret"), &ensemble.connect_string());
    let candidate = format!("/leader/{}", owner.children("/leader")[0]);
    let run = format!("/cronkeeper/history/tick/{}", owner.children("/cronkeeper/history/tick")[0]);
    for path in ["/leader", "/cronkeeper/cluster", "/cronkeeper/jobs/tick", &candidate, &run] {
        assert_eq!(stranger.set(path, b"mine"), Err(Error::NoAuth), "{path}");
    }
    for path in [&candidate, &run] {
        assert_eq!(stranger.delete(path), Err(Error::NoAuth), "{path}");
    }
}

#[test]
fn over_tls_with_and_without_a_certificate_of_its_own() {
    for asked in [ClientCertificate::NotAsked, ClientCertificate::Needed] {
        let ensemble = Ensemble::builder(1).tls(asked).start();
        let certificates = ensemble.certificates();
        let trusting =
            usual(node("a", &ensemble.secure_connect_string())).option_path("--zookeeper-ca", &certificates.ca);
        let spec = match asked {
            ClientCertificate::NotAsked => trusting,
            ClientCertificate::Needed => {
                // Without a credential the node is not let in, and keeps trying.
                let node = trusting.start();
                until("it is not let in", || node.events().named("coordination.unreachable").len() >= 2);
                assert!(node.events().named("election.joined").is_empty());
                trusting
                    .option_path("--zookeeper-cert", &certificates.client_cert)
                    .option_path("--zookeeper-key", &certificates.client_key)
            }
        };
        let node = spec.start();
        node.await_event("takeover.done", LONG);
        if asked == ClientCertificate::NotAsked {
            assert!(the_line_of(&node).contains("has no identity"));
        }
    }
}

#[test]
fn why_a_servers_certificate_is_refused_can_be_had() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::NotAsked).start();
    // Any authority except the servers' own.
    let foreign = ensemble.certificates().client_cert.clone();
    let spec = usual(node("a", &ensemble.secure_connect_string())).option_path("--zookeeper-ca", &foreign);
    let node = spec.option("--log", "cronkeeper=info,zookeeper_client=debug").start();
    let said = node.await_event("coordination.unreachable", LONG);
    assert!(said.text("error").contains("zookeeper_client=debug"), "{}", said.plain());
    node.await_where("log", LONG, |line| line.text("message").contains("InvalidCertificate"));
}

const CERTIFICATE: [&str; 2] = ["--zookeeper-cert", "--zookeeper-key"];

/// A node that presents the client's certificate.
fn with_certificate(name: &str, ensemble: &Ensemble, chroot: &str, file: &str) -> Spec {
    let certificates = ensemble.certificates();
    let spec = usual(node(name, &format!("{}{chroot}", ensemble.secure_connect_string()))).jobs(file);
    showing(spec, ensemble, [&certificates.client_cert, &certificates.client_key])
}

fn showing(spec: Spec, ensemble: &Ensemble, shown: [&PathBuf; 2]) -> Spec {
    let spec = spec.option_path("--zookeeper-ca", &ensemble.certificates().ca);
    CERTIFICATE.into_iter().zip(shown).fold(spec, |spec, (option, path)| spec.option_path(option, path))
}

#[test]
fn a_certificate_is_an_identity_without_an_authentication_file() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::Needed).start();
    let (place, witness) = (Place::on(&ensemble), Witness::new());
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let [a, b] = in_line(["a", "b"].map(|name| with_certificate(name, &ensemble, &place.chroot, &file)));
    let owner = Zk::secure(ensemble.certificates().identified(), &ensemble.secure_connect_string());
    let history = place.path("/cronkeeper/history/tick");
    until("a run has ended", || !owner.children(&history).is_empty());
    let stranger = &place.zk;
    for root in ["/leader", "/cronkeeper"] {
        let paths = owner.walk(&place.path(root));
        let open = paths.iter().skip(1).filter(|path| !stranger.may(path).is_empty()).collect::<Vec<_>>();
        assert!(open.is_empty() && !paths.is_empty(), "{open:#?}");
    }
    a.kill9();
    b.await_event("takeover.done", LONG);
    let next = |name: &str| witness.entries().iter().any(|entry| entry.node == name);
    until("the next one runs the job", || next(b.name()));
    let a = a.again();
    a.await_event("election.following", LONG);
    for node in [&a, &b] {
        assert_eq!((said(node), node.events().named("coordination.damaged").len()), (Vec::new(), 0));
    }
    witness.assert_fine(&[]);
}

#[test]
fn a_node_with_a_certificate_of_another_subject_is_refused_and_says_why() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::Needed).start();
    let [_own] = in_line([with_certificate("a", &ensemble, "", "jobs: {}\n")]);
    let other = usual(node("b", &ensemble.secure_connect_string()));
    let (certificate, key) = &ensemble.certificates().other;
    let other = showing(other, &ensemble, [certificate, key]).start();
    refused(&other, "not authorized", "same subject");
}

#[test]
fn a_certificate_closes_nothing_while_any_part_of_the_tree_was_open_before() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::Needed).start();
    let place = Place::on(&ensemble);
    place.zk.create(&place.path("/leader"));
    let [node] = in_line([with_certificate("a", &ensemble, &place.chroot, "jobs: {}\n")]);
    assert!(the_line_of(&node).contains("before"));
}

#[test]
fn a_certificate_that_the_servers_do_not_ask_for_is_no_identity() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::NotAsked).start();
    let [node] = in_line([with_certificate("a", &ensemble, "", "jobs: {}\n")]);
    assert!(the_line_of(&node).contains("certificate"));
}

#[test]
fn a_certificate_alone_locks_no_node_out_of_what_stood_open_and_with_a_line_in_the_file_it_closes_that() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::Needed).start();
    let (place, witness) = (Place::on(&ensemble), Witness::new());
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let certified = with_certificate("b", &ensemble, &place.chroot, &file);
    let [plain, shown] = in_line([usual(place.node("a")).jobs(&file), certified.clone()]);
    assert!(the_line_of(&shown).contains("before"));
    plain.kill9();
    shown.await_event("takeover.done", LONG);
    let plain = plain.again();
    plain.await_event("election.following", LONG);
    shown.signal(Signal::TERM);
    shown.wait_exit(LONG);
    plain.await_event("takeover.done", LONG);
    let ran = witness.entries().len();
    until("what the other wrote is no hindrance", || witness.entries().len() > ran);
    assert!(plain.events().named("coordination.damaged").is_empty(), "{}", plain.events().tail());

    let (_dir, certified) = with_credential(certified, "x509:");
    let shown = certified.start();
    shown.await_event("election.following", LONG);
    plain.signal(Signal::TERM);
    plain.wait_exit(LONG);
    shown.await_event("takeover.done", LONG);
    let owner = Zk::secure(ensemble.certificates().identified(), &ensemble.secure_connect_string());
    let paths = || ["/cronkeeper", "/leader"].into_iter().flat_map(|root| owner.walk(&place.path(root)));
    until("all is closed to others", || !paths().any(|path| place.zk.may_set(&path) && owner.is_there(&path)));
    witness.assert_fine(&[]);
}

trait OptionPath {
    fn option_path(&self, option: &str, path: &Path) -> Spec;
}

impl OptionPath for Spec {
    fn option_path(&self, option: &str, path: &Path) -> Spec {
        self.clone().option(option, &path.display().to_string())
    }
}
