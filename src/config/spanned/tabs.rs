//! The text of a jobs file, for a parser that is to take a tab behind a colon for what it is in YAML: a separator, as a
//! space is (YAML 1.2, production `s-separate-in-line`).
//!
//! `saphyr-parser` takes it in front of some values only: `schedule:<TAB>'@daily'`, but not `command:<TAB>x`. It asks
//! its input whether a space was among the blanks, and nowhere else does it want to know that.

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// A text in which a tab separates as a space does.
pub(super) struct TabsSeparate<'a>(StrInput<'a>);

impl<'a> TabsSeparate<'a> {
    pub fn of(text: &'a str) -> Self {
        Self(StrInput::new(text))
    }
}

impl Input for TabsSeparate<'_> {
    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (skipped, found) = self.0.skip_ws_to_eol(skip_tabs);
        (
            skipped,
            found.map(|found| SkipTabs::Result(found.found_tabs(), found.found_tabs() || found.has_valid_yaml_ws())),
        )
    }

    fn lookahead(&mut self, count: usize) {
        self.0.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.0.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.0.bufmaxlen()
    }

    fn raw_read_ch(&mut self) -> char {
        self.0.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.0.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.0.skip();
    }

    fn skip_n(&mut self, count: usize) {
        self.0.skip_n(count);
    }

    fn peek(&self) -> char {
        self.0.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.0.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.0.peek_opt()
    }

    fn next_can_be_plain_scalar(&self, in_flow: bool) -> bool {
        self.0.next_can_be_plain_scalar(in_flow)
    }

    fn skip_while_non_breakz(&mut self) -> usize {
        self.0.skip_while_non_breakz()
    }

    fn skip_while_blank(&mut self) -> usize {
        self.0.skip_while_blank()
    }

    fn fetch_while_is_alpha(&mut self, out: &mut String) -> usize {
        self.0.fetch_while_is_alpha(out)
    }

    fn fetch_while_is_yaml_non_space(&mut self, out: &mut String) -> usize {
        self.0.fetch_while_is_yaml_non_space(out)
    }
}
