//! Admission control of a listener: limits for connections, streams, history reads and answer bytes.
//!
//! Each limit also applies per caller. When a connection ends, everything that it held is released.
//!
//! Who finds no room gets it from others, and at once:
//!
//! - Any connection takes the place of one that has not sent a whole request, and so does any connection and any answer
//!   of one whose answer has been unread for [`PATIENCE`], the oldest first.
//! - If there is none, it takes the place of the oldest of whoever holds the most, if that is still more than it will
//!   hold itself then: an answer that has been unread, or a request that has waited for the end of a run, for [`FAIR`];
//!   or a stream of events.
//!
//! So clients that hold connections open, or do not read, shut nobody out, and a few addresses cannot either.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::caller::Caller;

/// An answer that its client has not read for this long makes room for anybody.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that its client has not read for this long makes room for a caller who holds less: nobody on a usual
/// network needs that long for an answer.
pub(super) const FAIR: Duration = Duration::from_secs(1);

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
    /// What all callers hold together.
    total: Held,
    callers: HashMap<Caller, CallerUsage>,
    /// The connections and streams that count, by their numbers, so the oldest first.
    connections: BTreeMap<u64, Connection>,
    /// Those that had to make room and have not ended yet, with the bytes that they still hold.
    leaving: BTreeMap<u64, usize>,
    /// The number of the newest connection.
    newest: u64,
}

/// What one caller holds, or all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    connections: usize,
    streams: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Connection {
    caller: Caller,
    state: State,
    /// Bytes of its answer.
    bytes: usize,
    closing: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its client has not sent a whole request, or has to wait as a punishment.
    Asking,
    /// The request is being carried out.
    Answering,
    /// Since then the answer waits for something to happen, and nothing is lost if the client asks again.
    Waiting { since: Instant },
    /// Since then the client could have read the answer.
    Unread { since: Instant },
    /// It is a stream of events.
    Stream,
}

impl Connection {
    /// True if its answer has been there for this long.
    fn is_unread_for(&self, time: Duration, now: Instant) -> bool {
        matches!(self.state, State::Unread { since } if now.duration_since(since) >= time)
    }

    /// True if a caller who holds less may take its place.
    fn makes_room_for_poorer(&self, now: Instant) -> bool {
        let is_waiting = matches!(self.state, State::Waiting { since } if now.duration_since(since) >= FAIR);
        is_waiting || self.is_unread_for(FAIR, now)
    }

    /// True if anybody may take its place.
    fn makes_room(&self, now: Instant) -> bool {
        self.state == State::Asking || self.is_unread_for(PATIENCE, now)
    }

    fn held(&self) -> Held {
        let is_stream = self.state == State::Stream;
        Held { connections: usize::from(!is_stream), streams: usize::from(is_stream), bytes: self.bytes }
    }
}

/// What the connections of one caller hold together.
#[derive(Debug, Default)]
struct CallerUsage {
    held: Held,
    turns: Turns,
}

/// What a caller does one after the other, so that others get their turn between.
#[derive(Clone, Debug)]
struct Turns {
    /// Reading a history.
    history: Arc<Semaphore>,
    /// Waiting for an answer that takes long to compute.
    slow_answer: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { history: Arc::new(Semaphore::new(1)), slow_answer: Arc::new(Semaphore::new(1)) }
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
    /// together, this waits until one of those ends, or its client has had enough time to read the answer.
    ///
    /// Cancellation safety: if this future is dropped, the connection is not admitted.
    pub async fn admit(self: &Arc<Self>, caller: Caller) -> Option<Arc<Admitted>> {
        loop {
            match self.attempt(caller) {
                Attempt::Admitted(admitted) => return Some(admitted),
                Attempt::Refused => return None,
                // What is freed before this waits is not missed: the notification is kept.
                Attempt::Full => drop(timeout(FAIR, self.freed.notified()).await),
            }
        }
    }

    fn attempt(self: &Arc<Self>, caller: Caller) -> Attempt {
        let (limit, now) = (self.limits.connections, Instant::now());
        let mut usage = self.usage();
        let own = usage.held_by(caller).connections;
        if own >= limit.per_caller {
            let oldest = usage.first(|connection| connection.caller == caller && connection.makes_room(now));
            let Some(oldest) = oldest else { return Attempt::Refused };
            usage.close(oldest);
        } else if usage.total.connections >= limit.total {
            let oldest = usage.first(|connection| connection.makes_room(now));
            let makes_room = |connection: &Connection| connection.makes_room_for_poorer(now);
            let oldest = oldest.or_else(|| usage.first_of_richest(|held| held.connections, own + 1, makes_room));
            // Only a caller without a connection waits: nobody else has to wait behind one that has some.
            let Some(oldest) = oldest else { return if own == 0 { Attempt::Full } else { Attempt::Refused } };
            usage.close(oldest);
        }
        let (number, closing, turns) = usage.add(caller);
        drop(usage);
        Attempt::Admitted(Arc::new(Admitted { admission: Arc::clone(self), caller, number, closing, turns }))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    fn held_by(&self, caller: Caller) -> Held {
        self.callers.get(&caller).map(|usage| usage.held).unwrap_or_default()
    }

    /// Counts a new connection.
    fn add(&mut self, caller: Caller) -> (u64, Arc<Notify>, Turns) {
        self.newest += 1;
        let closing = Arc::new(Notify::new());
        let connection = Connection { caller, state: State::Asking, bytes: 0, closing: Arc::clone(&closing) };
        self.change(caller, |held| held.connections += 1);
        self.connections.insert(self.newest, connection);
        let turns = self.callers.get(&caller).map(|usage| usage.turns.clone()).unwrap_or_default();
        (self.newest, closing, turns)
    }

    /// The oldest of these connections.
    fn first(&self, is_meant: impl Fn(&Connection) -> bool) -> Option<u64> {
        self.connections.iter().find(|&(_, connection)| is_meant(connection)).map(|(number, _)| *number)
    }

    /// The oldest of these connections of the caller who holds the most of something, if that is more than somebody
    /// `wants` to have.
    fn first_of_richest(
        &self,
        what: impl Fn(&Held) -> usize,
        wants: usize,
        is_meant: impl Fn(&Connection) -> bool,
    ) -> Option<u64> {
        let has = |connection: &Connection| what(&self.held_by(connection.caller));
        let meant = self.connections.iter().filter(|&(_, connection)| is_meant(connection) && has(connection) > wants);
        meant.min_by_key(|&(_, connection)| Reverse(has(connection))).map(|(number, _)| *number)
    }

    /// The answers that have to be closed so that a connection may have one of this size, none if there is room. `None`
    /// if no answers make enough room, or the connection itself has to make room.
    fn answers_in_the_way(&self, number: u64, bytes: usize, limit: Quota, now: Instant) -> Option<Vec<u64>> {
        let caller = self.connections.get(&number)?.caller;
        let mut total = self.total.bytes;
        let mut held: HashMap<Caller, usize> =
            self.callers.iter().map(|(caller, usage)| (*caller, usage.held.bytes)).collect();
        let mut answers: Vec<_> = self.connections.iter().filter(|(other, _)| **other != number).collect();
        answers.retain(|(_, answer)| answer.bytes > 0 && answer.is_unread_for(FAIR, now));
        let mut closed = Vec::new();
        loop {
            let has = |caller: Caller| held.get(&caller).copied().unwrap_or_default();
            let wants = has(caller) + bytes;
            let mut old = answers.iter().enumerate().filter(|(_, (_, answer))| answer.is_unread_for(PATIENCE, now));
            let next = if wants > limit.per_caller {
                old.find(|(_, (_, answer))| answer.caller == caller)?.0
            } else if total + bytes > limit.total {
                let of_richest = || {
                    let richer = answers.iter().enumerate().filter(|(_, (_, answer))| has(answer.caller) > wants);
                    richer.min_by_key(|(_, (_, answer))| Reverse(has(answer.caller)))
                };
                old.next().or_else(of_richest)?.0
            } else {
                return Some(closed);
            };
            let (number, answer) = answers.remove(next);
            total -= answer.bytes;
            held.entry(answer.caller).and_modify(|held| *held -= answer.bytes);
            closed.push(*number);
        }
    }

    /// Closes a connection. What it holds is free at once, although it ends a moment later.
    fn close(&mut self, number: u64) {
        if let Some(closed) = self.remove(number) {
            self.leaving.insert(number, closed.bytes);
            closed.closing.notify_one();
        }
    }

    /// Counts a connection no longer; `None` if that is so already.
    fn remove(&mut self, number: u64) -> Option<Connection> {
        let removed = self.connections.remove(&number)?;
        let Held { connections, streams, bytes } = removed.held();
        self.change(removed.caller, |held| {
            held.connections -= connections;
            held.streams -= streams;
            held.bytes -= bytes;
        });
        Some(removed)
    }

    /// Changes what a caller holds, and forgets the caller if that is nothing.
    fn change(&mut self, caller: Caller, change: impl Fn(&mut Held)) {
        change(&mut self.total);
        let mut entry = match self.callers.entry(caller) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(CallerUsage::default()),
        };
        change(&mut entry.get_mut().held);
        if entry.get().held == Held::default() {
            entry.remove();
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
    turns: Turns,
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
    ///
    /// Nothing waits here: the answer is in memory already, and would be uncounted meanwhile.
    pub fn reserve(&self, bytes: usize) -> Result<(), NoMemory> {
        let quota = self.admission.limits.bytes;
        if bytes > quota.per_caller {
            return Err(NoMemory::TooLarge { limit: quota.per_caller });
        }
        let mut usage = self.admission.usage();
        let in_the_way = usage.answers_in_the_way(self.number, bytes, quota, Instant::now()).ok_or(NoMemory::Busy)?;
        // Those that leave use memory until they are gone: together with those that count, at most twice the limit.
        let more = in_the_way.iter().filter_map(|number| usage.connections.get(number)).map(|answer| answer.bytes);
        let leaving: usize = usage.leaving.values().copied().chain(more).sum();
        if leaving > quota.total {
            return Err(NoMemory::Busy);
        }
        in_the_way.into_iter().for_each(|number| usage.close(number));
        usage.change(self.caller, |held| held.bytes += bytes);
        if let Some(own) = usage.connections.get_mut(&self.number) {
            own.bytes += bytes;
        }
        Ok(())
    }

    /// Waits until the connection has to make room for another.
    pub async fn room_needed(&self) {
        self.closing.notified().await;
    }

    /// The client has sent a whole request, which is carried out now: the connection makes room for no other.
    pub fn keep_place(&self) {
        self.change_state(|state| if state == State::Asking { State::Answering } else { state });
    }

    /// The connection makes room for another if there are too many.
    pub fn offer_place(&self) {
        self.change_state(|state| if state == State::Answering { State::Asking } else { state });
    }

    /// The answer waits for something to happen: the connection makes room for a caller who holds less.
    pub fn wait(&self) {
        let since = Instant::now();
        self.change_state(|state| if state == State::Answering { State::Waiting { since } } else { state });
    }

    /// The answer is ready: from now on it is up to the client how long the connection lasts.
    pub fn answered(&self) {
        let since = Instant::now();
        self.change_state(|state| if state == State::Stream { state } else { State::Unread { since } });
    }

    fn change_state(&self, change: impl Fn(State) -> State) {
        if let Some(connection) = self.admission.usage().connections.get_mut(&self.number) {
            connection.state = change(connection.state);
        }
    }

    /// Makes the connection a stream of events, which counts against limits of its own. False if there are too many.
    pub fn become_stream(&self) -> bool {
        let quota = self.admission.limits.streams;
        let mut usage = self.admission.usage();
        match usage.connections.get(&self.number).map(|own| own.state) {
            None => return false,
            Some(State::Stream) => return true,
            Some(_) => {}
        }
        let own = usage.held_by(self.caller).streams;
        if own >= quota.per_caller {
            return false;
        }
        if usage.total.streams >= quota.total {
            let is_stream = |connection: &Connection| connection.state == State::Stream;
            let of_richest = usage.first_of_richest(|held| held.streams, own + 1, is_stream);
            // Among as many callers as there are streams, each has one for a while.
            let oldest = of_richest.or_else(|| usage.first(is_stream).filter(|_| own == 0));
            let Some(oldest) = oldest else { return false };
            usage.close(oldest);
        }
        usage.change(self.caller, |held| {
            held.connections -= 1;
            held.streams += 1;
        });
        if let Some(connection) = usage.connections.get_mut(&self.number) {
            connection.state = State::Stream;
        }
        drop(usage);
        self.admission.freed.notify_one();
        true
    }

    /// True for a stream of events.
    pub fn is_stream(&self) -> bool {
        self.admission.usage().connections.get(&self.number).is_some_and(|own| own.state == State::Stream)
    }

    /// Waits until this connection may read a history. The turn ends when the permits are dropped.
    pub async fn history_permits(&self) -> (Permit, Permit) {
        let own = Arc::clone(&self.turns.history).acquire_owned().await.ok();
        (own, Arc::clone(&self.admission.histories).acquire_owned().await.ok())
    }

    /// Waits until no other connection of the caller waits for an answer that takes long to compute.
    pub async fn slow_answer_permit(&self) -> Permit {
        Arc::clone(&self.turns.slow_answer).acquire_owned().await.ok()
    }

    /// Most bytes of one history.
    pub fn history_limit(&self) -> usize {
        self.admission.limits.history
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut usage = self.admission.usage();
        usage.leaving.remove(&self.number);
        usage.remove(self.number);
        drop(usage);
        self.admission.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
