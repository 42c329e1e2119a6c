//! The generator of fuzz inputs, by mutation of samples.
//!
//! It cuts, repeats and mixes samples, and inserts invalid text, numbers beyond every type, and brackets that are never
//! closed.

use std::ops::Range;

use fastrand::Rng;

/// A generator of inputs from samples and fragments.
pub(super) struct Mutator {
    samples: Vec<Vec<u8>>,
    words: &'static [&'static str],
    longest: usize,
}

/// Maximum length in bytes of most inputs and of some; the rest may have the full length. Short inputs find most bugs,
/// and sooner.
const SHORT: usize = 1 << 10;
const MIDDLE: usize = 8 << 10;

/// Byte sequences that are unusual in any format.
const ODD: [&[u8]; 24] = [
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\t",
    b" ",
    b"\"",
    b"\\",
    b"'",
    b"%",
    b"\x1b[2J",
    b"\x7f",
    b"\xff",
    b"\xc3",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    "\u{85}".as_bytes(),
    "\u{2028}".as_bytes(),
    "\u{202e}".as_bytes(),
    "\u{feff}".as_bytes(),
    "\u{10ffff}".as_bytes(),
    "İ".as_bytes(),
    "e\u{301}".as_bytes(),
];

/// Numbers at and beyond the limits of numeric types and instants.
const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "-1",
    "-0",
    "00",
    "007",
    "+5",
    "1e400",
    "0.5",
    "0x10",
    "60",
    "127",
    "255",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
];

/// Opening tokens that need a continuation.
const OPENERS: [&str; 12] = ["[", "{", "(", "{\"a\":", "[[", "- ", "? ", "a: ", "\"", "'", "&a ", "!"];

impl Mutator {
    pub fn new(samples: Vec<Vec<u8>>, words: &'static [&'static str], longest: usize) -> Self {
        assert!(!samples.is_empty(), "a parser without samples");
        Self { samples, words, longest }
    }

    /// The input of a seed.
    pub fn input(&self, seed: u64) -> Vec<u8> {
        let sample = usize::try_from(seed).ok().and_then(|index| self.samples.get(index));
        sample.cloned().unwrap_or_else(|| self.changed(&mut Rng::with_seed(seed)))
    }

    fn changed(&self, rng: &mut Rng) -> Vec<u8> {
        let mut input = match rng.u8(..16) {
            0 => (0..rng.usize(..64)).map(|_| rng.u8(..)).collect(),
            1 => (0..rng.usize(..24)).flat_map(|_| self.word(rng).to_vec()).collect(),
            _ => self.sample(rng).clone(),
        };
        let room = match rng.u8(..) {
            0 => self.longest,
            1..16 => self.longest.min(MIDDLE),
            _ => self.longest.min(SHORT.max(input.len() + SHORT / 2)),
        };
        let most = rng.usize(1..8);
        for _ in 0..=rng.usize(..most) {
            self.change(&mut input, room, rng);
        }
        input.truncate(room);
        input
    }

    fn change(&self, input: &mut Vec<u8>, room: usize, rng: &mut Rng) {
        let at = rng.usize(..=input.len());
        match rng.u8(..16) {
            0 => flip(input, rng),
            1 => drop(input.drain(range(input.len(), rng))),
            2 => input.truncate(at),
            3 => put(input, at..at, ODD[rng.usize(..ODD.len())]),
            4 => put(input, at..at, self.word(rng)),
            5 | 6 => put(input, token(input, at), self.word(rng)),
            7 | 8 => {
                let other = self.sample(rng);
                let theirs = token(other, rng.usize(..=other.len()));
                put(input, token(input, at), &other[theirs]);
            }
            9 => put(input, digits(input, at), NUMBERS[rng.usize(..NUMBERS.len())].as_bytes()),
            10 => repeat(input, room, rng),
            11 => {
                let opener = OPENERS[rng.usize(..OPENERS.len())];
                let times = 1 + some(room.saturating_sub(input.len()) / opener.len(), rng);
                put(input, at..at, opener.repeat(times).as_bytes());
            }
            12 => {
                let other = self.sample(rng);
                input.truncate(at);
                input.extend(&other[rng.usize(..=other.len())..]);
            }
            13 => {
                let other = self.sample(rng);
                let theirs = line(other, rng.usize(..=other.len()));
                let here = line(input, at).start;
                put(input, here..here, &other[theirs]);
            }
            14 => {
                let moved: Vec<u8> = input.drain(line(input, at)).collect();
                let here = line(input, rng.usize(..=input.len())).start;
                put(input, here..here, &moved);
            }
            _ => put(input, at..at, &[rng.u8(..)]),
        }
    }

    fn sample(&self, rng: &mut Rng) -> &Vec<u8> {
        &self.samples[rng.usize(..self.samples.len())]
    }

    fn word(&self, rng: &mut Rng) -> &[u8] {
        match rng.choice(self.words) {
            Some(word) => word.as_bytes(),
            None => ODD[rng.usize(..ODD.len())],
        }
    }
}

fn put(input: &mut Vec<u8>, place: Range<usize>, what: &[u8]) {
    input.splice(place, what.iter().copied());
}

fn flip(input: &mut [u8], rng: &mut Rng) {
    if let Some(byte) = rng.choice(input.iter_mut()) {
        *byte ^= 1 << rng.u8(..8);
    }
}

/// A random part of the input, more often a short one.
fn range(length: usize, rng: &mut Rng) -> Range<usize> {
    let start = rng.usize(..=length);
    start..start + some(length - start, rng)
}

/// A random number up to `most`, usually far smaller.
fn some(most: usize, rng: &mut Rng) -> usize {
    let bits = rng.u32(..=most.checked_ilog2().map_or(0, |bits| bits + 1));
    rng.usize(..=most.min(1 << bits))
}

/// Repeats a random part of the input.
fn repeat(input: &mut Vec<u8>, room: usize, rng: &mut Rng) {
    let part = range(input.len(), rng);
    let most = room.saturating_sub(input.len()) / part.len().max(1);
    let copies = input[part.clone()].repeat(some(most, rng));
    put(input, part.end..part.end, &copies);
}

/// The range of the word or number at a position; empty if there is none.
fn token(input: &[u8], at: usize) -> Range<usize> {
    around(input, at, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | 0x80..))
}

/// The range of the number at or after a position; empty if there is none.
fn digits(input: &[u8], at: usize) -> Range<usize> {
    let after = input[at..].iter().position(u8::is_ascii_digit);
    around(input, after.map_or(at, |by| at + by), |byte| byte.is_ascii_digit())
}

/// The range of the line at a position, including its line break.
fn line(input: &[u8], at: usize) -> Range<usize> {
    let line = around(input, at, |byte| byte != b'\n');
    line.start..(line.end + 1).min(input.len())
}

fn around(input: &[u8], at: usize, is_in: impl Fn(u8) -> bool) -> Range<usize> {
    let before = input[..at].iter().rev().take_while(|byte| is_in(**byte)).count();
    let after = input[at..].iter().take_while(|byte| is_in(**byte)).count();
    at - before..at + after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutator() -> Mutator {
        Mutator::new(vec![b"a: 12\nbc: [d]\n".to_vec(), b"x".to_vec()], &["word", "{}"], 64 << 10)
    }

    #[test]
    fn the_samples_come_first_and_each_seed_has_its_input() {
        let inputs: Vec<_> = (0..1_000).map(|seed| mutator().input(seed)).collect();
        assert_eq!((&inputs[0][..], &inputs[1][..]), (&b"a: 12\nbc: [d]\n"[..], &b"x"[..]));
        assert_eq!(inputs, (0..1_000).map(|seed| mutator().input(seed)).collect::<Vec<_>>());
        let different: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(different.len() > 600, "{}", different.len());
    }

    #[test]
    fn most_inputs_are_short_some_are_long_and_none_exceeds_the_limit() {
        let lengths: Vec<_> = (0..20_000).map(|seed| mutator().input(seed).len()).collect();
        let longer = |than: usize| lengths.iter().filter(|length| **length > than).count();
        assert!(longer(2 * SHORT) < 2_000 && longer(32 << 10) > 0 && longer(64 << 10) == 0);
    }

    #[test]
    fn a_token_a_number_and_a_line_are_found_around_a_position() {
        let input = b"a: 12\nbc: [d]\n";
        assert_eq!((token(input, 7), digits(input, 0), line(input, 7)), (6..8, 3..5, 6..14));
        assert_eq!((token(input, 9), digits(input, 9), line(input, 14)), (9..9, 9..9, 14..14));
    }
}
