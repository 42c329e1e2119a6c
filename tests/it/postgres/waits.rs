//! What becomes of a commit whose wait for a standby is ended by an administrator: the server keeps it, says so only in
//! a warning or not at all, and the standby may lack it.

use cronkeeper_cluster::postgres::{Postgres, SCHEMA, Settings};
use cronkeeper_cluster::store::{If, NotDone, Op, Rewinds, Store as _, Then};
use cronkeeper_cluster::tree::Error;
use cronkeeper_core::run::Version;
use rustix::process::Signal;
use tokio::task::block_in_place;

use super::failover::Pair;
use crate::support::postgres::Server;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// The server's functions that end a wait.
const ENDINGS: [&str; 2] = ["pg_cancel_backend", "pg_terminate_backend"];

/// Ends the waits of commits for a standby, once there is one.
fn end_waits(server: &Server, ending: &str) {
    let sql = format!(
        "SELECT count({ending}(pid)) FROM pg_stat_activity \
         WHERE wait_event = 'SyncRep' AND application_name = 'cronkeeper'"
    );
    until("a commit waits for the standby", || server.sql("postgres", &sql) != "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_wait_is_ended_has_no_answer_and_took_effect() {
    let Pair { primary, standby } = Pair::start();
    primary.sql("postgres", SCHEMA);
    primary.set("synchronous_standby_names", "*");
    let settings = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", primary.port());
    let settings: Settings = settings.parse().expect("they are correct");
    let store = Postgres::new(settings, LONG, Rewinds::Accepted);
    for ending in ENDINGS {
        let make = || vec![Op { path: format!("/{ending}"), when: If::Absent, then: Then::Put(Vec::new()) }];
        standby.signal(Signal::STOP);
        let committing = tokio::spawn(store.commit(make()));
        block_in_place(|| end_waits(&primary, ending));
        let answer = committing.await.expect("it ends");
        assert!(matches!(answer, Err(NotDone::Failed(Error::Unanswered(_)))), "{ending}: {answer:?}");
        standby.signal(Signal::CONT);
        // Its trace: sent again, it is refused because it is there.
        let again = loop {
            match store.commit(make()).await {
                Err(NotDone::Failed(Error::Unanswered(_))) => {}
                answer => break answer,
            }
        };
        assert_eq!(again, Err(NotDone::Refused { index: 0, found: Some(Version::FIRST) }), "{ending}");
    }
}

#[test]
fn no_occurrence_is_lost_or_doubled_when_the_waits_of_commits_are_ended() {
    let (pair, witness) = (Pair::start(), Witness::new());
    pair.primary.set("synchronous_standby_names", "*");
    let nodes = ["a", "b"].map(|name| pair.node(name, &witness).start());
    witness.await_more(2);
    for ending in ENDINGS {
        pair.standby.signal(Signal::STOP);
        // What is sent again waits too.
        end_waits(&pair.primary, ending);
        end_waits(&pair.primary, ending);
        pair.standby.signal(Signal::CONT);
        witness.await_more(2);
    }
    witness.assert_fine(&[]);
    for node in &nodes {
        assert_eq!(node.events().count("coordination.rewound"), 0);
        node.signal(Signal::TERM);
        assert_eq!(node.wait_exit(LONG).code(), Some(0));
    }
}
