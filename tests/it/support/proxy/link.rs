//! One connection through the proxy.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::frame::Frame;
use super::{Shared, Side};

/// Both sockets of a connection, and the reply at which to cut it.
#[derive(Debug)]
pub(super) struct Link {
    number: usize,
    client: TcpStream,
    server: TcpStream,
    cut: AtomicBool,
    /// Number of the request whose reply cuts this link; 0 for none.
    doomed: AtomicI32,
    /// Pings sent in the client's place whose replies are still to come. Locked while something is sent to the server.
    pings: Mutex<usize>,
}

type Queue<T> = (Sender<T>, Receiver<T>);

impl Link {
    /// Starts to pass frames. The threads end when either side closes the link.
    pub(super) fn start(
        shared: &Arc<Shared>,
        number: usize,
        client: TcpStream,
        server: TcpStream,
    ) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        for stream in [&client, &server] {
            // Nagle's algorithm would add delays.
            drop(stream.set_nodelay(true));
        }
        let (cut, doomed) = (AtomicBool::new(false), AtomicI32::new(0));
        let link = Arc::new(Self { number, client, server, cut, doomed, pings: Mutex::new(0) });
        let threads = [Side::Requests, Side::Replies].into_iter().flat_map(|side| link.pipe(shared, side)).collect();
        (link, threads)
    }

    pub(super) fn cut(&self) {
        self.cut.store(true, SeqCst);
        // An error means that it is already closed.
        drop(self.client.shutdown(Shutdown::Both));
        drop(self.server.shutdown(Shutdown::Both));
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(SeqCst)
    }

    /// Sends a ping in the client's place. The client does not get its reply.
    pub(super) fn ping(&self) {
        let mut pings = self.pings();
        // A link whose server is gone ends by itself.
        if (&self.server).write_all(&Frame::ping().0).is_ok() {
            *pings += 1;
        }
    }

    fn pings(&self) -> MutexGuard<'_, usize> {
        self.pings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts a reply to a ping that the client has not sent.
    fn is_reply_to_ping(&self) -> bool {
        let mut pings = self.pings();
        let is_ours = *pings > 0;
        *pings -= usize::from(is_ours);
        is_ours
    }

    fn pipe(self: &Arc<Self>, shared: &Arc<Shared>, side: Side) -> [JoinHandle<()>; 2] {
        let (queue, queued): Queue<(Instant, Frame)> = channel();
        let reader = thread::spawn({
            let (link, shared) = (Arc::clone(self), Arc::clone(shared));
            move || {
                // Always ends with an error, at the latest at the end of the stream. The writer passes on the queue and
                // then ends.
                drop(link.read_all(&shared, side, &queue));
            }
        });
        let writer = thread::spawn({
            let link = Arc::clone(self);
            move || {
                drop(link.write_all(side, &queued));
                link.cut();
            }
        });
        [reader, writer]
    }

    fn read_all(&self, shared: &Shared, side: Side, queue: &Sender<(Instant, Frame)>) -> io::Result<()> {
        let mut from = match side {
            Side::Requests => &self.client,
            Side::Replies => &self.server,
        };
        for index in 0.. {
            let frame = if shared.frames { Frame::read(&mut from)? } else { Frame::read_any(&mut from)? };
            // The first frame opens the session and has no number.
            if shared.frames && index > 0 && self.cuts_at(shared, side, &frame) {
                self.cut();
                shared.count_cut();
                break;
            }
            if index > 0 && side == Side::Replies && frame.is_ping() && self.is_reply_to_ping() {
                continue;
            }
            let treatment = shared.treatment(side);
            let is_event = index > 0 && side == Side::Replies && frame.is_watch_event();
            if treatment.swallow || (is_event && shared.swallows_events()) {
                continue;
            }
            shared.keep(self.number, side, &frame.0);
            if queue.send((Instant::now() + treatment.delay, frame)).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn cuts_at(&self, shared: &Shared, side: Side, frame: &Frame) -> bool {
        let Some(xid) = frame.xid() else { return false };
        match side {
            Side::Requests => {
                if frame.opcode().is_some_and(|opcode| shared.wants_reply_to(opcode)) {
                    self.doomed.store(xid, SeqCst);
                }
                false
            }
            Side::Replies => self.doomed.load(SeqCst) == xid || shared.counts_down(),
        }
    }

    fn write_all(&self, side: Side, queued: &Receiver<(Instant, Frame)>) -> io::Result<()> {
        let mut to = match side {
            Side::Requests => &self.server,
            Side::Replies => &self.client,
        };
        for (due, frame) in queued {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let _sending = (side == Side::Requests).then(|| self.pings());
            to.write_all(&frame.0)?;
        }
        Ok(())
    }
}
