//! Plain-text tables for people.
//!
//! Names are never cut, so that they can be copied. A cell that is longer than any name is cut.

use std::borrow::Cow;
use std::io::{self, Write};

use cronkeeper_core::escape;

/// Most characters of a cell; longer than any run id or node name.
const LONGEST_CELL: usize = 400;
/// Blanks between two columns.
const GAP: usize = 2;
/// Escape sequences of a terminal.
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

#[derive(Debug)]
pub(super) struct Table {
    /// The heading first.
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    /// One only in a line across all columns.
    cells: Vec<String>,
    is_line: bool,
    /// Shown in red where there are colours.
    is_marked: bool,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        let cells = heading.iter().map(ToString::to_string).collect();
        Self { rows: vec![Row { cells, is_line: false, is_marked: false }] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.marked_row(false, cells);
    }

    /// Adds a row that needs attention if `is_marked`.
    pub fn marked_row(&mut self, is_marked: bool, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| shown(&cell).into_owned()).collect();
        self.rows.push(Row { cells, is_line: false, is_marked });
    }

    /// Adds a line across all columns.
    pub fn line(&mut self, text: &str) {
        self.rows.push(Row { cells: vec![shown(text).into_owned()], is_line: true, is_marked: false });
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Number of rows below the heading.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Leaves out columns, by their headings and in this order, until a line has at most `width` characters.
    pub fn fit(&mut self, width: usize, dispensable: &[&str]) {
        for heading in dispensable {
            if self.widths().iter().map(|column| column + GAP).sum::<usize>() <= width + GAP {
                return;
            }
            if let Some(column) = self.rows[0].cells.iter().position(|cell| cell == heading) {
                let rows = self.rows.iter_mut().filter(|row| !row.is_line && column < row.cells.len());
                rows.for_each(|row| drop(row.cells.remove(column)));
            }
        }
    }

    /// Keeps the first rows only.
    pub fn truncate(&mut self, rows: usize) {
        self.rows.truncate(rows + 1);
    }

    fn widths(&self) -> Vec<usize> {
        let cells =
            |column: usize| self.rows.iter().filter(|row| !row.is_line).filter_map(move |row| row.cells.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max();
        (0..self.rows[0].cells.len()).map(|column| width(column).unwrap_or(0)).collect()
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_on(false, out)
    }

    /// Writes the table, with colours if the terminal has them.
    pub fn write_on(&self, has_colours: bool, out: &mut dyn Write) -> io::Result<()> {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.cells.iter().zip(&widths) {
                let width = if row.is_line { 0 } else { *width };
                line.push_str(&format!("{cell:<width$}{:GAP$}", ""));
            }
            match has_colours && row.is_marked {
                true => writeln!(out, "{RED}{}{PLAIN}", line.trim_end())?,
                false => writeln!(out, "{}", line.trim_end())?,
            }
        }
        Ok(())
    }
}

/// Cuts and escapes a cell. It is cut first, because a text from ZooKeeper can be very long, and escaping lengthens it.
fn shown(cell: &str) -> Cow<'_, str> {
    match cell.char_indices().nth(LONGEST_CELL) {
        Some((end, _)) => Cow::Owned(format!("{}…", escape::plain(&cell[..end]))),
        None => escape::plain(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_dispensed_with_is_left_out_until_the_table_fits() {
        let table = || {
            let mut table = Table::new(&["JOB", "NODE", "IN"]);
            table.row(["backup", "host-a", "5m"].map(str::to_owned));
            table
        };
        let fitted = |width| {
            let mut table = table();
            table.fit(width, &["NODE", "IN"]);
            table.rows[0].cells.join(" ")
        };
        assert_eq!([18, 17, 9].map(fitted), ["JOB NODE IN", "JOB IN", "JOB"]);
    }

    #[test]
    fn a_line_across_the_table_widens_no_column_and_stays_whole() {
        let mut table = Table::new(&["JOB", "NODE"]);
        table.row(["a", "host-a"].map(str::to_owned));
        table.line("--- a line that is longer than all columns ---");
        table.row(["b", "host-b"].map(str::to_owned));
        table.fit(3, &["JOB"]);
        let mut out = Vec::new();
        table.write(&mut out).expect("a vector takes all");
        let expected = "NODE\nhost-a\n--- a line that is longer than all columns ---\nhost-b\n";
        assert_eq!(String::from_utf8(out).expect("it is a text"), expected);
    }

    #[test]
    fn a_long_cell_is_cut() {
        let mut table = Table::new(&["JOB", "WHY"]);
        table.row(["a".into(), "x".repeat(100_000)]);
        table.row(["b".into(), "\u{7}".repeat(100_000)]);
        let mut out = Vec::new();
        table.write(&mut out).expect("a vector takes all");
        let text = String::from_utf8(out).expect("it is a text");
        assert!(text.contains(&format!("a    {}…\n", "x".repeat(LONGEST_CELL))));
        assert!(text.len() < 10_000);
    }
}
