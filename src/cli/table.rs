//! Plain-text tables for people.
//!
//! Names are never cut, so that they can be copied. A cell that is longer than any name is cut.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::escape;

/// Most characters of a cell; longer than any run id or node name.
const LONGEST_CELL: usize = 300;

#[derive(Debug)]
pub(super) struct Table {
    /// The heading first.
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(ToString::to_string).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| shown(&cell).into_owned()).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
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
