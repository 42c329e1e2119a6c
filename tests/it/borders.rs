//! The layers within a crate: a module uses those above it in `lib.rs`, never those below. Cargo keeps the order between
//! the crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cronkeeper_core::log_event::EVENTS;

/// The folders of the crates. The first one's contains the others.
const CRATES: [&str; 3] = ["src", "src/core", "src/cluster"];

/// The modules in the order in which a crate's `lib.rs` declares them.
fn order(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("lib.rs")).expect("lib.rs can be read");
    let declared = text.lines().filter_map(|line| line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod ")));
    declared.map(|name| name.trim_end_matches(';').to_owned()).collect()
}

/// Every source file that is part of the program, with its text less comments and unit tests.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("src can be listed") {
        let path = entry.expect("src can be listed").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        // `fuzz` is declared for tests only, here and in modules.
        if name == "tests" || name == "tests_support" || name == "fuzz" {
            continue;
        }
        if CRATES.iter().any(|folder| path == Path::new(folder)) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source can be read");
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.push((path, code.collect::<Vec<_>>().join("\n")));
        }
    }
}

/// The top-level module that a file belongs to; absent for the crate's root and the binary.
fn module_of(path: &Path, folder: &Path) -> Option<String> {
    let inside = path.strip_prefix(folder).ok()?.components().next()?;
    let name = Path::new(inside.as_os_str()).file_stem()?.to_str()?.to_owned();
    (name != "lib" && name != "main").then_some(name)
}

/// The modules that the text names as `crate::module`, or in `crate::{module, ...}`.
fn used(text: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => drop(found.insert(word(rest))),
            Some(group) => {
                let (mut depth, mut start) = (0_usize, true);
                for (at, c) in group.char_indices() {
                    if depth == 0 && start && !c.is_whitespace() {
                        found.insert(word(&group[at..]));
                        start = false;
                    }
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

#[test]
fn a_module_uses_only_modules_above_it() {
    for folder in CRATES.map(Path::new) {
        let order = order(folder);
        let position = |name: &str| order.iter().position(|module| module == name);
        let mut files = Vec::new();
        sources(folder, &mut files);
        let mut edges_up = Vec::new();
        for (path, text) in &files {
            let Some(own) = module_of(path, folder) else { continue };
            let own_position = position(&own).unwrap_or_else(|| panic!("{} is declared in lib.rs", path.display()));
            let below = used(text).into_iter().filter(|name| position(name).is_some_and(|other| other > own_position));
            edges_up.extend(below.map(|name| format!("{} uses `{name}`, which is below `{own}`", path.display())));
        }
        assert!(files.len() > 80, "the sources of {} were found: {}", folder.display(), files.len());
        assert!(edges_up.is_empty(), "{edges_up:#?}");
    }
}

/// What commands print may reach a terminal, so the JSON of all of them is written in one place.
#[test]
fn commands_write_json_in_one_place() {
    let (mut files, place) = (Vec::new(), Path::new("src/cli/json.rs"));
    sources(Path::new("src/cli"), &mut files);
    let writes = |text: &str| ["serde_json::to_", "serde_json::Serializer"].iter().any(|call| text.contains(call));
    let others = files.iter().filter(|(path, text)| path != place && writes(text)).map(|(path, _)| path);
    // A cell of CSV is escaped as JSON, and then as a cell.
    let others: Vec<_> = others.filter(|path| *path != Path::new("src/cli/history/csv.rs")).collect();
    assert!(others.is_empty() && files.iter().any(|(path, _)| path == place), "{others:?}");
}

/// The levels that lines of each event name, by the event's constant; the empty one where they leave it to the table.
fn named_levels() -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(Path::new(folder), &mut files));
    let calls = files.iter().filter(|(path, _)| path != Path::new("src/core/log_event.rs"));
    let calls =
        calls.flat_map(|(_, text)| text.split("log!(").skip(1).filter_map(|rest| rest.split([',', ')']).next()));
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in calls {
        let (level, event) = call.trim().rsplit_once(char::is_whitespace).unwrap_or(("", call.trim()));
        named.entry(event.to_owned()).or_default().insert(level.trim().to_owned());
    }
    named
}

#[test]
fn each_event_is_logged_at_the_levels_that_its_table_lists() {
    let named = named_levels();
    for event in EVENTS.iter().filter(|event| event.name != "run.output") {
        let levels = named.get(&event.name.to_uppercase().replace('.', "_"));
        let levels = levels.unwrap_or_else(|| panic!("{} is logged", event.name));
        let listed: BTreeSet<String> = event.levels.iter().map(ToString::to_string).collect();
        // A macro of the place passes its level on.
        let is_passed_on = levels.contains("$level");
        let is_of_the_table = listed.len() == 1 && levels.iter().all(String::is_empty);
        assert!(is_passed_on || is_of_the_table || *levels == listed, "{}: {levels:?}", event.name);
    }
}

#[test]
fn grouped_and_nested_imports_are_read() {
    let text = "use crate::{election, ledger::{self, Commit}};\nlet x = crate::clock::Uptime::ZERO;";
    let expected = ["clock", "election", "ledger"].map(str::to_owned);
    assert_eq!(used(text), BTreeSet::from(expected));
}
