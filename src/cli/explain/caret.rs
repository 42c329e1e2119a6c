//! An expression with a caret line below that marks the fault.

use cronkeeper_core::escape::is_harmful;
use cronkeeper_core::schedule::FaultPosition;

/// Characters shown on either side of a fault in a long expression.
const AROUND: usize = 60;

/// Returns two lines: the expression, and `^` under the wrong characters.
pub(super) fn marked(expression: &str, position: FaultPosition) -> String {
    underlined(expression, position.offset, position.length)
}

/// Returns two lines: the part of a text around these characters, and `^` under them.
pub(super) fn underlined(text: &str, offset: usize, length: usize) -> String {
    let start = offset.saturating_sub(AROUND);
    // At least one `^`, also behind the end, where something is missing.
    let width = length.clamp(1, AROUND);
    let cell = |c: char| {
        if c.is_whitespace() {
            ' '
        } else if is_harmful(c) {
            '·'
        } else {
            c
        }
    };
    let shown: String = text.chars().skip(start).take(offset - start + width + AROUND).map(cell).collect();
    let cut = if start > 0 { "…" } else { "" };
    let margin = " ".repeat(cut.chars().count() + offset - start);
    format!("  {cut}{}\n  {margin}{}", shown.trim_end(), "^".repeat(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(expression: &str, offset: usize, length: usize) -> String {
        marked(expression, FaultPosition { expression: 0, offset, length })
    }

    #[test]
    fn the_mark_is_under_the_fault() {
        assert_eq!(shown("0 61 * * *", 2, 2), "  0 61 * * *\n    ^^");
        assert_eq!(shown("0 1,,2 * * *", 4, 0), "  0 1,,2 * * *\n      ^");
        assert_eq!(shown("ä\tx\u{1b}", 2, 2), "  ä x·\n    ^^");
        assert_eq!(shown("", 0, 0), "  \n  ^");
    }

    #[test]
    fn a_long_expression_is_cut_around_the_fault() {
        let long = format!("{}61{}", "1,".repeat(500), ",1".repeat(500_000));
        let text = shown(&long, 1_000, 2);
        let (expression, mark) = text.split_once('\n').unwrap();
        assert!(text.chars().count() < 300, "{text}");
        let at = mark.chars().position(|c| c == '^').unwrap();
        assert_eq!(expression.chars().skip(at).take(2).collect::<String>(), "61");
        assert!(shown(&long, 0, 1_000_000).chars().count() < 300);
    }
}
