//! The short form of the benches: every row with few samples. It shows that a bench still works, and measures nothing.
#![allow(dead_code, reason = "each bench uses a part of it")]

/// Asks for the short form, if it is `1`.
pub const VARIABLE: &str = "CRONKEEPER_BENCH_SHORT";

/// The first value, or the second in the short form.
pub fn pick<T>(whole: T, short: T) -> T {
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "1") { short } else { whole }
}
