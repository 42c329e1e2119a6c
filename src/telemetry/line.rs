//! What a `tracing` event says, gathered for either format.

use std::fmt;

use tracing::field::{Field, Visit};

use super::escape::is_harmful;
use super::{TARGET, event};

/// No line that is written is longer, in bytes with its end. Of what reads lines, rsyslog takes the fewest: 8 KiB. The journal cuts a
/// stream's line after 48 KiB and takes what follows for a line of its own, with the priority that it says it has.
pub(super) const LONGEST: usize = 8_000;
/// Of those, what is kept for the parts that every line has, and for names and numbers.
const FRAME: usize = 2_000;
/// What all texts but the longest may take.
const OTHERS: usize = 2_000;
/// The most that a character takes: as two escaped halves in JSON.
const ESCAPED: usize = 12;
/// A line goes on in the next.
const CONTINUES: &str = "continues";

/// A field's value, typed as far as the log's readers can use it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

/// One line to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// The event's name; `log` for a line that is none of ours.
    pub event: String,
    /// Where the line comes from; only of a line that is no event.
    pub source: Option<String>,
    /// Its words, if it has any.
    pub message: Option<String>,
    /// The rest, in the order given.
    pub fields: Vec<(&'static str, Value)>,
}

impl Line {
    pub fn of(event: &tracing::Event<'_>) -> Self {
        let mut line = Self { event: "log".into(), ..Self::default() };
        event.record(&mut line);
        let target = event.metadata().target();
        line.name_it(is_ours(target), target);
        line
    }

    /// Only our own lines are events: a library's field of that name stays a field.
    fn name_it(&mut self, is_ours: bool, target: &str) {
        let named = self.fields.iter().position(|(name, _)| *name == "event").filter(|_| is_ours);
        if let Some(at) = named
            && let (_, Value::Text(name)) = self.fields.remove(at)
        {
            self.event = name;
            return;
        }
        // Lines of the crate `log` come under one target and carry their own as a field.
        let own = self.fields.iter().find_map(|(name, value)| match value {
            Value::Text(text) if *name == "log.target" => Some(text.clone()),
            _ => None,
        });
        self.source = Some(own.unwrap_or_else(|| target.to_owned()));
        self.fields.retain(|(name, _)| !name.starts_with("log."));
    }

    /// The line as several, of which none is longer than [`LONGEST`]: the longest text is told in pieces, each with all else beside it,
    /// and every line but the last says that it `continues`. Other texts that are long as well are cut, and end in an ellipsis.
    pub fn pieces(mut self) -> Vec<Self> {
        let costs: Vec<usize> = self.texts_mut().map(|text| cost(text)).collect();
        let size: usize = costs.iter().sum();
        let longest = (0..costs.len()).max_by_key(|&text| costs[text]).filter(|_| size > LONGEST - FRAME);
        let Some(longest) = longest else { return vec![self] };
        let others = size - costs[longest];
        let most = if others > OTHERS { OTHERS / costs.len() } else { OTHERS };
        let mut whole = String::new();
        for (place, text) in self.texts_mut().enumerate() {
            if place == longest {
                whole = std::mem::take(text);
            } else if costs[place] > most {
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

    /// What comes from outside and can be of any length.
    fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let of_fields = self.fields.iter_mut().filter_map(|(_, value)| match value {
            Value::Text(text) => Some(text),
            _ => None,
        });
        self.message.iter_mut().chain(of_fields)
    }

    /// Its words, or those that the list has for its event.
    pub fn words(&self) -> &str {
        let listed = || event::by_name(&self.event).map(|event| event.message);
        self.message.as_deref().or_else(listed).unwrap_or_default()
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

/// How many bytes a text takes at most, escaped for either format.
fn cost(text: &str) -> usize {
    text.chars().map(cost_of).sum()
}

fn cost_of(c: char) -> usize {
    if matches!(c, '"' | '\\') || is_harmful(c) { ESCAPED } else { c.len_utf8() }
}

/// Where a text is to be cut so that what is before takes at most so many bytes.
fn cut(text: &str, most: usize) -> usize {
    let mut taken = 0;
    let over = text.char_indices().find(|&(_, c)| {
        taken += cost_of(c);
        taken > most
    });
    over.map_or(text.len(), |(at, _)| at)
}

/// True for what this program says itself.
pub(super) fn is_ours(target: &str) -> bool {
    target.strip_prefix(TARGET).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// An error with all its causes.
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
    fn a_line_of_ordinary_length_stays_one() {
        let pieces = of_run(&"x".repeat(5_900)).pieces();
        assert_eq!(pieces.len(), 1);
        assert!(!continues(&pieces[0]));
    }

    #[test]
    fn each_piece_says_all_else_and_all_but_the_last_that_they_continue() {
        let pieces = of_run(&"x".repeat(9_000)).pieces();
        let shown: Vec<_> = pieces.iter().map(|line| (text_of(line, "line").len(), continues(line))).collect();
        assert_eq!(shown, [(4_000, true), (4_000, true), (1_000, false)]);
        assert!(pieces.iter().all(|line| text_of(line, "job") == "load"));
    }

    #[test]
    fn a_piece_of_a_line_that_goes_on_is_marked_once() {
        let mut line = of_run(&"x".repeat(9_000));
        line.fields.push((CONTINUES, Value::Bool(true)));
        assert!(line.pieces().iter().all(|line| line.fields.len() == 3 && continues(line)));
    }

    proptest! {
        #[test]
        fn no_piece_is_too_long_and_the_longest_text_is_told_whole(
            texts in prop::collection::vec(("[a-z\"\\\\\u{1b}\u{e0041}äß]{1,40}", 1_usize..600), 1..6),
        ) {
            const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
            let texts: Vec<String> = texts.iter().map(|(text, times)| text.repeat(*times)).collect();
            let fields = NAMES.into_iter().zip(texts.iter().cloned().map(Value::Text)).collect();
            let pieces = Line { event: "log".into(), fields, ..Line::default() }.pieces();
            let (longest, whole) = NAMES.iter().zip(&texts).max_by_key(|(_, text)| cost(text)).unwrap();
            let told: String = pieces.iter().map(|line| text_of(line, longest)).collect();
            prop_assert_eq!(&told, whole);
            for mut line in pieces {
                prop_assert!(line.texts_mut().map(|text| cost(text)).sum::<usize>() <= LONGEST - FRAME);
            }
        }
    }
}
