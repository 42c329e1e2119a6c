//! Tests of the limits of a listener.

use futures_util::FutureExt as _;
use tokio::time::advance;

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
    assert_eq!(admission.usage().total.connections, LIMITS.connections.total);
    // What still belongs to the closed ones takes nobody's place when it goes.
    drop(asking);
    assert_eq!(admission.usage().total.connections, LIMITS.connections.total - 1);
    drop(newer);
    let usage = admission.usage();
    assert_eq!((usage.total.connections, usage.callers.len()), (3, 3));
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
    assert_eq!((usage.total, usage.callers.len(), usage.connections.len()), (Held::default(), 0, 0));
}

#[test]
fn what_a_closed_connection_holds_is_free_at_once() {
    let admission = Admission::new(LIMITS);
    let first = admitted(&admission, 1).unwrap();
    first.reserve(100).unwrap();
    let _others = [1, 1].map(|last| admitted(&admission, last).unwrap());
    assert!(is_closed(&first) && !first.become_stream() && first.reserve(1) == Err(NoMemory::Busy));
    let counted = || {
        let usage = admission.usage();
        (usage.total.bytes, usage.leaving.values().sum::<usize>())
    };
    assert_eq!(counted(), (0, 100));
    drop(first);
    assert_eq!(counted(), (0, 0));
}

#[test]
fn streams_take_no_connections_and_have_limits_of_their_own() {
    let admission = Admission::new(LIMITS);
    let mine: Vec<_> = (0..2).map(|_| admitted(&admission, 1).unwrap()).collect();
    assert!(mine.iter().all(|stream| stream.become_stream() && stream.is_stream()));
    assert_eq!(admission.usage().total.connections, 0);
    let third = admitted(&admission, 1).expect("streams are no connections");
    assert!(!third.become_stream(), "a caller has at most two");
    let others = [2, 3].map(|last| admitted(&admission, last).unwrap().become_stream());
    assert_eq!(others, [true, true], "each has ended at once");
    drop((mine, third));
    let usage = admission.usage();
    assert_eq!((usage.total, usage.callers.len()), (Held::default(), 0));
}

/// A stream of this caller; `None` if there are too many.
fn stream(admission: &Arc<Admission>, last: u8) -> Option<Arc<Admitted>> {
    admitted(admission, last).filter(|admitted| admitted.become_stream())
}

#[test]
fn a_further_caller_always_finds_room_for_a_stream() {
    let admission = Admission::new(LIMITS);
    let first = [1, 1, 2].map(|last| stream(&admission, last).unwrap());
    let third = stream(&admission, 3).expect("the first has more than its share");
    assert_eq!([&first[0], &first[1], &first[2], &third].map(|one| is_closed(one)), [true, false, false, false]);
    assert!(stream(&admission, 3).is_none(), "nobody has more than it would have then");
    let _fourth = stream(&admission, 4).expect("each of many has one for a while");
    assert_eq!([&first[1], &first[2], &third].map(|one| is_closed(one)), [true, false, false]);
    assert_eq!(admission.usage().total.streams, 3);
    drop(first);
    assert_eq!(admission.usage().total.streams, 2, "only one of those still counted");
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

/// A connection whose answer of this many bytes is ready.
fn unread(admission: &Arc<Admission>, last: u8, bytes: usize) -> Arc<Admitted> {
    let admitted = answered(admission, last).unwrap();
    admitted.reserve(bytes).unwrap();
    admitted.answered();
    admitted
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_not_read_for_long_makes_room_for_one_of_anybody() {
    let admission = Admission::new(LIMITS);
    let old = unread(&admission, 1, 125);
    advance(Duration::from_millis(10)).await;
    let newer = unread(&admission, 2, 125);
    let third = answered(&admission, 3).unwrap();
    advance(PATIENCE - Duration::from_millis(11)).await;
    assert_eq!(third.reserve(150), Err(NoMemory::Busy), "nobody has more than it would have then");
    advance(Duration::from_millis(1)).await;
    assert_eq!((third.reserve(125), is_closed(&old), is_closed(&newer)), (Ok(()), true, false));
    let fourth = answered(&admission, 4).unwrap();
    assert_eq!(fourth.reserve(150), Err(NoMemory::Busy), "the third is not ready");
    advance(Duration::from_millis(10)).await;
    assert_eq!((fourth.reserve(100), is_closed(&newer)), (Ok(()), true));
    assert_eq!(admission.usage().total.bytes, 225);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_who_holds_more_makes_room_for_one_of_who_holds_less() {
    let admission = Admission::new(LIMITS);
    let [small, large, larger] = [(1, 90), (2, 60), (2, 80)].map(|(last, bytes)| unread(&admission, last, bytes));
    let third = answered(&admission, 3).unwrap();
    assert_eq!(third.reserve(50), Err(NoMemory::Busy), "they have had no time to read");
    advance(FAIR).await;
    assert_eq!(third.reserve(140), Err(NoMemory::Busy), "then it would hold as much as the other");
    assert_eq!([&small, &large, &larger].map(|one| is_closed(one)), [false; 3]);
    assert_eq!(third.reserve(50), Ok(()));
    assert_eq!([&small, &large, &larger].map(|one| is_closed(one)), [false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_closed_in_vain() {
    let admission = Admission::new(LIMITS);
    let all = [(1, 30), (1, 60), (2, 80), (3, 80)].map(|(last, bytes)| unread(&admission, last, bytes));
    let next = answered(&admission, 4).unwrap();
    advance(FAIR).await;
    assert_eq!(next.reserve(85), Err(NoMemory::Busy), "only the first holds more, and once only");
    assert_eq!(all.each_ref().map(|one| is_closed(one)), [false; 4]);
    assert_eq!(next.reserve(75), Ok(()));
    assert_eq!(all.each_ref().map(|one| is_closed(one)), [true, false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn at_its_own_limit_a_caller_closes_its_own_unread_answers_and_nobody_elses() {
    let admission = Admission::new(LIMITS);
    let other = unread(&admission, 1, 10);
    let own = unread(&admission, 2, 150);
    let next = answered(&admission, 2).unwrap();
    advance(FAIR).await;
    assert_eq!(next.reserve(20), Err(NoMemory::Busy));
    advance(PATIENCE).await;
    assert_eq!((next.reserve(20), is_closed(&own), is_closed(&other)), (Ok(()), true, false));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_answer_is_not_read_makes_room_for_another() {
    let admission = Admission::new(LIMITS);
    let all: Vec<_> = [1, 1, 2, 2, 3, 3, 4, 4].map(|last| answered(&admission, last).unwrap()).into();
    assert!(admitted(&admission, 5).is_none(), "they are being answered");
    all[3].answered();
    all[4].wait();
    assert!(admitted(&admission, 5).is_none(), "its client has had no time to read");
    advance(FAIR).await;
    let _fifth = answered(&admission, 5).expect("the second holds more");
    let _sixth = answered(&admission, 6).expect("the third holds more");
    let closed: Vec<_> = all.iter().map(|one| is_closed(one)).collect();
    assert_eq!(closed, [false, false, false, true, true, false, false, false]);
    all[2].answered();
    advance(PATIENCE - Duration::from_millis(1)).await;
    assert!(admitted(&admission, 7).is_none(), "the second holds no more than the seventh would");
    advance(Duration::from_millis(1)).await;
    assert!(admitted(&admission, 7).is_some() && is_closed(&all[2]));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_gets_that_of_who_does_not_read() {
    let admission = Admission::new(LIMITS);
    let all: Vec<_> = (1..=8).map(|last| answered(&admission, last).unwrap()).collect();
    all[5].answered();
    let began = Instant::now();
    let _ninth = admission.admit(caller(9)).await.expect("it is admitted");
    assert!(is_closed(&all[5]) && began.elapsed() <= PATIENCE + FAIR);
}

/// Whatever callers do, the counts fit what there is, and no limit is exceeded.
mod any_use {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Connect(u8),
        Reserve(usize, usize),
        Answer(usize),
        Wait(usize),
        Offer(usize),
        Stream(usize),
        Drop(usize),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let index = 0usize..12;
        prop_oneof![
            3 => (1u8..7).prop_map(Step::Connect),
            3 => (index.clone(), 1usize..160).prop_map(|(index, bytes)| Step::Reserve(index, bytes)),
            3 => index.clone().prop_map(Step::Answer),
            1 => index.clone().prop_map(Step::Wait),
            1 => index.clone().prop_map(Step::Offer),
            1 => index.clone().prop_map(Step::Stream),
            1 => index.prop_map(Step::Drop),
            2 => (1u64..4_000).prop_map(Step::Pass),
        ]
    }

    fn check(admission: &Admission) {
        let usage = admission.usage();
        let mut total = Held::default();
        let mut callers: HashMap<Caller, Held> = HashMap::new();
        for connection in usage.connections.values() {
            let Held { connections, streams, bytes } = connection.held();
            for held in [&mut total, callers.entry(connection.caller).or_default()] {
                held.connections += connections;
                held.streams += streams;
                held.bytes += bytes;
            }
        }
        let counted: HashMap<_, _> = usage.callers.iter().map(|(caller, usage)| (*caller, usage.held)).collect();
        assert_eq!((total, callers), (usage.total, counted));
        for held in usage.callers.values().map(|usage| usage.held) {
            assert!(held.connections <= LIMITS.connections.per_caller && held.streams <= LIMITS.streams.per_caller);
            assert!(held.bytes <= LIMITS.bytes.per_caller);
        }
        assert!(total.connections <= LIMITS.connections.total && total.streams <= LIMITS.streams.total);
        assert!(total.bytes <= LIMITS.bytes.total);
        assert!(total.bytes + usage.leaving.values().sum::<usize>() <= 2 * LIMITS.bytes.total);
    }

    async fn take(steps: Vec<Step>) {
        let admission = Admission::new(LIMITS);
        let mut all: Vec<Arc<Admitted>> = Vec::new();
        for step in steps {
            let chosen = |index: usize| all.get(index % all.len().max(1)).cloned();
            match step {
                Step::Connect(last) => all.extend(answered(&admission, last)),
                Step::Reserve(index, bytes) => drop(chosen(index).map(|one| one.reserve(bytes))),
                Step::Answer(index) => drop(chosen(index).map(|one| one.answered())),
                Step::Wait(index) => drop(chosen(index).map(|one| one.wait())),
                Step::Offer(index) => drop(chosen(index).map(|one| one.offer_place())),
                Step::Stream(index) => drop(chosen(index).map(|one| one.become_stream())),
                Step::Drop(index) if index < all.len() => drop(all.swap_remove(index)),
                Step::Drop(_) => {}
                Step::Pass(millis) => advance(Duration::from_millis(millis)).await,
            }
            check(&admission);
        }
        drop(all);
        let usage = admission.usage();
        assert_eq!((usage.total, usage.callers.len(), usage.leaving.len()), (Held::default(), 0, 0));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn keeps_the_limits(steps in prop::collection::vec(step(), 1..80)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(take(steps));
        }
    }
}
