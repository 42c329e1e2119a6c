//! How much can be shown: all of it, or what fits on a terminal.

use std::io::{self, IsTerminal as _};

/// The size and abilities of what the status is shown on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Screen {
    /// Characters of a line; absent if nothing limits them.
    pub width: Option<usize>,
    /// Lines; absent if the reader can scroll.
    pub height: Option<usize>,
    pub has_colours: bool,
}

impl Screen {
    /// The terminal on stdout, if it is one. `is_redrawn`: what does not fit on it is never seen.
    pub fn of_stdout(is_redrawn: bool) -> Self {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Self::default();
        }
        let size = terminal_size::terminal_size_of(&stdout);
        Self {
            width: size.map(|(width, _)| width.0.into()),
            height: size.filter(|_| is_redrawn).map(|(_, height)| height.0.into()),
            has_colours: has_colours(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref()),
        }
    }
}

/// Rules of <https://no-color.org>, and of terminals that have none.
fn has_colours(no_color: Option<&std::ffi::OsStr>, term: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(|value| value.is_empty()) && term.is_some_and(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_dumb_terminal_and_no_color_get_no_colours() {
        let xterm = Some(OsStr::new("xterm"));
        assert!(has_colours(None, xterm) && has_colours(Some(OsStr::new("")), xterm));
        assert!(!has_colours(Some(OsStr::new("1")), xterm));
        assert!(!has_colours(None, Some(OsStr::new("dumb"))) && !has_colours(None, None));
    }
}
