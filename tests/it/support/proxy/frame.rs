//! Splits a stream of bytes into frames that are passed on as a whole.

use std::io::{self, Read};

/// Pings, watch events and authentication have numbers below zero; requests are numbered from one.
const FIRST_REQUEST: i32 = 1;
const WATCH_EVENT: i32 = -1;
const PING: i32 = -2;
/// The request type of a ping.
const PING_OPCODE: i32 = 11;

/// A frame with its length prefix, or just some bytes.
#[derive(Debug)]
pub(super) struct Frame(pub(super) Vec<u8>);

impl Frame {
    /// Reads the next frame. The end of the stream is an error.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut bytes = length.to_vec();
        let body = u64::from(u32::from_be_bytes(length));
        let read = from.take(body).read_to_end(&mut bytes)?;
        if (read as u64) < body { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Self(bytes)) }
    }

    /// Reads the next bytes. The end of the stream is an error.
    pub(super) fn read_any(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = vec![0; 16 * 1024];
        let read = from.read(&mut bytes)?;
        bytes.truncate(read);
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Self(bytes)) }
    }

    /// The request of a ping.
    pub(super) fn ping() -> Self {
        Self([8, PING, PING_OPCODE].into_iter().flat_map(i32::to_be_bytes).collect())
    }

    /// True for a ping and for its reply.
    pub(super) fn is_ping(&self) -> bool {
        self.word(1) == Some(PING)
    }

    /// The number of the request, or of the request that this replies to. Not valid for the first frame of a stream,
    /// which opens the session.
    pub(super) fn xid(&self) -> Option<i32> {
        self.word(1).filter(|&xid| xid >= FIRST_REQUEST)
    }

    /// True for a watch event, which is not the reply to a request.
    pub(super) fn is_watch_event(&self) -> bool {
        self.word(1) == Some(WATCH_EVENT)
    }

    /// A request's kind.
    pub(super) fn opcode(&self) -> Option<i32> {
        self.word(2)
    }

    fn word(&self, index: usize) -> Option<i32> {
        let bytes = self.0.get(4 * index..4 * index + 4)?;
        Some(i32::from_be_bytes(bytes.try_into().ok()?))
    }
}
