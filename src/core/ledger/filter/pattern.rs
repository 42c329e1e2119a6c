//! A pattern for job names: `*` matches any characters, `?` one.

use wildmatch::WildMatch;

use crate::escape;
use crate::job::JobName;

/// A name, or a pattern of names.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPattern {
    text: String,
    matcher: WildMatch,
}

/// The error for a text that can match no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a pattern of job names: expected letters, digits, `.`, `_`, `-`, `*` and `?`, at most 100 of them"
)]
pub struct BadPattern(String);

impl JobPattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// If no job's name could match it.
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let is_fine = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'*' | b'?');
        match (1..=100).contains(&text.len()) && text.bytes().all(is_fine) {
            true => Ok(Self { text: text.to_owned(), matcher: WildMatch::new(text) }),
            false => Err(BadPattern(escape::short(text, 100))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The only name that it matches; `None` if there may be several.
    pub fn as_name(&self) -> Option<&str> {
        JobName::parse(&self.text).is_ok().then_some(&*self.text)
    }

    pub fn matches(&self, name: &str) -> bool {
        self.matcher.matches(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        JobPattern::parse(pattern).unwrap().matches(name)
    }

    /// By the definition, and therefore slow.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            Some((&c, rest)) => name
                .split_first()
                .is_some_and(|(&first, others)| (c == b'?' || c == first) && by_definition(rest, others)),
        }
    }

    #[test]
    fn stars_and_question_marks_match() {
        assert!(
            matches("load-*", "load-eu") && matches("*", "a") && matches("l?ad", "load") && matches("a*b*c", "axxbbc")
        );
        assert!(!matches("load-*", "reload-eu") && !matches("l?ad", "lad") && !matches("load", "load2"));
        assert_eq!(JobPattern::parse("load").unwrap().as_name(), Some("load"));
        assert_eq!(JobPattern::parse("l*").unwrap().as_name(), None);
    }

    #[test]
    fn a_pattern_of_many_stars_is_matched_at_once() {
        assert!(!matches(&"*a".repeat(50), &format!("{}b", "a".repeat(99))));
    }

    #[test]
    fn what_no_name_can_match_is_refused() {
        for bad in ["", "a b", "ä", "[ab]", &"a".repeat(101)] {
            assert!(JobPattern::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn matching_is_as_defined(pattern in "[ab*?]{1,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), by_definition(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
