//! User, owner and random delay of a crontab, as keys of the jobs.

use super::*;

fn imported_as(crontab: &str, system: bool, owner: Option<&str>) -> (String, String) {
    let origin = Origin { owner, ..origin(system) };
    let imported = import(crontab.as_bytes(), &origin).unwrap();
    (imported.yaml, imported.notes.into_iter().map(|note| format!("{}: {}\n", note.line, note.text)).collect())
}

#[test]
fn the_user_of_an_entry_is_the_user_of_its_job() {
    let (yaml, notes) = imported_as("@daily www-data:ssl x\n@hourly root y\n", true, None);
    assert!(yaml.contains("    user: www-data\n") && !yaml.contains("user: root"), "{yaml}");
    assert!(yaml.contains("    group: ssl\n"), "{yaml}");
    assert_eq!(notes, "");
}

#[test]
fn a_user_that_this_host_does_not_know_is_named() {
    let missing = |run_as: &RunAs| run_as.user.clone().filter(|user| user != "root").map(|user| format!("no {user}"));
    let noted = |system: bool, owner: Option<&str>, crontab: &str| {
        let imported = import(crontab.as_bytes(), &Origin { missing, owner, ..origin(system) }).unwrap();
        valid(&imported.yaml);
        imported.notes.into_iter().map(|note| format!("{}: {}", note.line, note.text)).collect::<Vec<_>>()
    };
    let notes = noted(true, None, "@daily root x\n@daily www-data y\n@hourly www-data:ssl z\n");
    assert!(notes.len() == 2 && notes[0].starts_with("2: no www-data: without it cronie refuses"), "{notes:?}");
    assert!(notes[1].starts_with("3: no www-data"), "{notes:?}");
    assert_eq!(noted(false, Some("root"), "@daily x\n"), [""; 0]);
    let notes = noted(false, Some("alice"), "@daily x\n");
    assert!(notes.len() == 1 && notes[0].starts_with("1: no alice: without it cron ignores"), "{notes:?}");
}

#[test]
fn a_comment_that_holds_an_entry_describes_nothing() {
    for comment in ["disabled: 0 5 * * * /usr/local/bin/old", "off @daily x", "was */5 1-3 * * mon old"] {
        let (yaml, _) = imported_as(&format!("# {comment}\n@daily x\n"), false, None);
        assert!(!yaml.contains("description:") && yaml.contains(comment), "{yaml}");
    }
    let (yaml, _) = imported_as("# Runs 5 times, at most 20 minutes\n@daily x\n", false, None);
    assert!(yaml.contains("description:"), "{yaml}");
}

/// The notes on a crontab, each with its line.
fn notes(crontab: &str) -> Vec<String> {
    let (imported, _) = imported(crontab);
    imported.notes.into_iter().map(|note| format!("{}: {}", note.line, note.text)).collect()
}

#[test]
fn a_setting_without_value_resets_the_one_before() {
    let crontab = "CRON_TZ=America/New_York\nA=1\nSHELL=/bin/bash\nRANDOM_DELAY=5\nMAILTO=x\n@daily first\n\
                   CRON_TZ=\nA=\nSHELL=\nRANDOM_DELAY =  \nMAILTO=\n@daily second\n";
    let (yaml, _) = imported_as(crontab, false, None);
    let (first, second) = yaml.split_once("  second:\n").unwrap_or_else(|| panic!("{yaml}"));
    assert!(first.contains("timezone: America/New_York\n") && first.contains("splay: 5m\n"), "{yaml}");
    assert!(!second.contains("timezone:") && !second.contains("splay:") && !second.contains("bash"), "{yaml}");
    assert!(second.contains("A: \"\"\n") && second.contains("MAILTO: \"\"\n"), "{yaml}");
    let (_, jobs) = imported(crontab);
    let zone = |name: &str| {
        jobs.jobs.values().find(|job| job.name.as_str() == name).unwrap().schedule().unwrap().zone_name().to_owned()
    };
    assert_eq!((zone("first"), zone("second")), ("America/New_York".to_owned(), "Europe/Berlin".to_owned()));
    let notes = notes(crontab);
    for (line, name) in [(7, "CRON_TZ"), (8, "A"), (10, "RANDOM_DELAY"), (11, "MAILTO")] {
        let about = format!("{line}: {name}=: empty from here on, as in cronie since 2017");
        assert!(notes.iter().any(|note| note.starts_with(&about)), "{notes:?}");
    }
    assert!(notes.iter().any(|note| note.starts_with("9: not carried over: the shell must not be empty")), "{notes:?}");
}

#[test]
fn a_shell_that_is_reset_before_the_first_entry_is_not_shared() {
    let (yaml, _) = imported_as("SHELL=/bin/bash\nSHELL=''\n@daily x\n", false, None);
    assert!(!yaml.contains("bash"), "{yaml}");
}

#[test]
fn a_last_line_that_cron_does_not_take_is_noted() {
    let says = |crontab: &str, text: &str| {
        let notes = notes(crontab);
        assert!(notes.len() == 1 && notes[0].contains(text), "{crontab:?}: {notes:?}");
    };
    says("@daily x\n@daily y", "2: no newline at the end of the last line: cronie does not run this entry");
    says("@daily x\nA=1", "2: no newline at the end of the last line: cronie ignores this setting");
    for complete in ["@daily x\n", "@daily x\n# a comment", "@daily x\n\n", "@daily x\n  ", ""] {
        assert_eq!(notes(complete), [""; 0], "{complete:?}");
    }
}

#[test]
fn a_line_that_looks_continued_is_noted() {
    let noted = |crontab: &str| notes(crontab).iter().any(|note| note.contains("cron does not join lines"));
    for crontab in
        ["@daily x \\\n", "@daily x\\\n@daily y\n", "A=b:\\\n@daily x\n", "@daily x \\  \n", "@daily x \\\r\n"]
    {
        assert!(noted(crontab), "{crontab:?}");
    }
    for crontab in ["@daily x \\\\\n", "# x \\\n@daily x\n", "@daily x\\y\n"] {
        assert!(!noted(crontab), "{crontab:?}");
    }
}

#[test]
fn the_owner_of_a_crontab_is_the_user_of_its_jobs() {
    let (yaml, _) = imported_as("@daily x\n", false, Some("alice"));
    assert!(yaml.contains("  user: alice\n"), "{yaml}");
    assert!(!yaml.contains("# cron ran these entries as the owner"), "{yaml}");
    assert!(!imported_as("@daily x\n", false, Some("root")).0.contains("user: root"));
}

#[test]
fn a_random_delay_is_a_splay() {
    let (yaml, notes) =
        imported_as("RANDOM_DELAY=10\n@daily x\nRANDOM_DELAY=0\n@daily y\nRANDOM_DELAY=soon\n", false, None);
    assert!(yaml.contains("    splay: 10m\n") && yaml.contains("    splay: 0s\n"), "{yaml}");
    assert!(!notes.contains("1:"), "{notes}");
    assert!(notes.contains("5: RANDOM_DELAY=soon: not a number of minutes"), "{notes}");
}
