//! Passwords, access lists and certificates between the daemon and the servers.

use std::path::Path;

use zookeeper_client::{Client, Error};

use super::cluster::{Zk, in_line, job, jobs, node, usual};
use super::start::with_credential;
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
                // Without one it is not let in, and goes on asking.
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
    }
}

trait OptionPath {
    fn option_path(&self, option: &str, path: &Path) -> Spec;
}

impl OptionPath for Spec {
    fn option_path(&self, option: &str, path: &Path) -> Spec {
        self.clone().option(option, &path.display().to_string())
    }
}
