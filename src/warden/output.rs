//! Output of a tree: lines for the log, and a tail for the history.
//!
//! Memory stays bounded whatever a job writes: a line is at most [`MAX_LINE`] long and then continues in the next
//! message; beyond the allowance, bytes are only counted, except those of the tail, the last [`LONGEST_TAIL`] bytes. This module
//! handles no file descriptors.

use std::collections::VecDeque;

use cronkeeper_core::process::{LINE_COST, Stream, Unsent, character_cost, line_cost};
use cronkeeper_core::run::LONGEST_TAIL;

/// Longest line in one message, in bytes.
pub(super) const MAX_LINE: usize = 64 << 10;

/// A message ends with the line with which it costs this much: each is a turn of the daemon's loop, which should be
/// short.
const PIECE: u64 = 8 << 10;

/// The lines of an attempt may cost this many times `max_output`, so very short ones use up their price before their
/// bytes. No line takes more space on disk than it costs.
const TIMES: u64 = 2;
/// The lines of an attempt may always cost this much: with a small `max_output` only its bytes count.
const LEAST_COST: u64 = 32 << 10;

/// The lines at the end of output over the allowance cost no more than this. So the last one is always among them.
const END_COST: u64 = 32 << 10;

/// Lines of one stream to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: Stream,
    pub(super) lines: Vec<String>,
    /// The last line continues in the next piece of the stream.
    pub(super) continues: bool,
}

#[derive(Debug)]
pub(super) struct Output {
    stdout: Lines,
    stderr: Lines,
    tail: Tail,
    allowance: Allowance,
}

impl Output {
    /// Creates the output of a tree that may send `max_output` bytes, line ends included.
    pub(super) fn new(max_output: u64) -> Self {
        Self {
            stdout: Lines::default(),
            stderr: Lines::default(),
            tail: Tail::default(),
            allowance: Allowance::of(max_output),
        }
    }

    /// Takes bytes that were read and returns the pieces to send.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) -> Vec<Piece> {
        self.tail.push(stream, bytes);
        let allowed = self.allowance.admit(bytes);
        let mut pieces = Pieces::of(stream);
        let (lines, allowance) = match stream {
            Stream::Stdout => (&mut self.stdout, &mut self.allowance),
            Stream::Stderr => (&mut self.stderr, &mut self.allowance),
        };
        lines.push(allowed, |line, end| pieces.extend(allowance.pay(line, end)));
        if allowed.len() < bytes.len() {
            lines.finish(|line, end| pieces.extend(allowance.pay(line, end)));
        }
        pieces.all()
    }

    /// Returns the unfinished lines of both streams, at the end of the output.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let Self { stdout, stderr, allowance, .. } = self;
        let mut all = Vec::new();
        for (stream, lines) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            let mut pieces = Pieces::of(stream);
            lines.finish(|line, end| pieces.extend(allowance.pay(line, end)));
            all.extend(pieces.all());
        }
        all
    }

    /// The last bytes of both streams, in the order they were read.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }

    /// Bytes that were not sent because the allowance was used up.
    pub(super) fn dropped(&self) -> u64 {
        self.allowance.dropped
    }

    /// The end of what was not sent; `None` if everything was.
    pub(super) fn unsent(&self) -> Option<Unsent> {
        let dropped = self.dropped();
        (dropped > 0).then(|| self.tail.unsent(dropped))
    }

    /// True once nothing more is sent, whatever the tree writes.
    pub(super) fn is_used_up(&self) -> bool {
        self.allowance.bytes == 0
    }
}

/// How a line of a stream ends in the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    /// With a line end.
    Whole,
    /// It is too long, and continues.
    Continues,
    /// The output ends.
    Unfinished,
}

/// What a tree may still send.
#[derive(Debug)]
struct Allowance {
    /// Bytes of output.
    bytes: u64,
    /// The price of the lines.
    cost: u64,
    /// Bytes that were not sent.
    dropped: u64,
}

impl Allowance {
    fn of(max_output: u64) -> Self {
        Self { bytes: max_output, cost: max_output.saturating_mul(TIMES).max(LEAST_COST), dropped: 0 }
    }

    /// The first of these bytes that may be sent.
    fn admit<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let allowed = usize::try_from(self.bytes).unwrap_or(usize::MAX).min(bytes.len());
        self.bytes -= allowed as u64;
        self.dropped += (bytes.len() - allowed) as u64;
        &bytes[..allowed]
    }

    /// The text of a line, as far as its price can be paid, and whether it continues; `None` if nothing of it can be paid.
    /// After a line that cannot be paid in full nothing is sent any more.
    fn pay(&mut self, line: &[u8], end: LineEnd) -> Option<(String, bool)> {
        let text = lossy(line);
        let cost = line_cost(&text);
        if cost <= self.cost {
            self.cost -= cost;
            return Some((text, end == LineEnd::Continues && self.cost > LINE_COST));
        }
        let kept = &line[..affordable(line, self.cost.saturating_sub(LINE_COST))];
        self.dropped += (line.len() - kept.len()) as u64 + u64::from(end == LineEnd::Whole);
        (self.bytes, self.cost) = (0, 0);
        (!kept.is_empty()).then(|| (lossy(kept), false))
    }
}

/// The length of the longest beginning of a line that costs no more than this.
fn affordable(line: &[u8], mut budget: u64) -> usize {
    let mut length = 0;
    for chunk in line.utf8_chunks() {
        let valid = chunk.valid().chars().map(|character| (character.len_utf8(), character_cost(character)));
        let invalid = Some((chunk.invalid().len(), character_cost(char::REPLACEMENT_CHARACTER)));
        for (bytes, cost) in valid.chain(invalid.filter(|&(bytes, _)| bytes > 0)) {
            let Some(left) = budget.checked_sub(cost) else { return length };
            (budget, length) = (left, length + bytes);
        }
    }
    length
}

/// Collects lines of one stream into pieces.
struct Pieces {
    stream: Stream,
    done: Vec<Piece>,
    lines: Vec<String>,
    cost: u64,
}

impl Pieces {
    fn of(stream: Stream) -> Self {
        Self { stream, done: Vec::new(), lines: Vec::new(), cost: 0 }
    }

    /// Adds a line, and whether it continues, if there is one.
    fn extend(&mut self, line: Option<(String, bool)>) {
        let Some((line, continues)) = line else { return };
        self.cost += line_cost(&line);
        self.lines.push(line);
        if self.cost >= PIECE || continues {
            self.close(continues);
        }
    }

    fn close(&mut self, continues: bool) {
        let lines = std::mem::take(&mut self.lines);
        if !lines.is_empty() {
            self.done.push(Piece { stream: self.stream, lines, continues });
        }
        self.cost = 0;
    }

    fn all(mut self) -> Vec<Piece> {
        self.close(false);
        self.done
    }
}

/// The line that is being written on one stream.
#[derive(Debug, Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// Calls `each` with every line that these bytes end, and with as much of one as fits into a message.
    fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8], LineEnd)) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.open.len();
            let end = bytes.iter().take(room + 1).position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(room.min(bytes.len()));
            self.open.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken + usize::from(end.is_some())..];
            if end.is_some() {
                each(&self.open, LineEnd::Whole);
                self.open.clear();
            } else if !bytes.is_empty() {
                // The rest begins with a whole character.
                let whole = whole_characters(&self.open);
                each(&self.open[..whole], LineEnd::Continues);
                self.open.drain(..whole);
            }
        }
        self.release();
    }

    fn finish(&mut self, mut each: impl FnMut(&[u8], LineEnd)) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            each(&open, LineEnd::Unfinished);
        }
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
    /// How many of the bytes each stream wrote in turn. Bounded by the bytes.
    turns: VecDeque<(Stream, usize)>,
}

impl Tail {
    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LONGEST_TAIL)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(LONGEST_TAIL).min(self.bytes.len());
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(bytes);
        self.forget(excess);
        match self.turns.back_mut() {
            Some((last, length)) if *last == stream => *length += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.turns.push_back((stream, bytes.len())),
        }
    }

    /// Takes this many bytes off the oldest turns.
    fn forget(&mut self, mut excess: usize) {
        while excess > 0
            && let Some((_, length)) = self.turns.front_mut()
        {
            let taken = excess.min(*length);
            (*length, excess) = (*length - taken, excess - taken);
            if *length == 0 {
                self.turns.pop_front();
            }
        }
    }

    fn text(&self) -> String {
        lossy(&self.bytes[self.broken(0)..])
    }

    /// The number of bytes from `start` on that belong to a character which begins before it.
    fn broken(&self, start: usize) -> usize {
        let may_be_broken = start > 0 || self.bytes.len() == LONGEST_TAIL;
        let rest = self.bytes[start..].iter().take(3);
        if may_be_broken { rest.take_while(|&&byte| is_continuation(byte)).count() } else { 0 }
    }

    /// The last lines among the last `dropped` bytes of the output.
    fn unsent(&self, dropped: u64) -> Unsent {
        let length = usize::try_from(dropped).unwrap_or(usize::MAX).min(self.bytes.len());
        let mut start = self.bytes.len() - length;
        let (mut lines, mut end, mut cost, mut kept) = (VecDeque::new(), self.bytes.len(), 0, 0);
        match self.bytes.get(start) {
            // Only the end of a line that was sent.
            Some(b'\n') if dropped == length as u64 && !self.bytes[..start].ends_with(b"\n") => {
                (start, kept) = (start + 1, 1)
            }
            _ => start += self.broken(start),
        }
        'all: for (stream, turn) in self.turns.iter().rev() {
            let begin = end.saturating_sub(*turn).max(start);
            let turn = self.bytes.get(begin..end).unwrap_or_default();
            for line in turn.split_inclusive(|&byte| byte == b'\n').rev() {
                let text = lossy(line.strip_suffix(b"\n").unwrap_or(line));
                cost += line_cost(&text);
                if cost > END_COST {
                    break 'all;
                }
                kept += line.len() as u64;
                lines.push_front((*stream, text));
            }
            end = begin;
        }
        Unsent { left_out: dropped - kept, lines: lines.into() }
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
        pieces.iter().flat_map(|piece| &piece.lines).map(String::as_str).collect()
    }

    fn cost(pieces: &[Piece]) -> u64 {
        pieces.iter().flat_map(|piece| &piece.lines).map(|line| line_cost(line)).sum()
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
        let lines = vec![(Stream::Stderr, "def".to_owned()), (Stream::Stdout, "end".to_owned())];
        assert_eq!(output.unsent(), Some(Unsent { left_out: 0, lines }), "nothing is left out of so little");
        assert_eq!(Output::new(4).unsent(), None);
        let mut line = Output::new(4);
        line.take(Stream::Stdout, b"abcd\n");
        assert_eq!((line.dropped(), line.unsent()), (1, Some(Unsent::default())), "the end of a line is no line");
    }

    #[test]
    fn of_much_output_the_end_is_kept_in_lines_of_either_stream() {
        let mut output = Output::new(100);
        for number in 0..10_000 {
            output.take(Stream::Stdout, format!("{number}\n").as_bytes());
        }
        output.take(Stream::Stderr, b"FATAL the real cause\n");
        let Unsent { left_out, lines } = output.unsent().unwrap();
        assert_eq!(lines.last(), Some(&(Stream::Stderr, "FATAL the real cause".to_owned())));
        assert_eq!(lines[lines.len() - 2], (Stream::Stdout, "9999".to_owned()));
        let shown: u64 = lines.iter().map(|(_, text)| text.len() as u64 + 1).sum();
        assert_eq!(left_out + shown, output.dropped());
        assert!(lines.iter().map(|(_, text)| line_cost(text)).sum::<u64>() <= END_COST && lines.len() > 200);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_not_split() {
        let mut output = Output::new(u64::MAX);
        let pieces = output.take(Stream::Stdout, &[vec![b'x'; MAX_LINE], vec![b'\n']].concat());
        assert_eq!(pieces, [Piece { stream: Stream::Stdout, lines: vec!["x".repeat(MAX_LINE)], continues: false }]);
    }

    #[test]
    fn short_lines_share_a_message_which_ends_where_a_long_one_continues() {
        let mut output = Output::new(u64::MAX);
        let bytes = [b"one\ntwo\n".to_vec(), vec![b'x'; MAX_LINE], b"yz\nlast\n".to_vec()].concat();
        let pieces = output.take(Stream::Stderr, &bytes);
        let shown: Vec<_> = pieces.iter().map(|piece| (piece.lines.len(), piece.continues)).collect();
        assert_eq!((shown, texts(&pieces[1..])), (vec![(3, true), (2, false)], vec!["yz", "last"]));
        let many = output.take(Stream::Stderr, &[b'\n'; 1_000]);
        assert!(many.len() > 5 && many.iter().all(|piece| cost(std::slice::from_ref(piece)) < PIECE + LINE_COST));
    }

    #[test]
    fn of_empty_lines_only_as_many_are_sent_as_their_price_allows() {
        const MAX_OUTPUT: u64 = 1 << 20;
        let mut output = Output::new(MAX_OUTPUT);
        let mut sent = 0;
        for _ in 0..1_000 {
            sent += texts(&output.take(Stream::Stdout, &[b'\n'; 5_000])).len() as u64;
        }
        assert_eq!((sent, output.dropped()), (TIMES * MAX_OUTPUT / LINE_COST, 5_000_000 - sent));
        assert!(output.is_used_up() && output.finish().is_empty());
    }

    #[test]
    fn the_line_that_cannot_be_paid_is_cut_at_a_character() {
        let mut output = Output::new(LEAST_COST);
        // The first line leaves the price of eight bytes to the second.
        let first = (TIMES * LEAST_COST - 2 * LINE_COST - 8) as usize;
        assert_eq!(first % 6, 0);
        let bytes = [vec![1; first / 6], b"\n\xffr\xc3\xa4\xc3\xa4\xc3\xa4\nnever\n".to_vec()].concat();
        let pieces = output.take(Stream::Stdout, &bytes);
        assert_eq!(texts(&pieces)[1..], ["\u{fffd}r\u{e4}\u{e4}"]);
        assert_eq!(output.dropped(), b"\xc3\xa4\nnever\n".len() as u64);
        assert!(output.take(Stream::Stderr, b"more\n").is_empty());
    }

    #[test]
    fn endless_output_without_a_line_end_keeps_at_most_one_line() {
        let mut output = Output::new(u64::MAX);
        for _ in 0..1_000 {
            output.take(Stream::Stdout, &[b'x'; 4_096]);
        }
        assert!(output.stdout.open.capacity() <= 2 * MAX_LINE);
        assert_eq!(output.tail().len(), LONGEST_TAIL);
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
            let is_unfinished = !rest.is_empty();
            pieces.extend(rest);
            for Piece { lines, continues, .. } in pieces {
                prop_assert!(lines.iter().all(|line| line.len() <= MAX_LINE));
                got.push_str(&lines.join("\n"));
                if !continues {
                    got.push('\n');
                }
            }
            if is_unfinished {
                got.pop();
            }
            prop_assert_eq!(got, text);
        }

        #[test]
        fn what_is_sent_is_bounded_in_bytes_and_in_price_and_the_rest_is_counted(
            chunks in prop::collection::vec(("(\n|[\x00-\x0f]|ab|[\\\"]){0,60}", any::<bool>(), 1usize..300), 0..12),
            max_output in 0u64..200_000,
        ) {
            let mut output = Output::new(max_output);
            let (mut all, mut pieces) = (0, Vec::new());
            for (text, is_stdout, times) in chunks {
                let bytes = text.repeat(times).into_bytes();
                all += bytes.len() as u64;
                pieces.extend(output.take(if is_stdout { Stream::Stdout } else { Stream::Stderr }, &bytes));
            }
            pieces.extend(output.finish());
            let sent: u64 = texts(&pieces).iter().map(|text| text.len() as u64).sum();
            prop_assert!(sent <= max_output && sent + output.dropped() <= all);
            prop_assert!(cost(&pieces) <= (TIMES * max_output).max(LEAST_COST));
            // The difference are line ends: one for each line that was sent.
            let ends = all - sent - output.dropped();
            prop_assert!(ends <= texts(&pieces).len() as u64, "{ends} of {}", texts(&pieces).len());
        }

        #[test]
        fn what_is_shown_of_the_end_and_what_is_left_out_are_all_that_was_not_sent(
            chunks in prop::collection::vec(("(\n|[\x00-\x0f]|ab|[äö]){0,60}", any::<bool>(), 1usize..200), 0..12),
            max_output in 0u64..4_000,
        ) {
            let mut output = Output::new(max_output);
            for (text, is_stdout, times) in chunks {
                let stream = if is_stdout { Stream::Stdout } else { Stream::Stderr };
                output.take(stream, text.repeat(times).as_bytes());
            }
            output.finish();
            let Some(Unsent { left_out, lines }) = output.unsent() else {
                prop_assert_eq!(output.dropped(), 0);
                return Ok(());
            };
            let turns: usize = output.tail.turns.iter().map(|(_, length)| *length).sum();
            prop_assert_eq!(turns, output.tail.bytes.len());
            prop_assert!(output.tail.turns.iter().all(|(_, length)| *length > 0));
            prop_assert!(left_out <= output.dropped());
            prop_assert!(lines.iter().map(|(_, text)| line_cost(text)).sum::<u64>() <= END_COST);
            // Without line ends and split characters, the lines are the end of the output.
            let plain = |text: &str| text.replace(['\n', char::REPLACEMENT_CHARACTER], "");
            let shown: String = lines.iter().map(|(_, text)| plain(text)).collect();
            prop_assert!(plain(&output.tail()).ends_with(&shown));
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
            let last = &all[all.len().saturating_sub(LONGEST_TAIL)..];
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
            assert!(texts(&pieces).iter().all(|line| line.len() <= 3 * MAX_LINE && !line.contains('\n')));
            let dropped = (input.len() as u64).saturating_sub(allowance);
            let is_paid_out = cost(&pieces) + 2 * LINE_COST > (TIMES * allowance).max(LEAST_COST);
            assert!(output.dropped() == dropped || output.dropped() > dropped && is_paid_out);
            assert!(output.tail().len() <= 3 * LONGEST_TAIL);
            !pieces.is_empty()
        });
    }
}
