//! Keys that this version may not have yet: written where it has them, told of where it has not.

use super::*;

fn said(crontab: &str, system: bool, owner: Option<&str>) -> (String, String) {
    let origin = Origin { owner, ..origin(system) };
    let imported = import(crontab.as_bytes(), &origin).unwrap();
    (imported.yaml, imported.notes.into_iter().map(|note| format!("{}: {}\n", note.line, note.text)).collect())
}

#[test]
fn a_user_is_a_key_or_a_note() {
    let (yaml, notes) = said("@daily www-data:ssl x\n@hourly root y\n", true, None);
    if config::supports("user") {
        assert!(yaml.contains("    user: www-data\n") && !yaml.contains("user: root"), "{yaml}");
    } else {
        assert!(yaml.contains("  # user: www-data (not supported yet"), "{yaml}");
        assert_eq!(yaml.matches("enabled: false").count(), 1, "{yaml}");
        assert!(notes.starts_with("1: user: www-data (not supported yet") && !notes.contains("\n2:"), "{notes}");
    }
    if config::supports("group") {
        assert!(yaml.contains("    group: ssl\n"), "{yaml}");
    } else {
        assert!(notes.contains("1: group: ssl (not supported yet"), "{notes}");
    }
}

#[test]
fn the_owner_of_a_crontab_is_the_user_of_its_jobs() {
    let (yaml, _) = said("@daily x\n", false, Some("alice"));
    let is_told = yaml.contains("# cron ran these as the user whose crontab it is");
    assert_eq!(
        (yaml.contains("  user: alice\n"), is_told),
        (config::supports("user"), !config::supports("user")),
        "{yaml}"
    );
    assert!(!said("@daily x\n", false, Some("root")).0.contains("user: root"));
}

#[test]
fn a_random_delay_is_a_splay_or_a_note() {
    let (yaml, notes) = said("RANDOM_DELAY=10\n@daily x\nRANDOM_DELAY=0\n@daily y\nRANDOM_DELAY=soon\n", false, None);
    if config::supports("splay") {
        assert!(yaml.contains("    splay: 10m\n") && yaml.contains("    splay: 0s\n"), "{yaml}");
        assert!(!notes.contains("1:"), "{notes}");
    } else {
        assert!(notes.contains("1: RANDOM_DELAY=10: `splay: 10m` is not supported yet"), "{notes}");
    }
    assert!(notes.contains("5: RANDOM_DELAY=soon: no number of minutes"), "{notes}");
}
