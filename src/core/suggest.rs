//! Helpers for messages: suggestions for misspelt words, and user input made safe to print.

/// The word of `known` that is most similar to `word`, if any is similar enough to suggest.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Differences in dashes, underscores and case are the most common, so they do not count.
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    // The cost of a comparison is the product of both lengths, and a very long word is not a typing error.
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

/// The end of a message about a word that is not known; empty if there is none to suggest.
pub fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|word| format!(", did you mean `{word}`?")).unwrap_or_default()
}

/// Number of letters that differ. A missing beginning or end (`output`, `env`) counts as one, however long it is.
fn distance(word: &str, known: &str) -> usize {
    let part = word.len() >= 3 && (known.starts_with(word) || known.ends_with(word));
    if part { 1 } else { strsim::osa_distance(word, known) }
}

/// Formats a count with its noun: `1 job`, `2 jobs`, `2 processes`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::nearest;

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
    fn a_very_long_word_has_no_suggestion() {
        assert_eq!(nearest(&"x".repeat(4 << 20), KNOWN), None);
    }
}
