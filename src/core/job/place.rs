//! Where a job runs: on the leader, on any node that fits, or on every node that fits.
//!
//! A node fits if its labels do. Labels are names, or names with a value; each node also has the label `node` with its
//! own name as the value. What a job asks of them is its `run_where`; every part of it must hold.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::escape::short;
use crate::term::NodeName;

/// Most labels of a node.
pub const MOST_LABELS: usize = 32;
/// Most characters of a label's name, and of its value.
const LONGEST: usize = 63;
/// The name of the label that every node has: its value is the node's name.
const NODE: &str = "node";

/// Where a job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOn {
    /// On the node that leads.
    #[default]
    Leader,
    /// On one node that fits, chosen by the leader.
    Any,
    /// On each node that fits.
    Every,
}

impl RunOn {
    /// All values, with their names in jobs files.
    pub const ALL: [(&'static str, Self); 3] =
        [(Self::Leader.as_str(), Self::Leader), (Self::Any.as_str(), Self::Any), (Self::Every.as_str(), Self::Every)];

    /// The name in jobs files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Any => "any",
            Self::Every => "every",
        }
    }

    /// True if the leader chooses who runs it.
    pub fn is_placed(self) -> bool {
        self != Self::Leader
    }
}

/// A label of a node: `gpu`, or `zone=eu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Label {
    name: String,
    value: Option<String>,
}

/// The error for a text that is not a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLabel {
    #[error(
        "`{}` is not a label: expected NAME or NAME=VALUE, each of 1 to {LONGEST} letters, digits, `.`, `_` and `-`, \
         beginning with a letter or digit", short(.0, 2 * LONGEST)
    )]
    Form(String),
    /// Between two commas, or none at all.
    #[error("a label is empty: expected NAME or NAME=VALUE, such as `gpu` or `zone=eu`")]
    Empty,
    /// It is for jobs only.
    #[error("`{}`: a node has a label or not; `!` is for the `run_where` of a job that must not run there", short(.0, 2 * LONGEST))]
    Excluded(String),
    /// Every node has it with its own name as the value.
    #[error("the label `{NODE}` cannot be given: it is the node's name")]
    Node,
}

impl Label {
    /// Checks a label in a jobs file.
    ///
    /// # Errors
    /// If the text is not a label.
    pub fn parse(text: &str) -> Result<Self, BadLabel> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let is_value = |value: &str| is_word(value) || (name == NODE && NodeName::parse(value).is_ok());
        let is_good = is_word(name) && value.is_none_or(is_value);
        match is_good {
            true => Ok(Self { name: name.to_owned(), value: value.map(str::to_owned) }),
            false if text.is_empty() => Err(BadLabel::Empty),
            false => Err(BadLabel::Form(text.to_owned())),
        }
    }

    /// Checks a label that a node is given.
    ///
    /// # Errors
    /// If the text is not a label, or names the node.
    pub fn parse_own(text: &str) -> Result<Self, BadLabel> {
        if text.starts_with('!') {
            return Err(BadLabel::Excluded(text.to_owned()));
        }
        Self::parse(text).and_then(|label| if label.name == NODE { Err(BadLabel::Node) } else { Ok(label) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// True for text that can be a label's name or its value.
fn is_word(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    first && text.len() <= LONGEST && text.chars().all(NodeName::may_contain)
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

impl TryFrom<String> for Label {
    type Error = BadLabel;
    fn try_from(text: String) -> Result<Self, BadLabel> {
        Self::parse(&text)
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.to_string()
    }
}

/// The labels that a node was given.
pub type Labels = BTreeSet<Label>;

/// One part of a `run_where`: `gpu`, `zone=eu`, or `!old`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    label: Label,
    /// No label of the node may fit.
    is_excluded: bool,
}

impl Requirement {
    /// Checks a part of a `run_where`.
    ///
    /// # Errors
    /// If the text is not a label, with or without `!` before it.
    pub fn parse(text: &str) -> Result<Self, BadLabel> {
        let (rest, is_excluded) = text.strip_prefix('!').map_or((text, false), |rest| (rest, true));
        Ok(Self { label: Label::parse(rest)?, is_excluded })
    }

    /// The label that it asks for, or that it excludes.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// What a node must be: `with gpu`, or `without old`.
    pub fn in_words(&self) -> String {
        format!("{} {}", if self.is_excluded { "without" } else { "with" }, self.label)
    }

    /// True if no node can meet both: one asks for a label that the other excludes, or each for another name of the node.
    pub fn contradicts(&self, other: &Self) -> bool {
        match (self.is_excluded, other.is_excluded) {
            (false, true) => other.excludes(&self.label),
            (true, false) => self.excludes(&other.label),
            (false, false) => {
                let asks = |it: &Self| it.label.value.clone().filter(|_| it.label.name == NODE);
                asks(self).zip(asks(other)).is_some_and(|(one, another)| one != another)
            }
            (true, true) => false,
        }
    }

    /// True if it excludes each node that has this label. A name without a value excludes any value.
    fn excludes(&self, label: &Label) -> bool {
        self.label.name == label.name
            && self.label.value.as_ref().is_none_or(|value| label.value.as_ref() == Some(value))
    }

    /// True if a node with this name and these labels meets it. A name without a value fits any value.
    pub fn is_met_by(&self, node: &NodeName, labels: &Labels) -> bool {
        let Label { name, value } = &self.label;
        let has = match value {
            _ if name == NODE => value.as_deref().is_none_or(|value| value == node.as_str()),
            None => labels.iter().any(|label| label.name == *name),
            Some(_) => labels.contains(&self.label),
        };
        has != self.is_excluded
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_excluded { "!" } else { "" }, self.label)
    }
}

/// What a job asks of the nodes that it runs on: all of it must hold. Empty: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunWhere(pub Vec<Requirement>);

impl RunWhere {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a node with this name and these labels meets all of it.
    pub fn is_met_by(&self, node: &NodeName, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.is_met_by(node, labels))
    }

    /// What a node must be: `with gpu and without old`; empty if it may be any.
    pub fn in_words(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(Requirement::in_words).collect();
        parts.join(" and ")
    }
}

impl fmt::Display for RunWhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(Requirement::to_string).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(texts: &[&str]) -> Labels {
        texts.iter().map(|text| Label::parse_own(text).unwrap()).collect()
    }

    fn run_where(texts: &[&str]) -> RunWhere {
        RunWhere(texts.iter().map(|text| Requirement::parse(text).unwrap()).collect())
    }

    #[test]
    fn a_node_fits_if_each_part_holds() {
        let (node, own) = (NodeName::new("host-a"), labels(&["gpu", "zone=eu", "disk=ssd"]));
        for fits in [&[][..], &["gpu"], &["zone=eu", "!old"], &["zone"], &["node=host-a"], &["!node=host-b"]] {
            assert!(run_where(fits).is_met_by(&node, &own), "{fits:?}");
        }
        for other in [&["old"][..], &["zone=us"], &["gpu", "!disk"], &["!zone=eu"], &["node=host-b"], &["gpu=a100"]] {
            assert!(!run_where(other).is_met_by(&node, &own), "{other:?}");
        }
    }

    #[test]
    fn parts_that_no_node_meets_together_contradict_each_other() {
        let contradict = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| Requirement::parse(text).unwrap());
            assert_eq!(one.contradicts(&other), other.contradicts(&one));
            one.contradicts(&other)
        };
        for (one, other) in [
            ("gpu", "!gpu"),
            ("zone=eu", "!zone"),
            ("zone=eu", "!zone=eu"),
            ("node=a", "node=b"),
            ("node=a", "!node=a"),
        ] {
            assert!(contradict(one, other), "{one} {other}");
        }
        // A node may have several values of a label.
        for (one, other) in [
            ("gpu", "!old"),
            ("zone", "!zone=eu"),
            ("zone=eu", "zone=us"),
            ("!a", "!b"),
            ("node=a", "!node=b"),
            ("a", "a"),
        ] {
            assert!(!contradict(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_label_is_a_name_or_a_name_with_a_value() {
        for good in ["gpu", "zone=eu-west.1", "a", "0=0", "node=_x", &"x".repeat(63)] {
            assert_eq!(Label::parse(good).unwrap().to_string(), good);
        }
        for bad in ["=", "gpu ", "gpu=", "=eu", "!gpu", "a=b=c", "-a", "a/b", "ä", &"x".repeat(64)] {
            assert_eq!(Label::parse(bad), Err(BadLabel::Form(bad.to_owned())), "{bad}");
        }
        assert_eq!(Label::parse(""), Err(BadLabel::Empty));
        assert_eq!(Label::parse_own("node=host-a"), Err(BadLabel::Node));
        assert_eq!(Label::parse_own("!old"), Err(BadLabel::Excluded("!old".into())));
        assert_eq!(run_where(&["gpu", "!zone=eu"]).to_string(), "gpu, !zone=eu");
    }
}
