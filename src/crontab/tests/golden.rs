//! Golden files: `NAME.crontab` becomes `NAME.yaml`, with the notes in `NAME.notes`.
//!
//! To update them, run `GOLDEN_WRITE=1 cargo test --lib golden`.

use super::*;

struct Golden {
    name: &'static str,
    crontab: &'static str,
    yaml: &'static str,
    notes: &'static str,
}

macro_rules! golden {
    ($name:literal) => {
        Golden {
            name: $name,
            crontab: include_str!(concat!("golden/", $name, ".crontab")),
            yaml: include_str!(concat!("golden/", $name, ".yaml")),
            notes: include_str!(concat!("golden/", $name, ".notes")),
        }
    };
}

fn assert_golden(golden: &Golden, system: bool) {
    let imported = import(golden.crontab.as_bytes(), &origin(system)).unwrap();
    valid(&imported.yaml);
    let notes: String = imported.notes.iter().map(|note| format!("{}: {}\n", note.line, note.text)).collect();
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/crontab/tests/golden/");
        std::fs::write(format!("{directory}{}.yaml", golden.name), &imported.yaml).unwrap();
        std::fs::write(format!("{directory}{}.notes", golden.name), &notes).unwrap();
        return;
    }
    assert_eq!(imported.yaml, golden.yaml, "{}\n{}", golden.name, imported.yaml);
    assert_eq!(notes, golden.notes, "{}\n{notes}", golden.name);
}

#[test]
fn a_users_crontab() {
    assert_golden(&golden!("user"), false);
}

#[test]
fn debians_crontab_of_the_system() {
    assert_golden(&golden!("system"), true);
}

#[test]
fn a_crontab_of_invalid_entries() {
    assert_golden(&golden!("refused"), false);
}
