//! The JSON Schema and the parser, held against each other.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::config::raw::{Form, Key};
use crate::config::spanned::{Node, Value};

static SCHEMA: LazyLock<jsonschema::Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&json_schema::document()).expect("the schema is valid"));

/// A file as an editor reads it: YAML 1.2 types, keys as texts.
fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::Text { text, plain: true } => match text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Json::Null,
            "true" | "True" | "TRUE" => true.into(),
            "false" | "False" | "FALSE" => false.into(),
            _ => match serde_yaml::from_str(text) {
                Ok(Json::Number(number)) => Json::Number(number),
                _ => text.as_str().into(),
            },
        },
        Value::Text { text, .. } => text.as_str().into(),
        Value::List(items) => items.iter().map(|item| as_json(item)).collect(),
        Value::Map(entries) => {
            Json::Object(entries.iter().map(|entry| (entry.key.clone(), as_json(&entry.value))).collect())
        }
    }
}

/// What the schema objects to in a file that is YAML.
fn objections(text: &[u8]) -> Vec<String> {
    let root = spanned::read(source::text(text).unwrap()).root.expect("it is YAML");
    SCHEMA.iter_errors(&as_json(&root)).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// A file that the parser accepts must be valid for the schema too.
pub(super) fn assert_valid(text: &[u8]) {
    assert_eq!(objections(text), [""; 0], "{}", String::from_utf8_lossy(text));
}

/// The texts of these files of the repository.
fn files() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_folder = |folder: &str| std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let folders = ["jobs", "tests/corpus/jobs-file", "src/crontab/tests/golden"].into_iter().flat_map(in_folder);
    let yaml = folders.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    yaml.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// The examples in the documentation.
fn examples() -> impl Iterator<Item = String> {
    let texts = [include_str!("../../../docs/jobs.md"), include_str!("../../../docs/contract.md")];
    let blocks = texts.into_iter().flat_map(|text| text.split("```yaml\n").skip(1));
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).filter(|text| text.contains("jobs:"))
}

#[test]
fn every_valid_file_of_the_repository_is_valid_for_the_schema() {
    let mut valid = 0;
    for (path, text) in files() {
        if parse(&path.to_string_lossy(), &text).is_ok() {
            valid += 1;
            assert_valid(&text);
        }
    }
    assert!(valid >= 5, "{valid}");
    let examples: Vec<_> = examples().collect();
    assert!(examples.len() >= 3);
    // Not every example is valid as a whole: the contract's has all keys in one job.
    examples.iter().for_each(|text| assert_valid(text.as_bytes()));
}

/// Values of a type that a form does not take.
fn wrong_values(form: Form) -> &'static [&'static str] {
    match form {
        Form::Text => &["[x]", "{a: b}"],
        Form::Duration | Form::Size | Form::Words(_) => &["[x]", "{a: b}", "nonsense", "17", "true"],
        Form::TextOrTexts => &["{a: b}", "1.5", "[[x]]"],
        Form::Notify => &["[[x]]", "{a: [b]}", "{a: {b: c}}", "{a: leader_changed}", "[a b]"],
        Form::Flag => &["yes", "1", "[true]"],
        Form::Number { .. } => &["x", "-1", "0", "[1]"],
        Form::Numbers => &["1", "[x]", "[-1]", "[256]", "[]", "{a: 1}"],
        Form::Texts => &["x", "[x]", "{a: [x]}", "{a: ~}", "{a b: x}", "1"],
        Form::Fields(_) | Form::Lists(_) => &["x", "[x]", "{unknown: 1}", "1"],
        Form::Named(_) => &["x", "[x]", "{A: x}", "{A: {unknown: 1}}", "{A: {}}", "{A: ~}", "{A: {file: ~}}", "1"],
    }
}

/// True if the parser, and if the schema, refuses a job with this key.
fn refused(key: &str, value: &str) -> (bool, bool) {
    let due = if key == "schedule" || key == "after" { "" } else { "schedule: '@daily'" };
    let command = if key == "command" { "" } else { "command: x" };
    let text = format!("jobs:\n  a:\n    {due}\n    {command}\n    {key}: {value}\n");
    (parse("j", text.as_bytes()).is_err(), !objections(text.as_bytes()).is_empty())
}

#[test]
fn a_value_of_the_wrong_type_is_refused_by_both() {
    for Key { name, form, .. } in keys::KEYS.of_jobs {
        for value in wrong_values(*form) {
            assert_eq!(refused(name, value), (true, true), "{name}: {value}");
        }
        let Form::Fields(fields) = form else { continue };
        for field in *fields {
            for value in ["[x]", "{a: b}"] {
                assert_eq!(refused(name, &format!("{{{}: {value}}}", field.name)), (true, true), "{}", field.name);
            }
        }
    }
    for (key, value) in [("unknown", "x"), ("after", "{}"), ("after", "{b: maybe}"), ("history_limit", "1001")] {
        assert_eq!(refused(key, value), (true, true), "{key}: {value}");
    }
    for text in ["[]", "jobs: []", "jobs: {a b: {schedule: '@daily', command: x}}", "defaults: {}", "jobs: {}\nx: 1"] {
        assert!(parse("j", text.as_bytes()).is_err() && !objections(text.as_bytes()).is_empty(), "{text}");
    }
    for job in ["{command: x}", "{schedule: '@daily'}", "{schedule: '@daily', command: ~}"] {
        let text = format!("jobs: {{a: {job}}}");
        assert!(parse("j", text.as_bytes()).is_err() && !objections(text.as_bytes()).is_empty(), "{text}");
    }
    for key in keys::KEYS.not_in_defaults {
        let text = format!("defaults: {{{key}: x}}\njobs: {{}}");
        assert!(parse("j", text.as_bytes()).is_err() && !objections(text.as_bytes()).is_empty(), "{text}");
    }
}

#[test]
fn every_key_is_described_and_in_the_contract() {
    fn described(schema: &Json) {
        for (name, key) in schema["properties"].as_object().unwrap() {
            let description = key["description"].as_str().unwrap_or_default();
            assert!(description.ends_with('.') && !description.contains("  "), "{name}: {description}");
            if key["properties"].is_object() {
                described(key);
            }
        }
    }
    let schema = json_schema::document();
    described(&schema);
    described(&schema["$defs"]["job"]);
    let contract = include_str!("../../../docs/contract.md");
    let section = contract.split("\n## ").find(|section| section.starts_with("jobs.yaml")).unwrap();
    for key in keys::KEYS.of_jobs {
        assert!(section.contains(key.name), "{}", key.name);
    }
}

#[test]
fn words_and_bounds_of_the_schema_are_those_of_the_parser() {
    let job = &json_schema::document()["$defs"]["job"]["properties"];
    assert_eq!(job["overlap"]["enum"], json!(["skip", "queue", "allow", "replace", null]));
    for (key, form) in keys::KEYS.of_jobs.iter().map(|key| (key.name, key.form)) {
        let accepted: Vec<String> = match form {
            Form::Words(words) => words.iter().map(ToString::to_string).collect(),
            Form::Number { least, most } => [least, most.min(10_000)].map(|number| number.to_string()).to_vec(),
            _ => continue,
        };
        for value in accepted {
            // A value that contradicts others of the job is not tested here.
            assert_eq!(refused(key, &value), (false, false), "{key}: {value}");
        }
    }
}

/// A value of a form, valid or nearly so.
fn value(form: Form) -> BoxedStrategy<String> {
    let pick = |texts: &'static [&'static str]| prop::sample::select(texts).prop_map(str::to_owned);
    match form {
        Form::Text => pick(&["x", "1", "-5", "0027", "'10'", "true", "~", "/tmp", "UTC", "Europe/Berlin"]).boxed(),
        Form::Duration => "[0-9]{1,2}(d|h|m|s|ms)([0-9]{1,2}(s|ms))?|~".boxed(),
        Form::Size => "[0-9]{1,3}(B|KiB|MiB|GiB|TiB)|~".boxed(),
        Form::Words(words) => prop::sample::select(words).prop_map(str::to_owned).boxed(),
        Form::TextOrTexts => {
            pick(&["x", "true", "[x, 1.5, ~, true]", "'@daily'", "['@daily', 0 5 * * *]", "/locks/a", "[/a, /b]", "~"])
                .boxed()
        }
        Form::Flag => pick(&["true", "false", "~"]).boxed(),
        Form::Number { .. } => "[0-9]{1,4}".boxed(),
        Form::Numbers => pick(&["[0]", "[0, 255]", "[1, 1]", "~"]).boxed(),
        Form::Texts => pick(&["{b: success}", "{b: always}", "{A: x, B: 1.5, C: true}", "{A-b: \"\"}", "~"]).boxed(),
        Form::Notify => pick(&["none", "[]", "~", "{}"]).boxed(),
        // A named file cannot be read here.
        Form::Lists(_) => pick(&["{}", "~", "{exclude: ~}", "{exclude: []}", "{only: x}"]).boxed(),
        Form::Named(_) => pick(&["{A: {file: /x}, B: {file: /y}}", "{A: {file: 7}}", "{A: {}}", "{}", "~"]).boxed(),
        Form::Fields(fields) => {
            let fields = prop::sample::subsequence(fields, 0..=fields.len());
            let each = fields.prop_flat_map(|fields| {
                let of = |field: &Key| (Just(field.name), value(field.form).boxed());
                fields.iter().map(of).collect::<Vec<_>>()
            });
            each.prop_map(|each| {
                let each: Vec<String> = each.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
                format!("{{{}}}", each.join(", "))
            })
            .boxed()
        }
    }
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn what_the_parser_accepts_is_valid_for_the_schema(
        keys in prop::sample::subsequence(keys::KEYS.of_jobs, 0..8)
            .prop_flat_map(|keys| keys.iter().map(|key| (Just(key.name), value(key.form))).collect::<Vec<_>>())
    ) {
        let mut text = "jobs:\n  b: {schedule: '@daily', command: x}\n  a:\n".to_owned();
        let has = |wanted: &str| keys.iter().any(|(key, _)| *key == wanted);
        if !has("schedule") && !has("after") {
            text.push_str("    schedule: '@daily'\n");
        }
        if !has("command") {
            text.push_str("    command: x\n");
        }
        for (key, value) in &keys {
            text.push_str(&format!("    {key}: {value}\n"));
        }
        if parse("j", text.as_bytes()).is_ok() {
            assert_valid(text.as_bytes());
        }
    }
}
