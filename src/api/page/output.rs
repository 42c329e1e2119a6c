//! The output of a run on its page: the newest lines, whichever node keeps them.

use std::collections::{BTreeSet, VecDeque};

use maud::{Markup, html};

use super::ansi::{self, Style};
use super::run::Known;
use crate::api::ApiState;
use crate::api::output::{Cursor, OutputState, last_page_of};
use crate::output::{Line, Source};
use crate::status::shown;
use cronkeeper_core::run::{Reason, RunId};

/// Most bytes of lines on the page; older ones are left out.
const MOST_BYTES: usize = 256 << 10;
/// Most pages of output that are read for one page: one or two for each attempt.
const MOST_PAGES: usize = 64;

/// The newest lines of a run's output, and what should be there but is not.
#[derive(Debug, Default)]
pub(super) struct NewestOutput {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Lines before these were left out.
    is_end_only: bool,
    /// Each with the reason.
    missing: Vec<String>,
    note: Option<String>,
    /// The shares of a run on every node, which have the output.
    pub shares: BTreeSet<RunId>,
}

impl NewestOutput {
    fn push(&mut self, line: Line) {
        self.bytes += size_of(&line);
        self.lines.push_back(line);
        while self.bytes > MOST_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= size_of(&oldest);
            self.is_end_only = true;
        }
    }
}

/// Bytes that a line takes at most, besides its text: an empty one takes memory too.
const OF_A_LINE: usize = 100;

fn size_of(line: &Line) -> usize {
    line.line.len() + OF_A_LINE
}

impl ApiState {
    /// The newest output of a run. `None` if it cannot be read; then the history has the end of it.
    pub(super) async fn newest_output(&self, run: &RunId) -> Option<NewestOutput> {
        let (mut newest, mut from) = (NewestOutput::default(), Cursor::START);
        for _ in 0..MOST_PAGES {
            let page = last_page_of(self, run.clone(), from, MOST_BYTES as u64).await.ok()?;
            newest.is_end_only |= page.skipped > 0;
            page.lines.into_iter().for_each(|line| newest.push(line));
            newest.missing.extend(page.missing.iter().map(|missing| format!("on {}: {}", missing.node, missing.why)));
            newest.note = newest.note.or(page.note);
            newest.shares.extend(page.shares);
            from = page.next;
            if page.state != OutputState::More {
                return Some(newest);
            }
        }
        newest.note = Some(format!("There is more: `cronkeeper logs {run}` shows it."));
        Some(newest)
    }
}

/// The section with the output of a run. Without `newest`, it has the end that the history keeps.
///
/// `may_see`: the visitor is shown what jobs write. For others no output is looked up.
pub(super) fn section(run: &RunId, known: &Known<'_>, newest: Option<&NewestOutput>, may_see: bool) -> Markup {
    let is_in_flight = matches!(known, Known::InFlight(..));
    html! {
        section #output data-live="" data-following[is_in_flight] aria-labelledby="output-title" {
            h2 #output-title { "Output" @if is_in_flight { " " span.fact.live { "live" } } }
            @match (newest, known) {
                (Some(newest), _) if !newest.lines.is_empty() || is_in_flight => (lines(run, newest)),
                (newest, Known::Ended(run)) => {
                    @if let Some(newest) = newest { (remarks(newest)) }
                    @let has_run = run.attempt > 1 || run.reason.and_then(Reason::prevented_start).is_none();
                    @match shown(&run.tail) {
                        Some("") if newest.is_none() && !may_see && has_run => {
                            p.unknown { "Shown on the Unix socket, or after signing in." }
                        }
                        Some("") if newest.is_none() && !run.keeps_all_output() && has_run => {
                            p.unknown { "It could not be read." }
                        }
                        None => p.unknown { "Shown on the Unix socket, or after signing in." },
                        Some("") => {
                            // A note says why there is nothing.
                            @if newest.is_none_or(|newest| newest.note.is_none()) { p.quiet { "It wrote nothing." } }
                        }
                        Some(tail) => {
                            @if run.dropped_bytes > 0 {
                                p { "It wrote " (run.dropped_bytes) " bytes more than `max_output`. This is the end." }
                            }
                            (scroller("The end of the output", &end_of(tail)))
                        }
                    }
                },
                (_, Known::InFlight(..)) => p.quiet { "It is shown here when the run has ended." },
                (_, Known::Shared(_)) => p.quiet { "Each share has its own." },
                (_, Known::Not) => p.quiet { "There is none." },
                (_, Known::Unread) => p.unknown { "Not known." },
            }
        }
    }
}

fn lines(run: &RunId, newest: &NewestOutput) -> Markup {
    html! {
        @if newest.is_end_only {
            p.quiet { "Only the end is shown here. " code { "cronkeeper logs " (run) } " starts at the beginning." }
        }
        (remarks(newest))
        @if newest.lines.is_empty() { p.quiet { "Nothing so far." } } @else { (scroller("Output", &coloured(newest))) }
    }
}

/// A box that shows the end of its text, and stays there while the text grows.
fn scroller(label: &str, text: &Markup) -> Markup {
    html! { div.scroller tabindex="0" role="region" aria-label=(label) { pre { (text) } } }
}

/// The lines with the colours that each stream of each attempt has set.
fn coloured(newest: &NewestOutput) -> Markup {
    let mut attempt = 0;
    let [mut stdout, mut stderr] = [Style::default(); 2];
    html! {
        @for line in &newest.lines {
            @if std::mem::replace(&mut attempt, line.attempt) != line.attempt {
                ({ [stdout, stderr] = [Style::default(); 2]; "" })
            }
            @match line.stream {
                Source::Stdout => (ansi::line(&mut stdout, &line.line)),
                Source::Stderr => span.stderr { (ansi::line(&mut stderr, &line.line)) },
                Source::Note => em { (ansi::plain(&line.line)) },
            }
            @if !line.continues { "\n" }
        }
    }
}

/// The text that a record keeps of the end, with its colours.
pub(super) fn end_of(tail: &str) -> Markup {
    let mut style = Style::default();
    html! { @for line in tail.lines() { (ansi::line(&mut style, line)) "\n" } }
}

fn remarks(newest: &NewestOutput) -> Markup {
    html! {
        @for missing in &newest.missing { p { "Missing " (missing) } }
        @if let Some(note) = &newest.note { p { (note) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn line(text: &str, stream: Source) -> Line {
        Line { at: sample::at("2026-11-20T03:00:00Z"), attempt: 1, stream, line: text.into(), continues: false }
    }

    #[test]
    fn the_newest_lines_stay_and_the_oldest_go() {
        let mut newest = NewestOutput::default();
        let long = "x".repeat(MOST_BYTES / 4);
        (0..9).for_each(|_| newest.push(line(&long, Source::Stdout)));
        newest.push(line("last", Source::Stdout));
        assert!(newest.is_end_only && newest.bytes <= MOST_BYTES);
        assert_eq!((newest.lines.len(), newest.lines.back().map(|line| &*line.line)), (4, Some("last")));
        (0..MOST_BYTES).for_each(|_| newest.push(line("", Source::Stdout)));
        assert!(newest.lines.len() <= MOST_BYTES / OF_A_LINE, "empty lines count too");
    }

    #[test]
    fn lines_stay_text() {
        let mut newest = NewestOutput::default();
        for stream in [Source::Stdout, Source::Stderr, Source::Note] {
            newest.push(line("<script>alert(1)</script>\u{1b}[2J", stream));
        }
        newest.missing.push("<b>".into());
        let markup =
            section(&RunId::parse("load.20261120T030000Z").unwrap(), &Known::Not, Some(&newest), true).into_string();
        assert!(!markup.contains("<script") && !markup.contains("<b>") && !markup.contains('\u{1b}'), "{markup}");
        assert!(markup.contains("&lt;script&gt;"), "{markup}");
    }

    #[test]
    fn each_stream_has_its_colours_and_an_attempt_begins_without() {
        let mut newest = NewestOutput::default();
        newest.push(line("\u{1b}[31mred", Source::Stdout));
        newest.push(line("plain", Source::Stderr));
        newest.push(line("still red", Source::Stdout));
        newest.push(Line { attempt: 2, ..line("again", Source::Stdout) });
        let markup = coloured(&newest).into_string();
        let red = |text: &str| format!("<span class=\"c1\">{text}</span>\n");
        let expected = format!("{}<span class=\"stderr\">plain</span>\n{}again\n", red("red"), red("still red"));
        assert_eq!(markup, expected);
    }
}
