//! What the YAML parser says, in words for people who do not know its tokens.

use super::{A_TAB, escape};

pub(super) const NO_KEY: &str = "`key: value` is expected here; add the colon, or indent the line further if it belongs \
                                 to the value above";
const INDENTATION: &str = "the indentation of this line matches none of the lines above";
const DIRECTIVE: &str = "a line that begins with `%` is only allowed as `%YAML 1.2` with `---` below it; delete it";
const TAG: &str = "tags (`!…`) are not supported; quote what is meant as text";
const ANCHOR: &str = "an unquoted `&` begins an anchor and `*` an alias, which a name must follow; quote what is meant \
                      as text";
pub(super) const QUOTE: &str = "this quote is not closed";
pub(super) const STRAY: &str = "this bracket closes nothing";
const IN_LINE: &str = "a list item (`- `) cannot begin here; put it on its own line";

/// A part of the parser's message, and what to say in its place. The first that fits counts.
const WORDS: [(&str, &str); 43] = [
    ("unknown escape", escape::ADVICE),
    ("hexadecimal number", escape::ADVICE),
    ("Unicode character escape", escape::ADVICE),
    ("document indicator", QUOTE),
    ("found unexpected end of stream", QUOTE),
    ("indentation in quoted scalar", "this quote is not closed, or its next line is not indented further than its key"),
    ("after double-quoted scalar", "there is more text after the closing quote of this value; put all of it in quotes"),
    ("flow sequence", "in this list in brackets, a comma or `]` is missing here"),
    ("flow mapping, did not", "in this map in braces, a comma or `}` is missing here"),
    ("in flow mapping", "in braces, a space is missing after this colon"),
    ("in flow construct", "what is in brackets must be indented further than its key"),
    ("placement of ':'", "this colon follows no key; put the value in quotes"),
    ("mapping values", "this value has another `: `; put the value in quotes, or each key on its own line"),
    ("mapping keys", "a key cannot begin here; put it on its own line"),
    ("simple key", NO_KEY),
    ("expected key", INDENTATION),
    ("'-' indicator", "the list ends here; indent this line like the items of the list, or like its key"),
    ("sequence entries", IN_LINE),
    ("only valid inside a block", IN_LINE),
    ("cannot start with '-'", "in brackets, a value cannot begin with `-` alone; put it in quotes"),
    ("'-' must be followed", A_TAB),
    ("':' must be followed", A_TAB),
    ("a tab", A_TAB),
    ("tab cannot", A_TAB),
    ("tabs ", A_TAB),
    ("equal to 0", "after `|` or `>`, the indentation is a number from 1 to 9; you can usually leave it out"),
    ("block scalar, did not", "a text under `|` or `>` begins in the next line"),
    ("comment intercepting", "a comment inside a value of several lines; put the value in quotes or under `|`"),
    ("comments must be separated", "a space is missing in front of this `#`"),
    ("byte order mark", "a byte order mark (U+FEFF) inside the file; delete it"),
    ("document end marker before", "a directive needs `...` above it; write one document per file"),
    ("document end marker", "there is more text after `...`, which ends the file"),
    ("irective", DIRECTIVE),
    ("TAG", DIRECTIVE),
    ("ocument", DIRECTIVE),
    ("the handle", TAG),
    ("unknown anchor", "this alias (`*`) has no anchor (`&`) in this file; quote what is meant as text"),
    ("anchor", ANCHOR),
    ("a tag", TAG),
    ("verbatim tag", TAG),
    ("misplaced bracket", STRAY),
    ("unexpected character", "a value cannot begin with this character; put it in quotes"),
    ("indent", INDENTATION),
];

const UNKNOWN: &str = "the rest of the file cannot be read; look for a missing quote, bracket or colon before this \
    point";

pub(super) fn of(info: &str) -> &'static str {
    WORDS.iter().find(|(part, _)| info.contains(part)).map_or(UNKNOWN, |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 0.3 of the parser says about files that people write.
    #[test]
    fn what_the_parser_says_has_words() {
        for info in [
            "'-' must be followed by a valid YAML whitespace",
            "':' may not precede any of `[{` in flow mapping",
            "':' must be followed by a valid YAML whitespace",
            "a block scalar content cannot start with a tab",
            "block sequence entries are not allowed in this context",
            "comment intercepting the multiline text",
            "comments must be separated from other tokens by whitespace",
            "did not find expected <document start>",
            "duplicate version directive",
            "found incompatible YAML document",
            "illegal placement of ':' indicator",
            "invalid content after document end marker",
            "invalid indentation in flow construct",
            "invalid indentation in quoted scalar",
            "invalid trailing content after double-quoted scalar",
            "mapping keys are not allowed in this context",
            "mapping values are not allowed in this context",
            "missing explicit document end marker before directive",
            "misplaced bracket",
            "plain scalar cannot start with '-' followed by ,[]{}",
            "simple key expect ':'",
            "tab cannot be used as indentation",
            "the handle wasn't declared",
            "unexpected character: `%'",
            "while parsing a block collection, did not find expected '-' indicator",
            "while parsing a block mapping, did not find expected key",
            "while parsing a flow mapping, did not find expected ',' or '}'",
            "while parsing a flow sequence, expected ',' or ']'",
            "while parsing a quoted scalar, did not find expected hexadecimal number",
            "while parsing a tag, did not find expected tag URI",
            "while parsing node, found unknown anchor",
            "while scanning TAG, did not find expected whitespace or line break",
            "while scanning a YAML directive, did not find expected version number",
            "while scanning a block scalar, did not find expected comment or line break",
            "while scanning a block scalar, found an indentation indicator equal to 0",
            "while scanning a plain scalar, found a tab",
            "while scanning a quoted scalar, found unexpected document indicator",
            "while scanning a quoted scalar, found unexpected end of stream",
            "while scanning a verbatim tag, did not find the expected '>'",
            "while scanning an anchor or alias, did not find expected alphabetic or numeric character",
            "wrongly indented line in block scalar",
        ] {
            assert_ne!(of(info), UNKNOWN, "{info}");
        }
        assert_eq!(of("anything"), UNKNOWN);
        assert_eq!(of("while parsing a block mapping, did not find expected key"), INDENTATION);
        assert_eq!(of("while scanning a tag, did not find expected '!'"), TAG);
    }
}
