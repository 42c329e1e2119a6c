//! Values as jobs.yaml has them: their syntactic forms, and the types that serde_yaml reads them into.
//!
//! Every text stays as written, quoted or not: `NO`, `1.10` and `0027` are exactly these texts. `settings` checks the
//! values.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// The state of a key in a block: missing, null (which restores the built-in default), or a value.
pub(super) type Given<T> = Option<Option<T>>;

/// The syntactic form of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// A text, quoted or not.
    Text,
    /// A text such as `90s`.
    Duration,
    /// A text such as `1MiB`.
    Size,
    /// One of these texts.
    Words(&'static [&'static str]),
    /// A text or a list of texts. An unquoted text must not look like a number, because YAML would read it as one.
    TextOrTexts,
    /// Exactly `true` or `false`.
    Flag,
    /// Decimal digits.
    Number {
        /// The smallest and largest value, checked by `values`.
        least: u64,
        most: u64,
    },
    /// A list of decimal digits.
    Numbers,
    /// A map from text to text, without null.
    Texts,
    /// A map from these keys to texts. Null restores a default.
    Fields(&'static [Key]),
    /// A map from these keys to a text or a list of texts. Null restores a default.
    Lists(&'static [Key]),
    /// A map from names to maps from these keys to texts. All of the keys are required.
    Named(&'static [Key]),
    /// Names of channels, or a map from them to texts or lists of texts.
    Notify,
}

/// A key that a map may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub name: &'static str,
    pub form: Form,
    /// What it is for. The JSON Schema shows it.
    pub about: &'static str,
}

/// Distinguishes a key that is null from a missing one.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Given<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A job's own value, otherwise that of the defaults. Null in either means the built-in default.
pub(super) fn merged<T: Clone>(own: &Given<T>, defaults: &Given<T>) -> Option<T> {
    own.clone().unwrap_or_else(|| defaults.clone().flatten())
}

/// A text, or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextOrTexts {
    Text(String),
    Texts(Vec<String>),
}

impl<'de> Deserialize<'de> for TextOrTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTextsVisitor)
    }
}

struct TextOrTextsVisitor;

impl<'de> Visitor<'de> for TextOrTextsVisitor {
    type Value = TextOrTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TextOrTexts, E> {
        Ok(TextOrTexts::Text(text.to_owned()))
    }

    // `command: true` is a command. The check of the form has rejected other spellings of booleans.
    fn visit_bool<E: Error>(self, flag: bool) -> Result<TextOrTexts, E> {
        Ok(TextOrTexts::Text(flag.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<TextOrTexts, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = items.next_element()? {
            texts.push(text);
        }
        Ok(TextOrTexts::Texts(texts))
    }
}
