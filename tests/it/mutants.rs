//! The deliberate bugs of `tests/mutants` still fit the tree, and the tests that must find them exist. Whether they are
//! found is for `tests/mutants.sh`: each of them is a build.

use std::fs;
use std::path::{Path, PathBuf};

fn patches() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let patches = paths.filter(|path| path.extension().is_some_and(|extension| extension == "patch"));
    let read = |path: PathBuf| (path.file_stem().unwrap().to_string_lossy().into_owned(), read(&path));
    patches.map(read).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files that a patch changes, each with the lines that it must contain, hunk by hunk.
fn hunks(patch: &str) -> Vec<(&str, String)> {
    let mut hunks: Vec<(&str, String)> = Vec::new();
    let mut file = "";
    let diff = patch.lines().skip_while(|line| !line.starts_with("diff "));
    for line in diff {
        if let Some(path) = line.strip_prefix("--- a/") {
            file = path;
        } else if line.starts_with("@@ ") {
            hunks.push((file, String::new()));
        } else if let (Some(old), Some((_, text))) = (line.strip_prefix([' ', '-']), hunks.last_mut())
            && !line.starts_with("---")
        {
            text.push_str(old);
            text.push('\n');
        }
    }
    hunks
}

/// A line of a patch's head.
fn head<'a>(patch: &'a str, key: &str) -> Option<&'a str> {
    let head = patch.lines().take_while(|line| !line.starts_with("diff "));
    head.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).next()
}

#[test]
fn every_deliberate_bug_fits_the_tree() {
    let patches = patches();
    assert!(patches.len() >= 11, "there are only {}", patches.len());
    for (name, patch) in patches {
        let hunks = hunks(&patch);
        assert!(!hunks.is_empty(), "`{name}` changes nothing");
        for (file, old) in hunks {
            let text = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
            assert!(
                text.contains(&old),
                "tests/mutants/{name}.patch does not fit {file} any more. Make the same bug in the tree as it is, put \
                 `git diff` below the patch's head, and see with `tests/mutants.sh {name}` that it is found. It expects:\n{old}"
            );
        }
    }
}

#[test]
fn every_deliberate_bug_says_what_it_is_and_which_test_finds_it() {
    for (name, patch) in patches() {
        for key in ["Bug", "Rule", "Test", "Says"] {
            assert!(head(&patch, key).is_some_and(|line| !line.is_empty()), "`{name}` has no `{key}:`");
        }
        let test = head(&patch, "Test").unwrap_or_default();
        let (module, function) = test.rsplit_once("::").unwrap_or_default();
        // The test binary and the module in it, or the crate that it is a unit test of.
        let path = match module.split_once("::") {
            Some(("simulation", _)) => format!("tests::{module}"),
            Some(("cluster" | "core", _)) => format!("src::{module}"),
            _ => format!("tests::it::{module}"),
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path.replace("::", "/") + ".rs");
        let text = read(&file);
        // The attribute, which makes it a test, is right above it.
        let heads = ["test]\nfn", "test]\n    fn", "test]\nasync fn", "test(start_paused = true)]\nasync fn"];
        let heads = heads.map(|head| format!("{head} {function}("));
        let body = heads.iter().find_map(|head| text.split_once(head)).map(|(_, body)| body);
        let body = body.unwrap_or_else(|| panic!("`{name}`: there is no test `{test}`"));
        // Without a limit it would be given as many seeds as in a run of all tests, so nobody would notice that the bug
        // is hard to find.
        let tries_seeds = body.lines().take_while(|line| *line != "}").any(|line| line.contains("many::<"));
        let seeds = head(&patch, "Seeds").map(str::parse::<u64>);
        assert_eq!(seeds.is_some(), tries_seeds, "`{name}`: `Seeds:` belongs to tests that try many, and only to them");
        assert!(seeds.is_none_or(|seeds| seeds.is_ok()), "`{name}`: `Seeds:` is no number");
    }
}
