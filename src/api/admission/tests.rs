//! Tests of the limits of a listener.

use futures_util::FutureExt as _;

use super::*;

const LIMITS: ListenerLimits = ListenerLimits {
    connections: Quota { total: 8, per_caller: 2 },
    streams: Quota { total: 3, per_caller: 2 },
    bytes: Quota { total: 250, per_caller: 150 },
    histories: 2,
    history: 10,
};

fn caller(last: u8) -> Caller {
    Caller::Remote([192, 0, 2, last].into())
}

/// A new connection; `None` if it is refused, or would have to wait.
fn admitted(admission: &Arc<Admission>, last: u8) -> Option<Arc<Admitted>> {
    admission.admit(caller(last)).now_or_never().flatten()
}

/// The same, on which a whole request was sent.
fn answered(admission: &Arc<Admission>, last: u8) -> Option<Arc<Admitted>> {
    admitted(admission, last).inspect(|admitted| admitted.keep_place())
}

fn is_closed(admitted: &Admitted) -> bool {
    admitted.room_needed().now_or_never().is_some()
}

#[test]
fn one_caller_cannot_take_the_connections_of_the_others() {
    let admission = Admission::new(LIMITS);
    let (first, _second) = (answered(&admission, 1).unwrap(), answered(&admission, 1).unwrap());
    assert!(admitted(&admission, 1).is_none());
    let _other = admitted(&admission, 2).unwrap();
    drop(first);
    assert!(admitted(&admission, 1).is_some());
}

#[test]
fn the_oldest_without_a_whole_request_makes_room_for_another() {
    let admission = Admission::new(LIMITS);
    let _answered: Vec<_> = (1..=3).map(|last| answered(&admission, last).unwrap()).collect();
    let asking: Vec<_> = [4, 4, 5, 5, 6].map(|last| admitted(&admission, last).unwrap()).into();
    let newer: Vec<_> = (7..=10).map(|last| admitted(&admission, last).unwrap()).collect();
    assert_eq!(asking.iter().map(|one| is_closed(one)).collect::<Vec<_>>(), [true, true, true, true, false]);
    assert_eq!(admission.usage().connections.len(), LIMITS.connections.total);
    // What still belongs to the closed ones takes nobody's place when it goes.
    drop(asking);
    assert_eq!(admission.usage().connections.len(), LIMITS.connections.total - 1);
    drop(newer);
    let usage = admission.usage();
    assert_eq!((usage.connections.len(), usage.callers.len()), (3, 3));
}

#[test]
fn at_its_own_limit_a_caller_closes_its_own_oldest_and_nobody_elses() {
    let admission = Admission::new(LIMITS);
    let other = admitted(&admission, 1).unwrap();
    let own: Vec<_> = (0..4).map(|_| admitted(&admission, 2).unwrap()).collect();
    assert_eq!(own.iter().map(|one| is_closed(one)).collect::<Vec<_>>(), [true, true, false, false]);
    assert!(!is_closed(&other));
    own.iter().for_each(|own| own.keep_place());
    assert!(admitted(&admission, 2).is_none(), "it is being answered on both");
    own[3].offer_place();
    assert!(admitted(&admission, 2).is_some() && is_closed(&own[3]));
}

#[tokio::test]
async fn where_all_are_being_answered_another_waits_until_one_is_done() {
    let admission = Admission::new(LIMITS);
    let mut all: Vec<_> = (1..=8).map(|last| answered(&admission, last).unwrap()).collect();
    assert!(admitted(&admission, 9).is_none());
    let waiting = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.admit(caller(9)).await.is_some() }
    });
    tokio::task::yield_now().await;
    drop(all.pop());
    assert!(waiting.await.unwrap());
}

#[test]
fn a_caller_without_connections_is_forgotten() {
    let admission = Admission::new(LIMITS);
    let first = admitted(&admission, 1).unwrap();
    first.reserve(100).unwrap();
    drop(first);
    let usage = admission.usage();
    assert_eq!((usage.bytes, usage.callers.len(), usage.connections.len()), (0, 0, 0));
}

#[test]
fn what_a_closed_connection_holds_is_released_when_it_is_gone() {
    let admission = Admission::new(LIMITS);
    let first = admitted(&admission, 1).unwrap();
    first.reserve(100).unwrap();
    let _others = [1, 1].map(|last| admitted(&admission, last).unwrap());
    assert!(is_closed(&first) && !first.become_stream());
    assert_eq!(admission.usage().bytes, 100);
    drop(first);
    assert_eq!(admission.usage().bytes, 0);
}

#[test]
fn streams_take_no_connections_and_have_limits_of_their_own() {
    let admission = Admission::new(LIMITS);
    let mine: Vec<_> = (0..2).map(|_| admitted(&admission, 1).unwrap()).collect();
    assert!(mine.iter().all(|stream| stream.become_stream() && stream.is_stream()));
    assert_eq!(admission.usage().connections.len(), 0);
    let third = admitted(&admission, 1).expect("streams are no connections");
    assert!(!third.become_stream(), "a caller has at most two");
    let others = [2, 3].map(|last| admitted(&admission, last).unwrap().become_stream());
    assert_eq!(others, [true, true], "each has ended at once");
    let [one, two] = [2, 3].map(|last| admitted(&admission, last).unwrap());
    assert_eq!([one.become_stream(), two.become_stream()], [true, false], "there are at most three");
    drop((mine, third, one, two));
    let usage = admission.usage();
    assert_eq!((usage.streams, usage.callers.len()), (0, 0));
}

#[test]
fn bytes_are_counted_per_caller_and_in_total() {
    let admission = Admission::new(LIMITS);
    let [a, b, c] = [1, 1, 2].map(|last| admitted(&admission, last).unwrap());
    assert_eq!(a.reserve(151), Err(NoMemory::TooLarge { limit: 150 }));
    assert_eq!((a.reserve(100), b.reserve(100), b.reserve(50)), (Ok(()), Err(NoMemory::Busy), Ok(())));
    assert_eq!((c.reserve(150), c.reserve(100)), (Err(NoMemory::Busy), Ok(())));
    drop(a);
    assert_eq!(b.reserve(101), Err(NoMemory::Busy), "the other caller has reserved the rest");
    assert_eq!(b.reserve(100), Ok(()));
}

#[test]
fn one_caller_reads_one_history_at_a_time_and_does_not_block_others() {
    let admission = Admission::new(LIMITS);
    let [a, b, c] = [1, 1, 2].map(|last| admitted(&admission, last).unwrap());
    let first = a.history_permits().now_or_never().expect("it is free");
    assert!(b.history_permits().now_or_never().is_none());
    assert!(c.history_permits().now_or_never().is_some());
    drop(first);
    assert!(b.history_permits().now_or_never().is_some());
}
