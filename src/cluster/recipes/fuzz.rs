//! Fuzz test of a ledger that somebody has tampered with.
//!
//! Each input line is a path below `/cronkeeper` and its data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;

use super::tests_support::{ByHand, Server};
use super::{context, forget, lasts, place, requests, snapshot};
use crate::fuzz::{Fuzz, LEDGER_WORDS, text};
use crate::paths;
use cronkeeper_core::election::Defined;
use cronkeeper_core::job::Digest;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::run::{Outcome, RunEnd};
use cronkeeper_core::term::SessionId;

fn done<T>(future: impl Future<Output = Result<T, context::SessionError>>) -> T {
    future.now_or_never().unwrap().unwrap()
}

#[test]
fn fuzz_ledger_in_zookeeper() {
    Fuzz { longest: 16 << 10, ..Fuzz::of("ledger", LEDGER_WORDS) }.run(|input| {
        let server = Server::default();
        // 2026-11-20T10:00:00Z, or servers without a clock.
        server.tree().time_ms = if input.len() % 2 == 0 { 1_795_168_800_000 } else { 0 };
        let text = text(input);
        let mut lines = 0;
        for (path, data) in text.lines().filter_map(|line| line.split_once(' ')) {
            server.tree().put(&format!("{}/{path}", paths::ROOT), data);
            server.tree().put(&format!("{}/{path}", paths::LEADER), data);
            lines += 1;
        }
        let (found, damaged) = done(snapshot::read_for_takeover(&server, &BTreeSet::new()));
        let _ = (done(place::ordered(&server)), done(snapshot::members(&server)));
        for running in &found.running {
            let end = RunEnd::unseen(&running.record, Outcome::Success, None, Timestamp::UNIX_EPOCH);
            let _ = done(lasts::write_of(&server, &end, Timestamp::UNIX_EPOCH));
        }
        done(lasts::AllLasts::default().refresh(&server));
        for job in found.jobs.keys() {
            let _ = (done(requests::triggered(&server, job)), done(requests::control(&server, job)));
        }
        let defined = Arc::new(Defined { digest: Digest::of(b"jobs"), jobs: BTreeSet::new(), ..Defined::default() });
        let second = Some(Duration::from_secs(1));
        let (fence, after) = ("/leader/x".to_owned(), ForgetAfter { jobs: second, nodes: second });
        let order = forget::ForgetOrder { fence, defined, after, now_ms: i64::MAX, behind: None };
        let _ = forget::look(server.context(ByHand::default()), order).now_or_never().unwrap();
        let _ = damaged.iter().map(ToString::to_string).count();
        lines > damaged.len()
    });
}

/// One session id per line.
#[test]
fn fuzz_session_ids() {
    Fuzz { longest: 8 << 10, ..Fuzz::of("names", LEDGER_WORDS) }.run(|input| {
        let sessions =
            text(input).lines().filter_map(|line| SessionId::try_from(line.to_owned()).ok()).collect::<Vec<_>>();
        let _ = sessions.iter().filter_map(crate::zookeeper::owner_of).count();
        !sessions.is_empty()
    });
}
