//! Colours of terminals in job output, as classes of the style sheet.
//!
//! Only sequences that set a style (SGR) are followed. Those that move the cursor or erase do nothing here and are left
//! out. Everything else stays visible text: a sequence may carry a text that a terminal would hide. A colour beyond the
//! sixteen is shown as the nearest of them, so that the style sheet can make each readable on light and dark ground.

use std::borrow::Cow;

use maud::{Markup, html};

use cronkeeper_core::escape;

/// How text is shown from here on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// 0 to 15.
    text: Option<u8>,
    ground: Option<u8>,
    is_bold: bool,
    is_faint: bool,
    is_italic: bool,
    is_underlined: bool,
    is_inverse: bool,
}

impl Style {
    /// The classes in the style sheet; `None` for plain text.
    fn classes(self) -> Option<String> {
        let (text, ground) = match self.is_inverse {
            true => (self.ground, Some(self.text.unwrap_or(7))),
            false => (self.text, self.ground),
        };
        let mut classes = Vec::new();
        // A coloured ground brings a text colour that can be read on it.
        match ground {
            Some(ground) => classes.push(format!("g{ground}")),
            None => classes.extend(text.map(|text| format!("c{text}"))),
        }
        let flags = [(self.is_bold, "b"), (self.is_faint, "f"), (self.is_italic, "i"), (self.is_underlined, "u")];
        classes.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, class)| class.to_owned()));
        (!classes.is_empty()).then(|| classes.join(" "))
    }

    /// Applies the parameters of a sequence: `1;31`.
    fn apply(&mut self, parameters: &str) {
        let mut codes = parameters.split([';', ':']).map(|code| match code {
            "" => 0,
            code => code.parse().unwrap_or(u16::MAX),
        });
        while let Some(code) = codes.next() {
            match code {
                0 => *self = Self::default(),
                1 => self.is_bold = true,
                2 => self.is_faint = true,
                3 => self.is_italic = true,
                4 => self.is_underlined = true,
                7 => self.is_inverse = true,
                22 => (self.is_bold, self.is_faint) = (false, false),
                23 => self.is_italic = false,
                24 => self.is_underlined = false,
                27 => self.is_inverse = false,
                30..=37 => self.text = low(code - 30),
                38 => self.text = extended(&mut codes).or(self.text),
                39 => self.text = None,
                40..=47 => self.ground = low(code - 40),
                48 => self.ground = extended(&mut codes).or(self.ground),
                49 => self.ground = None,
                90..=97 => self.text = low(code - 90 + 8),
                100..=107 => self.ground = low(code - 100 + 8),
                _ => {}
            }
        }
    }
}

fn low(code: u16) -> Option<u8> {
    u8::try_from(code).ok()
}

/// The colour behind a 38 or 48: `5;n` or `2;r;g;b`.
fn extended(codes: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match codes.next()? {
        5 => Some(of_256(codes.next()?)),
        2 => {
            let mut part = || codes.next().map(|part| part.min(255));
            Some(nearest(part()?, part()?, part()?))
        }
        _ => None,
    }
}

fn of_256(code: u16) -> u8 {
    match code {
        0..=15 => low(code).unwrap_or(7),
        16..=231 => {
            let cube = code - 16;
            let part = |step: u16| if step == 0 { 0 } else { 55 + step * 40 };
            nearest(part(cube / 36), part(cube / 6 % 6), part(cube % 6))
        }
        code => {
            let grey = 8 + code.min(255).saturating_sub(232) * 10;
            nearest(grey, grey, grey)
        }
    }
}

/// The one of the sixteen colours that has the same hue, or the same grey.
fn nearest(red: u16, green: u16, blue: u16) -> u8 {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most - least < 40 {
        return match most {
            0..64 => 0,
            64..150 => 8,
            150..215 => 7,
            _ => 15,
        };
    }
    let half = least + (most - least) / 2;
    let hue = u8::from(red > half) | u8::from(green > half) << 1 | u8::from(blue > half) << 2;
    if most > 200 { hue + 8 } else { hue }
}

/// A part of a line that is a sequence: its end, and its style parameters if it sets a style.
struct Sequence<'a> {
    length: usize,
    style: Option<&'a str>,
}

/// The control sequence at the beginning of a text, if there is one that may be left out.
fn sequence(text: &str) -> Option<Sequence<'_>> {
    let rest = text.strip_prefix("\u{1b}[")?;
    let is_parameter = |byte: &u8| (0x30..=0x3f).contains(byte);
    let parameters = rest.bytes().take_while(is_parameter).count();
    let (parameters, end) = rest.split_at(parameters);
    let last = *end.as_bytes().first()?;
    let is_plain = parameters.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':'));
    let length = 2 + parameters.len() + 1;
    match last {
        b'm' if is_plain => Some(Sequence { length, style: Some(parameters) }),
        // Moves the cursor, erases, scrolls, and hides or shows the cursor.
        b'A'..=b'H' | b'J' | b'K' | b'S' | b'T' | b'f' | b's' | b'u' => Some(Sequence { length, style: None }),
        b'h' | b'l' if parameters.starts_with('?') => Some(Sequence { length, style: None }),
        _ => None,
    }
}

/// The pieces of a line with one style each. `style` continues from the previous line.
fn pieces<'a>(style: &mut Style, line: &'a str) -> Vec<(Style, &'a str)> {
    let mut pieces = Vec::new();
    let (mut rest, mut from) = (line, 0);
    while let Some(at) = rest.get(from..).and_then(|tail| tail.find('\u{1b}')).map(|at| from + at) {
        let (before, tail) = rest.split_at(at);
        let Some(Sequence { length, style: parameters }) = sequence(tail) else {
            from = at + 1;
            continue;
        };
        if !before.is_empty() {
            pieces.push((*style, before));
        }
        if let Some(parameters) = parameters {
            style.apply(parameters);
        }
        (rest, from) = (tail.get(length..).unwrap_or_default(), 0);
    }
    if !rest.is_empty() {
        pieces.push((*style, rest));
    }
    pieces
}

/// A line with its colours, everything else in it made visible.
pub(super) fn line(style: &mut Style, line: &str) -> Markup {
    html! {
        @for (style, text) in pieces(style, line) {
            @match style.classes() {
                Some(classes) => span class=(classes) { (escape::on_a_terminal(text)) },
                None => (escape::on_a_terminal(text)),
            }
        }
    }
}

/// A line without its colours, everything else in it made visible.
pub(super) fn plain(line: &str) -> String {
    pieces(&mut Style::default(), line)
        .into_iter()
        .map(|(_, text)| escape::on_a_terminal(text))
        .collect::<Vec<Cow<'_, str>>>()
        .concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        line(&mut Style::default(), text).into_string()
    }

    #[test]
    fn colours_are_shown_and_go_on_in_the_next_line() {
        assert_eq!(shown("a \u{1b}[1;31mred\u{1b}[0m b"), "a <span class=\"c1 b\">red</span> b");
        let mut style = Style::default();
        assert_eq!(line(&mut style, "\u{1b}[32mgreen").into_string(), "<span class=\"c2\">green</span>");
        assert_eq!(line(&mut style, "still").into_string(), "<span class=\"c2\">still</span>");
        assert_eq!(line(&mut style, "\u{1b}[mplain").into_string(), "plain");
        assert_eq!(shown("\u{1b}[41;97mx"), "<span class=\"g1\">x</span>");
        assert_eq!(shown("\u{1b}[38;5;196mx"), "<span class=\"c9\">x</span>");
        assert_eq!(shown("\u{1b}[38;2;0;90;200mx"), "<span class=\"c4\">x</span>");
        assert_eq!(shown("\u{1b}[7mx"), "<span class=\"g7\">x</span>");
    }

    #[test]
    fn what_sets_no_style_is_left_out_if_it_only_moves_the_cursor_and_else_is_seen() {
        assert_eq!(shown("50 %\u{1b}[K\u{1b}[2J\u{1b}[?25l done"), "50 % done");
        assert_eq!(shown("\u{1b}]0;title\u{7}x"), "\\u{1b}]0;title\\u{7}x");
        assert_eq!(shown("\u{1b}[31"), "\\u{1b}[31");
        assert_eq!(plain("\u{1b}[31mred\u{1b}[0m\u{1b}c"), "red\\u{1b}c");
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_line_stays_text(text in "(\u{1b}\\[[0-9;:?]{0,12}[a-zA-Z]|[<>&\"'a-z\u{1b}\u{9b}\u{202e}]|\\PC){0,30}") {
            let shown = shown(&text);
            prop_assert!(!shown.contains(|c| c != '\t' && escape::is_harmful(c)), "{shown}");
            let tags: Vec<&str> = shown.split('<').skip(1).collect();
            let is_own = |tag: &&str| tag.starts_with("span class=\"") || tag.starts_with("/span>");
            prop_assert!(tags.iter().all(is_own), "{shown}");
        }
    }
}
