//! The line of an expression and the mark below it that shows where the fault is.

use crate::schedule::Place;
use crate::telemetry::escape::is_harmful;

/// How much is shown on either side of a fault in a long expression.
const AROUND: usize = 60;

/// Two lines: what was written, and `^` under the characters that are wrong.
pub(super) fn pointed(expression: &str, place: Place) -> String {
    let start = place.offset.saturating_sub(AROUND);
    // At least one, also behind the end: something is missing there.
    let width = place.length.clamp(1, AROUND);
    let cell = |c: char| {
        if c.is_whitespace() {
            ' '
        } else if is_harmful(c) {
            '·'
        } else {
            c
        }
    };
    let shown: String = expression.chars().skip(start).take(place.offset - start + width + AROUND).map(cell).collect();
    let cut = if start > 0 { "…" } else { "" };
    let margin = " ".repeat(cut.chars().count() + place.offset - start);
    format!("  {cut}{}\n  {margin}{}", shown.trim_end(), "^".repeat(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(expression: &str, offset: usize, length: usize) -> String {
        pointed(expression, Place { expression: 0, offset, length })
    }

    #[test]
    fn the_mark_is_under_the_fault() {
        assert_eq!(marked("0 61 * * *", 2, 2), "  0 61 * * *\n    ^^");
        assert_eq!(marked("0 1,,2 * * *", 4, 0), "  0 1,,2 * * *\n      ^");
        assert_eq!(marked("ä\tx\u{1b}", 2, 2), "  ä x·\n    ^^");
        assert_eq!(marked("", 0, 0), "  \n  ^");
    }

    #[test]
    fn of_a_long_expression_the_part_around_the_fault_is_shown() {
        let long = format!("{}61{}", "1,".repeat(500), ",1".repeat(500_000));
        let shown = marked(&long, 1_000, 2);
        let (expression, mark) = shown.split_once('\n').unwrap();
        assert!(shown.chars().count() < 300, "{shown}");
        let at = mark.chars().position(|c| c == '^').unwrap();
        assert_eq!(expression.chars().skip(at).take(2).collect::<String>(), "61");
        assert!(marked(&long, 0, 1_000_000).chars().count() < 300);
    }
}
