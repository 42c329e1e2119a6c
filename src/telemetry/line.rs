//! A log line: the contents of a `tracing` event, independent of the format.

use std::fmt;

use tracing::field::{Field, Visit};

use cronkeeper_core::escape::is_harmful;
use cronkeeper_core::log_event::TARGET;

/// Maximum length of a written line in bytes, with its end.
///
/// Of the programs that read lines, rsyslog accepts the least: 8 KiB. The journal cuts a line of a stream after 48 KiB
/// and treats the rest as a line of its own, with the priority that the rest claims to have.
pub(super) const LONGEST: usize = 8_000;
/// The part of it that is reserved for what every line has, and for names and numbers.
const FRAME: usize = 2_000;
/// The part of the frame that a sentence may take although its texts are in fields too.
const BESIDE: usize = 1_000;
/// Maximum bytes of all texts but the longest.
const OTHERS: usize = 2_000;
/// Maximum bytes of a character: as two escaped surrogates in JSON.
const ESCAPED: usize = 12;
/// The field of a line that continues in the next one.
const CONTINUES: &str = "continues";

/// A field's value, with the types that readers of the log can use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// The event's name; `log` if the line has none.
    pub event: String,
    /// The target that logged the line; only for lines without an event name.
    pub source: Option<String>,
    /// What only the place that logs the line can say.
    pub message: Option<String>,
    /// All other fields, in the order given.
    pub fields: Vec<(&'static str, Value)>,
}

impl Line {
    pub fn of(event: &tracing::Event<'_>) -> Self {
        let mut line = Self { event: "log".into(), ..Self::default() };
        event.record(&mut line);
        let target = event.metadata().target();
        line.set_event(is_ours(target), target);
        line
    }

    /// Sets the event's name, or the source. A library's field named `event` remains an ordinary field.
    fn set_event(&mut self, is_ours: bool, target: &str) {
        let named = self.fields.iter().position(|(name, _)| *name == "event").filter(|_| is_ours);
        if let Some(at) = named
            && let (_, Value::Text(name)) = self.fields.remove(at)
        {
            self.event = name;
            return;
        }
        // All lines of the crate `log` have the same target; their own is in a field.
        let own = self.fields.iter().find_map(|(name, value)| match value {
            Value::Text(text) if *name == "log.target" => Some(text.clone()),
            _ => None,
        });
        self.source = Some(own.unwrap_or_else(|| target.to_owned()));
        self.fields.retain(|(name, _)| !name.starts_with("log."));
    }

    /// Splits the line into lines no longer than [`LONGEST`].
    ///
    /// The longest text is spread over several lines, which all repeat the other fields; every line but the last has
    /// the field `continues`. Other long texts are cut and end in an ellipsis.
    pub fn pieces(mut self) -> Vec<Self> {
        let costs: Vec<usize> = self.texts_mut().map(|text| cost(text)).collect();
        let size: usize = costs.iter().sum();
        let longest = (0..costs.len()).max_by_key(|&text| costs[text]).filter(|_| size > LONGEST - FRAME);
        let Some(longest) = longest else { return vec![self] };
        let others = size - costs[longest];
        let most = if others > OTHERS { OTHERS / costs.len() } else { OTHERS };
        let mut whole = String::new();
        for (index, text) in self.texts_mut().enumerate() {
            if index == longest {
                whole = std::mem::take(text);
            } else if costs[index] > most {
                text.truncate(cut(text, most.saturating_sub('…'.len_utf8())));
                text.push('…');
            }
        }
        let mut pieces = Vec::new();
        let mut rest = whole.as_str();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(cut(rest, LONGEST - FRAME - OTHERS));
            rest = more;
            let mut line = self.clone();
            if let Some(text) = line.texts_mut().nth(longest) {
                piece.clone_into(text);
            }
            if !rest.is_empty() && !line.fields.iter().any(|(name, _)| *name == CONTINUES) {
                line.fields.push((CONTINUES, Value::Bool(true)));
            }
            pieces.push(line);
        }
        pieces
    }

    /// The texts, which can have any length.
    fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let of_fields = self.fields.iter_mut().filter_map(|(_, value)| match value {
            Value::Text(text) => Some(text),
            _ => None,
        });
        self.message.iter_mut().chain(of_fields)
    }

    /// As much of the line's sentence as fits beside its fields, which may have the same texts.
    pub fn shortened(&self, mut sentence: String) -> String {
        let of_fields = self.fields.iter().filter_map(|(_, value)| match value {
            Value::Text(text) => Some(cost(text)),
            _ => None,
        });
        let room = (LONGEST - FRAME + BESIDE).saturating_sub(of_fields.sum());
        let fits = cut(&sentence, room);
        if fits < sentence.len() {
            sentence.truncate(fits);
            sentence.push('…');
        }
        sentence
    }
}

impl Line {
    fn push(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Line {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Signed(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Unsigned(value));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Float(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Bool(value));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = Some(value.to_owned()),
            _ => self.push(field, Value::Text(value.to_owned())),
        }
    }
    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        self.push(field, Value::Text(chain(error)));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The maximum number of bytes of a text, escaped for any format.
fn cost(text: &str) -> usize {
    text.chars().map(cost_of).sum()
}

fn cost_of(c: char) -> usize {
    if matches!(c, '"' | '\\') || is_harmful(c) { ESCAPED } else { c.len_utf8() }
}

/// The byte position at which to cut a text so that the part before it costs at most `most`.
fn cut(text: &str, most: usize) -> usize {
    let mut taken = 0;
    let over = text.char_indices().find(|&(_, c)| {
        taken += cost_of(c);
        taken > most
    });
    over.map_or(text.len(), |(at, _)| at)
}

/// True if this program, and not a library, logged the line.
pub(super) fn is_ours(target: &str) -> bool {
    target.strip_prefix(TARGET).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The text of an error and of all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(line: &Line, field: &str) -> String {
        let found = line.fields.iter().find(|(name, _)| *name == field);
        match found {
            Some((_, Value::Text(text))) => text.clone(),
            other => panic!("{field} is {other:?}"),
        }
    }

    fn continues(line: &Line) -> bool {
        line.fields.contains(&(CONTINUES, Value::Bool(true)))
    }

    fn of_run(output: &str) -> Line {
        let fields = vec![("job", Value::Text("load".into())), ("line", Value::Text(output.into()))];
        Line { event: "run.output".into(), fields, ..Line::default() }
    }

    #[test]
    fn a_line_of_ordinary_length_is_not_split() {
        let pieces = of_run(&"x".repeat(5_900)).pieces();
        assert_eq!(pieces.len(), 1);
        assert!(!continues(&pieces[0]));
    }

    #[test]
    fn each_piece_repeats_the_other_fields_and_all_but_the_last_continue() {
        let pieces = of_run(&"x".repeat(9_000)).pieces();
        let shown: Vec<_> = pieces.iter().map(|line| (text_of(line, "line").len(), continues(line))).collect();
        assert_eq!(shown, [(4_000, true), (4_000, true), (1_000, false)]);
        assert!(pieces.iter().all(|line| text_of(line, "job") == "load"));
    }

    #[test]
    fn a_piece_of_a_line_that_continues_is_marked_once() {
        let mut line = of_run(&"x".repeat(9_000));
        line.fields.push((CONTINUES, Value::Bool(true)));
        assert!(line.pieces().iter().all(|line| line.fields.len() == 3 && continues(line)));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn no_piece_is_too_long_and_the_longest_text_is_complete(
            texts in prop::collection::vec(("[a-z\"\\\\\u{1b}\u{e0041}äß]{1,40}", 1_usize..600), 1..6),
        ) {
            const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
            let texts: Vec<String> = texts.iter().map(|(text, times)| text.repeat(*times)).collect();
            let fields = NAMES.into_iter().zip(texts.iter().cloned().map(Value::Text)).collect();
            let pieces = Line { event: "log".into(), fields, ..Line::default() }.pieces();
            let (longest, whole) = NAMES.iter().zip(&texts).max_by_key(|(_, text)| cost(text)).unwrap();
            let joined: String = pieces.iter().map(|line| text_of(line, longest)).collect();
            prop_assert_eq!(&joined, whole);
            for mut line in pieces {
                prop_assert!(line.texts_mut().map(|text| cost(text)).sum::<usize>() <= LONGEST - FRAME);
            }
        }
    }
}
