//! Holds a state machine against a table of its states and steps.

/// Fails unless a machine takes the steps of the table and no other.
///
/// The first line of the table names the columns. Each other one names a state, which `state` must name too, and the
/// state after each step: what `after` returns for this row and column, or `-` for `None`, which is no change.
pub(super) fn assert_table(
    table: &str,
    state: impl Fn(usize) -> String,
    after: impl Fn(usize, usize) -> Option<String>,
) {
    let rows = table.lines().map(str::trim).filter(|line| !line.is_empty()).skip(1);
    for (row, line) in rows.enumerate() {
        let mut cells = line.split_whitespace();
        let from = state(row);
        assert_eq!(cells.next(), Some(from.as_str()));
        for (column, expected) in cells.enumerate() {
            assert_eq!(after(row, column).as_deref().unwrap_or("-"), expected, "{from}: step {column}");
        }
    }
}
