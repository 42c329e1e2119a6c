//! Names in log events: the first few of a list, so that an event stays short.

use std::fmt::Display;

use cronkeeper_core::job::JobName;

/// Maximum number of names in one field.
const MOST: usize = 10;

/// The names of some jobs as text, `None` if there are none.
pub(super) fn of_jobs(jobs: &[JobName]) -> Option<String> {
    listed(jobs, jobs.len())
}

/// The first names, and how many of `all` follow: `a, b and 3 more`. `None` if there are none.
pub(super) fn listed<T: Display>(names: &[T], all: usize) -> Option<String> {
    let named: Vec<String> = names.iter().take(MOST).map(ToString::to_string).collect();
    let more = all.saturating_sub(named.len());
    match (named.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(named.join(", ")),
        (false, more) => Some(format!("{} and {more} more", named.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_ten_names_are_given_and_the_rest_is_counted() {
        let names: Vec<u32> = (1..=12).collect();
        assert_eq!(listed(&names[..2], 2).as_deref(), Some("1, 2"));
        assert_eq!(listed(&names[..2], 5).as_deref(), Some("1, 2 and 3 more"));
        assert_eq!(listed(&names, 12).as_deref(), Some("1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"));
        assert_eq!(of_jobs(&[]), None);
    }
}
