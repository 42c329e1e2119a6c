//! Holds a state machine against a table of its states and steps.

/// Fails unless a machine takes the steps of the table and no other.
///
/// The first line of the table names the steps. Each other line begins with a state, in the words of `state`, and then
/// has the state after each step, in the words of `after`. A `-` means that the step changes nothing: `after` returns
/// `None`.
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
