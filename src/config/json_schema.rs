//! The JSON Schema of jobs.yaml, for editors. Made from the table of keys, so it has the keys that the parser knows.
//!
//! It accepts every file that the parser accepts. It refuses wrong keys, types, words, durations and sizes; what depends
//! on more than one value, on the host or on the time is left to `cronkeeper check`.

use serde_json::{Map, Value, json};

use super::after::MAX_ADJACENT;
use super::channels::CHANNEL;
use super::keys::KEYS;
use super::raw::{Form, Key};
use super::settings::MOST_SECRETS;
use cronkeeper_core::job::{Condition, NoticeKind};

/// A text that YAML may read as something else: every text of jobs.yaml is taken as written, quoted or not.
const SCALAR: [&str; 3] = ["string", "number", "boolean"];
const DURATION: &str = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";
const SIZE: &str = "^[0-9]+(B|KiB|MiB|GiB|TiB)$";
const JOB_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$";
const CHANNEL_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$";
const VARIABLE_NAME: &str = r"^[^=\s]+$";

/// The schema, in draft 2020-12.
pub fn document() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cronkeeper jobs.yaml",
        "description": "Jobs of cronkeeper. `cronkeeper check` finds what this schema cannot.",
        "type": "object",
        "properties": {
            "defaults": {
                "description": "Values for the jobs of this file that do not have the key themselves.",
                "type": ["object", "null"],
                "properties": keys(KEYS.of_jobs.iter().filter(|key| !KEYS.not_in_defaults.contains(&key.name))),
                "additionalProperties": false,
            },
            "jobs": {
                "description": "The jobs by name.",
                "type": "object",
                "propertyNames": { "pattern": JOB_NAME },
                "additionalProperties": { "$ref": "#/$defs/job" },
            },
            "notify": {
                "description": "The channels of notifications, by name.",
                "type": ["object", "null"],
                "propertyNames": { "pattern": CHANNEL_NAME },
                "additionalProperties": {
                    "type": "object",
                    "properties": keys(CHANNEL.iter()),
                    "additionalProperties": false,
                },
            },
        },
        "required": ["jobs"],
        "additionalProperties": false,
        "$defs": {
            "job": {
                "type": "object",
                "properties": keys(KEYS.of_jobs.iter()),
                "allOf": [has("command")],
                "oneOf": [has("schedule"), has("after")],
                "additionalProperties": false,
            },
        },
    })
}

/// Matches a map with this key and a value for it.
fn has(key: &str) -> Value {
    json!({ "required": [key], "properties": { key: { "not": { "type": "null" } } } })
}

fn keys<'a>(keys: impl Iterator<Item = &'a Key>) -> Value {
    let described = keys.map(|key| {
        let mut schema = of_form(key);
        schema.insert("description".to_owned(), key.about.trim().into());
        (key.name.to_owned(), Value::Object(schema))
    });
    Value::Object(described.collect())
}

/// The values of a key. Null restores the default.
fn of_form(Key { name, form, .. }: &Key) -> Map<String, Value> {
    let schema = match form {
        Form::Text => json!({ "type": with_null(&SCALAR) }),
        Form::Duration => json!({ "type": ["string", "null"], "pattern": DURATION, "minLength": 2 }),
        Form::Size => json!({ "type": ["string", "null"], "pattern": SIZE }),
        Form::Words(words) => {
            let words = words.iter().map(|word| json!(word)).chain([Value::Null]);
            json!({ "enum": words.collect::<Vec<_>>() })
        }
        // What a channel gets.
        Form::TextOrTexts if *name == "on" => {
            let words: Vec<Value> = kinds(true).collect();
            json!({ "anyOf": [
                { "enum": words.iter().cloned().chain([Value::Null]).collect::<Vec<_>>() },
                { "type": "array", "items": { "enum": words } },
            ] })
        }
        // `command: true` is the program of that name.
        Form::TextOrTexts => json!({
            "type": ["string", "boolean", "array", "null"],
            "items": { "type": with_null(&SCALAR) },
        }),
        Form::Flag => json!({ "type": ["boolean", "null"] }),
        Form::Number { least, most: u64::MAX } => json!({ "type": ["integer", "null"], "minimum": least }),
        Form::Number { least, most } => json!({ "type": ["integer", "null"], "minimum": least, "maximum": most }),
        Form::Numbers => json!({
            "type": ["array", "null"],
            "items": { "type": "integer", "minimum": 0, "maximum": 255 },
            "minItems": 1,
        }),
        Form::Texts if *name == "after" => json!({
            "type": ["object", "null"],
            "propertyNames": { "pattern": JOB_NAME },
            "additionalProperties": { "enum": [Condition::Success.as_str(), Condition::Always.as_str()] },
            "minProperties": 1,
            "maxProperties": MAX_ADJACENT,
        }),
        Form::Texts => json!({
            "type": ["object", "null"],
            "propertyNames": { "pattern": VARIABLE_NAME },
            "additionalProperties": { "type": SCALAR },
        }),
        Form::Named(fields) => json!({
            "type": ["object", "null"],
            "propertyNames": { "pattern": VARIABLE_NAME },
            "maxProperties": MOST_SECRETS,
            "additionalProperties": {
                "type": "object",
                "properties": required_keys(fields),
                "required": fields.iter().map(|field| field.name).collect::<Vec<_>>(),
                "additionalProperties": false,
            },
        }),
        Form::Notify => json!({
            "type": ["string", "array", "object", "null"],
            "items": { "type": "string", "pattern": CHANNEL_NAME },
            "propertyNames": { "pattern": CHANNEL_NAME },
            "additionalProperties": { "anyOf": [
                { "enum": kinds(false).chain([Value::Null]).collect::<Vec<_>>() },
                { "type": "array", "items": { "enum": kinds(false).collect::<Vec<_>>() } },
            ] },
        }),
        Form::Fields(fields) | Form::Lists(fields) => json!({
            "type": ["object", "null"],
            "properties": keys(fields.iter()),
            "additionalProperties": false,
        }),
    };
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// The words of events.
fn kinds(takes_cluster: bool) -> impl Iterator<Item = Value> {
    let kinds = NoticeKind::ALL.into_iter().filter(move |kind| takes_cluster || !kind.is_of_cluster());
    kinds.map(|kind| kind.as_str().into())
}

/// Keys without a default, which null could restore.
fn required_keys(fields: &[Key]) -> Value {
    let described = fields.iter().map(|key| {
        let schema = json!({ "type": SCALAR, "description": key.about });
        (key.name.to_owned(), schema)
    });
    Value::Object(described.collect())
}

fn with_null<'a>(types: &[&'a str]) -> Vec<&'a str> {
    [types, &["null"]].concat()
}
