//! The first pass over a jobs file: a tree with the position of every key and value.
//!
//! serde_yaml alone is not enough: it reports only the first error, keeps the last of two equal keys, and takes seconds
//! for a megabyte of `[`. This pass builds a tree from the events of `saphyr-parser`. It rejects input that the second
//! pass would fail on or silently accept: a second document, duplicate keys, `<<`, tags, deep nesting, and aliases that
//! multiply the text. `schema` and `validate` check the meaning.

mod tabs;

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use self::tabs::TabsSeparate;
use super::{schema, syntax};

/// Maximum nesting. Deeper than any jobs file needs, and below the 128 levels at which serde_yaml gives up.
const DEEPEST: usize = 32;
/// Maximum number of values; more than 4 MiB of sensible jobs contain.
const MOST_NODES: usize = 500_000;
/// Maximum number of bytes that aliases may add to a file by repetition.
const MOST_REPEATED: usize = 16 << 20;

/// A position in a file. Line and column count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    pub const START: Self = Self { line: 1, column: 1 };

    /// The position `by` characters later in the same line.
    pub fn column_later(self, by: usize) -> Self {
        Self { column: self.column + by, ..self }
    }
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

/// An error or warning, and its position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fault {
    pub at: Position,
    pub message: String,
}

impl Fault {
    pub fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// A value and its position.
#[derive(Debug)]
pub(super) struct Node {
    pub at: Position,
    /// The position after its last character.
    pub end: Position,
    pub value: Value,
    /// Approximate size in bytes, including everything in it.
    size: usize,
}

/// The YAML type of a value.
#[derive(Debug)]
pub(super) enum Value {
    /// A text as written; `plain` if it is unquoted.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Rc<Node>>),
    Map(Vec<MapEntry>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct MapEntry {
    pub key: String,
    pub at: Position,
    pub value: Rc<Node>,
}

impl Node {
    pub fn new(span: Span, value: Value) -> Self {
        let size = 32
            + match &value {
                Value::Text { text, .. } => text.len(),
                Value::List(items) => sum(items.iter().map(|item| item.size)),
                Value::Map(entries) => sum(entries.iter().map(|entry| entry.key.len() + entry.value.size)),
            };
        Self { at: span.start.into(), end: span.end.into(), value, size }
    }

    /// Another value at the same position.
    pub fn with(&self, value: Value) -> Self {
        Self { at: self.at, end: self.end, value, size: self.size }
    }

    /// The text, quoted or not.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The text if it is unquoted.
    pub fn plain(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, plain: true } => Some(text),
            _ => None,
        }
    }

    /// The items of a list; empty for other types.
    pub fn items(&self) -> &[Rc<Node>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The entries of a map; empty for other types.
    pub fn entries(&self) -> &[MapEntry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The map's entry with this key.
    pub fn entry(&self, key: &str) -> Option<&MapEntry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// True for YAML's null: nothing, `~`, `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.plain(), Some("" | "~" | "null" | "Null" | "NULL"))
    }
}

fn sum(weights: impl Iterator<Item = usize>) -> usize {
    weights.fold(0, usize::saturating_add)
}

/// The result of the pass. Without a root, the file cannot be checked further, and there is at least one fault.
pub(super) struct Spanned {
    pub root: Option<Rc<Node>>,
    pub faults: Vec<Fault>,
    /// Where the parts are that the tree does not have, such as the values of keys that are given twice.
    pub dropped: Vec<Range<Position>>,
}

/// Reads a whole file. `text` must come from [`super::source::text`]: no byte order mark, and only allowed characters.
pub(super) fn read(text: &str) -> Spanned {
    let mut builder = Builder::default();
    if let Some(fault) = syntax::version(text) {
        return Spanned { root: None, faults: vec![fault], dropped: Vec::new() };
    }
    for event in Parser::new(TabsSeparate::of(text)) {
        let step = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => Err(syntax::explain(text, (*error.marker()).into(), error.info())),
        };
        if let Err(fault) = step {
            builder.faults.push(fault);
            return Spanned { root: None, faults: builder.faults, dropped: builder.dropped };
        }
    }
    if builder.root.is_none() && builder.faults.is_empty() {
        builder.faults.push(empty_file());
    }
    Spanned { root: builder.root, faults: builder.faults, dropped: builder.dropped }
}

fn empty_file() -> Fault {
    Fault::new(Position::START, "the file is empty; write `jobs: {}` for no jobs")
}

/// Builds the tree without recursion, which deep nesting could exhaust.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    faults: Vec<Fault>,
    dropped: Vec<Range<Position>>,
    documents: usize,
    nodes: usize,
    repeated: usize,
}

/// A list or map whose end has not been reached yet.
struct Open {
    start: Marker,
    anchor: usize,
    what: Collecting,
}

enum Collecting {
    List(Vec<Rc<Node>>),
    Map { entries: Vec<MapEntry>, lines: HashMap<String, usize>, key: Option<Key> },
}

/// A key whose value has not been read yet.
enum Key {
    Good(String, Position),
    /// Its fault is already reported; its value is read and discarded.
    Bad,
}

impl Builder {
    /// Processes one event. An error ends the pass, because the rest would be unreliable or too expensive.
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let at = Position::from(span.start);
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(Fault::new(at, format!("the file holds more than {MOST_NODES} values")));
        }
        match event {
            Event::DocumentStart(_) => self.document(at),
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                // Copied, because every text of the parser has spare capacity.
                let value = Value::Text { text: text.as_ref().to_owned(), plain: style == ScalarStyle::Plain };
                self.attach(Rc::new(Node::new(span, value)), anchor);
                Ok(())
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                self.open(span.start, anchor, Collecting::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                let what = Collecting::Map { entries: Vec::new(), lines: HashMap::new(), key: None };
                self.open(span.start, anchor, what)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.close(span.end);
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn document(&mut self, at: Position) -> Result<(), Fault> {
        self.documents += 1;
        if self.documents == 1 {
            return Ok(());
        }
        Err(Fault::new(at, "a second document begins here; a jobs file is one document"))
    }

    fn refuse_tag(&mut self, tagged: bool, at: Position) {
        if tagged {
            self.faults.push(Fault::new(at, "tags (`!…`) are not supported; quote what is meant as text"));
        }
    }

    fn open(&mut self, start: Marker, anchor: usize, what: Collecting) -> Result<(), Fault> {
        if self.open.len() == DEEPEST {
            return Err(Fault::new(start.into(), format!("nested more than {DEEPEST} levels deep")));
        }
        self.open.push(Open { start, anchor, what });
        Ok(())
    }

    fn close(&mut self, end: Marker) {
        let Some(open) = self.open.pop() else { return };
        let value = match open.what {
            Collecting::List(items) => Value::List(items),
            Collecting::Map { entries, .. } => Value::Map(entries),
        };
        self.attach(Rc::new(Node::new(Span::new(open.start, end), value)), open.anchor);
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Fault> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(Fault::new(at, "this alias refers to a value that contains it"));
        };
        self.repeated = self.repeated.saturating_add(node.size);
        if self.repeated > MOST_REPEATED {
            return Err(Fault::new(at, format!("aliases repeat more than {} MiB of text", MOST_REPEATED >> 20)));
        }
        self.attach(node, 0);
        Ok(())
    }

    /// Adds a finished value to the open list or map, or makes it the root.
    fn attach(&mut self, node: Rc<Node>, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.open.last_mut().map(|open| &mut open.what) {
            None => self.root = Some(node),
            Some(Collecting::List(items)) => items.push(node),
            Some(Collecting::Map { entries, lines, key }) => match key.take() {
                None => {
                    let checked = check_key(&node, lines, &mut self.faults);
                    // In YAML, all of `{NAME=value}` is a key.
                    if matches!(checked, Key::Bad) && node.text().is_none_or(|key| key.contains('=')) {
                        self.dropped.push(node.at..node.end);
                    }
                    *key = Some(checked);
                }
                Some(Key::Good(key, at)) => entries.push(MapEntry { key, at, value: node }),
                Some(Key::Bad) => self.dropped.push(node.at..node.end),
            },
        }
    }
}

fn check_key(node: &Node, lines: &mut HashMap<String, usize>, faults: &mut Vec<Fault>) -> Key {
    let wrong = match (&node.value, node.text().and_then(|key| lines.get(key))) {
        (Value::Text { text, plain: true }, _) if text == "<<" => {
            "`<<` is not supported; put what jobs have in common under `defaults`".to_owned()
        }
        (Value::Text { text, .. }, Some(line)) => {
            format!("`{}` is already given in line {line}", schema::shown_key(text))
        }
        (Value::Text { text, .. }, None) => {
            lines.insert(text.clone(), node.at.line);
            return Key::Good(text.clone(), node.at);
        }
        _ => "a key is a text, not a list or a map".to_owned(),
    };
    faults.push(Fault::new(node.at, wrong));
    Key::Bad
}

/// Writes the tree as YAML that parses to the same tree. Used to pass only the sound part of a file to the second pass.
pub(super) fn write(node: &Node, out: &mut String) {
    match &node.value {
        Value::Text { text, plain: true } if text.is_empty() => out.push('~'),
        Value::Text { text, plain: true } if is_simple(text) => out.push_str(text),
        Value::Text { text, .. } => quote(text, out),
        Value::List(items) => {
            out.push('[');
            for item in items {
                write(item, out);
                out.push_str(", ");
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for entry in entries {
                out.push_str("? ");
                quote(&entry.key, out);
                out.push_str(" : ");
                write(&entry.value, out);
                out.push_str(", ");
            }
            out.push('}');
        }
    }
}

/// True for a text that needs no quotes anywhere. Numbers, booleans and null must not have quotes.
fn is_simple(text: &str) -> bool {
    text == "~" || text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
}
