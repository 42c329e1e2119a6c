//! The queue of encoded messages that a socket has not accepted yet.

use std::io;

use serde::Serialize;

use super::codec::{CodecError, encode};

/// Capacity that an empty buffer keeps, in bytes; more is freed.
const KEEP: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub(super) fn push<T: Serialize>(&mut self, message: &T) -> Result<(), CodecError> {
        encode(message, &mut self.bytes)
    }

    /// Number of bytes not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Writes until nothing is left or `write` would block.
    pub(super) fn flush(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while self.waiting() > 0 {
            match write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(())
    }

    /// Drops all messages, because nobody reads them any more.
    pub(super) fn clear(&mut self) {
        self.sent = self.bytes.len();
        self.compact();
    }

    /// Frees the space of sent bytes once they are most of the buffer: moving the rest is then cheap.
    fn compact(&mut self) {
        if self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
            self.bytes.shrink_to(KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warden::codec::Decoder;

    #[test]
    fn messages_to_a_slow_reader_arrive_whole() {
        let (mut outbox, mut decoder, mut got) = (Outbox::default(), Decoder::default(), Vec::new());
        for number in 0..100u32 {
            outbox.push(&number).unwrap();
        }
        while outbox.waiting() > 0 {
            let mut room = 1;
            let take = |bytes: &[u8]| {
                if room == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                room = 0;
                decoder.push(&bytes[..3.min(bytes.len())]);
                Ok(3.min(bytes.len()))
            };
            outbox.flush(take).unwrap();
            while let Some(number) = decoder.take::<u32>().unwrap() {
                got.push(number);
            }
        }
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    }
}
