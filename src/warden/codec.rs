//! The encoding of messages on a byte stream, shared by both ends.
//!
//! A message is a length (u32, little endian), then that many bytes of JSON. The decoder never trusts a length: it
//! refuses a message longer than [`MAX_MESSAGE`] before it keeps a byte of it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes. The kernel refuses a longer command line and environment anyway.
pub const MAX_MESSAGE: usize = 8 << 20;

const HEADER: usize = size_of::<u32>();

/// Capacity that an empty buffer keeps, in bytes. More is freed, so that one large message does not occupy memory
/// forever.
const KEEP: usize = 64 << 10;

/// A message that cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error("message of {bytes} bytes exceeds the limit of {MAX_MESSAGE}")]
    TooLong { bytes: usize },
    #[error("message is not valid JSON of its type")]
    Json(#[from] serde_json::Error),
}

/// Appends a message to `buffer`; after an error, `buffer` is unchanged.
///
/// # Errors
/// If the message is longer than [`MAX_MESSAGE`].
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

/// Collects bytes and returns each message when it is complete.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Appends bytes that were read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message if it is complete.
    ///
    /// # Errors
    /// If the bytes are not a message. The stream cannot be used any more after that.
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::Fuzz;
    use cronkeeper_core::clock::Uptime;
    use cronkeeper_core::environment_file::EnvironmentFile;
    use cronkeeper_core::process::{
        Cgroup, Deadline, ExecStrings, InheritedStreams, Launch, LaunchFiles, Limits, Notice, Order, SecretFile,
        SentOrder, Stream, TreeId, User,
    };

    fn tree_ids() -> impl Strategy<Value = TreeId> {
        any::<u64>().prop_map(TreeId)
    }

    fn instants() -> impl Strategy<Value = Uptime> {
        any::<u64>().prop_map(Uptime::from_nanos)
    }

    fn deadlines() -> impl Strategy<Value = Deadline> {
        prop_oneof![
            Just(Deadline::None),
            Just(Deadline::Lease),
            instants().prop_map(Deadline::At),
            instants().prop_map(Deadline::LeaseAnd),
            instants().prop_map(Deadline::LeaseOr),
        ]
    }

    fn orders() -> impl Strategy<Value = SentOrder> {
        let order = prop_oneof![
            (tree_ids(), any::<u64>()).prop_map(|(tree_id, grace_ms)| Order::Stop { tree_id, grace_ms }),
            tree_ids().prop_map(|tree_id| Order::Kill { tree_id }),
            instants().prop_map(|until| Order::Lease { until }),
            tree_ids().prop_map(|tree_id| Order::Cancel { tree_id }),
            (tree_ids(), any::<i32>()).prop_map(|(tree_id, signal)| Order::Signal { tree_id, signal }),
            any::<u64>().prop_map(|cost| Order::OutputTaken { cost }),
            (tree_ids(), deadlines()).prop_map(|(tree_id, deadline)| Order::Deadline { tree_id, deadline }),
            Just(Order::Ping),
        ];
        (any::<u64>(), order).prop_map(|(after, order)| SentOrder { after, order })
    }

    prop_compose! {
        fn launches()(
            tree_id in any::<u64>(),
            argv in prop::collection::vec(".*", 0..4),
            environment in prop::collection::vec((".*", ".*"), 0..4),
            input in ".*",
            directory in ".*",
            umask in any::<u32>(),
            open_files in any::<Option<(u64, u64)>>(),
            at in any::<u64>(),
            deadline in deadlines(),
            max_output in any::<u64>(),
        ) -> Launch {
            let not_after = Uptime::from_nanos(at);
            let limits = Limits { open_files, memory: open_files.map(|(soft, _)| soft), ..Limits::default() };
            let user = open_files.map(|_| User { uid: umask, gid: 7, groups: vec![umask, 7] });
            let cgroup = Some(Cgroup { path: directory.clone(), memory: Some(at), processes: None });
            let file = EnvironmentFile { path: directory.clone().into(), is_optional: true };
            let secrets = vec![SecretFile { name: input.clone(), path: directory.clone().into() }];
            let files = LaunchFiles { environment: vec![file], replaceable: argv.clone(), secrets, are_dispensable: tree_id % 2 == 0 };
            Launch {
                tree_id: TreeId(tree_id),
                argv: argv.iter().collect(),
                environment: ExecStrings::of_variables(environment),
                files,
                input,
                streams: open_files.map(|_| InheritedStreams { stdin: 3, stdout: 4, stderr: 5, locks: vec![6] }),
                directory,
                or_root: true,
                umask,
                user,
                nice: Some(-7),
                limits,
                cgroup,
                not_before: Some(not_after),
                not_after,
                deadline,
                time_limit: open_files.map(|_| Duration::from_nanos(at)),
                max_output,
            }
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn every_launch_arrives_unchanged_however_the_stream_is_cut(
            sent in prop::collection::vec(launches(), 1..6),
            cut in 1usize..40,
        ) {
            prop_assert_eq!(decoded(&encoded(&sent), cut), (sent, false));
        }

        #[test]
        fn every_order_arrives_unchanged_however_the_stream_is_cut(
            sent in prop::collection::vec(orders(), 1..6),
            cut in 1usize..40,
        ) {
            prop_assert_eq!(decoded(&encoded(&sent), cut), (sent, false));
        }

        #[test]
        fn garbage_is_an_error_or_waits_for_more_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.take::<Notice>() {}
        }

        #[test]
        fn any_output_arrives(lines in prop::collection::vec(".*", 0..4), continues in any::<bool>()) {
            let notice = Notice::Output { tree_id: TreeId(1), stream: Stream::Stderr, lines, continues };
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
        assert!(matches!(decoder.take::<SentOrder>(), Err(CodecError::TooLong { .. })));
    }

    #[test]
    fn a_message_too_long_to_send_leaves_the_buffer_unchanged() {
        let mut bytes = vec![7];
        assert!(encode(&"x".repeat(MAX_MESSAGE), &mut bytes).is_err());
        assert_eq!(bytes, [7]);
    }

    const WORDS: &[&str] = &[
        "\0\0\0\0",
        "\u{1}\0\0\0",
        "\u{7f}\u{7f}\u{7f}\u{7f}",
        "\"argv\"",
        "\"stop\"",
        "\"kill\"",
        "\"lease\"",
        "\"ping\"",
        "\"pong\"",
        "\"ended\"",
        "\"tree_id\"",
        "\"after\"",
        "\"order\"",
        "\"deadline\"",
        "\"environment\"",
        "\"\\ud800\"",
        "null",
        "[]",
        "{}",
        ":",
        ",",
    ];

    fn encoded<T: Serialize>(messages: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| encode(message, &mut bytes).unwrap());
        bytes
    }

    /// All messages of a stream that arrives in pieces of `cut` bytes, and whether it ends in an invalid one.
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

    /// A stream decodes to the same messages whole or cut, also after they were encoded again.
    fn is_decoded<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
        let (messages, is_broken) = decoded::<T>(bytes, usize::MAX);
        for cut in [1, 7, 4096] {
            if bytes.len() / cut < 10_000 {
                let (again, is_again_broken) = decoded::<T>(bytes, cut);
                assert_eq!((&again, is_again_broken), (&messages, is_broken));
                let (again, is_again_broken) = decoded::<T>(&encoded(&messages), cut);
                assert_eq!((&again, is_again_broken), (&messages, false));
            }
        }
        !messages.is_empty()
    }

    /// The bytes of a stream made from lines.
    ///
    /// Each line becomes a message with its correct length; the rest after the last line end follows unchanged.
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

    /// Tries the input as lines to be framed, and as it is.
    fn is_decoded_framed_or_raw<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(input: &[u8]) -> bool {
        is_decoded::<T>(&framed(input)) | is_decoded::<T>(input)
    }

    #[test]
    fn fuzz_starts_sent_to_the_warden() {
        Fuzz::of("warden-launches", WORDS).run(is_decoded_framed_or_raw::<Launch>);
    }

    #[test]
    fn fuzz_orders_to_the_warden() {
        Fuzz::of("warden-orders", WORDS).run(is_decoded_framed_or_raw::<SentOrder>);
    }

    #[test]
    fn fuzz_notices_of_the_warden() {
        Fuzz::of("warden-notices", WORDS).run(is_decoded_framed_or_raw::<Notice>);
    }
}
