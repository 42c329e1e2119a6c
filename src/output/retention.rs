//! How much output is kept, and for how long: the value of `--output-retention`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::size;
use cronkeeper_core::duration;

/// Most files of ended attempts. Small files cost inodes and time rather than bytes, so they are bounded by count too.
pub(super) const MOST_FILES: u64 = 100_000;

/// How much output is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRetention {
    /// No output is kept, and what is there is removed.
    None,
    Limited {
        /// Output of attempts that ended longer ago is removed.
        age: Duration,
        /// Bytes on disk. Beyond them, the oldest output is removed.
        bytes: u64,
    },
}

/// The error for a text that is not a retention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRetention {
    #[error("`{0}` is neither an age nor a size, such as `30d`, `1GiB` or `30d,1GiB`; `none` keeps no output")]
    Unclear(String),
    #[error("`{0}` names an age or a size twice")]
    Twice(String),
    #[error("must be longer than zero: `none` keeps no output")]
    Zero,
}

impl Default for OutputRetention {
    fn default() -> Self {
        Self::Limited { age: Duration::from_secs(30 * 86_400), bytes: 1 << 30 }
    }
}

impl FromStr for OutputRetention {
    type Err = BadRetention;

    /// Parses an age, a size, or both. What is not named keeps its default.
    fn from_str(text: &str) -> Result<Self, BadRetention> {
        let Self::Limited { age: usual_age, bytes: usual_bytes } = Self::default() else { return Ok(Self::None) };
        if text == "none" {
            return Ok(Self::None);
        }
        let (mut age, mut bytes) = (None, None);
        for part in text.split(',').map(str::trim) {
            let is_new = match (duration::parse(part), size::parse(part)) {
                (Ok(value), _) => age.replace(value).is_none(),
                (_, Ok(value)) => bytes.replace(value).is_none(),
                _ => return Err(BadRetention::Unclear(part.to_owned())),
            };
            if !is_new {
                return Err(BadRetention::Twice(text.to_owned()));
            }
        }
        if age == Some(Duration::ZERO) || bytes == Some(0) {
            return Err(BadRetention::Zero);
        }
        Ok(Self::Limited { age: age.unwrap_or(usual_age), bytes: bytes.unwrap_or(usual_bytes) })
    }
}

/// The value of the option that means the same.
impl fmt::Display for OutputRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Limited { age, bytes } => write!(f, "{},{}", duration::format(*age), size::format(*bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(days: u64, bytes: u64) -> Result<OutputRetention, BadRetention> {
        Ok(OutputRetention::Limited { age: Duration::from_secs(days * 86_400), bytes })
    }

    #[test]
    fn either_part_may_be_given_alone_and_the_other_keeps_its_default() {
        assert_eq!("30d,1GiB".parse(), limited(30, 1 << 30));
        assert_eq!("7d".parse(), limited(7, 1 << 30));
        assert_eq!("64MiB".parse(), limited(30, 64 << 20));
        assert_eq!("2GiB, 1d".parse(), limited(1, 2 << 30));
        assert_eq!("none".parse(), Ok(OutputRetention::None));
        assert_eq!(OutputRetention::default().to_string(), "30d,1GiB");
    }

    #[test]
    fn an_error_names_the_broken_rule() {
        for (text, words) in [
            ("", "neither an age nor a size"),
            ("30", "neither an age nor a size"),
            ("1GB", "neither an age nor a size"),
            ("1d,2d", "twice"),
            ("0s", "longer than zero"),
            ("0B", "longer than zero"),
            ("none,1d", "neither an age nor a size"),
        ] {
            let refused = text.parse::<OutputRetention>().unwrap_err().to_string();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}
