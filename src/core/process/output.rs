//! What a job's output costs on its way from the warden to the log and to the disk.
//!
//! A line costs about as much as the object of JSON that it becomes, so an empty line has its price too. Warden and
//! daemon count with the same prices, so that the daemon can say how much of the output it has taken.

/// The price of a line without its text: its time, its attempt and its stream.
pub const LINE_COST: u64 = 100;

/// The price of a line.
pub fn line_cost(text: &str) -> u64 {
    text.chars().map(character_cost).fold(LINE_COST, u64::saturating_add)
}

/// The price of a character: its bytes in a text of JSON.
pub fn character_cost(character: char) -> u64 {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8() as u64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn the_price_of_a_text_is_its_length_as_json(text in "(\\PC|[\\x00-\\x1f]|[\"\\\\]){0,80}") {
            let quoted = serde_json::to_string(&text).unwrap().len() as u64;
            prop_assert_eq!(line_cost(&text), LINE_COST + quoted - 2);
        }
    }
}
