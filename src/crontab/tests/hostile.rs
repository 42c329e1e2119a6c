//! Arbitrary input: the import never panics or hangs, its jobs are valid, and it drops no line silently.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

const PIECES: [&str; 48] = [
    "\n",
    "\n",
    "\n",
    "* * * * * ",
    "30 2 * * * ",
    "@daily ",
    "@reboot ",
    "0 0 30 2 * ",
    "~ ~ * * * ",
    "a",
    "backup",
    " ",
    "\t",
    "%",
    "\\%",
    "\\",
    "'",
    "\"",
    "#",
    "# x",
    "=",
    "A=b\n",
    "A=\"",
    "SHELL=/bin/bash\n",
    "MAILTO=x\n",
    "CRON_TZ=UTC\n",
    "CRON_TZ=x\n",
    "RANDOM_DELAY=5\n",
    "HOME=/x\n",
    "LOGNAME=x\n",
    "\r\n",
    "root",
    "-n ",
    "-",
    "&",
    "|",
    "{",
    "}",
    "INPUT",
    "%INPUT%",
    ": ",
    "\u{1b}[31m",
    "\u{2028}",
    "\u{feff}",
    "é",
    "\u{85}",
    "- ",
    "\u{fffe}",
];

fn crontabs() -> impl Strategy<Value = Vec<u8>> {
    let pieces = |most| prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..most);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..80),
        4 => pieces(30).prop_map(|pieces| pieces.concat().into_bytes()),
        2 => (pieces(8), any::<[u8; 3]>()).prop_map(|(pieces, bytes)| {
            [b"0 5 * * * root ", pieces.concat().as_bytes(), &bytes[..], b"\n0 6 * * * b\n"].concat()
        }),
    ]
}

/// Asserts that each entry of the crontab is in the jobs or in the notes.
pub(super) fn assert_complete(bytes: &[u8], system: bool, imported: &Imported) {
    let jobs = valid(&imported.yaml);
    let lines = line::read(bytes, system);
    let entries = lines.iter().filter(|line| matches!(line.kind, LineKind::Entry(_)));
    let noted = |line: &Line| imported.notes.iter().any(|note| note.line == line.number);
    let lost = imported.notes.iter().filter(|note| note.text.starts_with("not carried over")).count();
    let refused = lines.iter().filter(|line| matches!(line.kind, LineKind::Refused(_)));
    assert!(refused.clone().all(noted), "{}", imported.yaml);
    let settings_lost = imported
        .notes
        .iter()
        .filter(|note| {
            note.text.starts_with("not carried over") && matches!(lines[note.line - 1].kind, LineKind::Setting(_))
        })
        .count();
    assert_eq!(jobs.jobs.len() + lost - settings_lost, entries.count() + refused.count(), "{}", imported.yaml);
}

#[test]
fn any_bytes_become_valid_jobs_or_are_refused() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&(crontabs(), any::<bool>()), |(bytes, system)| {
        if let Ok(imported) = import(&bytes, &origin(system)) {
            assert_complete(&bytes, system, &imported);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn large_files_are_imported_or_refused_and_their_results_are_bounded() {
    let taken = |text: String| import(text.as_bytes(), &origin(false)).map(|imported| imported.yaml.len());
    assert_eq!(taken("x".repeat(LARGEST + 1)), Err(ImportError::TooLarge));
    assert!(matches!(taken("x".repeat(LARGEST)), Err(ImportError::NoLine { line: 1, .. })));
    assert!(matches!(taken("@daily x\0".to_owned()), Err(ImportError::Binary { line: 1 })));
    // 16,000 entries with the same name, and a command that is too long.
    assert!(taken("@daily backup x\n".repeat(16_000)).is_ok());
    let (_, jobs) = imported(&format!("@daily a\n@daily {}\n", "x".repeat(200_000)));
    assert_eq!(jobs.jobs.len(), 1);
    // Variables that the entries do not share are repeated in each job.
    let multiplied: String = (0..20_000).map(|i| format!("V{i}={i}\n@daily x\n")).collect();
    assert!(matches!(taken(multiplied), Err(ImportError::TooMuch { .. })));
    let long: String = format!("@daily x\nA={}\n", "y".repeat(100_000)) + &"@daily x\n".repeat(50_000);
    assert!(matches!(taken(long), Err(ImportError::TooMuch { .. })));
    for piece in [
        "%",
        "'",
        "\"",
        "\\",
        "~",
        ",",
        "*",
        "/",
        "@",
        "=",
        " ",
        "\t",
        "#",
        "\r",
        "é",
        "&",
        "a=b ",
        "(",
        "sh ",
        "CRON_TZ=x\n",
    ] {
        let many = piece.repeat(100_000 / piece.len());
        for text in
            [many.clone(), format!("@daily {many}\n"), format!("A={many}\n@daily x\n"), format!("{many} * * * * x")]
        {
            if let Ok(imported) = import(text.as_bytes(), &origin(false)) {
                assert_complete(text.as_bytes(), false, &imported);
            }
        }
    }
}

#[test]
fn a_name_that_is_too_long_for_a_key_is_not_carried_over() {
    for (length, is_carried) in [(900, true), (1_100, false), (100_000, false)] {
        let (imported, jobs) = imported(&format!("{}=b\n@daily x\n", "A".repeat(length)));
        assert_eq!((jobs.jobs.len(), imported.notes.is_empty()), (1, is_carried), "{length}");
    }
}

#[test]
fn a_file_without_entries_has_no_jobs() {
    for text in ["", "\n\n", "# only\n\n# comments\n", "A=b\n"] {
        let (imported, jobs) = imported(text);
        assert!(jobs.jobs.is_empty() && imported.notes.is_empty(), "{text}");
        assert!(text.lines().filter(|line| line.starts_with('#')).all(|line| imported.yaml.contains(line)));
    }
}
