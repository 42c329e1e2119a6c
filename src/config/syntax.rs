//! YAML syntax errors, explained by what was probably meant.
//!
//! The parser says where it gave up, mostly with words about tokens. The usual causes are a command that YAML reads as
//! something else, such as `echo "a: b"` and `[ -f x ] && y`, a schedule that begins with `*`, and tabs. The text is not
//! YAML, so this module reads its layout, line by line. In doubt it explains nothing and quotes nothing: a value may be
//! secret, and the message is logged and displayed.

mod bracket;
mod escape;
mod quote;
pub(super) mod unmeant;
mod words;

use super::keys::KEYS;
use super::source::Lines;
use super::spanned::{Fault, Position};
use cronkeeper_core::job::Hook;

const IN_QUOTES: &str = "put this value in quotes";
const A_TAB: &str = "a tab; YAML wants spaces here";

/// Explains the error that the parser met at `at`; `info` is what it says.
pub(super) fn explain(text: &str, at: Position, info: &str) -> Fault {
    if info.contains("recursion limit") {
        return Fault::new(at, "nested too deep");
    }
    let lines = Lines::of(text);
    escape::explain(&lines, at, info)
        .or_else(|| conflict(&lines, at))
        .or_else(|| tab(&lines, at))
        .or_else(|| tab_of(&lines, at, info))
        .or_else(|| quote::explain(&lines, at))
        .or_else(|| reserved(&lines, lines.from(at), at))
        .or_else(|| reserved_in_line(&lines, at.line))
        // The parser may detect the error only at the next token.
        .or_else(|| reserved_in_line(&lines, at.line.saturating_sub(1)))
        .or_else(|| misread(&lines, at))
        .or_else(|| odd_space(&lines, at))
        .or_else(|| info.contains("quoted scalar").then(|| open_quote(&lines, at.line)).flatten())
        .or_else(|| bracket::explain(&lines, at, info))
        .or_else(|| no_key(&lines, at, info))
        .unwrap_or_else(|| not_yaml(at, words::of(info)))
}

fn not_yaml(at: Position, words: &str) -> Fault {
    Fault::new(at, format!("this is not YAML: {words}"))
}

/// Explains a tab of a value that begins at a position: before it, or in the indentation of its next lines.
fn tab_of(lines: &Lines<'_>, at: Position, info: &str) -> Option<Fault> {
    if words::of(info) != A_TAB {
        return None;
    }
    let ahead = lines.line(at.line).chars().enumerate().take(at.column - 1);
    let before = ahead.filter(|(_, c)| *c == '\t').last().map(|(index, _)| (at.line, index + 1));
    let in_indentation = |number: usize| {
        let ahead = lines.line(number).chars().take_while(|c| c.is_whitespace());
        ahead.enumerate().find(|(_, c)| *c == '\t').map(|(index, _)| (number, index + 1))
    };
    let is_value = info.contains("scalar");
    let below = || (at.line + 1..=lines.count()).find_map(in_indentation).filter(|_| is_value);
    let (line, column) = before.filter(|_| !is_value).or_else(below).or(before)?;
    Some(Fault::new(Position { line, column }, A_TAB))
}

/// Explains what a version control system writes where two changes meet.
fn conflict(lines: &Lines<'_>, at: Position) -> Option<Fault> {
    let is_mark = |line: &str| {
        let mark = line.get(..7).filter(|mark| ["<<<<<<<", "=======", ">>>>>>>"].contains(mark));
        mark.is_some() && line.get(7..).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let number = (1..=at.line).find(|number| is_mark(lines.line(*number)))?;
    Some(Fault::new(Position { line: number, column: 1 }, "a merge conflict of a version control system; resolve it"))
}

/// Explains a space that YAML takes for a letter: before a key, or behind its colon.
fn odd_space(lines: &Lines<'_>, at: Position) -> Option<Fault> {
    let in_line = |number: usize| {
        let line = lines.line(number);
        let mut before = ' ';
        let mut is_indentation = true;
        for (index, c) in line.chars().enumerate() {
            if is_odd_space(c) && (is_indentation || before == ':') {
                let message = format!("an unusual space (U+{:04X}); YAML wants ordinary spaces", u32::from(c));
                return Some(Fault::new(Position { line: number, column: index + 1 }, message));
            }
            is_indentation &= c.is_whitespace();
            before = c;
        }
        None
    };
    in_line(at.line).or_else(|| in_line(last_before(lines, at)?))
}

/// True for a space that YAML does not take for one, such as the no-break space.
pub(super) fn is_odd_space(c: char) -> bool {
    c.is_whitespace() && !c.is_ascii()
}

/// The last line before a position that has more than a comment.
fn last_before(lines: &Lines<'_>, at: Position) -> Option<usize> {
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    (1..at.line).rev().find(|number| !is_blank(lines.line(*number)))
}

/// Explains a line without a key, if the parser missed one. It may detect that only at the next line.
fn no_key(lines: &Lines<'_>, at: Position, info: &str) -> Option<Fault> {
    let number = match info {
        info if info.contains("simple key") || info.contains("mapping values") => last_before(lines, at)?,
        _ => return None,
    };
    let line = lines.line(number).trim_end();
    let start = line.trim_start();
    let has_key = start.contains(": ") || start.ends_with(':');
    if has_key || start.starts_with(['-', '[', '{', ']', '}', '"', '\'']) {
        return None;
    }
    let column = |index: usize| 1 + line[..index].chars().count();
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let glued = start.split_once(':').filter(|(key, _)| !key.is_empty() && key.chars().all(is_of_key));
    Some(match glued {
        Some((key, _)) => {
            let column = column(line.len() - start.len() + key.len() + 1);
            Fault::new(Position { line: number, column }, "a space is missing after the colon of this key")
        }
        None => not_yaml(Position { line: number, column: column(line.len() - start.len()) }, words::NO_KEY),
    })
}

/// Explains a version of YAML that is not the one of a jobs file, which the parsers handle differently.
pub(super) fn version(text: &str) -> Option<Fault> {
    let lines = Lines::of(text);
    let ahead = (1..=lines.count()).take_while(|number| !lines.line(*number).starts_with("---"));
    let mut directives = ahead.filter(|number| lines.line(*number).starts_with("%YAML"));
    let is_known = |number: &usize| {
        let version = lines.line(*number).split_whitespace().nth(1);
        version.is_none_or(|version| matches!(version, "1.1" | "1.2"))
    };
    let line = directives.find(|number| !is_known(number))?;
    Some(Fault::new(Position { line, column: 1 }, "a jobs file is YAML 1.2; write `%YAML 1.2`, or delete this line"))
}

/// Explains a tab at a position, or in the indentation before it.
fn tab(lines: &Lines<'_>, at: Position) -> Option<Fault> {
    let line = lines.line(at.line);
    let mut rest = line.char_indices().enumerate();
    // What follows a dash is indented by it.
    let indents = |(_, (index, c)): &(usize, (usize, char))| {
        *c == ' ' || (matches!(c, '-' | '?') && line[index + 1..].starts_with([' ', '\t']))
    };
    let in_indentation =
        rest.find(|step| !indents(step)).filter(|(_, (_, c))| *c == '\t').map(|(column, _)| column + 1);
    let here = || lines.from(at).starts_with('\t').then_some(at.column);
    let column = in_indentation.or_else(here)?;
    Some(Fault::new(Position { column, ..at }, A_TAB))
}

fn reserved_in_line(lines: &Lines<'_>, number: usize) -> Option<Fault> {
    let line = lines.line(number);
    let value = value_of(line);
    let column = 1 + line[..line.len() - value.len()].chars().count();
    reserved(lines, value, Position { line: number, column })
}

/// Explains an unquoted `*` or `@`. Quotes the value only if it is a schedule: it could also be a password under
/// `environment`.
fn reserved(lines: &Lines<'_>, value: &str, at: Position) -> Option<Fault> {
    let why = why_reserved(value.chars().next()?)?;
    if !is_of_a_schedule(lines, at) {
        let written = Written::in_braces(lines, at).or_else(|| Written::in_line(lines, at.line));
        let advice = written.filter(|written| written.at == at).map(|written| written.advice());
        let advice = advice.unwrap_or_else(|| IN_QUOTES.to_owned());
        return Some(Fault::new(at, format!("{advice} (in YAML {why})")));
    }
    let expression = value.split(" #").next().unwrap_or(value).split(", ").next().unwrap_or(value);
    let expression = expression.trim_end().trim_end_matches([']', ',', '}']);
    Some(Fault::new(at, format!("quote it: \"{expression}\" (in YAML {why})")))
}

fn why_reserved(first: char) -> Option<&'static str> {
    match first {
        '*' => Some("an unquoted `*` begins an alias"),
        '@' => Some("an unquoted `@` is reserved"),
        _ => None,
    }
}

/// True if the key before this position is `schedule`. This is a guess; in doubt, the answer is false.
fn is_of_a_schedule(lines: &Lines<'_>, at: Position) -> bool {
    let before = |line: &str| line.chars().take(at.column - 1).collect::<String>();
    let own = last_key(&before(lines.line(at.line)));
    // An item of a list is below the key, after a dash, and so are the items between.
    let above = || {
        let above =
            (1..at.line).rev().map(|number| lines.line(number)).find(|line| !line.trim_start().starts_with('-'));
        above.and_then(|line| last_key(line).filter(|_| line.trim_end().ends_with(':')))
    };
    let is_item = || lines.line(at.line).trim_start().starts_with('-');
    own.or_else(|| is_item().then(above).flatten()).is_some_and(|key| key == "schedule")
}

/// The last key of a line, if it is in a place where a key may be.
fn last_key(line: &str) -> Option<String> {
    let line = format!("{} ", line.trim_end());
    let (before, _) = line.rsplit_once(": ")?;
    let separator = |(_, c): &(usize, char)| c.is_whitespace() || matches!(c, '{' | ',');
    // A separator may have several bytes, such as a space that does not break.
    let start = before.char_indices().rfind(separator).map_or(0, |(index, c)| index + c.len_utf8());
    let ahead = before[..start].trim_end();
    let key = before[start..].trim_matches(['"', '\'']);
    (ahead.is_empty() || ahead.ends_with(['{', ','])).then(|| key.to_owned())
}

/// The value of a line, without dashes, key and brackets.
fn value_of(line: &str) -> &str {
    let mut rest = line.trim_start();
    if let Some((_, value)) = rest.split_once(": ").filter(|(key, _)| !key.starts_with(['*', '@', '#', '"', '\''])) {
        rest = value.trim_start();
    }
    while let Some(inner) = rest.strip_prefix("- ").or_else(|| rest.strip_prefix('[')) {
        rest = inner.trim_start();
    }
    rest
}

/// Explains a value without quotes that YAML does not read as a text.
fn misread(lines: &Lines<'_>, at: Position) -> Option<Fault> {
    let before = || Written::in_line(lines, at.line.checked_sub(1)?).filter(|written| is_known(written.key));
    [Written::in_braces(lines, at), Written::in_line(lines, at.line), Written::continued(lines, at), before()]
        .into_iter()
        .flatten()
        .find_map(|written| Some(Fault::new(written.at, format!("{} (in YAML {})", written.advice(), written.why()?))))
}

/// The quote that the parser did not find the end of: the last one before that is not closed in its line.
fn open_quote(lines: &Lines<'_>, number: usize) -> Option<Fault> {
    let opened = |number: usize| Written::in_line(lines, number).filter(|written| is_open_quote(written.text));
    let written = (1..=number).rev().find_map(opened)?;
    Some(Fault::new(written.at, words::QUOTE))
}

/// A value as it is written in a line.
struct Written<'a> {
    key: &'a str,
    at: Position,
    text: &'a str,
    is_in_braces: bool,
}

impl<'a> Written<'a> {
    /// The value behind the key that a line begins with.
    fn in_line(lines: &Lines<'a>, number: usize) -> Option<Self> {
        let line = lines.line(number);
        let mut rest = line.trim_start_matches(' ');
        while let Some(inner) = rest.strip_prefix("- ") {
            rest = inner.trim_start_matches(' ');
        }
        let (key, behind) = rest.split_once(':')?;
        let key = key.trim_matches(['"', '\'']);
        let text = behind.trim_start_matches([' ', '\t']);
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
        let is_apart = text.len() < behind.len() || text.is_empty();
        let column = 1 + line[..line.len() - text.len()].chars().count();
        (is_key && is_apart).then_some(Self { key, at: Position { line: number, column }, text, is_in_braces: false })
    }

    /// The value behind the last known key in braces before a position of the same line.
    fn in_braces(lines: &Lines<'a>, at: Position) -> Option<Self> {
        let line = lines.line(at.line);
        if Self::in_line(lines, at.line).is_some_and(|written| !written.text.starts_with('{')) {
            return None;
        }
        let limit = line.char_indices().nth(at.column).map_or(line.len(), |(index, _)| index);
        let separated = |ahead: &str| ahead.trim_end().ends_with(['{', ',']);
        let mut keys = line[..limit].rmatch_indices(": ").filter_map(|(colon, _)| {
            let is_of_key = |(_, c): &(usize, char)| c.is_ascii_alphanumeric() || *c == '_';
            let start = line[..colon].char_indices().rev().take_while(is_of_key).last()?.0;
            (separated(&line[..start]) && is_known(&line[start..colon])).then_some((start, colon))
        });
        let (start, colon) = keys.next().filter(|(start, _)| line[..*start].contains('{'))?;
        let text = line[colon + 1..].trim_start_matches(' ');
        let column = 1 + line[..line.len() - text.len()].chars().count();
        let text = &text[..end_in_braces(text)];
        Some(Self { key: &line[start..colon], at: Position { column, ..at }, text, is_in_braces: true })
    }

    /// The rest of an unquoted value that began in a line above.
    fn continued(lines: &Lines<'a>, at: Position) -> Option<Self> {
        let line = lines.line(at.line);
        let indent = indent(line);
        let above = (1..at.line).rev().find(|number| {
            let line = lines.line(*number);
            !line.trim().is_empty() && self::indent(line) < indent
        })?;
        let begun = Self::in_line(lines, above).filter(|begun| is_known(begun.key) && is_plain(begun.text))?;
        let column = 1 + indent;
        Some(Self { text: line.trim_start_matches(' '), at: Position { column, ..at }, ..begun })
    }

    fn is_command(&self) -> bool {
        is_command(self.key)
    }

    /// What to do with the value.
    fn advice(&self) -> String {
        match (self.is_command(), self.is_in_braces) {
            (true, false) => format!("put the command in quotes or under `{}: |`", self.key),
            (true, true) => "put the command in quotes".to_owned(),
            (false, _) => IN_QUOTES.to_owned(),
        }
    }

    /// Why YAML does not read it as a text, if so.
    fn why(&self) -> Option<&'static str> {
        let text = self.text;
        let first = text.chars().next()?;
        let behind = |length: usize| text[length..].chars().next();
        let is_alone = behind(first.len_utf8()).is_none_or(char::is_whitespace);
        match first {
            '*' | '@' => why_reserved(first),
            '`' => Some("an unquoted backtick is reserved"),
            '%' => Some("an unquoted `%` is reserved"),
            '&' if !behind(1).is_some_and(char::is_alphanumeric) => Some("an unquoted `&` begins an anchor"),
            '|' | '>' if self.is_in_braces || !is_header(&text[1..]) => {
                Some("an unquoted `|` or `>` begins a text of several lines")
            }
            '"' | '\'' => {
                let has_more = closing_quote(text).is_some_and(|end| self.has_words_behind(end));
                has_more.then_some("a text that begins with a quote ends at the next one")
            }
            '[' if self.is_test() || closing_bracket(text).is_some_and(|end| self.has_words_behind(end)) => {
                Some("an unquoted `[` begins a list")
            }
            '{' if self.is_command() => Some("an unquoted `{` begins a map"),
            '-' if is_alone => Some("an unquoted `- ` begins a list"),
            '?' if is_alone => Some("an unquoted `? ` begins a key"),
            ']' | '}' => Some("an unquoted `]` or `}` ends a list or a map"),
            '[' | '{' | '!' | '#' | '&' | '|' | '>' => None,
            _ => self.has_colon().then_some("an unquoted `: ` turns what is before it into a key"),
        }
    }

    /// True for the command `[` or `[[` of a shell.
    fn is_test(&self) -> bool {
        self.is_command() && self.text.trim_start_matches('[').starts_with(' ')
    }

    /// True if more than a comment and closing brackets follow.
    fn has_words_behind(&self, length: usize) -> bool {
        let rest = self.text[length..].trim_end();
        let more = rest.trim_start_matches([' ', ']', '}']);
        let is_comment = more.starts_with('#') && rest[..rest.len() - more.len()].ends_with(' ');
        !(more.is_empty() || is_comment || self.is_in_braces && more.starts_with(','))
    }

    /// True for an unquoted text with a colon that YAML takes for that of a key.
    fn has_colon(&self) -> bool {
        let text = self.text.split(" #").next().unwrap_or_default().trim_end();
        let found = text.find(": ").or_else(|| text.strip_suffix(':').map(str::len));
        // If the whole job is written in one line without braces, quotes around its value would not help.
        let is_job = |colon: usize| !self.is_command() && is_known(&text[..colon]);
        found.is_some_and(|colon| !is_job(colon)) && !matches!(self.key, "jobs" | "defaults")
    }
}

/// The index of the comma or brace that ends a value in braces, unless it is in quotes.
fn end_in_braces(text: &str) -> usize {
    let mut quote = None;
    for (index, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if index > 0 && matches!(c, ',' | '}') => return index,
            _ => {}
        }
    }
    text.len()
}

fn is_known(key: &str) -> bool {
    KEYS.of_jobs.iter().any(|known| known.name == key)
}

/// True for the keys whose values are commands.
pub(super) fn is_command(key: &str) -> bool {
    key == "command" || Hook::ALL.iter().any(|hook| hook.as_str() == key)
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['"', '\'', '[', '{', '|', '>', '#', '*', '&', '!'])
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// True if a text of several lines begins behind these characters: indentation and line ends, maybe a comment.
fn is_header(rest: &str) -> bool {
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    let more = rest.trim_start();
    more.is_empty() || more.starts_with('#') && more.len() < rest.len()
}

/// The index behind the quote that ends a quoted text; `None` if it is not closed in this line.
fn closing_quote(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut is_escaped = false;
    let mut rest = text.char_indices().skip(1).peekable();
    while let Some((index, c)) = rest.next() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' && quote == '"' {
            is_escaped = true;
        } else if c == quote {
            // In single quotes, two of them are one.
            if quote == '\'' && rest.next_if(|(_, next)| *next == quote).is_some() {
                continue;
            }
            return Some(index + 1);
        }
    }
    None
}

fn is_open_quote(text: &str) -> bool {
    text.starts_with(['"', '\'']) && closing_quote(text).is_none()
}

/// The index behind the bracket that closes the first one; `None` if that is not in this line.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(index + 1);
        }
    }
    None
}

/// Where a position is, in a file that is not YAML.
pub(super) struct Spot<'a> {
    /// `None` in the defaults.
    pub job: Option<&'a str>,
    pub key: &'a str,
}

/// The job and the key whose value is at a position, if that is a schedule or a command in a line of its own: then the
/// whole line may be shown.
pub(super) fn spot<'a>(lines: &Lines<'a>, at: Position) -> Option<Spot<'a>> {
    let is_item = lines.line(at.line).trim_start().starts_with('-');
    let written = Written::in_line(lines, at.line).filter(|_| !is_item)?;
    let may_be_shown = written.key == "schedule" || is_command(written.key);
    let block = parent(lines, at.line).filter(|_| may_be_shown)?;
    let is_at_top = |written: &Written<'_>, key: &str| written.key == key && indent(lines.line(written.at.line)) == 0;
    let is_of_a_job = || parent(lines, block.at.line).is_some_and(|jobs| is_at_top(&jobs, "jobs"));
    match is_at_top(&block, "defaults") {
        true => Some(Spot { job: None, key: written.key }),
        false => is_of_a_job().then_some(Spot { job: Some(block.key), key: written.key }),
    }
}

/// The key of the block that a line is in, if it has nothing behind it.
fn parent<'a>(lines: &Lines<'a>, number: usize) -> Option<Written<'a>> {
    let indent = indent(lines.line(number));
    let above = (1..number).rev().find(|number| {
        let line = lines.line(*number);
        let is_blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        !is_blank && self::indent(line) < indent
    })?;
    let is_item = lines.line(above).trim_start().starts_with('-');
    Written::in_line(lines, above)
        .filter(|written| !is_item && (written.text.is_empty() || written.text.starts_with('#')))
}
