//! Words in messages: the one that someone likely meant who wrote another, and what they wrote, fit to be shown.

/// The nearest of `known` to `word`, if any is near enough to be worth naming.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Dashes, underscores and case are what people most often get wrong; they cost nothing.
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    // A comparison costs the product of both lengths: a megabyte of a key is nobody's typing error.
    if word.len() > 64 {
        return None;
    }
    let bound = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
        .filter(|candidate| candidate.len() > 1 || candidate.eq_ignore_ascii_case(&word))
}

/// How many letters differ. A beginning or an end that was left out (`env`, `output`) is one slip, however long it is.
fn distance(word: &str, known: &str) -> usize {
    let part = word.len() >= 3 && (known.starts_with(word) || known.ends_with(word));
    if part { 1 } else { strsim::osa_distance(word, known) }
}

/// What someone wrote, as part of a message: on one line, nothing that moves a terminal, and at most so many characters of it.
pub fn shown(text: &str, longest: usize) -> String {
    let mut shown: String = text.chars().take(longest).flat_map(char::escape_debug).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

/// `1 job`, `2 jobs`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::{nearest, shown};

    const KNOWN: [&str; 5] = ["schedule", "timeout", "environment", "max_output", "run-once"];

    #[test]
    fn the_nearest_word_is_the_one_meant() {
        for (word, meant) in [
            ("shedule", Some("schedule")),
            ("Timeout", Some("timeout")),
            ("env", Some("environment")),
            ("max-output", Some("max_output")),
            ("run_once", Some("run-once")),
            ("shell", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, KNOWN), meant, "{word}");
        }
    }

    #[test]
    fn what_is_shown_stays_on_its_line_and_ends() {
        assert_eq!(shown("a\n\u{1b}[31mb", 100), r"a\n\u{1b}[31mb");
        assert_eq!((shown("äöü", 3), shown("äöü", 2)), ("äöü".to_owned(), "äö…".to_owned()));
    }

    #[test]
    fn an_endless_word_has_no_neighbour() {
        assert_eq!(nearest(&"x".repeat(4 << 20), KNOWN), None);
    }
}
