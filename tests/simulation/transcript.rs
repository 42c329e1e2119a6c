//! The log of a seed, for people. A failing seed is run again with a transcript, because formatting costs time.

use std::collections::VecDeque;

use cronkeeper_core::clock::Uptime;

/// Maximum number of lines.
const KEPT: usize = 10_000;

pub struct Transcript {
    recording: bool,
    lines: VecDeque<String>,
}

impl Transcript {
    pub fn off() -> Self {
        Self { recording: false, lines: VecDeque::new() }
    }

    pub fn on() -> Self {
        Self { recording: true, lines: VecDeque::new() }
    }

    pub fn note(&mut self, at: Uptime, text: impl FnOnce() -> String) {
        if !self.recording {
            return;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        let seconds = at.as_nanos() as f64 / 1e9;
        self.lines.push_back(format!("{seconds:12.6} {}", text()));
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
