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
