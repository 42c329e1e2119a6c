//! The line between a client and one server, to be delayed, muted, refused or cut.
//!
//! Reads ZooKeeper's frames (a length, then as many bytes), so that the line can be cut at a chosen reply: the server
//! has carried the request out, and the client will never know. TLS and four-letter words are no such frames: for
//! those [`Proxy::opaque`] passes bytes, and cannot cut at a reply. Blocking threads, ended at drop.
//!
//! ```text
//! client ─► reader ─queue─► writer ─► server      each link: two pipes of two threads,
//! client ◄─ writer ◄─queue─ reader ◄─ server      so that a delay does not slow the flow
//! ```

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use link::Link;

mod frame;
mod link;

/// Numbers of requests in ZooKeeper's protocol.
pub mod opcode {
    /// Make a node.
    pub const CREATE: i32 = 1;
    /// Remove a node.
    pub const DELETE: i32 = 2;
    /// Replace a node's data.
    pub const SET_DATA: i32 = 5;
    /// A node's children.
    pub const GET_CHILDREN: i32 = 8;
    /// A transaction.
    pub const MULTI: i32 = 14;
    /// Make a node and tell what it is like.
    pub const CREATE2: i32 = 15;
}

/// Listens on a port of its own for as long as it lives.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// The reply at which to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The reply to the next request of this kind.
    ReplyTo(i32),
    /// The n-th reply from now, counted from 1; pings and watch events do not count.
    Reply(usize),
}

/// What a direction does to what it is given.
#[derive(Clone, Copy, Debug, Default)]
struct Treatment {
    delay: Duration,
    swallow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Requests,
    Replies,
}

#[derive(Debug, Default)]
struct State {
    refusing: bool,
    ended: bool,
    swallows_events: bool,
    requests: Treatment,
    replies: Treatment,
    cut_at: Option<At>,
    /// Cuts at a reply so far.
    cuts: usize,
    links: Vec<Arc<Link>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    frames: bool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Proxy {
    /// A line to a ZooKeeper server's plain port.
    pub fn to(server: SocketAddr) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, server, true)
    }

    /// The same, for clients elsewhere, who reach it at `own`.
    pub fn at(own: Ipv4Addr, server: SocketAddr) -> Self {
        Self::start(own, server, true)
    }

    /// A line whose bytes are not understood.
    pub fn opaque(server: SocketAddr) -> Self {
        Self::start(Ipv4Addr::LOCALHOST, server, false)
    }

    /// Where clients are to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same, as text.
    pub fn connect_string(&self) -> String {
        self.address.to_string()
    }

    /// Back to passing everything at once. What was swallowed stays swallowed.
    pub fn pass(&self) {
        self.change(|state| {
            (state.requests, state.replies) = Default::default();
            (state.refusing, state.swallows_events, state.cut_at) = (false, false, None);
        });
    }

    /// Delays what clients send from now on.
    pub fn delay_requests(&self, delay: Duration) {
        self.change(|state| state.requests.delay = delay);
    }

    /// Delays what the server sends from now on.
    pub fn delay_replies(&self, delay: Duration) {
        self.change(|state| state.replies.delay = delay);
    }

    /// From now on the server hears nothing; connections stay open.
    pub fn swallow_requests(&self) {
        self.change(|state| state.requests.swallow = true);
    }

    /// From now on the clients hear nothing, while the server hears them; connections stay open.
    pub fn swallow_replies(&self) {
        self.change(|state| state.replies.swallow = true);
    }

    /// From now on no watch tells the clients anything; all else passes.
    pub fn swallow_events(&self) {
        assert!(self.shared.frames, "an opaque line shows no events");
        self.change(|state| state.swallows_events = true);
    }

    /// Cuts all connections. New ones pass, unless refused.
    pub fn cut(&self) {
        self.change(|state| state.links.drain(..).for_each(|link| link.cut()));
    }

    /// From now on new connections are closed as soon as they are made; those that stand are left alone.
    pub fn refuse(&self) {
        self.change(|state| state.refusing = true);
    }

    /// Cuts all connections and refuses new ones.
    pub fn part(&self) {
        self.refuse();
        self.cut();
    }

    /// When that reply comes, drops it and cuts its connection; once. With [`refuse`](Self::refuse) the client stays cut off.
    pub fn cut_at(&self, at: At) {
        assert!(self.shared.frames, "an opaque line has no replies to count");
        self.change(|state| state.cut_at = Some(at));
    }

    /// Waits until [`cut_at`](Self::cut_at) has cut `times` times since the proxy started; false: it did not in time.
    pub fn await_cuts(&self, times: usize, timeout: Duration) -> bool {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |state| state.cuts < times);
        !waited.expect("no thread panicked with the lock").1.timed_out()
    }

    fn start(own: Ipv4Addr, server: SocketAddr, frames: bool) -> Self {
        let listener = TcpListener::bind((own, 0)).expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Shared { server, frames, state: Mutex::default(), changed: Condvar::new() };
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
        // Wakes the thread that accepts.
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
                // Closing is all that is left to do.
                _ => drop(client.shutdown(Shutdown::Both)),
            }
        }
    }

    fn join_up(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let (link, threads) = Link::start(self, client, server);
        let mut state = self.lock();
        state.links.retain(|link| !link.is_cut());
        state.threads.retain(|thread| !thread.is_finished());
        if state.refusing {
            // Refused while it was being made.
            link.cut();
        }
        state.links.push(link);
        state.threads.extend(threads);
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

    /// Whether the wanted reply is the one to this request.
    fn wants_reply_to(&self, opcode: i32) -> bool {
        let mut state = self.lock();
        let wanted = state.cut_at == Some(At::ReplyTo(opcode));
        if wanted {
            state.cut_at = None;
        }
        wanted
    }

    /// Counts a reply; true if it is the wanted one.
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
