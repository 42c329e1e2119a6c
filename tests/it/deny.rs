//! `.ci/deny` and what `.ci/run` makes of it, with a cargo that stands in for the real one: no dependency passes
//! unchecked without a word, and no machine that cannot reach the advisories or build packages fails for that.

use std::path::Path;

use crate::support::command;
use crate::support::process::output;
use crate::support::scratch::Scratch;

/// What the stand-in for `cargo deny` can do.
#[derive(Clone, Copy)]
enum Deny {
    Missing,
    /// Without the advisories.
    Offline,
    Complete,
    /// And finds something.
    Complaining,
}

/// The scripts, in a tree where all else that they call succeeds.
struct Tree(Scratch);

impl Tree {
    fn new() -> Self {
        let tree = Scratch::new("deny");
        for folder in [".ci", "tests", "bin"] {
            std::fs::create_dir(tree.path().join(folder)).unwrap();
        }
        for script in ["deny", "run"] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").join(script);
            std::fs::copy(from, tree.path().join(".ci").join(script)).unwrap();
        }
        tree.write("tests/run.sh", "echo 'the tests have run' >&2\n");
        // Fails as `.ci/package --tools` does where the tools are missing.
        tree.write(".ci/package", "[[ ! -e no-tools ]] || { echo 'missing: rpmbuild' >&2; exit 69; }\n");
        tree.write(".ci/benches", "");
        Self(tree)
    }

    /// Runs a script. Returns its exit code and what it says.
    fn run(&self, script: &str, deny: Deny) -> (Option<i32>, String) {
        let of_deny = match deny {
            Deny::Missing => "exit 101",
            Deny::Offline => "[[ $* != *fetch* && $* != *advisories* ]]",
            Deny::Complete => "exit 0",
            Deny::Complaining => "[[ $* != *advisories* ]]",
        };
        // What is missing cannot be installed either: there is no network.
        let cargo = format!("#!/bin/bash\ncase $1 in deny) {of_deny} ;; install) exit 101 ;; esac\n");
        let cargo = self.0.program("bin/cargo", &cargo);
        let path = format!("{}:{}", cargo.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let script = self.0.path().join(".ci").join(script);
        let (code, _, err) = command::texts(&output("bash", |command| {
            command.arg(script).env("PATH", path);
        }));
        (code, err)
    }
}

#[test]
fn dependencies_whose_advisories_cannot_be_had_are_not_checked_in_silence() {
    let tree = Tree::new();
    assert_eq!(tree.run("deny", Deny::Complete), (Some(0), String::new()));
    assert_eq!(tree.run("deny", Deny::Complaining).0, Some(1));
    let (code, err) = tree.run("deny", Deny::Offline);
    assert_eq!(code, Some(75), "{err}");
    assert!(err.contains("NOT CHECKED for known vulnerabilities: "), "{err}");
    assert_eq!(tree.run("deny", Deny::Missing).0, Some(101), "it cannot be installed");
}

#[test]
fn a_machine_without_the_advisories_passes_and_says_at_the_end_what_was_not_checked() {
    let tree = Tree::new();
    assert_eq!(tree.run("run", Deny::Complaining).0, Some(1));
    let (code, err) = tree.run("run", Deny::Complete);
    assert!(code == Some(0) && !err.contains("NOT CHECKED"), "{code:?}: {err}");
    for (deny, what) in [(Deny::Offline, "known vulnerabilities"), (Deny::Missing, "cargo-deny is missing")] {
        let (code, err) = tree.run("run", deny);
        let last = err.lines().last().unwrap_or_default();
        assert_eq!(code, Some(0), "{err}");
        assert!(last.starts_with("NOT CHECKED") && last.contains(what), "{err}");
    }
}

#[test]
fn a_machine_without_the_tools_for_packages_passes_and_says_what_it_lacks() {
    let tree = Tree::new();
    tree.0.write("no-tools", "");
    let (code, err) = tree.run("run", Deny::Complete);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.ends_with("NOT CHECKED: the packages: missing: rpmbuild\n"), "{err}");
}
