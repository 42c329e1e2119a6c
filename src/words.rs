//! The word that someone likely meant who wrote another.

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

/// `1 job`, `2 jobs`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
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
    fn an_endless_word_has_no_neighbour() {
        assert_eq!(nearest(&"x".repeat(4 << 20), KNOWN), None);
    }
}
