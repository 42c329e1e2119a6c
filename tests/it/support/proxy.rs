//! A proxy between clients and one server that can delay, mute, refuse or cut connections.
//!
//! It reads ZooKeeper's frames (a length, then that many bytes), so that it can cut a connection at a chosen reply: the
//! server has then carried out the request, and the client never learns it. TLS and four-letter commands have no such
//! frames: for those [`Proxy::opaque`] passes bytes and cannot cut at a reply. [`Proxy::recording`] also keeps all that
//! it passes. It uses blocking threads, which end on drop.
//!
//! ```text
//! client ─► reader ─queue─► writer ─► server      each link: two pipes of two threads,
//! client ◄─ writer ◄─queue─ reader ◄─ server      so that a delay does not slow the flow
//! ```

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use link::Link;

mod frame;
mod link;

/// Request types in ZooKeeper's protocol.
pub mod opcode {
    /// Create a znode.
    pub const CREATE: i32 = 1;
    /// Delete a znode.
    pub const DELETE: i32 = 2;
    /// Set a znode's data.
    pub const SET_DATA: i32 = 5;
    /// List a znode's children.
    pub const GET_CHILDREN: i32 = 8;
    /// A multi.
    pub const MULTI: i32 = 14;
    /// Create a znode and return its metadata.
    pub const CREATE2: i32 = 15;
}

/// Listens on a port of its own until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// The reply at which to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The reply to the next request of this type.
    ReplyTo(i32),
    /// The n-th reply from now, from 1, without pings and watch events.
    Reply(usize),
}

/// How one direction treats its frames.
#[derive(Clone, Copy, Debug, Default)]
struct Treatment {
    delay: Duration,
    swallow: bool,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Requests,
    Replies,
}

/// Some bytes that a proxy has passed on.
#[derive(Clone, Debug)]
pub struct Passed {
    /// The number of the connection.
    pub link: usize,
    pub side: Side,
    /// Before it was passed on.
    pub at: Timestamp,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    refusing: bool,
    ended: bool,
    swallows_events: bool,
    requests: Treatment,
    replies: Treatment,
    cut_at: Option<At>,
    /// Number of cuts at a reply so far.
    cuts: usize,
    links: Vec<Arc<Link>>,
    /// Number of connections so far.
    made: usize,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    frames: bool,
    /// What has passed, if that is kept.
    record: Option<Mutex<Vec<Passed>>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Proxy {
    /// A proxy for a ZooKeeper server's plain port.
    pub fn to(server: SocketAddr) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, server, true, false)
    }

    /// A proxy for clients on other hosts, which reach it at `own`.
    pub fn at(own: Ipv4Addr, server: SocketAddr) -> Self {
        Self::start(own, server, true, false)
    }

    /// A proxy that passes bytes without interpreting them.
    pub fn opaque(server: SocketAddr) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, server, false, false)
    }

    /// A proxy that passes bytes without interpreting them, and keeps them.
    pub fn recording(server: SocketAddr) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, server, false, true)
    }

    /// All that has passed so far. What a server has done was passed on before, and so is in it.
    pub fn record(&self) -> Vec<Passed> {
        let record = self.shared.record.as_ref().expect("the proxy keeps what it passes");
        record.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address to which clients connect, as text.
    pub fn connect_string(&self) -> String {
        self.address.to_string()
    }

    /// Passes everything at once again. Frames that were dropped before stay lost.
    pub fn pass(&self) {
        self.change(|state| {
            (state.requests, state.replies) = Default::default();
            (state.refusing, state.swallows_events, state.cut_at) = (false, false, None);
        });
    }

    /// Delays all frames that clients send from now on.
    pub fn delay_requests(&self, delay: Duration) {
        self.change(|state| state.requests.delay = delay);
    }

    /// Delays all frames that the server sends from now on.
    pub fn delay_replies(&self, delay: Duration) {
        self.change(|state| state.replies.delay = delay);
    }

    /// Drops everything that clients send from now on; connections stay open.
    pub fn swallow_requests(&self) {
        self.change(|state| state.requests.swallow = true);
    }

    /// Drops everything that the server sends from now on; connections stay open.
    pub fn swallow_replies(&self) {
        self.change(|state| state.replies.swallow = true);
    }

    /// Drops all watch events from now on.
    pub fn swallow_events(&self) {
        assert!(self.shared.frames, "an opaque line shows no events");
        self.change(|state| state.swallows_events = true);
    }

    /// Pings the server on every connection, which keeps the sessions of clients that stand still.
    pub fn ping(&self) {
        assert!(self.shared.frames, "an opaque line shows no replies");
        let links = self.shared.lock().links.clone();
        links.iter().for_each(|link| link.ping());
    }

    /// Cuts all connections. New ones are accepted, unless refused.
    pub fn cut(&self) {
        self.change(|state| state.links.drain(..).for_each(|link| link.cut()));
    }

    /// Closes new connections as soon as they are made; existing ones remain.
    pub fn refuse(&self) {
        self.change(|state| state.refusing = true);
    }

    /// Cuts all connections and refuses new ones.
    pub fn part(&self) {
        self.refuse();
        self.cut();
    }

    /// Drops the chosen reply and cuts its connection, once. With [`refuse`](Self::refuse) the client stays cut off.
    pub fn cut_at(&self, at: At) {
        assert!(self.shared.frames, "an opaque line has no replies to count");
        self.change(|state| state.cut_at = Some(at));
    }

    /// Waits until [`cut_at`](Self::cut_at) has cut `times` times since the proxy started. Returns false on a timeout.
    pub fn await_cuts(&self, times: usize, timeout: Duration) -> bool {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |state| state.cuts < times);
        !waited.expect("no thread panicked with the lock").1.timed_out()
    }

    fn start(own: Ipv4Addr, server: SocketAddr, frames: bool, is_kept: bool) -> Self {
        let listener = TcpListener::bind((own, 0)).expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let record = is_kept.then(Mutex::default);
        let shared = Shared { server, frames, record, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_all(&listener)
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.ended = true);
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
        self.accepting.take().into_iter().for_each(|thread| drop(thread.join()));
        self.cut();
        let threads = std::mem::take(&mut self.shared.lock().threads);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let (ended, refusing) = {
                let state = self.lock();
                (state.ended, state.refusing)
            };
            match TcpStream::connect(self.server) {
                _ if ended => return,
                Ok(server) if !refusing => self.join_up(client, server),
                // Dropping the stream closes the connection.
                _ => drop(client.shutdown(Shutdown::Both)),
            }
        }
    }

    fn join_up(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let number = self.lock().made;
        let (link, threads) = Link::start(self, number, client, server);
        let mut state = self.lock();
        state.made += 1;
        state.links.retain(|link| !link.is_cut());
        state.threads.retain(|thread| !thread.is_finished());
        if state.refusing {
            // The proxy began to refuse connections in the meantime.
            link.cut();
        }
        state.links.push(link);
        state.threads.extend(threads);
    }

    /// Keeps what is passed on next, if that is wanted.
    fn keep(&self, link: usize, side: Side, bytes: &[u8]) {
        let Some(record) = &self.record else { return };
        let passed = Passed { link, side, at: Timestamp::now(), bytes: bytes.to_vec() };
        record.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(passed);
    }

    fn treatment(&self, side: Side) -> Treatment {
        let state = self.lock();
        match side {
            Side::Requests => state.requests,
            Side::Replies => state.replies,
        }
    }

    fn swallows_events(&self) -> bool {
        self.lock().swallows_events
    }

    /// True if the chosen reply is the one to this request.
    fn wants_reply_to(&self, opcode: i32) -> bool {
        let mut state = self.lock();
        let wanted = state.cut_at == Some(At::ReplyTo(opcode));
        if wanted {
            state.cut_at = None;
        }
        wanted
    }

    /// Counts a reply. Returns true if it is the chosen one.
    fn counts_down(&self) -> bool {
        let mut state = self.lock();
        let Some(At::Reply(left)) = state.cut_at else { return false };
        state.cut_at = (left > 1).then(|| At::Reply(left - 1));
        left <= 1
    }

    fn count_cut(&self) {
        self.lock().cuts += 1;
        self.changed.notify_all();
    }
}
