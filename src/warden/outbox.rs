//! Messages waiting for the other end of the socket to read.

use std::io;

use serde::Serialize;

use super::codec::{CodecError, encode};

/// More buffer than this is given back once it is empty.
const KEEP: usize = 64 << 10;

/// Encoded messages, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Appends a message.
    pub(super) fn push<T: Serialize>(&mut self, message: &T) -> Result<(), CodecError> {
        encode(message, &mut self.bytes)
    }

    /// How many bytes wait.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Writes until all is out or `write` would block.
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

    /// Forgets all: nobody reads any more.
    pub(super) fn clear(&mut self) {
        self.sent = self.bytes.len();
        self.compact();
    }

    /// Gives back what is sent, when that is most of the buffer: moving the rest is then cheap.
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
    fn what_a_slow_reader_takes_in_pieces_is_whole() {
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
