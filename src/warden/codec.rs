//! Messages on a byte stream: a length (u32, little endian), then that many bytes of JSON. Both ends share it.
//!
//! It never trusts a length: what is longer than [`MAX_MESSAGE`] is refused before a byte of it is kept.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes. The kernel refuses a larger command line and environment anyway.
pub const MAX_MESSAGE: usize = 8 << 20;

const HEADER: usize = size_of::<u32>();

/// More buffer than this is given back once it is empty: one large message must not stay paid for.
const KEEP: usize = 64 << 10;

/// What is no message.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Over the limit.
    #[error("a message of {bytes} bytes, over the limit of {MAX_MESSAGE}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not what was expected.
    #[error("a message that cannot be read")]
    Json(#[from] serde_json::Error),
}

/// Appends a message to `buffer`; on an error `buffer` is as it was.
///
/// # Errors
/// When it is over [`MAX_MESSAGE`].
pub fn encode<T: Serialize>(message: &T, buffer: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = buffer.len();
    let written = append(message, buffer, start);
    if written.is_err() {
        buffer.truncate(start);
    }
    written
}

fn append<T: Serialize>(message: &T, buffer: &mut Vec<u8>, start: usize) -> Result<(), CodecError> {
    buffer.extend_from_slice(&[0; HEADER]);
    serde_json::to_writer(&mut *buffer, message)?;
    let bytes = buffer.len() - start - HEADER;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_MESSAGE).ok_or(CodecError::TooLong { bytes })?;
    buffer[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Takes bytes as they come and gives messages as they are complete.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// When it is none. The stream is of no use from then on.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, CodecError> {
        let rest = &self.bytes[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let bytes = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
        if bytes > MAX_MESSAGE {
            return Err(CodecError::TooLong { bytes });
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.taken += HEADER + bytes;
        self.release();
        Ok(Some(message))
    }

    fn release(&mut self) {
        if self.taken == self.bytes.len() {
            self.taken = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{Cgroup, Deadline, Launch, Limits, Notice, Order, Stream, TreeId, Urgent, User};
    use super::*;
    use crate::clock::Uptime;
    use crate::fuzz::Fuzz;

    fn orders() -> impl Strategy<Value = Order> {
        prop_oneof![
            any::<u64>().prop_map(|tree_id| Order::Kill { tree_id: TreeId(tree_id) }),
            any::<(u64, u64)>().prop_map(|(tree_id, grace_ms)| Order::Stop { tree_id: TreeId(tree_id), grace_ms }),
            any::<u64>().prop_map(|nanos| Order::Lease { until: Uptime::from_nanos(nanos) }),
            any::<(u64, u64)>().prop_map(|(tree_id, nanos)| Order::Deadline {
                tree_id: TreeId(tree_id),
                deadline: Deadline::At(Uptime::from_nanos(nanos)),
            }),
            launches().prop_map(|launch| Order::Start(Box::new(launch))),
        ]
    }

    prop_compose! {
        fn launches()(tree_id in any::<u64>(), argv in prop::collection::vec(".*", 0..4), environment in prop::collection::vec((".*", ".*"), 0..4),
            input in ".*", directory in ".*", umask in any::<u32>(), open_files in any::<Option<(u64, u64)>>(), at in any::<u64>(), max_output in any::<u64>()) -> Launch {
            let not_after = Uptime::from_nanos(at);
            let limits = Limits { open_files, memory: open_files.map(|(soft, _)| soft), ..Limits::default() };
            let user = open_files.map(|_| User { uid: umask, gid: 7, groups: vec![umask, 7] });
            let cgroup = Some(Cgroup { path: directory.clone(), memory: Some(at), processes: None });
            Launch { tree_id: TreeId(tree_id), argv, environment, input, directory, or_root: true, umask, user, nice: Some(-7), limits, cgroup, not_after, deadline: Deadline::LeaseAnd(not_after), max_output }
        }
    }

    proptest! {
        #[test]
        fn every_order_arrives_as_it_was_sent_however_it_is_cut(sent in prop::collection::vec(orders(), 1..6), cut in 1usize..40) {
            let mut bytes = Vec::new();
            for order in &sent {
                encode(order, &mut bytes).unwrap();
            }
            let (mut decoder, mut got) = (Decoder::default(), Vec::new());
            for chunk in bytes.chunks(cut) {
                decoder.push(chunk);
                while let Some(order) = decoder.take::<Order>().unwrap() {
                    got.push(order);
                }
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn garbage_is_an_error_or_waits_for_more_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.take::<Notice>() {}
        }

        #[test]
        fn any_line_of_output_arrives(line in ".*", continues in any::<bool>()) {
            let notice = Notice::Output { tree_id: TreeId(1), stream: Stream::Stderr, line, continues };
            let mut bytes = Vec::new();
            encode(&notice, &mut bytes).unwrap();
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            prop_assert_eq!(decoder.take::<Notice>().unwrap(), Some(notice));
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.take::<Order>(), Err(CodecError::TooLong { .. })));
    }

    #[test]
    fn a_message_too_long_to_send_leaves_the_buffer_as_it_was() {
        let mut bytes = vec![7];
        assert!(encode(&"x".repeat(MAX_MESSAGE), &mut bytes).is_err());
        assert_eq!(bytes, [7]);
    }

    const WORDS: &[&str] = &[
        "\0\0\0\0",
        "\u{1}\0\0\0",
        "\u{7f}\u{7f}\u{7f}\u{7f}",
        "\"start\"",
        "\"stop\"",
        "\"kill\"",
        "\"lease\"",
        "\"ping\"",
        "\"pong\"",
        "\"ended\"",
        "\"slot\"",
        "\"deadline\"",
        "\"environment\"",
        "\"\\ud800\"",
        "null",
        "[]",
        "{}",
        ":",
        ",",
    ];

    /// All messages of a stream that comes in such pieces, up to the first that is none.
    fn decoded<T: DeserializeOwned>(bytes: &[u8], cut: usize) -> (Vec<T>, bool) {
        let (mut decoder, mut got) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(cut) {
            decoder.push(piece);
            loop {
                match decoder.take() {
                    Ok(Some(message)) => got.push(message),
                    Ok(None) => break,
                    Err(_) => return (got, true),
                }
            }
            assert!(decoder.bytes.capacity() <= 4 * bytes.len().max(KEEP), "{}", decoder.bytes.capacity());
        }
        (got, false)
    }

    /// Whole or cut, a stream is the same messages, and what was understood is sent and understood again.
    fn is_decoded<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
        let (messages, is_broken) = decoded::<T>(bytes, usize::MAX);
        for cut in [1, 7, 4096] {
            if bytes.len() / cut < 10_000 {
                let (again, is_again_broken) = decoded::<T>(bytes, cut);
                assert_eq!((&again, is_again_broken), (&messages, is_broken));
                let mut sent = Vec::new();
                messages.iter().for_each(|message| encode(message, &mut sent).unwrap());
                let (again, is_again_broken) = decoded::<T>(&sent, cut);
                assert_eq!((&again, is_again_broken), (&messages, false));
            }
        }
        !messages.is_empty()
    }

    /// Bytes behind the lines of an input, each line a message whose length is told as it is; then what follows as it is.
    fn framed(input: &[u8]) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), input);
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            bytes.extend(u32::try_from(end).unwrap().to_le_bytes());
            bytes.extend(&rest[..end]);
            rest = &rest[end + 1..];
        }
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn fuzz_orders_to_the_warden() {
        Fuzz::of("warden-orders", WORDS).run(|input| {
            let bytes = framed(input);
            is_decoded::<Order>(&bytes) | is_decoded::<Urgent>(&bytes) | is_decoded::<Order>(input)
        });
    }

    #[test]
    fn fuzz_notices_of_the_warden() {
        Fuzz::of("warden-notices", WORDS)
            .run(|input| is_decoded::<Notice>(&framed(input)) | is_decoded::<Notice>(input));
    }
}
