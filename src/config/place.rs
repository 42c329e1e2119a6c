//! The place of a problem for people: its job and key, and the source line with what must not be shown left out.
//!
//! Only what failed needs this, so it parses the file again instead of burdening every load. Values of `environment`
//! are left out, and those of unknown keys, which may be a misspelt `environment`; commands too, unless the problem is
//! in them.

use std::ops::Range;
use std::path::Path;

use super::keys::KEYS;
use super::source::{self, Lines};
use super::spanned::{self, MapEntry, Node, Position};
use super::syntax;
use super::{Content, Problem};
use cronkeeper_core::job::Hook;

/// Most characters of a line before its problem, and half of those behind.
const AROUND: usize = 100;

/// Where a problem is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The job in whose definition it is.
    pub job: Option<String>,
    /// The key in or at whose value it is.
    pub key: Option<String>,
    /// Absent if the file is not YAML, unless the problem is a schedule or a command in a line of its own: otherwise it
    /// is not known what may be shown.
    pub excerpt: Option<Excerpt>,
}

/// A part of a line, with a mark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excerpt {
    pub text: String,
    /// The marked characters.
    pub offset: usize,
    pub length: usize,
}

impl Content {
    /// Adds their places to problems of these files.
    pub fn locate(&self, problems: &mut [Problem]) {
        for source in &self.sources {
            let mut of_file = problems.iter_mut().filter(|problem| problem.file == source.path).peekable();
            if of_file.peek().is_none() {
                continue;
            }
            let Ok(text) = source::text(&source.bytes) else { continue };
            let spanned::Spanned { root, dropped, .. } = spanned::read(text);
            let lines = Lines::of(text);
            let position = |problem: &Problem| Position { line: problem.line, column: problem.column };
            let Some(root) = root else {
                of_file.for_each(|problem| problem.place = place_by_layout(&lines, position(problem)));
                continue;
            };
            let file = LocatedFile { lines, hidden: Hidden::of(&root, dropped), root: &root };
            for problem in of_file {
                problem.place = file.place(position(problem));
            }
        }
    }
}

/// The place of a problem in a file that is not YAML.
fn place_by_layout(lines: &Lines<'_>, at: Position) -> Place {
    let Some(spot) = syntax::spot(lines, at) else { return Place::default() };
    let key = Some(spot.key.to_owned());
    Place { job: spot.job.map(str::to_owned), key, excerpt: Some(excerpt(lines, &Hidden::default(), at)) }
}

struct LocatedFile<'a> {
    root: &'a Node,
    lines: Lines<'a>,
    hidden: Hidden,
}

impl LocatedFile<'_> {
    fn place(&self, at: Position) -> Place {
        let excerpt = Some(excerpt(&self.lines, &self.hidden, at));
        match last_before(self.root, at) {
            Some(entry) if entry.key == "jobs" && is_written_here(entry) => {
                let Some(job) = last_before(&entry.value, at) else { return Place { excerpt, ..Place::default() } };
                Place { job: Some(job.key.clone()), key: key_in(job, at), excerpt }
            }
            Some(entry) if entry.key == "defaults" => Place { job: None, key: key_in(entry, at), excerpt },
            _ => Place { excerpt, ..Place::default() },
        }
    }
}

fn excerpt(lines: &Lines<'_>, hidden: &Hidden, at: Position) -> Excerpt {
    let line = lines.line(at.line);
    let before = at.column - 1;
    let start = line.chars().take_while(|c| c.is_whitespace()).count().min(before).max(before.saturating_sub(AROUND));
    let (mut text, mut mark, mut is_hidden_before) = (Vec::new(), None, false);
    for (index, c) in line.chars().enumerate().skip(start).take(before - start + 2 * AROUND) {
        let here = Position { line: at.line, column: index + 1 };
        let is_hidden = hidden.covers(here, at);
        if here == at {
            mark = Some(text.len() - usize::from(is_hidden && is_hidden_before));
        }
        if !is_hidden {
            text.push(c);
        } else if !is_hidden_before {
            text.push('…');
        }
        is_hidden_before = is_hidden;
    }
    let mark = mark.unwrap_or(text.len());
    let is_word = |c: &&char| c.is_alphanumeric() || "_-./@*+…".contains(**c);
    let length = text[mark..].iter().take(AROUND).take_while(is_word).count().max(1);
    Excerpt { text: text.into_iter().collect(), offset: mark, length }
}

/// False for an alias, whose value is written elsewhere.
fn is_written_here(entry: &MapEntry) -> bool {
    entry.value.at >= entry.at
}

/// The last entry of a map that begins at or before a position.
fn last_before(map: &Node, at: Position) -> Option<&MapEntry> {
    let entries = map.entries();
    entries[..entries.partition_point(|entry| entry.at <= at)].last()
}

fn key_in(block: &MapEntry, at: Position) -> Option<String> {
    let key = is_written_here(block).then(|| last_before(&block.value, at)).flatten()?;
    // An unknown key may contain a value: in YAML, all of `{NAME=value}` is a key.
    Some(super::schema::shown_key(&key.key))
}

/// The parts of a file that must not be shown.
#[derive(Default)]
struct Hidden {
    always: Vec<Range<Position>>,
    /// Shown if the problem is in them.
    elsewhere: Vec<Range<Position>>,
}

impl Hidden {
    fn of(root: &Node, dropped: Vec<Range<Position>>) -> Self {
        let mut hidden = Self { always: dropped, elsewhere: Vec::new() };
        if root.entries().is_empty() {
            hidden.always.push(root.at..root.end);
        }
        for entry in root.entries() {
            match entry.key.as_str() {
                "jobs" if !entry.value.entries().is_empty() => {
                    entry.value.entries().iter().for_each(|job| hidden.block(&job.value));
                }
                "defaults" => hidden.block(&entry.value),
                _ => hidden.entry(entry),
            }
        }
        Self { always: joined(hidden.always), elsewhere: joined(hidden.elsewhere) }
    }

    /// A job, or the defaults.
    fn block(&mut self, block: &Node) {
        if block.entries().is_empty() {
            return self.always.push(block.at..block.end);
        }
        for entry in block.entries() {
            match entry.key.as_str() {
                "environment" if !entry.value.entries().is_empty() => {
                    entry.value.entries().iter().for_each(|variable| self.entry(variable));
                }
                "environment" => self.entry(entry),
                // A secret's file may be shown, but not what is in its place.
                "secrets" if !entry.value.entries().is_empty() => {
                    entry.value.entries().iter().for_each(|secret| self.secret(secret));
                }
                "secrets" => self.entry(entry),
                "parameters" | "environment_file" => self.assignments(&entry.value),
                key if key == "command" || Hook::ALL.iter().any(|hook| hook.as_str() == key) => {
                    self.elsewhere.push(entry.value.at..entry.value.end);
                }
                key if KEYS.of_jobs.iter().any(|known| known.name == key) => {}
                _ => self.entry(entry),
            }
        }
    }

    /// Hides all of a secret's entry but the key `file` with its value, if that is a path.
    fn secret(&mut self, secret: &MapEntry) {
        if secret.key.contains('=') || secret.value.entries().is_empty() {
            return self.entry(secret);
        }
        let is_path = |field: &MapEntry| field.value.text().is_some_and(|text| Path::new(text).is_absolute());
        let shown = |field: &&MapEntry| field.key == "file" && is_path(field);
        secret.value.entries().iter().filter(|field| !shown(field)).for_each(|field| self.entry(field));
    }

    /// Hides texts that have a value in them, where names or paths belong.
    fn assignments(&mut self, node: &Node) {
        let texts = std::iter::once(node).chain(node.items().iter().map(AsRef::as_ref));
        let assigned = texts.filter(|node| node.text().is_some_and(|text| text.contains('=')));
        self.always.extend(assigned.map(|node| node.at..node.end));
    }

    /// Hides a value, and its key if the key holds a value too.
    fn entry(&mut self, entry: &MapEntry) {
        self.always.push(entry.value.at..entry.value.end);
        if let Some(index) = entry.key.find('=') {
            let column = entry.at.column + entry.key[..index].chars().count();
            self.always.push(Position { column, ..entry.at }..Position { column: usize::MAX, ..entry.at });
        }
    }

    /// True if the character at `here` must not be shown for a problem at `problem`.
    fn covers(&self, here: Position, problem: Position) -> bool {
        let of = |ranges: &[Range<Position>]| {
            ranges[..ranges.partition_point(|range| range.start <= here)]
                .last()
                .cloned()
                .filter(|range| range.contains(&here))
        };
        of(&self.always).is_some() || of(&self.elsewhere).is_some_and(|range| !range.contains(&problem))
    }
}

/// The same positions as ranges that are in order and do not overlap.
fn joined(mut ranges: Vec<Range<Position>>) -> Vec<Range<Position>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<Position>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadError;

    /// The places of a file's problems: job, key, the excerpt and its mark.
    fn places(text: &str) -> Vec<(String, String, String, String)> {
        let content = Content::of_files(Path::new("j"), [("j".into(), text.as_bytes().to_owned())]);
        let mut problems = match content.load_for_any_host() {
            Ok(loaded) => loaded.warnings,
            Err(LoadError::Invalid { problems, .. }) => problems,
            Err(error) => panic!("{error}"),
        };
        content.locate(&mut problems);
        let place = |problem: Problem| {
            let Place { job, key, excerpt } = problem.place;
            let Excerpt { text, offset, length } = excerpt.unwrap_or_else(|| panic!("{}", problem.message));
            let marked = text.chars().skip(offset).take(length).collect();
            (job.unwrap_or_default(), key.unwrap_or_default(), text, marked)
        };
        problems.into_iter().map(place).collect()
    }

    fn place(text: &str) -> [String; 4] {
        let [(job, key, excerpt, marked)] = &places(text)[..] else { panic!("{text}") };
        [job, key, excerpt, marked].map(Clone::clone)
    }

    #[test]
    fn a_problem_has_its_job_its_key_and_its_line() {
        let text = "defaults:\n  overlap: queue\n  dst: maybe\njobs:\n  a: &a\n    schedule: '@daily'\n    command: x\n  b: *a\n";
        assert_eq!(place(text), ["", "dst", "dst: maybe", "maybe"]);
        let text = "jobs:\n  a: &a\n    schedule: '@daily'\n    command: x\n  b: *a\n  c:\n    <<: *a\n    schedule: '@daily'\n    command: x\n";
        assert_eq!(place(text)[..3], ["c", "", "<<: *a"]);
        let text = "jobs:\n  a:\n    command: x\n    schedule: 0 0 * * 61\n";
        assert_eq!(place(text), ["a", "schedule", "schedule: 0 0 * * 61", "61"]);
        assert_eq!(place("jobs: {}\nexrta: 1\n"), ["", "", "exrta: …", "exrta"]);
    }

    #[test]
    fn values_that_may_be_secret_are_left_out() {
        for environment in [
            "environment: {A: hunter2, B: }, ",
            "environment: {A: \"hunter2\", B: [hunter2]}, ",
            "environment: [A=hunter2], ",
            "environment: hunter2, ",
            "environment: {A=hunter2, }, ",
            "env: {A: hunter2}, ",
            "secrets: {A: hunter2}, ",
            "secrets: hunter2, ",
            "secrets: [A=hunter2], ",
            "secrets: {A=hunter2: {file: /x}}, ",
            "secrets: {A: {value: hunter2}, B: {file: /x}}, ",
            "secrets: {A: {file: hunter2}}, ",
            "secrets: {A: {file: 'hunter2 /x'}}, ",
            "secrets: {A: {file: [hunter2]}}, ",
            "environment_file: A=hunter2, ",
            "environment_file: [/a, 'A=/hunter2'], ",
            "parameters: [DAY, A=hunter2], ",
            "parameters: A=hunter2, ",
            "enviroment: {A: hunter2}, ",
            "A=hunter2: x, ",
            "environment: {A: x}, environment: {B: hunter2}, ",
            "environment: {A: x, A: hunter2}, ",
            "environment: {}, environment: {B: x, B: y, C: hunter2}, ",
            "environment: {A=hunter2: x, A=hunter2: x}, ",
            "? [hunter2] : x, ",
            "<<: {A: hunter2}, ",
            "\"A=hunter2\", ",
            "on_failure: [curl, -u, hunter2], overlap: x, ",
        ] {
            let text = format!("jobs: {{a: {{{environment}schedule: '@daily', command: hunter2, timeout: 1}}}}");
            let places = places(&text);
            assert!(!places.is_empty());
            for place in places {
                assert!(!place.2.contains("hunter2"), "{text}: {place:?}");
            }
        }
        for text in ["- hunter2", "hunter2", "jobs: {a: hunter2}", "jobs: [{A: hunter2}]", "jobs: {}\nx: hunter2"] {
            assert!(places(text).iter().all(|place| !place.2.contains("hunter2")), "{text}");
        }
        let text = "jobs:\n  a:\n    command: x\n    environment: {A: |\n";
        let content = Content::of_files(Path::new("j"), [("j".into(), text.as_bytes().to_owned())]);
        let Err(LoadError::Invalid { mut problems, .. }) = content.load_for_any_host() else { panic!() };
        content.locate(&mut problems);
        assert_eq!(problems[0].place, Place::default(), "of a file that is not YAML nothing else is shown");
    }

    #[test]
    fn a_command_is_shown_for_a_problem_in_it() {
        let text = "jobs: {a: {schedule: '@daily', command: [ls, ~/in], on_failure: hunter2}}";
        assert_eq!(
            place(text)[2..],
            ["jobs: {a: {schedule: '@daily', command: [ls, ~/in], on_failure: …}}", "~"].map(str::to_owned)
        );
    }

    #[test]
    fn a_long_line_is_cut_around_its_problem() {
        let text = format!(
            "jobs: {{a: {{schedule: '@daily', description: {}, overlap: no, command: {}}}}}",
            "x".repeat(5_000),
            "x".repeat(5_000)
        );
        let [_, _, excerpt, marked] = place(&text);
        assert!(excerpt.chars().count() < 300, "{excerpt}");
        assert_eq!(marked, "no");
    }
}
