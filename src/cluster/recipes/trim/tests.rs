//! Tests of trimming: what is deleted, with how many requests, and with other trimmers or silent servers.

use futures_util::FutureExt;

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::{ByHand, Right, Server};
use crate::recipes::transaction::tests::{at, name, skip};
use crate::test_records::{record, success};
use cronkeeper_core::ledger::Last;
use cronkeeper_core::run::Version;
use cronkeeper_core::run::{HistoryRecord, RunId};
use cronkeeper_core::term::NodeName;

struct Fixture {
    server: Server,
    clock: ByHand,
    trimmer: Trimmer<Server, ByHand>,
    leads: bool,
}

impl Fixture {
    fn new() -> Self {
        let (server, clock) = (Server::default(), ByHand::default());
        let trimmer = Trimmer::new(server.context(clock.clone()));
        Self { server, clock, trimmer, leads: false }
    }

    fn now(&self) -> Uptime {
        self.clock.now().up
    }

    /// Writes a record behind this session's back.
    fn put(&self, job: &str, second: i64, kind: RecordKind) -> WrittenRecord {
        let run = RunId::scheduled(name(job), at(second));
        let data = match kind {
            RecordKind::Run => json(&HistoryRecord::Run(success(record(job, second, "0x1")))),
            RecordKind::Skip => json(&HistoryRecord::Skip(skip(job, second))),
        };
        let mut tree = self.server.tree();
        tree.put(&paths::job_history(run.job()), "");
        let last = Last::after(None, &success(record(job, second, "0x1")), at(second));
        tree.put(&paths::last(run.job()), json(&last));
        let path = paths::history(&run);
        tree.put(&path, data);
        let version = Version(tree.stat(&path).unwrap().version);
        WrittenRecord { job: name(job), run, kind, version }
    }

    /// Writes the share of a node behind this session's back.
    fn put_share(&self, job: &str, second: i64, node: &str) {
        let mut end = success(record(job, second, "0x1"));
        end.run.on = Some(NodeName::new(node));
        let mut tree = self.server.tree();
        tree.put(&paths::job_history(&name(job)), "");
        tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
    }

    fn end(&mut self, job: &str, second: i64) {
        let written = self.put(job, second, RecordKind::Run);
        self.trimmer.grew(written, self.now());
    }

    /// Completes one request; false if none is in flight.
    fn turn(&mut self) -> bool {
        self.trimmer.start_next(self.now(), self.leads);
        let Some(step) = self.trimmer.step().now_or_never().flatten() else { return false };
        self.trimmer.complete(step, self.now());
        true
    }

    /// Does everything that can be done without time passing.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("trimming did not settle");
    }

    fn pass(&mut self, time: Duration) {
        self.clock.pass(time);
        self.settle();
    }

    /// The times of a job's records, in seconds.
    fn left(&self, job: &str) -> Vec<i64> {
        let names = self.server.tree().names(&paths::job_history(&name(job)));
        names.iter().map(|name| RunId::parse(name).unwrap().scheduled_at().as_second()).collect()
    }
}

/// What would be deleted by a record that is lost is one of the newest.
#[test]
fn what_the_service_has_lost_is_not_counted() {
    let lose = |fixture: &Fixture, seconds: &[i64]| {
        for &second in seconds {
            fixture.server.tree().remove(&paths::history(&RunId::scheduled(name("backup"), at(second))));
        }
    };
    let newest = |seconds: std::ops::Range<i64>, end| seconds.chain([end]).collect::<Vec<_>>();
    let mut fixture = Fixture::new();
    (0..20).for_each(|second| fixture.end("backup", second));
    fixture.settle();
    lose(&fixture, &[18, 19]);
    fixture.trimmer.list_again();
    fixture.end("backup", 20);
    fixture.pass(GATHER);
    assert_eq!(fixture.left("backup"), newest(0..18, 20));

    // It was listed, but the listing has not been handled yet.
    let mut fixture = Fixture::new();
    (0..20).for_each(|second| fixture.end("backup", second));
    fixture.trimmer.start_next(fixture.now(), false);
    let listed = fixture.trimmer.step().now_or_never().flatten().expect("it is listed");
    lose(&fixture, &[18, 19]);
    fixture.trimmer.list_again();
    fixture.trimmer.complete(listed, fixture.now());
    fixture.end("backup", 20);
    fixture.pass(GATHER);
    assert_eq!(fixture.left("backup"), newest(0..18, 20));

    // One too many was known, and some are lost before it is deleted.
    let mut fixture = Fixture::new();
    (0..21).for_each(|second| fixture.end("backup", second));
    fixture.turn();
    lose(&fixture, &[19, 20]);
    fixture.trimmer.list_again();
    fixture.pass(GATHER);
    assert_eq!(fixture.left("backup"), (0..19).collect::<Vec<_>>());
}

#[test]
fn a_job_is_listed_once_and_each_further_end_costs_one_delete_and_no_read() {
    let mut fixture = Fixture::new();
    (0..20).for_each(|second| fixture.end("backup", second));
    fixture.settle();
    assert_eq!(fixture.server.tree().multis, [0; 0]);
    let requests = |fixture: &Fixture| {
        let tree = fixture.server.tree();
        (tree.listings, tree.reads)
    };
    assert_eq!(requests(&fixture), (1, 20));
    for second in 20..50 {
        fixture.end("backup", second);
        fixture.pass(GATHER);
        assert_eq!(fixture.left("backup"), (second - 19..=second).collect::<Vec<_>>());
    }
    assert_eq!((requests(&fixture), fixture.server.tree().multis.clone()), ((1, 20), vec![1; 30]));
}

#[test]
fn in_its_round_the_leader_trims_what_forgotten_nodes_have_left() {
    let mut fixture = Fixture::new();
    for second in 0..60 {
        fixture.put_share("each", second, &format!("pod-{second}"));
        fixture.put_share("each", second, "host-a");
    }
    fixture.leads = true;
    let pods = (0..60).map(|second| format!("pod-{second}"));
    let nodes = |names: &mut dyn Iterator<Item = String>| names.map(|name| NodeName::new(&name)).collect();
    fixture.trimmer.know_nodes(Roster(Some(nodes(&mut pods.chain(["host-a".to_owned()])))));
    fixture.settle();
    let round = |fixture: &mut Fixture| {
        fixture.pass(SWEEP_AFTER[1]);
        (0..5).for_each(|_| fixture.pass(SWEEP_EVERY));
    };
    round(&mut fixture);
    assert_eq!(fixture.left("each").len(), 60 + 20, "they may come back");
    fixture.trimmer.know_nodes(Roster(Some(nodes(&mut ["host-a".to_owned()].into_iter()))));
    round(&mut fixture);
    let expected: Vec<i64> = (40..60).flat_map(|second| [second, second]).collect();
    assert_eq!(fixture.left("each"), expected);
    assert!(fixture.server.tree().multis.iter().all(|&ops| ops <= MOST_DELETES));
}

#[test]
fn a_burst_of_ends_is_trimmed_without_a_pause_and_its_deletes_share_multis() {
    let mut fixture = Fixture::new();
    let jobs: Vec<String> = (0..2_000).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        (0..20).for_each(|second| drop(fixture.put(job, second, RecordKind::Run)));
        fixture.end(job, 60);
    }
    fixture.settle();
    fixture.pass(GATHER);
    for job in &jobs {
        assert_eq!(fixture.left(job).len(), 20, "{job}");
    }
    let multis = fixture.server.tree().multis.clone();
    assert!(multis.len() <= 40 && multis.iter().all(|&deletes| deletes <= MOST_DELETES), "{multis:?}");
    for second in 61..71 {
        jobs.iter().for_each(|job| fixture.end(job, second));
        fixture.settle();
        fixture.pass(GATHER);
        assert!(jobs.iter().all(|job| fixture.left(job).len() == 20), "after second {second}");
    }
}

#[test]
fn the_number_of_requests_in_flight_is_limited() {
    let mut fixture = Fixture::new();
    for number in 0..1_000 {
        let job = format!("job-{number}");
        (0..20).for_each(|second| drop(fixture.put(&job, second, RecordKind::Run)));
        fixture.end(&job, 60);
    }
    let mut most = 0;
    while fixture.turn() {
        fixture.trimmer.start_next(fixture.now(), false);
        assert!(fixture.trimmer.listing.len() <= MOST_LISTINGS && fixture.trimmer.deleting <= MOST_MULTIS);
        most = most.max(fixture.trimmer.steps.len());
    }
    assert!(most <= MOST_LISTINGS + MOST_MULTIS, "{most}");
}

#[test]
fn records_written_while_the_job_is_listed_count_once() {
    let mut fixture = Fixture::new();
    (0..20).for_each(|second| drop(fixture.put("backup", second, RecordKind::Run)));
    fixture.end("backup", 60);
    fixture.trimmer.start_next(fixture.now(), false);
    fixture.end("backup", 61);
    let step = fixture.trimmer.step().now_or_never().flatten().unwrap();
    fixture.end("backup", 62);
    fixture.trimmer.complete(step, fixture.now());
    fixture.pass(GATHER);
    let left = fixture.left("backup");
    assert_eq!((left.len(), left[0], left[19]), (20, 3, 62));
}

#[test]
fn two_nodes_that_trim_one_job_leave_the_newest_twenty() {
    let mut first = Fixture::new();
    let trimmer = Trimmer::new(first.server.context(first.clock.clone()));
    let mut second = Fixture { server: first.server.clone(), clock: first.clock.clone(), trimmer, leads: false };
    (0..20).for_each(|at| drop(first.put("backup", at, RecordKind::Run)));
    for at in (100..160).step_by(2) {
        first.end("backup", at);
        first.settle();
        second.end("backup", at + 1);
        second.settle();
        first.clock.pass(GATHER);
        first.settle();
        second.settle();
        assert!(first.left("backup").len() <= 22, "{:?}", first.left("backup"));
    }
    first.pass(GATHER);
    second.pass(GATHER);
    assert_eq!(first.left("backup"), (140..160).collect::<Vec<_>>());
}

#[test]
fn a_backlog_of_thousands_is_deleted_in_pieces_and_delays_no_other_job() {
    let mut fixture = Fixture::new();
    (0..10_000).for_each(|second| drop(fixture.put("backup", second, RecordKind::Run)));
    (0..20).for_each(|second| drop(fixture.put("other", second, RecordKind::Run)));
    (0..30).for_each(|second| drop(fixture.put("backup", 20_000 + second, RecordKind::Skip)));
    fixture.end("backup", 10_000);
    fixture.end("other", 60);
    fixture.settle();
    fixture.clock.pass(GATHER);
    while fixture.left("other").len() > 20 {
        assert!(fixture.turn());
    }
    assert!(fixture.left("backup").len() > 9_000, "the other job did not wait for it");
    fixture.settle();
    let expected: Vec<_> = (9_981..=10_000).chain(20_010..20_030).collect();
    assert_eq!(fixture.left("backup"), expected);
    let tree = fixture.server.tree();
    assert_eq!(tree.most_read, bounded::HISTORY.count);
    assert!(tree.multis.iter().all(|&deletes| deletes <= MOST_DELETES));
}

#[test]
fn a_history_that_must_not_be_trimmed_is_left_alone_and_harms_no_other() {
    let mut fixture = Fixture::new();
    for job in ["bad", "good"] {
        (0..20).for_each(|second| drop(fixture.put(job, second, RecordKind::Run)));
        fixture.end(job, 60);
    }
    fixture.settle();
    let bad = "/cronkeeper/history/bad";
    [Right::Read, Right::Write].into_iter().for_each(|right| fixture.server.tree().close(bad, right));
    fixture.pass(GATHER);
    assert_eq!((fixture.left("bad").len(), fixture.left("good").len()), (21, 20));
    let listings = fixture.server.tree().listings;
    (61..70).for_each(|second| fixture.end("bad", second));
    fixture.pass(GATHER);
    assert_eq!(fixture.server.tree().listings, listings, "it is not tried again and again");
    [Right::Read, Right::Write].into_iter().for_each(|right| fixture.server.tree().open(bad, right));
    fixture.clock.pass(LEFT_ALONE);
    fixture.end("bad", 70);
    fixture.settle();
    fixture.pass(GATHER);
    assert_eq!(fixture.left("bad").len(), 20);
}

#[test]
fn an_unanswered_request_is_repeated_after_a_pause() {
    let mut fixture = Fixture::new();
    (0..20).for_each(|second| drop(fixture.put("backup", second, RecordKind::Run)));
    fixture.end("backup", 60);
    fixture.settle();
    fixture.server.tree().is_silent = true;
    fixture.pass(GATHER);
    fixture.pass(GATHER);
    assert_eq!((fixture.left("backup").len(), fixture.trimmer.wake()), (21, Some(fixture.now() - GATHER + PAUSE)));
    fixture.server.tree().is_silent = false;
    fixture.pass(PAUSE);
    fixture.pass(GATHER);
    assert_eq!(fixture.left("backup").len(), 20);
}

#[test]
fn known_records_are_limited_and_all_jobs_are_trimmed_nevertheless() {
    let mut fixture = Fixture::new();
    fixture.trimmer.most_known = 100;
    for job in 0..50 {
        (0..20).for_each(|second| drop(fixture.put(&format!("job-{job}"), second, RecordKind::Run)));
    }
    for second in 60..70 {
        for job in 0..50 {
            fixture.end(&format!("job-{job}"), second);
            fixture.settle();
            assert!(fixture.trimmer.records <= 100 + 8 * 21, "{}", fixture.trimmer.records);
        }
        (0..10).for_each(|_| fixture.pass(GATHER));
    }
    assert!((0..50).all(|job| fixture.left(&format!("job-{job}")).len() == 20));
    let known: usize = fixture.trimmer.known.values().map(JobHistory::len).sum();
    assert_eq!((known, fixture.trimmer.by_growth.len()), (fixture.trimmer.records, fixture.trimmer.known.len()));
}

#[test]
fn a_leader_finds_what_nobody_trimmed() {
    let mut fixture = Fixture::new();
    for job in 0..30 {
        (0..40).for_each(|second| drop(fixture.put(&format!("job-{job}"), second, RecordKind::Run)));
    }
    fixture.server.tree().put("/cronkeeper/history/not a job", "");
    let of_before = HistoryRecord::Run(success(record("older", 60, "0x1")));
    fixture.server.tree().put(&paths::history(&of_before.id()), json(&of_before));
    fixture.pass(SWEEP_AFTER[0] * 2);
    assert_eq!(fixture.server.tree().listings, 0, "a follower does not check");
    fixture.leads = true;
    fixture.settle();
    fixture.pass(SWEEP_AFTER[0]);
    for _ in 0..100 {
        fixture.pass(SWEEP_EVERY);
    }
    assert!((0..30).all(|job| fixture.left(&format!("job-{job}")).len() == 20));
    assert!(fixture.server.tree().has("/cronkeeper/last/older"), "it writes what was not written by then");
    let listings = fixture.server.tree().listings;
    assert!(fixture.trimmer.wake() > Some(fixture.now() + SWEEP_AFTER[0] * 10), "all jobs were checked");
    fixture.pass(SWEEP_AFTER[1]);
    for _ in 0..40 {
        fixture.pass(SWEEP_EVERY);
    }
    assert_eq!(
        fixture.server.tree().listings,
        listings + 63,
        "each job's records are counted, and looked at for how they ended last"
    );
}

fn limits(limits: &[(&str, u16)]) -> Arc<Defined> {
    let history_limits = limits.iter().map(|(job, limit)| (name(job), *limit)).collect();
    Arc::new(Defined { history_limits, ..Defined::default() })
}

#[test]
fn each_job_keeps_as_many_as_its_limit_says() {
    let mut fixture = Fixture::new();
    fixture.trimmer.define(&limits(&[("few", 3), ("many", 50)]), fixture.now());
    for second in 0..60 {
        ["few", "many", "other"].iter().for_each(|job| fixture.end(job, second));
        fixture.settle();
        fixture.pass(GATHER);
    }
    assert_eq!(["few", "many", "other"].map(|job| fixture.left(job).len()), [3, 50, 20]);
}

#[test]
fn a_lowered_limit_is_applied_to_known_jobs_at_once_and_to_the_others_by_the_leaders_round() {
    let mut fixture = Fixture::new();
    fixture.trimmer.define(&limits(&[("grows", 300), ("rests", 300)]), fixture.now());
    for job in ["grows", "rests"] {
        (0..250).for_each(|second| drop(fixture.put(job, second, RecordKind::Run)));
    }
    fixture.end("grows", 500);
    fixture.leads = true;
    fixture.pass(SWEEP_AFTER[0] / 2);
    assert_eq!(fixture.left("grows").len(), 251);
    fixture.trimmer.define(&limits(&[("rests", 10)]), fixture.now());
    (0..5).for_each(|_| fixture.pass(GATHER));
    assert_eq!((fixture.left("grows").len(), fixture.left("rests").len()), (20, 250));
    (0..5).for_each(|_| fixture.pass(SWEEP_EVERY));
    assert_eq!(fixture.left("rests"), (240..250).collect::<Vec<_>>());
    let multis = fixture.server.tree().multis.clone();
    assert!(multis.iter().all(|&deletes| deletes <= MOST_DELETES), "{multis:?}");
}
