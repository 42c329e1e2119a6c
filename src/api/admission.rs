//! Admission control of a listener: limits for connections, history reads and answer bytes.
//!
//! Each limit also applies per caller, so that one caller who takes all it can get leaves enough for the others. When a
//! connection ends, everything that it held is released. Who finds all connections taken takes the place of the oldest
//! that has not sent a whole request: holding connections open shuts nobody out, however many addresses somebody has.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;

/// The limits of one listener, in total and per caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerLimits {
    pub connections: Quota,
    /// Streams of events. They last for minutes, so they do not count as connections.
    pub streams: Quota,
    /// Bytes of answers that the clients have not read yet.
    pub bytes: Quota,
    /// Concurrent reads of histories. Each caller has one at a time.
    pub histories: usize,
    /// Most bytes of one history.
    pub history: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    pub total: usize,
    pub per_caller: usize,
}

impl ListenerLimits {
    /// Limits of the Unix socket. Its users are trusted, but their slow programs must not exhaust the node's memory.
    pub const SOCKET: Self = Self {
        connections: Quota { total: 64, per_caller: 64 },
        streams: Quota { total: 128, per_caller: 128 },
        bytes: Quota { total: 96 << 20, per_caller: 64 << 20 },
        histories: 4,
        history: 32 << 20,
    };
    /// Limits of a TCP address.
    pub const NETWORK: Self = Self {
        connections: Quota { total: 256, per_caller: 16 },
        streams: Quota { total: 128, per_caller: 32 },
        bytes: Quota { total: 24 << 20, per_caller: 8 << 20 },
        histories: 2,
        history: 1 << 20,
    };
}

/// The admission control of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    limits: ListenerLimits,
    histories: Arc<Semaphore>,
    usage: Mutex<Usage>,
    /// Notified when a connection ends, or becomes a stream.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Usage {
    bytes: usize,
    streams: usize,
    callers: HashMap<Caller, CallerUsage>,
    /// The connections that count, by their numbers, so the oldest first.
    connections: BTreeMap<u64, Connection>,
    /// The number of the newest connection.
    newest: u64,
}

#[derive(Debug)]
struct Connection {
    caller: Caller,
    /// Its client has not sent a whole request, or has to wait: it may be closed to make room.
    may_be_closed: bool,
    closing: Arc<Notify>,
}

/// What the connections of one caller hold together.
#[derive(Debug)]
struct CallerUsage {
    connections: usize,
    streams: usize,
    bytes: usize,
    /// One permit: a caller reads one history at a time.
    history: Arc<Semaphore>,
}

impl CallerUsage {
    fn new() -> Self {
        Self { connections: 0, streams: 0, bytes: 0, history: Arc::new(Semaphore::new(1)) }
    }

    fn is_idle(&self) -> bool {
        self.connections + self.streams + self.bytes == 0
    }
}

/// A permit of a semaphore, released on drop. The semaphores are never closed, so it is always present.
pub(super) type Permit = Option<OwnedSemaphorePermit>;

/// The result of a new connection.
enum Attempt {
    Admitted(Arc<Admitted>),
    /// Its caller has as many as allowed, and is being answered on all of them.
    Refused,
    /// All callers together have as many as allowed, and are being answered on all of them.
    Full,
}

impl Admission {
    pub fn new(limits: ListenerLimits) -> Arc<Self> {
        let (histories, usage) = (Arc::new(Semaphore::new(limits.histories)), Mutex::default());
        Arc::new(Self { limits, histories, usage, freed: Notify::new() })
    }

    /// Admits a connection; `None` if its caller is being answered on as many as allowed. If that is true of all callers
    /// together, this waits until one of those ends.
    ///
    /// Cancellation safety: if this future is dropped, the connection is not admitted.
    pub async fn admit(self: &Arc<Self>, caller: Caller) -> Option<Arc<Admitted>> {
        loop {
            match self.attempt(caller) {
                Attempt::Admitted(admitted) => return Some(admitted),
                Attempt::Refused => return None,
                // What is freed before this waits is not missed: the notification is kept.
                Attempt::Full => self.freed.notified().await,
            }
        }
    }

    fn attempt(self: &Arc<Self>, caller: Caller) -> Attempt {
        let limit = self.limits.connections;
        let mut usage = self.usage();
        let own = usage.callers.get(&caller).map_or(0, |own| own.connections);
        if own >= limit.per_caller {
            if !usage.close_oldest(|connection| connection.caller == caller) {
                return Attempt::Refused;
            }
        } else if usage.connections.len() >= limit.total && !usage.close_oldest(|_| true) {
            return Attempt::Full;
        }
        let caller_usage = usage.callers.entry(caller).or_insert_with(CallerUsage::new);
        caller_usage.connections += 1;
        let history = Arc::clone(&caller_usage.history);
        usage.newest += 1;
        let (number, closing) = (usage.newest, Arc::new(Notify::new()));
        let connection = Connection { caller, may_be_closed: true, closing: Arc::clone(&closing) };
        usage.connections.insert(number, connection);
        drop(usage);
        let (admission, held) = (Arc::clone(self), Mutex::default());
        Attempt::Admitted(Arc::new(Admitted { admission, caller, number, closing, history, held }))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    /// Closes the oldest of these connections that may be closed. Its place is free at once. False if there is none.
    fn close_oldest(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let mut all = self.connections.iter();
        let oldest = all.find(|&(_, connection)| connection.may_be_closed && is_meant(connection));
        let oldest = oldest.map(|(number, _)| *number);
        let Some(closed) = oldest.and_then(|number| self.connections.remove(&number)) else { return false };
        closed.closing.notify_one();
        self.release(closed.caller, |usage| usage.connections -= 1);
        true
    }

    /// Takes something off what a caller holds, and forgets the caller if that was all.
    fn release(&mut self, caller: Caller, take_off: impl FnOnce(&mut CallerUsage)) {
        if let Entry::Occupied(mut entry) = self.callers.entry(caller) {
            take_off(entry.get_mut());
            if entry.get().is_idle() {
                entry.remove();
            }
        }
    }
}

/// An admitted connection. Dropping it releases what it held.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    caller: Caller,
    number: u64,
    closing: Arc<Notify>,
    history: Arc<Semaphore>,
    held: Mutex<Held>,
}

/// What one connection holds.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    is_stream: bool,
}

/// Why an answer is refused for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMemory {
    /// The answer alone exceeds the limit of one caller.
    TooLarge { limit: usize },
    /// Other answers use the memory; it is free again once clients have read them.
    Busy,
}

impl Admitted {
    /// Reserves memory for an answer until the connection ends.
    pub fn reserve(&self, bytes: usize) -> Result<(), NoMemory> {
        let quota = self.admission.limits.bytes;
        if bytes > quota.per_caller {
            return Err(NoMemory::TooLarge { limit: quota.per_caller });
        }
        let mut usage = self.admission.usage();
        let total = usage.bytes + bytes;
        let Some(caller_usage) = usage.callers.get_mut(&self.caller) else { return Err(NoMemory::Busy) };
        if total > quota.total || caller_usage.bytes + bytes > quota.per_caller {
            return Err(NoMemory::Busy);
        }
        caller_usage.bytes += bytes;
        usage.bytes = total;
        self.held().bytes += bytes;
        Ok(())
    }

    /// Waits until the connection has to make room for another.
    pub async fn room_needed(&self) {
        self.closing.notified().await;
    }

    /// The client has sent a whole request, and will be answered: the connection makes room for no other.
    pub fn keep_place(&self) {
        self.set_may_be_closed(false);
    }

    /// The connection makes room for another if there are too many.
    pub fn offer_place(&self) {
        self.set_may_be_closed(true);
    }

    fn set_may_be_closed(&self, may_be_closed: bool) {
        if let Some(connection) = self.admission.usage().connections.get_mut(&self.number) {
            connection.may_be_closed = may_be_closed;
        }
    }

    /// Makes the connection a stream of events, which counts against limits of its own. False if there are too many.
    pub fn become_stream(&self) -> bool {
        let quota = self.admission.limits.streams;
        let mut usage = self.admission.usage();
        let is_full = usage.streams >= quota.total;
        let is_counted = usage.connections.contains_key(&self.number);
        let Some(caller_usage) = usage.callers.get_mut(&self.caller).filter(|_| is_counted) else { return false };
        if is_full || caller_usage.streams >= quota.per_caller {
            return false;
        }
        caller_usage.streams += 1;
        caller_usage.connections -= 1;
        usage.streams += 1;
        usage.connections.remove(&self.number);
        self.held().is_stream = true;
        self.admission.freed.notify_one();
        true
    }

    /// True for a stream of events.
    pub fn is_stream(&self) -> bool {
        self.held().is_stream
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this connection may read a history. The turn ends when the permits are dropped.
    pub async fn history_permits(&self) -> (Permit, Permit) {
        let own = Arc::clone(&self.history).acquire_owned().await.ok();
        (own, Arc::clone(&self.admission.histories).acquire_owned().await.ok())
    }

    /// Most bytes of one history.
    pub fn history_limit(&self) -> usize {
        self.admission.limits.history
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut usage = self.admission.usage();
        usage.bytes -= held.bytes;
        usage.streams -= usize::from(held.is_stream);
        // One that had to make room counts no longer.
        let is_counted = usage.connections.remove(&self.number).is_some();
        usage.release(self.caller, |caller_usage| {
            caller_usage.bytes -= held.bytes;
            caller_usage.streams -= usize::from(held.is_stream);
            caller_usage.connections -= usize::from(is_counted);
        });
        drop(usage);
        self.admission.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
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
}
