//! The second pass over jobs.yaml: serde_yaml into types that mirror the file.
//!
//! Every text stays as written, quoted or not: `NO`, `1.10` and `0027` are exactly these texts. `settings` checks the
//! values.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// The state of a key in a block: missing, null (which restores the built-in default), or a value.
pub(super) type Given<T> = Option<Option<T>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub defaults: Option<Block>,
    /// Missing only if an error already reports that.
    #[serde(default)]
    pub jobs: BTreeMap<String, Block>,
}

/// A job, or the defaults of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Block {
    #[serde(deserialize_with = "given")]
    pub description: Given<String>,
    #[serde(deserialize_with = "given")]
    pub schedule: Given<TextOrTexts>,
    #[serde(deserialize_with = "given")]
    pub after: Given<BTreeMap<String, String>>,
    #[serde(deserialize_with = "given")]
    pub timezone: Given<String>,
    #[serde(deserialize_with = "given")]
    pub dst: Given<String>,
    #[serde(deserialize_with = "given")]
    pub splay: Given<String>,
    #[serde(deserialize_with = "given")]
    pub command: Given<TextOrTexts>,
    #[serde(deserialize_with = "given")]
    pub enabled: Given<bool>,
    #[serde(deserialize_with = "given")]
    pub environment: Given<BTreeMap<String, String>>,
    #[serde(deserialize_with = "given")]
    pub user: Given<String>,
    #[serde(deserialize_with = "given")]
    pub group: Given<String>,
    #[serde(deserialize_with = "given")]
    pub nice: Given<String>,
    #[serde(deserialize_with = "given")]
    pub limits: Given<BTreeMap<String, Option<String>>>,
    #[serde(deserialize_with = "given")]
    pub working_directory: Given<String>,
    #[serde(deserialize_with = "given")]
    pub umask: Given<String>,
    #[serde(deserialize_with = "given")]
    pub timeout: Given<String>,
    #[serde(deserialize_with = "given")]
    pub kill_grace: Given<String>,
    #[serde(deserialize_with = "given")]
    pub retries: Given<BTreeMap<String, Option<String>>>,
    #[serde(deserialize_with = "given")]
    pub overlap: Given<String>,
    #[serde(deserialize_with = "given")]
    pub concurrency_group: Given<BTreeMap<String, Option<String>>>,
    #[serde(deserialize_with = "given")]
    pub misfire: Given<String>,
    #[serde(deserialize_with = "given")]
    pub misfire_window: Given<String>,
    #[serde(deserialize_with = "given")]
    pub misfire_limit: Given<u64>,
    #[serde(deserialize_with = "given")]
    pub interrupted: Given<String>,
    #[serde(deserialize_with = "given")]
    pub on_lease_end: Given<String>,
    #[serde(deserialize_with = "given")]
    pub success_exit_codes: Given<Vec<u64>>,
    #[serde(deserialize_with = "given")]
    pub max_output: Given<String>,
    #[serde(deserialize_with = "given")]
    pub on_failure: Given<TextOrTexts>,
    #[serde(deserialize_with = "given")]
    pub on_success: Given<TextOrTexts>,
    #[serde(deserialize_with = "given")]
    pub on_recovery: Given<TextOrTexts>,
    #[serde(deserialize_with = "given")]
    pub on_missed: Given<TextOrTexts>,
}

/// Distinguishes a key that is null from a missing one.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Given<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
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
