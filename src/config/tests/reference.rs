//! docs/keys.md, made from the table of keys, so that it cannot tell anything else than the program.
//!
//! `CRONKEEPER_BLESS=1 cargo test reference` writes the file again.

use crate::config::channels::CHANNEL;
use crate::config::keys::KEYS;
use crate::config::raw::{Form, Key};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");

const HEAD: &str = "# The keys of jobs.yaml

Made from the table in `src/config/keys.rs`, like the schema that `cronkeeper schema` prints. A job may have each of them
once, and `defaults` may have all but `schedule`, `after` and `command`. `null` restores the built-in default.
[contract.md](contract.md#jobsyaml) has the rules that are about more than one key.

| key | value | meaning |
|---|---|---|
";

const CHANNELS: &str = "
## The keys of a channel

The top-level `notify` maps names to channels, which the jobs of all files can use. Each has exactly one of the first five keys.

| key | value | meaning |
|---|---|---|
";

fn values(form: Form) -> String {
    match form {
        Form::Text => "text".to_owned(),
        Form::Duration => "duration".to_owned(),
        Form::Size => "size".to_owned(),
        Form::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        Form::TextOrTexts => "text, or list of texts".to_owned(),
        Form::Flag => "`true`, `false`".to_owned(),
        Form::Number { least, most: u64::MAX } => format!("number, at least {least}"),
        Form::Number { least, most } => format!("number, {least} to {most}"),
        Form::Numbers => "list of numbers".to_owned(),
        Form::Texts => "map of texts".to_owned(),
        Form::Fields(_) | Form::Lists(_) => "map".to_owned(),
        Form::Named(_) => "map of maps".to_owned(),
        Form::Notify => "text, list of texts, or map of lists".to_owned(),
    }
}

fn rows(keys: &[Key], prefix: &str) -> String {
    let row = |key: &Key| {
        let own = format!("| `{prefix}{}` | {} | {} |\n", key.name, values(key.form), key.about.trim());
        match key.form {
            Form::Fields(fields) | Form::Lists(fields) => own + &rows(fields, &format!("{}.", key.name)),
            Form::Named(fields) => own + &rows(fields, &format!("{}.NAME.", key.name)),
            _ => own,
        }
    };
    keys.iter().map(row).collect()
}

#[test]
fn the_reference_describes_the_keys() {
    let made = format!("{HEAD}{}{CHANNELS}{}", rows(KEYS.of_jobs, ""), rows(CHANNEL, ""));
    if std::env::var_os("CRONKEEPER_BLESS").is_some() {
        std::fs::write(FILE, &made).unwrap();
    }
    let file = std::fs::read_to_string(FILE).unwrap();
    assert!(file == made, "docs/keys.md is outdated: CRONKEEPER_BLESS=1 renews it");
}
