//! How many of the standbys that may take over each commit waits for. Pure.
//!
//! A commit is safe if whoever is promoted has it. Somebody may promote any standby, so that holds only if each commit
//! waits for all of them: those that are connected, and those that `synchronous_standby_names` names although they are
//! away.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::Chars;

/// What `synchronous_standby_names` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Waits {
    /// So many standbys must have a commit before it is acknowledged.
    count: usize,
    /// `*` is any.
    names: Vec<String>,
}

/// What each commit waits for, and what may take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standbys {
    /// `None` if the setting cannot be understood.
    waited_for: Option<usize>,
    /// All that are known, each by its name, which others may have too.
    known: Vec<String>,
}

impl Standbys {
    /// `setting` is `synchronous_standby_names`, `connected` are the names of the standbys that copy the server.
    pub fn new(setting: &str, connected: Vec<String>) -> Self {
        let Some(Waits { count, names }) = Waits::parse(setting) else {
            return Self { waited_for: None, known: connected };
        };
        let mut known = connected;
        for name in names {
            if name != "*" && !known.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
                known.push(name);
            }
        }
        Self { waited_for: Some(count), known }
    }

    /// Each commit waits for all that may take over.
    pub fn have_all(&self) -> bool {
        self.waited_for.is_some_and(|count| count >= self.known.len())
    }

    /// What holds, without the setting.
    pub fn words(&self) -> String {
        let known = self.known.len();
        match self.waited_for {
            None => "it is not known which standbys each commit waits for".to_owned(),
            Some(0) if known == 0 => "no standby is connected".to_owned(),
            Some(0) => "the server has standbys that no commit waits for".to_owned(),
            Some(count) => {
                let of = known.max(count);
                format!("each commit waits for {count} of {of} {}", if of == 1 { "standby" } else { "standbys" })
            }
        }
    }

    /// The setting with which each commit waits for all of them.
    pub fn setting_for_all(&self) -> String {
        let names: BTreeSet<String> = self.known.iter().map(|name| quoted(name)).collect();
        let names: Vec<String> = names.into_iter().collect();
        format!("FIRST {} ({})", self.known.len(), names.join(", "))
    }
}

/// A name as the setting has it.
fn quoted(name: &str) -> String {
    let is_plain = |name: &str| {
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || !char.is_ascii();
        name.starts_with(|first: char| is_part(first) && !first.is_ascii_digit()) && name.chars().all(is_part)
    };
    let is_keyword = ["any", "first"].iter().any(|keyword| name.eq_ignore_ascii_case(keyword));
    if is_plain(name) && !is_keyword { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// In quotes, or not.
    Name(String, bool),
    Number(String),
    Sign(char),
}

impl Waits {
    /// Reads the setting as the server does; `None` if that would refuse it.
    fn parse(setting: &str) -> Option<Self> {
        let tokens = tokens(setting)?;
        let is = |name: &str, keyword: &str| name.eq_ignore_ascii_case(keyword);
        let (number, list) = match &tokens[..] {
            [] => return Some(Self::default()),
            [Token::Name(method, false), Token::Number(number), list @ ..]
                if is(method, "first") || is(method, "any") =>
            {
                (number.as_str(), in_brackets(list)?)
            }
            [Token::Number(number), list @ ..] if list.first() == Some(&Token::Sign('(')) => {
                (number.as_str(), in_brackets(list)?)
            }
            list => ("1", list),
        };
        let count = number.parse().ok().filter(|count| *count > 0)?;
        let mut names = Vec::new();
        for (i, token) in list.iter().enumerate() {
            match token {
                Token::Name(name, _) | Token::Number(name) if i % 2 == 0 => names.push(name.clone()),
                Token::Sign(',') if i % 2 == 1 => {}
                Token::Name(..) | Token::Number(_) | Token::Sign(_) => return None,
            }
        }
        // It neither is empty nor ends with a comma.
        (list.len() % 2 == 1).then_some(Self { count, names })
    }
}

fn in_brackets(list: &[Token]) -> Option<&[Token]> {
    match list {
        [Token::Sign('('), list @ .., Token::Sign(')')] => Some(list),
        _ => None,
    }
}

fn tokens(setting: &str) -> Option<Vec<Token>> {
    let (mut chars, mut tokens) = (setting.chars().peekable(), Vec::new());
    while let Some(&first) = chars.peek() {
        match first {
            ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' => _ = chars.next(),
            '(' | ')' | ',' => {
                chars.next();
                tokens.push(Token::Sign(first));
            }
            '*' => {
                chars.next();
                tokens.push(Token::Name("*".to_owned(), true));
            }
            '"' => tokens.push(Token::Name(in_quotes(&mut chars)?, true)),
            '0'..='9' => tokens.push(Token::Number(while_is(&mut chars, |char| char.is_ascii_digit()))),
            'A'..='Z' | 'a'..='z' | '_' | '\u{80}'.. => {
                let is_part = |char: char| char.is_ascii_alphanumeric() || "_$".contains(char) || !char.is_ascii();
                tokens.push(Token::Name(while_is(&mut chars, is_part), false));
            }
            _ => return None,
        }
    }
    Some(tokens)
}

fn while_is(chars: &mut Peekable<Chars<'_>>, is_part: impl Fn(char) -> bool) -> String {
    std::iter::from_fn(|| chars.next_if(|char| is_part(*char))).collect()
}

/// A name in quotes, in which two quotes mean one.
fn in_quotes(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    chars.next();
    let mut name = String::new();
    loop {
        match chars.next()? {
            '"' if chars.next_if_eq(&'"').is_none() => return Some(name),
            char => name.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standbys(setting: &str, connected: &[&str]) -> Standbys {
        Standbys::new(setting, connected.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn the_setting_is_read_as_the_server_does() {
        for (setting, count, names) in [
            ("", 0, &[][..]),
            (" \n", 0, &[]),
            ("*", 1, &["*"]),
            ("a", 1, &["a"]),
            ("a, b", 1, &["a", "b"]),
            ("2 (a, b,c)", 2, &["a", "b", "c"]),
            ("first 2 (s1, s2)", 2, &["s1", "s2"]),
            ("ANY 1(*)", 1, &["*"]),
            ("AnY 3 (\"any\", \"two words\", \"a \"\"b\"\"\", 7)", 3, &["any", "two words", "a \"b\"", "7"]),
            ("7", 1, &["7"]),
            ("node_1$, nöde", 1, &["node_1$", "nöde"]),
            ("\"first\"", 1, &["first"]),
        ] {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(Waits::parse(setting), Some(Waits { count, names }), "{setting}");
        }
        for setting in ["a,", ",", "ANY (a)", "FIRST 0 (a)", "2 (a", "2 ()", "a b", "a-b", "\"a", "ANY 1 (a) b", "(a)"]
        {
            assert_eq!(Waits::parse(setting), None, "{setting}");
        }
    }

    #[test]
    fn a_commit_is_safe_only_if_it_waits_for_all_that_may_take_over() {
        for (setting, connected, is_safe, words) in [
            ("", &[][..], true, "no standby is connected"),
            ("", &["a"], false, "the server has standbys that no commit waits for"),
            ("*", &[], true, "each commit waits for 1 of 1 standby"),
            ("*", &["a"], true, "each commit waits for 1 of 1 standby"),
            ("*", &["a", "b"], false, "each commit waits for 1 of 2 standbys"),
            ("FIRST 1 (*)", &["a", "b"], false, "each commit waits for 1 of 2 standbys"),
            ("FIRST 2 (*)", &["a", "b"], true, "each commit waits for 2 of 2 standbys"),
            ("ANY 1 (a, b)", &["a", "b"], false, "each commit waits for 1 of 2 standbys"),
            ("ANY 2 (a, b)", &["A", "b"], true, "each commit waits for 2 of 2 standbys"),
            // One that is away may come back and be promoted.
            ("ANY 1 (a, b)", &["a"], false, "each commit waits for 1 of 2 standbys"),
            ("a, b", &[], false, "each commit waits for 1 of 2 standbys"),
            ("FIRST 2 (a, b)", &["a"], true, "each commit waits for 2 of 2 standbys"),
            // Nobody waits for the third.
            ("FIRST 2 (a, b)", &["a", "b", "c"], false, "each commit waits for 2 of 3 standbys"),
            // Unless a standby is given a name, it has this one.
            ("FIRST 1 (walreceiver)", &["walreceiver", "walreceiver"], false, "each commit waits for 1 of 2 standbys"),
            ("FIRST 3 (*)", &["a"], true, "each commit waits for 3 of 3 standbys"),
            ("MOST 2 (a)", &["a"], false, "it is not known which standbys each commit waits for"),
        ] {
            let standbys = standbys(setting, connected);
            assert_eq!((standbys.have_all(), standbys.words().as_str()), (is_safe, words), "{setting} {connected:?}");
        }
    }

    #[test]
    fn the_setting_that_is_suggested_is_safe() {
        for (setting, connected, suggested) in [
            ("", &["walreceiver", "walreceiver"][..], "FIRST 2 (walreceiver)"),
            ("ANY 1 (b, a)", &["a"], "FIRST 2 (a, b)"),
            ("*", &["db 2", "first"], "FIRST 2 (\"db 2\", \"first\")"),
        ] {
            let known = standbys(setting, connected);
            assert_eq!(known.setting_for_all(), suggested);
            assert!(standbys(suggested, connected).have_all(), "{suggested}");
        }
    }
}
