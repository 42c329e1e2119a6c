//! Output of a tree: lines for the log, and a tail for the history.
//!
//! Memory stays bounded whatever a job writes: a line is at most [`MAX_LINE`] long and then continues in the next
//! message; beyond the allowance, bytes are only counted; the tail is the last [`TAIL`] bytes. This module handles no
//! file descriptors.

use cronkeeper_core::process::Stream;

/// Longest line in one message, in bytes.
pub(super) const MAX_LINE: usize = 64 << 10;

/// Length of the tail, in bytes.
const TAIL: usize = 4 << 10;

/// A piece of output to send: stream, text, and whether the line continues in the next piece.
pub(super) type Piece = (Stream, String, bool);

#[derive(Debug)]
pub(super) struct Output {
    stdout: Lines,
    stderr: Lines,
    tail: Tail,
    allowance: u64,
    dropped: u64,
}

impl Output {
    /// Creates the output of a tree that may send `max_output` bytes, line ends included.
    pub(super) fn new(max_output: u64) -> Self {
        Self {
            stdout: Lines::default(),
            stderr: Lines::default(),
            tail: Tail::default(),
            allowance: max_output,
            dropped: 0,
        }
    }

    /// Takes bytes that were read and returns the pieces to send.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) -> Vec<Piece> {
        self.tail.push(bytes);
        let allowed = usize::try_from(self.allowance).unwrap_or(usize::MAX).min(bytes.len());
        self.allowance -= allowed as u64;
        self.dropped += (bytes.len() - allowed) as u64;
        let lines = self.lines(stream);
        let mut pieces = lines.push(&bytes[..allowed]);
        if allowed < bytes.len() {
            pieces.extend(lines.finish());
        }
        pieces.into_iter().map(|(line, continues)| (stream, line, continues)).collect()
    }

    /// Returns the unfinished lines of both streams, at the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let ends = [Stream::Stdout, Stream::Stderr].map(|stream| (stream, self.lines(stream).finish()));
        ends.into_iter().filter_map(|(stream, end)| end.map(|(line, goes_on)| (stream, line, goes_on))).collect()
    }

    /// The last bytes of both streams, in the order they were read.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }

    /// Bytes that were not sent because the allowance was used up.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn lines(&mut self, stream: Stream) -> &mut Lines {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// The line that is being written on one stream.
#[derive(Debug, Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    fn push(&mut self, mut bytes: &[u8]) -> Vec<(String, bool)> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let room = MAX_LINE - self.open.len();
            let end = bytes.iter().take(room + 1).position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(room.min(bytes.len()));
            self.open.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken + usize::from(end.is_some())..];
            if end.is_some() {
                pieces.push((lossy(&self.open), false));
                self.open.clear();
            } else if !bytes.is_empty() {
                pieces.push((self.split(), true));
            }
        }
        self.release();
        pieces
    }

    /// Takes a full line up to its last complete character.
    fn split(&mut self) -> String {
        let whole = whole_characters(&self.open);
        let line = lossy(&self.open[..whole]);
        self.open.drain(..whole);
        line
    }

    fn finish(&mut self) -> Option<(String, bool)> {
        let open = std::mem::take(&mut self.open);
        (!open.is_empty()).then(|| (lossy(&open), false))
    }

    fn release(&mut self) {
        if self.open.is_empty() {
            self.open = Vec::new();
        }
    }
}

/// The last bytes of all output.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(TAIL).min(self.bytes.len());
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(bytes);
    }

    fn text(&self) -> String {
        let is_cut = self.bytes.len() == TAIL;
        let broken =
            if is_cut { self.bytes.iter().take(3).take_while(|&&byte| is_continuation(byte)).count() } else { 0 };
        lossy(&self.bytes[broken..])
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// The length of `bytes` without an incomplete character at its end.
fn whole_characters(bytes: &[u8]) -> usize {
    let Some(back) = (1..=bytes.len().min(3)).find(|&back| !is_continuation(bytes[bytes.len() - back])) else {
        return bytes.len();
    };
    let length = match bytes[bytes.len() - back] {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF7 => 4,
        _ => 1,
    };
    if length > back { bytes.len() - back } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::Fuzz;

    fn texts(pieces: &[Piece]) -> Vec<&str> {
        pieces.iter().map(|(_, line, _)| line.as_str()).collect()
    }

    #[test]
    fn lines_are_split_at_line_ends_and_the_last_needs_none() {
        let mut output = Output::new(1 << 20);
        assert_eq!(texts(&output.take(Stream::Stdout, b"one\n\ntw")), ["one", ""]);
        assert_eq!(texts(&output.take(Stream::Stdout, b"o\nthree")), ["two"]);
        assert_eq!(texts(&output.finish()), ["three"]);
        assert_eq!(output.tail(), "one\n\ntwo\nthree");
    }

    #[test]
    fn output_beyond_the_allowance_is_counted_and_still_in_the_tail() {
        let mut output = Output::new(4);
        assert_eq!(texts(&output.take(Stream::Stderr, b"ab\ncdef\n")), ["ab", "c"]);
        assert_eq!(texts(&output.take(Stream::Stdout, b"end")), [""; 0]);
        assert_eq!((output.dropped(), output.tail()), (7, "ab\ncdef\nend".to_owned()));
        assert_eq!(output.finish(), []);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_not_split() {
        let mut output = Output::new(u64::MAX);
        let pieces = output.take(Stream::Stdout, &[vec![b'x'; MAX_LINE], vec![b'\n']].concat());
        assert_eq!(pieces, [(Stream::Stdout, "x".repeat(MAX_LINE), false)]);
    }

    #[test]
    fn endless_output_without_a_line_end_keeps_at_most_one_line() {
        let mut output = Output::new(u64::MAX);
        for _ in 0..1_000 {
            output.take(Stream::Stdout, &[b'x'; 4_096]);
        }
        assert!(output.stdout.open.capacity() <= 2 * MAX_LINE);
        assert_eq!(output.tail().len(), TAIL);
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn text_survives_any_chunking(text in "(\\PC|\n){0,300}", long in 0usize..2, cut in 1usize..9) {
            let text = format!("{}{text}", "äö".repeat(long * MAX_LINE / 3));
            let mut output = Output::new(u64::MAX);
            let mut got = String::new();
            let chunks = text.as_bytes().chunks(cut);
            let mut pieces: Vec<Piece> = chunks.flat_map(|chunk| output.take(Stream::Stdout, chunk)).collect();
            let rest = output.finish();
            let unfinished = rest.len();
            pieces.extend(rest);
            let count = pieces.len();
            for (index, (_, line, continues)) in pieces.into_iter().enumerate() {
                prop_assert!(line.len() <= MAX_LINE);
                got.push_str(&line);
                if !(continues || unfinished == 1 && index == count - 1) {
                    got.push('\n');
                }
            }
            prop_assert_eq!(got, text);
        }

        #[test]
        fn the_tail_is_the_last_of_all_bytes(
            chunks in prop::collection::vec(prop::collection::vec(0x20u8..0x7f, 0..3_000), 0..6),
        ) {
            let mut output = Output::new(0);
            for (index, chunk) in chunks.iter().enumerate() {
                output.take(if index % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, chunk);
            }
            let all = chunks.concat();
            let last = &all[all.len().saturating_sub(TAIL)..];
            prop_assert_eq!(output.tail().into_bytes(), last);
        }
    }

    /// No byte is lost: sent and dropped bytes add up to all bytes, and no piece is longer than [`MAX_LINE`].
    #[test]
    fn fuzz_output_of_jobs() {
        Fuzz { longest: 200 << 10, ..Fuzz::of("output", &["\n", "\r\n", "äöü", "🦀", "<3>"]) }.run(|input| {
            let allowance = input.first().map_or(0, |&byte| u64::from(byte) * 1_000);
            let mut output = Output::new(allowance);
            let mut pieces = Vec::new();
            for (index, chunk) in input.chunks(1 + input.len() / 7).enumerate() {
                pieces.extend(output.take([Stream::Stdout, Stream::Stderr][index % 2], chunk));
            }
            pieces.extend(output.finish());
            // A byte that is not UTF-8 becomes a character of three bytes.
            assert!(pieces.iter().all(|(_, line, _)| line.len() <= 3 * MAX_LINE && !line.contains('\n')));
            assert_eq!(output.dropped(), (input.len() as u64).saturating_sub(allowance));
            assert!(output.tail().len() <= 3 * TAIL);
            !pieces.is_empty()
        });
    }
}
