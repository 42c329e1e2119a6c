//! Tests with meaningless text: no panic, no hang, and a valid position for every fault.

use super::{Dst, Schedule, at};
use jiff::Timestamp;

/// A xorshift generator, which gives the same strings in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("small")
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const TOKENS: [&str; 57] = [
    "*",
    "*",
    "*",
    " ",
    " ",
    " ",
    " ",
    "0",
    "1",
    "7",
    "31",
    "59",
    "60",
    "2100",
    "99999999999999999999",
    "-",
    "-",
    "/",
    "/",
    ",",
    ",",
    "H",
    "H(",
    ")",
    "H(0-29)",
    "/15",
    "mon",
    "Sun",
    "jan",
    "décembre",
    "L",
    "W",
    "#",
    "L-3",
    "LW",
    "15W",
    "mon#2",
    "friL",
    "?",
    "@",
    "@every ",
    "@at ",
    "@daily",
    "@reboot",
    "1h30m",
    "9223372036854775807d",
    "2026-12-24T18:00:00Z",
    "-009999-01-02T00:00:00Z",
    "TZ=",
    "\t",
    "\u{a0}",
    "\0",
    "é",
    "🕐",
    "~",
    "%",
    "9999-12-30T22:00:00Z",
];

fn assert_harmless(text: &str) {
    match Schedule::parse(&[text], "Europe/Berlin", Dst::Once, "job") {
        Ok(schedule) => {
            for instant in [Timestamp::MIN, at("1970-01-01T00:00:00Z"), at("2026-11-20T00:00:00.5Z"), Timestamp::MAX] {
                schedule.next_after(instant);
                schedule.last_before_or_at(instant, Timestamp::MIN);
                schedule.dst_effect(instant);
            }
            assert!(!schedule.describe().is_empty() && !schedule.canonical().is_empty());
        }
        Err(error) => {
            let offset = error.position().expect("a position").offset;
            assert!(offset <= text.chars().count(), "{text:?}: {offset}");
            assert!(error.to_string().len() < 600, "{text:?}");
        }
    }
}

#[test]
fn a_hundred_thousand_strings_of_fragments_are_accepted_or_rejected() {
    let mut random = Random(0x2026_1120);
    for _ in 0..100_000 {
        let length = random.below(24);
        let text: String = (0..length).map(|_| random.pick(&TOKENS)).collect();
        assert_harmless(&text);
    }
}

#[test]
fn strings_of_any_characters_are_accepted_or_rejected() {
    let mut random = Random(0xC0FF_EE00);
    for _ in 0..20_000 {
        let length = random.below(40);
        let text: String =
            (0..length).filter_map(|_| char::from_u32(u32::try_from(random.below(0x300)).ok()?)).collect();
        assert_harmless(&text);
    }
}

#[test]
fn a_megabyte_of_one_character_is_rejected_quickly() {
    for character in ["*", ",", "/", "-", "1", "H", "(", " ", "@", "L", "é"] {
        assert_harmless(&character.repeat(1 << 20));
        assert_harmless(&format!("{} * * * *", character.repeat(1 << 20)));
    }
    assert_harmless(&format!("{} * * * *", "*,".repeat(10_000) + "*"));
}
