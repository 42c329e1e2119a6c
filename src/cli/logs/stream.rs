//! The output of one run: asked for page by page, and printed.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::super::{Io, json};
use crate::api::client::{AskError, Client, Said};
use crate::api::output::{Cursor, Missing, OutputPage, OutputState};
use crate::output::{Line, Source};
use cronkeeper_core::escape;
use cronkeeper_core::run::RunId;

/// How long an answer waits for output, in seconds.
const WAIT: u64 = 6;
/// The same while there is none yet: the caller wants to know why.
const FIRST_WAIT: u64 = 2;
/// Longest absence of the daemon while a run is followed; longer than a failover.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts. Nothing notifies this command when the daemon is back.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Asks for one page after the other.
pub(in crate::cli) struct OutputStream<'a> {
    client: &'a Client,
    run: RunId,
    from: Cursor,
    since: Option<Timestamp>,
}

impl<'a> OutputStream<'a> {
    pub fn new(client: &'a Client, run: RunId, since: Option<Timestamp>) -> Self {
        Self { client, run, from: Cursor::START, since }
    }

    /// Asks for the next page. One that waits for output also waits for a daemon that is away for a while.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn page(&mut self, waits: bool) -> Result<OutputPage, AskError> {
        let wait = match waits {
            false => 0,
            true if self.from == Cursor::START => FIRST_WAIT,
            true => WAIT,
        };
        let since = self.since.map(|since| format!("&since={since}")).unwrap_or_default();
        let path = format!("/v1/runs/{}/output?from={}&wait={wait}{since}", self.run, self.from);
        let until = Instant::now() + ABSENCE_TIMEOUT;
        loop {
            match self.client.get::<OutputPage>(&path) {
                Err(error) if waits && is_transient(&error) && Instant::now() < until => thread::sleep(RETRY_DELAY),
                page => {
                    let page = page?;
                    page.check_progress(self.from).map_err(|why| AskError::Garbled(Said::of(why)))?;
                    self.from = page.next;
                    return Ok(page);
                }
            }
        }
    }
}

fn is_transient(error: &AskError) -> bool {
    error.is_unreachable() || matches!(error, AskError::Garbled(_))
}

/// How lines are printed.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum Style {
    /// As the job wrote them.
    Text {
        /// Each with its time and stream.
        times: bool,
    },
    /// One object of JSON for each.
    Json,
}

/// Prints pages: lines to stdout, everything else to stderr. What says that something was left out between lines is also
/// at its place on stdout, unless that is a terminal: whoever reads the file later sees nothing else.
pub(in crate::cli) struct Printer {
    style: Style,
    /// stdout is a terminal, which a job must not control.
    escapes: bool,
    /// The stream whose line is not finished yet.
    open: Option<Source>,
    attempt: u32,
    /// What was reported as missing, and whether for now, so that it is reported once. Bounded by attempts and nodes.
    shown: BTreeSet<(Missing, bool)>,
    is_complete: bool,
}

impl Printer {
    pub fn new(style: Style) -> Self {
        let escapes = io::stdout().is_terminal();
        Self { style, escapes, open: None, attempt: 1, shown: BTreeSet::new(), is_complete: true }
    }

    /// Prints lines as the job wrote them.
    pub fn plain() -> Self {
        Self::new(Style::Text { times: false })
    }

    /// False if something was missing in what was printed.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// # Errors
    /// If stdout or stderr cannot be written.
    pub fn print(&mut self, page: &OutputPage, io: &mut Io<'_>) -> io::Result<()> {
        for line in &page.lines {
            self.line(line, io)?;
        }
        // What is missing of a run in flight may come with a later page.
        let is_open = page.state == OutputState::Open;
        self.is_complete &= page.missing.is_empty() || is_open;
        for missing in &page.missing {
            if self.shown.insert((missing.clone(), is_open)) {
                let of = missing.attempt.map(|attempt| format!(" of attempt {attempt}")).unwrap_or_default();
                let still = if is_open { " for now" } else { "" };
                writeln!(io.err, "cronkeeper: the output{of} is missing{still}: {}", escape::plain(&missing.why))?;
            }
        }
        if let Some(tail) = &page.tail {
            match page.note.as_deref().filter(|_| page.tail_is_whole) {
                Some(why) => writeln!(io.err, "cronkeeper: {}; the ledger has all of its output:", escape::plain(why))?,
                None => writeln!(io.err, "cronkeeper: its end, as the ledger has it:")?,
            }
            for line in tail.lines() {
                self.text(line, io)?;
                writeln!(io.out)?;
            }
        }
        if let Some(note) = page.note.as_ref().filter(|_| !page.tail_is_whole) {
            writeln!(io.err, "cronkeeper: run `{}`: {}", page.run, escape::plain(note))?;
        }
        io.out.flush()
    }

    /// Ends a line that the job did not finish.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn finish(&mut self, io: &mut Io<'_>) -> io::Result<()> {
        if self.open.take().is_some() {
            writeln!(io.out)?;
        }
        io.out.flush()
    }

    fn line(&mut self, line: &Line, io: &mut Io<'_>) -> io::Result<()> {
        let Style::Text { times } = self.style else {
            return json::line(line, io.out);
        };
        if line.attempt != self.attempt {
            self.attempt = line.attempt;
            self.finish(io)?;
            writeln!(io.err, "cronkeeper: attempt {}:", line.attempt)?;
        }
        if line.stream == Source::Note {
            self.is_complete = false;
            self.finish(io)?;
            return self.note(&escape::plain(&line.line), io);
        }
        if self.open.is_some_and(|open| open != line.stream) {
            self.finish(io)?;
        }
        if times && self.open.is_none() {
            let stream = if line.stream == Source::Stderr { "stderr" } else { "stdout" };
            write!(io.out, "{} {stream} ", line.at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"))?;
        }
        self.text(&line.line, io)?;
        self.open = line.continues.then_some(line.stream);
        if line.continues { Ok(()) } else { writeln!(io.out) }
    }

    /// Says what is left out at this place.
    fn note(&self, text: &str, io: &mut Io<'_>) -> io::Result<()> {
        if !self.escapes && matches!(self.style, Style::Text { .. }) {
            writeln!(io.out, "cronkeeper: {text}")?;
        }
        writeln!(io.err, "cronkeeper: {text}")
    }

    fn text(&self, text: &str, io: &mut Io<'_>) -> io::Result<()> {
        match self.escapes {
            true => write!(io.out, "{}", escape::on_a_terminal(text)),
            false => write!(io.out, "{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::term::NodeName;

    fn line(attempt: u32, stream: Source, text: &str, continues: bool) -> Line {
        let at = "2026-11-20T02:30:00.5Z".parse().unwrap();
        Line { at, attempt, stream, line: text.into(), continues }
    }

    fn page(lines: Vec<Line>) -> OutputPage {
        let run = RunId::parse("load.20261120T023000Z").unwrap();
        let (missing, attempts, shares) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (next, state) = (Cursor::START, OutputState::End);
        OutputPage {
            run,
            lines,
            skipped: 0,
            next,
            state,
            missing,
            tail: None,
            tail_is_whole: false,
            note: None,
            attempts,
            shares,
        }
    }

    fn printed(style: Style, escapes: bool, pages: &[OutputPage]) -> (String, String, bool) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut printer = Printer { escapes, ..Printer::new(style) };
        let io = &mut Io { out: &mut out, err: &mut err, is_watched: false };
        pages.iter().for_each(|page| printer.print(page, io).unwrap());
        printer.finish(io).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), printer.is_complete())
    }

    #[test]
    fn lines_are_printed_as_the_job_wrote_them_and_escaped_on_a_terminal() {
        let lines = || vec![line(1, Source::Stdout, "a", true), line(1, Source::Stdout, "b\u{1b}[2J", false)];
        let text = Style::Text { times: false };
        assert_eq!(printed(text, false, &[page(lines())]), ("ab\u{1b}[2J\n".into(), String::new(), true));
        assert_eq!(printed(text, true, &[page(lines())]).0, "ab\\u{1b}[2J\n");
        let timed = printed(Style::Text { times: true }, false, &[page(lines())]).0;
        assert_eq!(timed, "2026-11-20T02:30:00.500Z stdout ab\u{1b}[2J\n");
        let json = printed(Style::Json, false, &[page(lines())]).0;
        assert_eq!(json.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Line>>(), lines());
    }

    #[test]
    fn attempts_and_what_is_missing_are_told_apart_from_the_output_and_once() {
        let missing = Missing { attempt: Some(1), node: NodeName::new("host-b"), why: "host-b is away".into() };
        let first = OutputPage { missing: vec![missing], ..page(vec![line(2, Source::Stdout, "x", false)]) };
        let second = page(vec![line(2, Source::Note, "1 line was not kept: the disk was too slow", false)]);
        let last = OutputPage { tail: Some("the\nend".into()), ..page(Vec::new()) };
        let pages = [first.clone(), first, second, last];
        let missing = "cronkeeper: the output of attempt 1 is missing: host-b is away\n";
        let note = "cronkeeper: 1 line was not kept: the disk was too slow\n";
        let end = "cronkeeper: its end, as the ledger has it:\n";
        let text = Style::Text { times: false };
        let expected = format!("cronkeeper: attempt 2:\n{missing}{note}{end}");
        let on_a_terminal = printed(text, true, &pages);
        assert_eq!(on_a_terminal, ("x\nx\nthe\nend\n".into(), expected.clone(), false));
        // A file has the marks at their places.
        let saved = printed(text, false, &pages);
        assert_eq!(saved, (format!("x\nx\n{note}the\nend\n"), expected, false));
        let json = printed(Style::Json, false, &pages[..3]).0;
        assert!(json.lines().all(|line| serde_json::from_str::<Line>(line).is_ok()), "{json}");
    }

    #[test]
    fn an_end_that_is_all_of_the_output_is_not_incomplete() {
        let (tail, note) = (Some("all".into()), Some("host-b is away".into()));
        let whole = OutputPage { tail, note, tail_is_whole: true, ..page(Vec::new()) };
        let (out, err, is_complete) = printed(Style::Text { times: false }, false, &[whole]);
        assert_eq!((out.as_str(), is_complete), ("all\n", true));
        assert_eq!(err, "cronkeeper: host-b is away; the ledger has all of its output:\n");
    }

    #[test]
    fn what_is_missing_of_a_run_in_flight_may_still_come() {
        let missing = Missing { attempt: Some(1), node: NodeName::new("host-b"), why: "host-b is away".into() };
        let open = OutputPage { missing: vec![missing], state: OutputState::Open, ..page(Vec::new()) };
        let rest = page(vec![line(1, Source::Stdout, "x", false)]);
        let (out, err, is_complete) = printed(Style::Text { times: false }, false, &[open.clone(), open, rest]);
        assert_eq!((out.as_str(), is_complete), ("x\n", true));
        assert_eq!(err, "cronkeeper: the output of attempt 1 is missing for now: host-b is away\n");
    }
}
