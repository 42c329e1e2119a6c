//! The messages in what a proxy has passed on. A message may come in parts, and several of them at once.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::support::proxy::{Passed, Side};

/// What one side of a connection has sent.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// Where each part ends, and when it was passed on.
    parts: Vec<(usize, Timestamp)>,
}

/// Asserts that the commits with the nonces 1 to 3, the last at the end, are found in these bytes, in however many parts
/// they come.
pub fn assert_found_in_parts(bytes: &[u8], nonces: impl Fn(&Stream) -> Vec<u64>) {
    assert_eq!(nonces(&Stream::of(&[bytes])), [1, 2, 3]);
    assert_eq!(nonces(&Stream::of(&bytes.chunks(7).collect::<Vec<_>>())), [1, 2, 3]);
    assert_eq!(nonces(&Stream::of(&[&bytes[..bytes.len() - 1]])), [1, 2], "the last one is not complete");
}

/// What this side of each connection has sent.
pub fn streams(passed: &[Passed], side: Side) -> BTreeMap<usize, Stream> {
    let mut streams = BTreeMap::<usize, Stream>::new();
    for part in passed.iter().filter(|part| part.side == side) {
        streams.entry(part.link).or_default().add(&part.bytes, part.at);
    }
    streams
}

impl Stream {
    /// These parts, a second after each other.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut stream = Self::default();
        for (second, part) in (0..).zip(parts) {
            stream.add(part, Timestamp::from_second(second).expect("it is small"));
        }
        stream
    }

    pub fn add(&mut self, bytes: &[u8], at: Timestamp) {
        self.bytes.extend_from_slice(bytes);
        self.parts.push((self.bytes.len(), at));
    }

    /// The complete messages, and when the last part of each was passed on. `first` finds the first message in some
    /// bytes, and its length; `None` if it is not complete.
    pub fn messages<M>(&self, first: impl Fn(&[u8]) -> Option<(M, usize)>) -> Vec<(Timestamp, M)> {
        let (mut messages, mut begins) = (Vec::new(), 0);
        while let Some((message, length)) = first(&self.bytes[begins..]) {
            begins += length;
            let part = self.parts.partition_point(|(end, _)| *end < begins);
            messages.push((self.parts[part].1, message));
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("it is small")
    }

    fn line(bytes: &[u8]) -> Option<(String, usize)> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), end + 1))
    }

    #[test]
    fn a_message_has_the_time_of_its_last_part() {
        let stream = Stream::of(&[b"a", b"", b"b\nc\n", b"d", b"\n", b"e"]);
        let found = stream.messages(line);
        assert_eq!(found, [(at(2), "ab".to_owned()), (at(2), "c".to_owned()), (at(4), "d".to_owned())]);
    }

    #[test]
    fn each_connection_and_side_has_its_own_stream() {
        let part = |link, side, text: &str| Passed { link, side, at: at(0), bytes: text.into() };
        let passed = [
            part(0, Side::Requests, "a"),
            part(1, Side::Requests, "x\n"),
            part(0, Side::Replies, "r\n"),
            part(0, Side::Requests, "b\n"),
        ];
        let of = |side| {
            let streams = streams(&passed, side);
            streams.iter().map(|(link, stream)| (*link, stream.messages(line)[0].1.clone())).collect::<Vec<_>>()
        };
        assert_eq!(of(Side::Requests), [(0, "ab".to_owned()), (1, "x".to_owned())]);
        assert_eq!(of(Side::Replies), [(0, "r".to_owned())]);
    }
}
