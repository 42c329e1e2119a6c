use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use cronkeeper_core::run::ChannelRecord;

const EVERY: Duration = Duration::from_secs(60);

/// A number of a notification.
fn seq(number: u64) -> NoticeKey {
    NoticeKey::parse(&format!("{number:011x}{:016x}", 0)).unwrap()
}

fn name() -> ChannelName {
    ChannelName::parse("ops").unwrap()
}

fn at(seconds: u64) -> Uptime {
    Uptime::ZERO + Duration::from_secs(seconds)
}

fn notice(kind: NoticeKind, number: u64) -> Notice {
    Notice::new(kind, format!("job.{number}/{}", kind.as_str()), Timestamp::UNIX_EPOCH)
}

/// A ledger with notices, and one process after the other that sends to one channel.
struct World {
    notices: BTreeMap<NoticeKey, Notice>,
    /// Those that exist and that the process has not read.
    unread: BTreeSet<NoticeKey>,
    stored: ChannelEntry,
    state: ChannelState,
    now: Uptime,
}

impl World {
    fn new(kinds: &[NoticeKind]) -> Self {
        let notices = (1..).zip(kinds).map(|(number, &kind)| (seq(number), notice(kind, number))).collect();
        Self {
            notices,
            unread: BTreeSet::new(),
            stored: ChannelEntry::default(),
            state: ChannelState::default(),
            now: at(100),
        }
    }

    fn failures(count: usize) -> Self {
        Self::new(&vec![NoticeKind::Failure; count])
    }

    fn write(&mut self) {
        let existing = self.notices.keys().chain(&self.unread).copied().collect();
        let Some(entry) = self.state.record(&existing) else { return };
        assert_eq!(entry.at, self.stored.at, "compare and write");
        let version = entry.at.map_or(Version::FIRST, Version::next);
        self.stored = ChannelEntry { record: entry.record, at: Some(version), is_damaged: false };
        self.state.written(version);
    }

    /// Does what needs no message; returns the message, or until when nothing happens.
    fn step(&mut self) -> Result<Batch, Option<Uptime>> {
        for _ in 0..10 {
            let marks_unread = self.state.marked().any(|seq| self.unread.contains(&seq));
            let wanted = self.notices.iter().map(|(&seq, notice)| (seq, notice)).collect();
            let waiting = Waiting { wanted, marks_unread };
            match self.state.next(&name(), &waiting, EVERY, self.now) {
                Step::Read => {
                    let newest = self.notices.keys().chain(&self.unread).max().copied();
                    self.state.read(self.stored.clone(), newest, self.now)
                }
                Step::Write => self.write(),
                Step::Wait(until) => return Err(until),
                Step::Send(batch) => {
                    self.state.mark(&batch, &NodeName::new("a"));
                    self.write();
                    self.state.sent();
                    return Ok(batch);
                }
            }
        }
        panic!("it does not settle");
    }

    /// The next message, once it is due.
    fn message(&mut self) -> Batch {
        for _ in 0..10 {
            match self.step() {
                Ok(batch) => return batch,
                Err(until) => self.now = until.expect("something is to be sent"),
            }
        }
        panic!("nothing is sent");
    }

    fn answered(&mut self, batch: &Batch, fate: Fate) -> After {
        self.state.answered(batch, fate, EVERY, 0, self.now)
    }

    /// The process dies, and another leads.
    fn fail_over(&mut self) {
        self.state = ChannelState::default();
    }
}

#[test]
fn a_thousand_failures_are_one_message_and_the_next_one_waits() {
    let mut world = World::failures(1000);
    let first = world.message();
    assert_eq!((first.notices.len(), first.is_again, world.now), (1000, false, at(102)));
    world.answered(&first, Fate::Delivered);
    assert_eq!(world.step(), Err(None), "all is said");
    world.notices.insert(seq(2000), notice(NoticeKind::Failure, 2000));
    let second = world.message();
    assert_eq!((second.notices.len(), world.now), (1, at(162)));
    assert_ne!(second.id, first.id);
}

#[test]
fn a_message_whose_answer_is_lost_with_its_process_comes_again_and_says_so() {
    let mut world = World::failures(3);
    let first = world.message();
    world.notices.insert(seq(9), notice(NoticeKind::Failure, 9));
    world.fail_over();
    let before = world.now;
    let again = world.message();
    assert!(again.is_again && world.now >= before + PATIENCE, "the other process may still send it");
    assert_eq!((&again.id, &again.notices), (&first.id, &first.notices), "receivers can drop the copy");
    world.answered(&again, Fate::Delivered);
    assert_eq!(world.message().notices, [seq(9)].into());
}

#[test]
fn a_refused_message_leaves_no_doubt_also_after_a_failover() {
    let mut world = World::failures(1);
    let first = world.message();
    assert_eq!(world.answered(&first, Fate::Refused), After::Again(FIRST_PAUSE));
    assert!(world.step().is_err(), "it pauses, and takes the mark off");
    world.fail_over();
    assert!(!world.message().is_again);
}

#[test]
fn once_in_doubt_a_refusal_does_not_take_the_doubt_away() {
    let mut world = World::failures(1);
    let first = world.message();
    world.answered(&first, Fate::Doubtful);
    let second = world.message();
    assert!(second.is_again);
    world.answered(&second, Fate::Refused);
    world.fail_over();
    assert!(world.message().is_again);
}

#[test]
fn pauses_double_up_to_five_minutes_and_a_success_ends_them() {
    let mut world = World::failures(1);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let batch = world.message();
        let After::Again(pause) = world.answered(&batch, Fate::Refused) else { panic!("it is tried again") };
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    let batch = world.message();
    assert_eq!((world.answered(&batch, Fate::Delivered), world.state.failures()), (After::Delivered, 0));
}

#[test]
fn what_runs_print_are_messages_of_their_own_and_wait_for_nothing() {
    let mut world = World::new(&[NoticeKind::Output, NoticeKind::Failure, NoticeKind::Output]);
    let mut sent = Vec::new();
    while let Ok(batch) = world.step() {
        world.answered(&batch, Fate::Delivered);
        sent.push(batch.notices.len());
    }
    assert_eq!(sent, [1, 1]);
    assert_eq!(world.message().notices, [seq(2)].into());
}

#[test]
fn a_record_that_another_has_written_is_read_again() {
    let mut world = World::failures(1);
    let batch = world.message();
    world.answered(&batch, Fate::Delivered);
    world.stored = ChannelEntry {
        record: ChannelRecord { v: 1, sending: None, done: [seq(1)].into() },
        at: Some(Version(7)),
        is_damaged: false,
    };
    world.state.superseded();
    assert_eq!(world.step(), Err(None));
}

#[test]
fn outputs_that_never_end_do_not_hold_up_a_failure() {
    let mut world = World::new(&[NoticeKind::Failure]);
    let mut failures = Vec::new();
    for number in 100..400 {
        // Two jobs print every minute; one fails now and then.
        world.notices.insert(seq(number), notice(NoticeKind::Output, number));
        if number == 200 {
            world.notices.insert(seq(99), notice(NoticeKind::Failure, 99));
        }
        while let Ok(batch) = world.step() {
            world.answered(&batch, Fate::Delivered);
            if !batch.is_output {
                failures.push((number, batch.notices.len()));
            }
        }
        world.now = world.now + Duration::from_secs(30);
    }
    assert_eq!(failures, [(101, 1), (201, 1)]);
}

#[test]
fn a_mark_whose_notices_are_not_all_read_waits_for_them_and_stays() {
    let mut world = World::failures(3);
    let first = world.message();
    world.unread = world.notices.split_off(&seq(1)).into_keys().collect();
    world.notices.insert(seq(9), notice(NoticeKind::Failure, 9));
    world.fail_over();
    assert_eq!(world.step(), Err(None));
    assert_eq!(world.stored.record.sending.as_ref().map(|sending| &sending.id), Some(&first.id));
    world.notices.extend((1..=3).map(|number| (seq(number), notice(NoticeKind::Failure, number))));
    world.unread.clear();
    let again = world.message();
    assert_eq!((again.is_again, &again.id, again.notices.len()), (true, &first.id, 3));
}

#[test]
fn copies_in_doubt_are_far_apart_and_few() {
    let mut world = World::failures(1);
    let mut pauses = Vec::new();
    let last = loop {
        let batch = world.message();
        match world.answered(&batch, Fate::Doubtful) {
            After::Again(pause) => pauses.push(pause.as_secs()),
            last => break last,
        }
    };
    assert_eq!((last, pauses), (After::Untold, vec![60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600]));
    assert_eq!(world.step(), Err(None), "nothing is left to send");
    let mut world = World::failures(1);
    let batch = world.message();
    let every = Duration::from_secs(7_200);
    assert_eq!(world.state.answered(&batch, Fate::Doubtful, every, 0, world.now), After::Again(every));
}

#[test]
fn when_very_many_wait_the_next_message_does_not_wait_for_its_time() {
    let mut world = World::failures(1);
    let first = world.message();
    world.answered(&first, Fate::Delivered);
    let before = world.now;
    world.notices = (10..1_011).map(|number| (seq(number), notice(NoticeKind::Failure, number))).collect();
    assert_eq!((world.message().notices.len(), world.now), (1_001, before + GATHER));
}

#[test]
fn what_is_given_up_is_marked_no_more() {
    let mut world = World::failures(3);
    let first = world.message();
    world.answered(&first, Fate::Doubtful);
    assert_eq!(world.state.give_up(&[seq(1)].into()), 1);
    let again = world.message();
    assert_eq!((again.is_again, again.notices), (true, [seq(2), seq(3)].into()));
    world.answered(&first, Fate::Doubtful);
    assert_eq!(world.state.give_up(&[seq(2), seq(3)].into()), 2);
    assert_eq!(world.step(), Err(None));
    assert_eq!(world.stored.record.sending, None);
}

#[test]
fn an_id_that_no_leader_made_is_made_anew() {
    for id in ["a\r\nBcc: x", "", &"A".repeat(32), &"0".repeat(33)] {
        let mut world = World::failures(2);
        let right = world.message().id;
        world.stored.record.sending.as_mut().unwrap().id = id.into();
        world.fail_over();
        let again = world.message();
        assert_eq!((again.id, again.is_again), (right, true));
    }
}

#[test]
fn a_message_that_is_not_sent_after_all_leaves_no_doubt() {
    let mut world = World::failures(1);
    let first = world.message();
    // The world counts it as sent; here it was not.
    world.state.is_busy = false;
    world.state.unsent(&first);
    world.write();
    world.fail_over();
    assert!(!world.message().is_again);
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever is answered and whoever dies: nothing is lost, and a message that had arrived before says so.
    #[test]
    fn each_notice_arrives_and_copies_say_that_they_are(
        count in 1_usize..20,
        turns in prop::collection::vec((0_u8..4, any::<bool>()), 0..30),
    ) {
        let mut world = World::failures(count);
        let mut arrived: BTreeSet<NoticeKey> = BTreeSet::new();
        let turns = turns.into_iter().chain(std::iter::repeat_n((0, false), 10));
        for (answer, dies) in turns {
            let done = |world: &World| world.stored.record.done.len() == count && !world.state.is_dirty;
            if world.state.entry.is_some() && done(&world) {
                break;
            }
            let Ok(batch) = world.step().or_else(|until| match until {
                Some(until) => { world.now = until; world.step() }
                None => Err(None),
            }) else { continue };
            let (fate, arrives) = [
                (Fate::Delivered, true), (Fate::Refused, false), (Fate::Doubtful, true), (Fate::Doubtful, false),
            ][usize::from(answer)];
            if arrives {
                prop_assert!(batch.is_again || batch.notices.is_disjoint(&arrived), "a copy that does not say so");
                arrived.extend(&batch.notices);
            }
            if dies {
                world.fail_over();
            } else {
                world.answered(&batch, fate);
            }
        }
        prop_assert_eq!(arrived.len(), count);
    }
}

#[test]
fn what_waits_when_a_channels_record_is_damaged_may_have_been_sent_and_what_comes_later_has_not() {
    let mut world = World::failures(2);
    world.stored = ChannelEntry { at: Some(Version(7)), is_damaged: true, ..ChannelEntry::default() };
    let first = world.message();
    assert!(first.is_again && first.notices.len() == 2, "{first:?}");
    world.answered(&first, Fate::Delivered);
    world.notices.insert(seq(2_000), notice(NoticeKind::Failure, 2_000));
    assert!(!world.message().is_again);
}
