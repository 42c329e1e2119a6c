//! Columns for people. A name is shown whole, so that it can be typed; what is longer than any name is cut.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::telemetry::escape;

/// Characters of a cell: more than any run's id or node's name has.
const MOST_SHOWN: usize = 300;

/// Rows under a heading.
#[derive(Debug)]
pub(super) struct Table {
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

/// Cut before it is escaped: whoever wrote a record may have made it as long as ZooKeeper takes it.
fn shown(cell: &str) -> Cow<'_, str> {
    match cell.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => Cow::Owned(format!("{}…", escape::plain(&cell[..end]))),
        None => escape::plain(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_is_shown_as_far_as_a_line_goes() {
        let mut table = Table::new(&["JOB", "WHY"]);
        table.row(["a".into(), "x".repeat(100_000)]);
        table.row(["b".into(), "\u{7}".repeat(100_000)]);
        let mut out = Vec::new();
        table.write(&mut out).expect("a vector takes all");
        let text = String::from_utf8(out).expect("it is a text");
        assert!(text.contains(&format!("a    {}…\n", "x".repeat(MOST_SHOWN))));
        assert!(text.len() < 10_000);
    }
}
