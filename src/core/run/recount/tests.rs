use proptest::prelude::*;

use super::*;
use crate::run::{RunEnd, RunRecord, Skip, Trigger, TriggerRecord, TriggerSeq};
use crate::test_records;

const NOW: i64 = 1_000;
const YEAR: i64 = 365 * 86_400;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A record that is counted to `mark`.
fn counted_to(mark: i64) -> JobRecord {
    JobRecord { counted: Some(at(mark)), ..JobRecord::new(at(mark), Nonce("7-1".into())) }
}

fn request(now: i64) -> RecountRequest {
    RecountRequest { id: Uuid::from_u128(1), by: "alice".into(), at: at(now), history_limit: 5 }
}

fn run(due: i64, ended: i64) -> HistoryRecord {
    let run = test_records::record("j", due, "s");
    HistoryRecord::Run(RunEnd { ended_at: at(ended), ..test_records::success(run) })
}

fn triggered(made: i64, ended: i64) -> HistoryRecord {
    let trigger: Trigger =
        TriggerRecord::new(Uuid::nil(), test_records::record("j", made, "s").job, "bob".into(), at(made))
            .numbered(TriggerSeq(7));
    let run = RunRecord { trigger: Some(trigger), ..test_records::record("j", made, "s") };
    HistoryRecord::Run(RunEnd { ended_at: at(ended), ..test_records::success(run) })
}

fn skip(first: i64, last: i64) -> HistoryRecord {
    HistoryRecord::Skip(Skip { last: at(last), count: 2, ..test_records::skip("j", first) })
}

fn known(records: &[HistoryRecord]) -> Decisions {
    let mut decisions = Decisions::default();
    records.iter().for_each(|record| decisions.add_record(record));
    decisions
}

fn seconds(listed: &[Timestamp]) -> Vec<i64> {
    listed.iter().map(|at| at.as_second()).collect()
}

#[test]
fn what_has_a_record_is_listed_and_the_mark_stays() {
    let mut decisions = known(&[
        run(900, 901),
        run(YEAR, YEAR + 1),
        run(YEAR + 60, YEAR + 61),
        skip(YEAR + 120, YEAR + 240),
        triggered(YEAR + 70, YEAR + 71),
    ]);
    let in_flight = RunId::scheduled(test_records::skip("j", 0).job, at(YEAR + 300));
    decisions.add_in_flight(in_flight.clone());
    let before = counted_to(YEAR + 300);
    let (record, done) =
        before.clone().recounted(&decisions, &RecountRequest { history_limit: 20, ..request(NOW) }).unwrap();
    assert_eq!(seconds(&done.listed), [YEAR, YEAR + 60, YEAR + 120, YEAR + 300]);
    assert_eq!((done.from, done.in_flight), (at(NOW), vec![in_flight]));
    assert_eq!((record.last_scheduled, record.counted), (before.last_scheduled, Some(at(NOW))));
    let recount = record.fresh_recount().unwrap();
    assert_eq!((&recount.listed, recount.until, recount.by.as_str()), (&done.listed, at(YEAR + 300), "alice"));
    assert_eq!(record.digested_at(), before.digested_at(), "the digest is still the one of the leader");
    let read: JobRecord = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(read, record);
}

#[test]
fn a_job_that_is_counted_to_now_is_left_alone() {
    for mark in [900, NOW, NOW + 60] {
        let refused = counted_to(mark).recounted(&Decisions::default(), &request(NOW)).unwrap_err();
        assert_eq!(refused, NotRecounted::NotAhead(at(mark)));
    }
    let (record, _) = counted_to(YEAR).recounted(&known(&[run(YEAR, YEAR)]), &request(NOW)).unwrap();
    let again = record.recounted(&known(&[run(YEAR, YEAR)]), &request(NOW + 30)).unwrap_err();
    assert_eq!(again, NotRecounted::NotAhead(at(NOW)), "a second time");
}

#[test]
fn a_history_that_may_have_lost_a_run_leaves_the_job_as_it_is() {
    let ahead = |from: i64, count: i64| (0..count).map(move |n| run(from + 60 * n, from + 60 * n + 1));
    let recounted = |records: Vec<HistoryRecord>| counted_to(YEAR + 600).recounted(&known(&records), &request(NOW));
    let is_refused = |records| matches!(recounted(records), Err(NotRecounted::Trimmed { .. }));
    assert!(is_refused(ahead(YEAR, 5).collect()), "all of them are of the time ahead");
    assert!(is_refused(std::iter::once(run(900, 901)).chain(ahead(YEAR, 4)).collect()), "only one is from before");
    let overlapping = [run(800, 950), run(900, 901)];
    assert!(
        is_refused(overlapping.into_iter().chain(ahead(YEAR, 3)).collect()),
        "neither had ended when the other was due"
    );
    let ended_late = [run(800, YEAR + 1), run(900, YEAR + 2)];
    assert!(is_refused(ended_late.into_iter().chain(ahead(YEAR, 3)).collect()), "they ended in the time ahead");
    assert!(is_refused((0..5).map(|n| run(500 + 60 * n, 501 + 60 * n)).collect()), "nothing tells of the mark");
    let two = [run(800, 801), run(900, 901)];
    assert!(recounted(two.iter().cloned().chain(ahead(YEAR, 3)).collect()).is_ok());
    assert!(recounted(ahead(YEAR, 4).collect()).is_ok(), "the history is not full");
    let skips = (0..9).map(|n| skip(YEAR + 60 * n, YEAR + 60 * n));
    assert!(recounted(skips.chain(ahead(YEAR + 1, 4)).collect()).is_ok(), "skips are trimmed apart");
}

#[test]
fn an_unreadable_record_counts_as_that_of_a_run() {
    let mut decisions = known(&[run(YEAR, YEAR + 1)]);
    decisions.add_unreadable(&RunId::scheduled(test_records::skip("j", 0).job, at(YEAR + 60)));
    let (_, done) = counted_to(YEAR + 60).recounted(&decisions, &request(NOW)).unwrap();
    assert_eq!(seconds(&done.listed), [YEAR, YEAR + 60]);
}

#[test]
fn more_than_can_be_listed_are_passed_over_if_that_takes_less_than_a_day() {
    let request = RecountRequest { history_limit: 1_000, ..request(NOW) };
    let ahead = |from: i64| (0..130).map(move |n| run(from + 60 * n, from + 60 * n + 1)).collect::<Vec<_>>();
    let (record, done) = counted_to(NOW + 10 * 3_600).recounted(&known(&ahead(NOW + 3_600)), &request).unwrap();
    assert_eq!((done.from, done.listed.len()), (at(NOW + 3_600 + 29 * 60), MOST_LISTED));
    assert_eq!(record.count(), done.from);
    let refused = counted_to(YEAR * 2).recounted(&known(&ahead(YEAR)), &request).unwrap_err();
    assert!(matches!(refused, NotRecounted::TooMany { known: 130, .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("give it another name"), "{refused}");
    let refused = counted_to(NOW + 600)
        .recounted(&known(&ahead(NOW - 60_000)[..5]), &RecountRequest { history_limit: 5, ..request });
    assert!(refused.unwrap_err().to_string().ends_with("it runs again by itself after that time"));
}

/// The clock jumps ahead a second time, so far that the count passes what the first recount had listed.
#[test]
fn what_a_second_jump_has_passed_is_not_forgotten() {
    let (mut record, _) = counted_to(YEAR).recounted(&known(&[run(YEAR, YEAR + 1)]), &request(NOW)).unwrap();
    let passed = 2 * YEAR;
    let recount = record.recount.take().unwrap().after(at(passed));
    assert_eq!(recount.listed, []);
    let record = JobRecord {
        last_scheduled: at(passed),
        counted: Some(at(passed)),
        recount: Some(Box::new(recount)),
        nonce: Nonce("8-1".into()),
        ..record
    };
    assert_eq!(record.fresh_recount(), None, "a leader has written it");
    let history = known(&[run(900, 901), run(passed, passed + 1)]);
    let refused = record.clone().recounted(&history, &request(NOW + 600)).unwrap_err();
    assert!(matches!(refused, NotRecounted::Trimmed { .. }), "{refused:?}");
    let later = record.recounted(&history, &request(YEAR)).unwrap().1;
    assert_eq!(seconds(&later.listed), [passed], "by then it has passed");
}

/// A run of a job.
#[derive(Clone, Debug)]
struct Life {
    due: i64,
    /// By the clock at that time.
    ended: i64,
    /// By a clock that is always right.
    truly_ended: i64,
}

/// The runs, until the true second `now`, of a job that is due every ten seconds and whose clock is ahead by `jump` from
/// the true second `from` to `until`. They take `lasts` seconds in turn, so that some run beside each other.
fn lives((from, until): (i64, i64), now: i64, jump: i64, lasts: &[i64]) -> Vec<Life> {
    let clock = |truly: i64| if (from..until).contains(&truly) { truly + jump } else { truly };
    let mut lives: Vec<Life> = Vec::new();
    for begun in (0..=now).step_by(10) {
        let due = clock(begun) / 10 * 10;
        if lives.last().is_none_or(|last| last.due < due) {
            let truly_ended = begun + lasts[lives.len() % lasts.len()];
            lives.push(Life { due, ended: clock(truly_ended), truly_ended });
        }
    }
    lives
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever has been trimmed: the runs whose ends were written first, as in ZooKeeper, or those that ended first by the
    /// clock, as on one host.
    #[test]
    fn nothing_that_has_run_is_counted_again(
        from in 0_i64..400, ahead in 10_i64..400, jump in 1_000_i64..100_000, wait in 0_i64..100,
        lasts in prop::collection::vec(0_i64..120, 1..6), limit in 2_usize..12, by_clock in any::<bool>(),
        triggers in 0_i64..12,
    ) {
        let (until, now) = (from + ahead, from + ahead + wait);
        let lives = lives((from, until), now, jump, &lasts);
        let mark = lives.last().map_or(0, |last| last.due);
        let mut decisions = Decisions::default();
        let mut ended = Vec::new();
        for life in &lives {
            match life.truly_ended <= now {
                true => ended.push((life.clone(), run(life.due, life.ended))),
                false => decisions.add_in_flight(RunId::scheduled(test_records::skip("j", 0).job, at(life.due))),
            }
        }
        // By hand, once the clock was right again.
        let by_hand = |n| (Life { due: now + n, ended: now, truly_ended: now }, triggered(now + n, now));
        ended.extend((0..triggers).map(by_hand));
        let order = |life: &Life| if by_clock { (life.ended, life.truly_ended) } else { (life.truly_ended, life.ended) };
        ended.sort_by_key(|(life, _)| order(life));
        let kept = ended.split_off(ended.len().saturating_sub(limit));
        kept.iter().for_each(|(_, record)| decisions.add_record(record));
        let request = RecountRequest { history_limit: limit, ..request(now) };
        if let Ok((record, done)) = counted_to(mark).recounted(&decisions, &request) {
            for life in &lives {
                let is_passed = at(life.due) <= record.count();
                prop_assert!(is_passed || done.listed.contains(&at(life.due)), "{life:?} of {lives:?}");
            }
        }
    }
}
