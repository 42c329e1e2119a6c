//! Passes the jobs' output on to the daemon.
//!
//! Everything else comes before it. Each stream in turn is read a little, and only while little output is on its way to
//! the daemon ([`Window`](super::window::Window)); the rest waits in the pipes, which holds the jobs up. The end of a
//! tree follows its own output and waits for no other's.

use std::io;

use super::keeper::{CHUNK, Keeper};
use super::output::Piece;
use cronkeeper_core::process::{Notice, Stream, TreeId, line_cost};

/// Maximum number of reads from output pipes in one turn.
const READS_A_TURN: usize = 32;

/// Bytes read at once from a stream: the window is exceeded by the price of so many lines at most.
const SHARE: usize = 1 << 10;

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

impl Keeper {
    pub(super) fn read_outputs(&mut self) -> io::Result<()> {
        for _ in 0..READS_A_TURN {
            if self.window.is_full() {
                break;
            }
            let Some((tree_id, stream)) = self.poller.next_output()? else { break };
            let share = self.share(tree_id);
            self.read_output(tree_id, stream, share);
        }
        Ok(())
    }

    /// The most to read at once from a tree: what is only counted costs the daemon nothing.
    fn share(&self, tree_id: TreeId) -> usize {
        let is_used_up = self.trees.get(tree_id).is_some_and(|tree| tree.output.is_used_up());
        if is_used_up { CHUNK } else { SHARE }
    }

    /// Reads at most `limit` bytes and returns how many. Closes the pipe at the end of the stream.
    fn read_output(&mut self, tree_id: TreeId, stream: Stream, limit: usize) -> usize {
        let Some(tree) = self.trees.get_mut(tree_id) else { return 0 };
        let Some(pipe) = tree.pipe(stream) else { return 0 };
        let limit = limit.min(self.buffer.len());
        match rustix::io::read(&*pipe, &mut self.buffer[..limit]) {
            Ok(bytes) if bytes > 0 => {
                let pieces = tree.output.take(stream, &self.buffer[..bytes]);
                self.send_output(tree_id, pieces);
                bytes
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Ok(_) | Err(_) => {
                self.poller.unwatch_output(&*pipe);
                *tree.pipe(stream) = None;
                0
            }
        }
    }

    /// Passes on what was in the pipes of a cleared tree when it was cleared, and closes them: other holders of the
    /// writing end cause no delay.
    ///
    /// Returns false while some of it is left, because much output is on its way to the daemon. A little is sent all the
    /// same, so that a tree which writes little ends at once.
    pub(super) fn drain(&mut self, tree_id: TreeId) -> bool {
        for stream in STREAMS {
            while let Some(left) = self.trees.get_mut(tree_id).and_then(|tree| tree.left_in_pipe(stream)) {
                let share = self.share(tree_id);
                let may_wait = share == SHARE && left > SHARE && !self.is_closing;
                if may_wait && self.window.is_full() {
                    return false;
                }
                let read = self.read_output(tree_id, stream, left.min(share));
                if let Some(tree) = self.trees.get_mut(tree_id) {
                    tree.drained(stream, read);
                }
            }
            if let Some(pipe) = self.trees.get_mut(tree_id).and_then(|tree| tree.pipe(stream).take()) {
                self.poller.unwatch_output(&pipe);
            }
        }
        let rest = self.trees.get_mut(tree_id).map(|tree| tree.output.finish()).unwrap_or_default();
        self.send_output(tree_id, rest);
        true
    }

    fn send_output(&mut self, tree_id: TreeId, pieces: Vec<Piece>) {
        for Piece { stream, lines, continues } in pieces {
            self.window.sent(lines.iter().map(|line| line_cost(line)).sum());
            self.send(&Notice::Output { tree_id, stream, lines, continues });
        }
    }
}
