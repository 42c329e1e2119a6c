//! The output of a run on its page: the newest lines, whichever node keeps them.

use std::collections::{BTreeSet, VecDeque};

use maud::{Markup, html};

use super::run::Known;
use crate::api::ApiState;
use crate::api::output::{Cursor, OutputState, last_page_of};
use crate::output::{Line, Source};
use cronkeeper_core::escape;
use cronkeeper_core::run::RunId;

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
pub(super) fn section(run: &RunId, known: &Known<'_>, newest: Option<&NewestOutput>) -> Markup {
    let is_in_flight = matches!(known, Known::InFlight(..));
    html! {
        section #output data-live="" data-following[is_in_flight] aria-labelledby="output-title" {
            h2 #output-title { "Output" }
            @match (newest, known) {
                (Some(newest), _) if !newest.lines.is_empty() || is_in_flight => (lines(run, newest, is_in_flight)),
                (newest, Known::Ended(run)) => {
                    @if let Some(newest) = newest { (remarks(newest)) }
                    @if run.dropped_bytes > 0 {
                        p { "The job wrote " (run.dropped_bytes) " bytes more than `max_output`. This is the end." }
                    }
                    @if run.tail.is_empty() { p { "none" } } @else {
                        pre tabindex="0" aria-label="The end of the output" { (text(run.tail.lines())) }
                    }
                },
                (_, Known::InFlight(..)) => p { "It appears here when the run has ended." },
                (_, Known::Shared(_)) => p { "Each share has its own." },
                (_, Known::Not) => p { "none" },
                (_, Known::Unread) => p.unknown { "not known" },
            }
        }
    }
}

fn lines(run: &RunId, newest: &NewestOutput, is_in_flight: bool) -> Markup {
    html! {
        @if newest.is_end_only {
            p { "Only the end is shown here. " code { "cronkeeper logs " (run) } " begins at the beginning." }
        }
        (remarks(newest))
        @if newest.lines.is_empty() { p { "none so far" } } @else {
            pre tabindex="0" aria-label="Output" {
                @for line in &newest.lines {
                    @match line.stream {
                        Source::Stdout => (shown(line)),
                        Source::Stderr => span.stderr { (shown(line)) },
                        Source::Note => em { (shown(line)) },
                    }
                }
            }
        }
        @if is_in_flight { p { "The run is in flight." } }
    }
}

fn remarks(newest: &NewestOutput) -> Markup {
    html! {
        @for missing in &newest.missing { p { "Missing " (missing) } }
        @if let Some(note) = &newest.note { p { (note) } }
    }
}

/// A line as text, with its end unless it goes on in the next one.
fn shown(line: &Line) -> String {
    let text = escape::on_a_terminal(&line.line);
    if line.continues { text.into_owned() } else { format!("{text}\n") }
}

/// Lines with everything made visible that could hide or turn text around.
fn text<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(escape::on_a_terminal).collect::<Vec<_>>().join("\n")
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
        let markup = section(&RunId::parse("load.20261120T030000Z").unwrap(), &Known::Not, Some(&newest)).into_string();
        assert!(!markup.contains("<script") && !markup.contains("<b>") && !markup.contains('\u{1b}'), "{markup}");
        assert!(markup.contains("&lt;script&gt;"), "{markup}");
    }
}
