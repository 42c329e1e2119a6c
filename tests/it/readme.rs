//! What README.md, docs and the example tell operators is true: the files are there, the jobs are valid, the commands and
//! settings exist. That the commands do what is said there is for the other tests.

mod commands;
mod guides;
mod kubernetes;

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};
use cronkeeper::cli::{Cli, environment};
use cronkeeper::config::Content;
use cronkeeper_core::job::JobSet;
use cronkeeper_core::schedule::Dates;
use jiff::{SignedDuration, Timestamp};

/// Where the tests read their own settings.
const TESTS: [&str; 5] = [
    include_str!("../../benches/shared/short.rs"),
    include_str!("nemesis.rs"),
    include_str!("../simulation/trial.rs"),
    include_str!("../run.sh"),
    include_str!("../support/fuzz/mod.rs"),
];
const README: &str = include_str!("../../README.md");
const CONTRIBUTING: &str = include_str!("../../docs/CONTRIBUTING.md");
const CONTRACT: &str = include_str!("../../docs/contract.md");
/// What operators read.
const TEXTS: [&str; 5] = [
    README,
    include_str!("../../docs/jobs.md"),
    include_str!("../../docs/operations.md"),
    include_str!("../../docs/performance.md"),
    include_str!("../../docs/api.md"),
];
/// What operators read about a task.
const GUIDES: [&str; 11] = [
    include_str!("../../docs/guides/README.md"),
    include_str!("../../docs/guides/backup-and-restore.md"),
    include_str!("../../docs/guides/did-not-run.md"),
    include_str!("../../docs/guides/docker.md"),
    include_str!("../../docs/guides/events.md"),
    include_str!("../../docs/guides/from-cron.md"),
    include_str!("../../docs/guides/hosts.md"),
    include_str!("../../docs/guides/kubernetes.md"),
    include_str!("../../docs/guides/notifications.md"),
    include_str!("../../docs/guides/upgrade.md"),
    include_str!("../../docs/guides/zookeeper.md"),
];
const EXAMPLE: &str = include_str!("../../jobs/jobs.yaml");
const ENVIRONMENT: &str = include_str!("../../systemd/cronkeeper.env");
const CONTAINERFILE: &str = include_str!("../../docs/container/Containerfile");
const COMPOSE: [&str; 4] = [
    include_str!("../../docs/container/compose.yaml"),
    include_str!("../../docs/container/compose-etcd.yaml"),
    include_str!("../../docs/container/compose-postgres.yaml"),
    include_str!("../../docs/container/compose-redis.yaml"),
];
const MANIFESTS: [&str; 4] = [
    include_str!("../../docs/kubernetes/jobs.yaml"),
    include_str!("../../docs/kubernetes/poddisruptionbudget.yaml"),
    include_str!("../../docs/kubernetes/services.yaml"),
    include_str!("../../docs/kubernetes/statefulset.yaml"),
];

fn texts() -> impl Iterator<Item = &'static str> {
    TEXTS.into_iter().chain(GUIDES)
}

fn jobs(text: &str) -> JobSet {
    let calendars = [("holidays.txt", "12-25\n"), ("clearing-days.txt", "06-01\n")];
    let calendars = calendars.map(|(name, dates)| (name.into(), dates.into()));
    let content = Content::of_files("jobs.yaml".as_ref(), [("jobs.yaml".into(), text.as_bytes().to_owned())]);
    let loaded = content.with_calendars(calendars).load_for_any_host().expect("the jobs are valid");
    assert_eq!(loaded.warnings, [], "{text}");
    loaded.set
}

#[test]
fn the_calendar_is_understood() {
    let calendars: Vec<_> = TEXTS.iter().flat_map(|text| text.split("```text\n# Holidays").skip(1)).collect();
    assert_eq!(calendars.len(), 1);
    Dates::parse(calendars[0].split("```").next().unwrap().split_once('\n').unwrap().1).expect("the dates are valid");
}

/// The lines between ```` ```yaml ```` and its end, for each such block.
fn yaml_blocks() -> Vec<&'static str> {
    let rest = texts().flat_map(|text| text.split("```yaml\n").skip(1));
    rest.map(|rest| rest.split("```").next().expect("a split has a first part")).collect()
}

/// The indented lines and the text between backticks, without comments and redirections.
fn commands() -> impl Iterator<Item = &'static str> {
    let lines = || texts().flat_map(str::lines);
    let indented = lines().filter(|line| line.starts_with("    ")).map(str::trim);
    let quoted = lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let command =
        |line: &'static str| line.split(" #").next().unwrap_or_default().split(" > ").next().unwrap_or_default();
    indented.chain(quoted).map(move |line| command(line).trim())
}

#[test]
fn the_example_is_valid_and_something_is_due_at_any_time_within_ten_seconds() {
    let jobs = jobs(EXAMPLE);
    let start: Timestamp = "2026-11-20T23:59:51Z".parse().unwrap();
    for seconds in 0..90 {
        let now = start + SignedDuration::from_secs(seconds);
        let enabled = jobs.jobs.values().filter(|job| job.enabled);
        let next = enabled.filter_map(|job| job.next_after(now)).min().unwrap();
        assert!(next.duration_since(now) <= SignedDuration::from_secs(10), "{now}");
    }
}

#[test]
fn the_jobs_in_the_texts_are_valid() {
    let blocks = yaml_blocks();
    assert!(!blocks.is_empty());
    for block in blocks {
        assert!(!jobs(block).jobs.is_empty());
    }
}

#[test]
fn the_commands_in_the_texts_exist() {
    let mut runs = 0;
    for command in commands() {
        let line = command.strip_prefix("cargo run --release -- ").or_else(|| command.strip_prefix("cronkeeper "));
        let Some(line) = line else { continue };
        let words = std::iter::once("cronkeeper").chain(line.split_whitespace());
        match Cli::try_parse_from(words) {
            Ok(_) => runs += 1,
            Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {}
            // The name of a command, in a sentence.
            Err(error) if error.kind() == clap::error::ErrorKind::MissingRequiredArgument && !line.contains(' ') => {}
            Err(error) => panic!("{command}: {error}"),
        }
    }
    assert!(runs > 3, "{runs}");
}

#[test]
fn the_contract_names_every_command_and_option() {
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        assert!(CONTRACT.contains(&format!("`cronkeeper {name}")), "{name}");
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        for option in options.filter_map(clap::Arg::get_long).filter(|option| *option != "help") {
            let is_named = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            let option = format!("--{option}");
            assert!(CONTRACT.split(&option).skip(1).any(is_named), "{name} {option}");
        }
    }
}

#[test]
fn the_files_in_the_texts_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for words in commands().map(str::split_whitespace) {
        for word in words.filter(|word| ["jobs/", "systemd/", "tests/"].iter().any(|folder| word.starts_with(folder))) {
            assert!(root.join(word).exists(), "{word}");
        }
    }
}

#[test]
fn the_settings_in_the_texts_and_in_the_environment_file_exist() {
    for text in texts().chain(COMPOSE).chain(MANIFESTS).chain([CONTRIBUTING, ENVIRONMENT, CONTAINERFILE]) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // `CRONKEEPER_` alone means all of them.
        let names = words.filter(|word| word.starts_with("CRONKEEPER_") && *word != "CRONKEEPER_");
        // An option of the tests is no setting of the program's.
        let names = names.filter(|name| !TESTS.iter().any(|text| text.contains(name)));
        let variables = names.map(|name| (name.to_owned(), "x".to_owned()));
        environment::check(&Cli::command(), variables).unwrap();
    }
}

/// What lies in a folder and below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder can be listed").map(|entry| entry.expect("it can").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Without `-i` a line of a single dot, which a job may print, ends the mail.
#[test]
fn sendmail_is_shown_only_with_the_option_that_lets_a_single_dot_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_folders = ["docs", "jobs", "systemd"].iter().flat_map(|folder| files(&root.join(folder)));
    let mut shown = 0;
    for path in of_folders.chain([root.join("README.md")]) {
        // An image is no text. A manual page has a backslash before a hyphen.
        let Ok(text) = std::fs::read_to_string(&path).map(|text| text.replace('\\', "")) else { continue };
        for line in text.lines() {
            for (at, name) in line.match_indices("sendmail") {
                let (before, after) = (line[..at].trim_end(), &line[at + name.len()..]);
                let words = after.split([' ', ',', ']', '`', '\'', '"', ')']).filter(|word| !word.is_empty());
                let options: Vec<&str> = words.take_while(|word| word.starts_with('-')).collect();
                // Elsewhere it is the subject of a sentence.
                if before.ends_with(['/', '`', '|', '(', ':', '[', '\'', '"']) || !options.is_empty() {
                    shown += 1;
                    assert!(options.contains(&"-i"), "{}: {line}", path.display());
                }
            }
        }
    }
    assert!(shown >= 4, "{shown}");
}

#[test]
fn the_readme_is_short_and_names_every_document() {
    assert!(README.lines().count() < 150, "{}", README.lines().count());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for document in std::fs::read_dir(docs).expect("docs is there") {
        let name = document.expect("docs can be listed").file_name().into_string().expect("a name is UTF-8");
        // The layers are for those who change them, and CONTRIBUTING names them.
        let is_named = README.contains(&format!("docs/{name}")) || CONTRIBUTING.contains(&name);
        assert!(is_named, "{name}");
    }
}

#[test]
fn the_commands_and_files_of_the_containers_exist() {
    let words = |instruction: &str| -> Vec<&str> {
        let line = CONTAINERFILE.lines().find(|line| line.starts_with(instruction));
        let line = line.unwrap_or_else(|| panic!("no line begins with {instruction}"));
        line.split('"').skip(1).step_by(2).collect()
    };
    Cli::try_parse_from(words("HEALTHCHECK ")).unwrap();
    Cli::try_parse_from([words("ENTRYPOINT "), words("CMD ")].concat()).unwrap();

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/container");
    for compose in COMPOSE {
        let mounted = compose.split(['[', ',', ' ', ']', ':']).filter(|word| word.starts_with("../../"));
        for file in mounted {
            assert!(root.join(file).exists(), "{file}");
        }
        let built = compose.lines().find_map(|line| line.trim().strip_prefix("dockerfile: "));
        assert!(root.join("../..").join(built.expect("the nodes are built")).exists());
    }
}
