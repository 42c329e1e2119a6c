//! docs/openapi.json, made from the types of the API, so that it cannot tell anything else than the program.
//!
//! `CRONKEEPER_BLESS=1 cargo test openapi` writes the file again.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::ErrorBody;
use super::control::{KillBody, Killing, RunAnswer, TriggerBody, Triggered};
use super::definitions::Served;
use super::health::{Healthy, Readiness};
use super::history::History;
use super::index::{self, Index};
use super::next::Coming;
use super::nodes::{DrainBody, Drained, ForgetBody, ForgottenNode, HandedOver, HandoverBody, UndrainBody, Undrained};
use super::output::OutputPage;
use super::pauses::{PauseBody, PauseManyBody, Paused, PausedMany, ResumeBody, ResumeManyBody, Resumed, ResumedMany};
use super::recount::{RecountBody, Recounting};
use super::show::{Jobs, OneJob};
use crate::status::{NodesDocument, Status};

/// Gives the schema of a type.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A request: its body, what it answers with 200, and the other codes it may answer with.
struct Described {
    request: &'static str,
    body: Option<SchemaOf>,
    answer: SchemaOf,
    errors: &'static [u16],
    /// Names and descriptions.
    query: &'static [(&'static str, &'static str)],
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn get(request: &'static str, answer: SchemaOf, errors: &'static [u16]) -> Described {
    Described { request, body: None, answer, errors, query: &[] }
}

const fn post(request: &'static str, body: SchemaOf, answer: SchemaOf, errors: &'static [u16]) -> Described {
    Described { request, body: Some(body), answer, errors, query: &[] }
}

const FILTER: &[(&str, &str)] = &[
    ("limit", "Maximum number of records, 1 to 1,000; default 20."),
    ("before", "Continues an answer: pass its `next`."),
    ("job", "Only jobs whose name matches, with `*` and `?`; may be repeated."),
    ("outcome", "Only this outcome, or `skipped`; may be repeated."),
    ("failed", "`true`: only runs that did not succeed."),
    ("node", "Only records of this node."),
    ("since", "Only what ended at this instant, or this duration ago, or later."),
    ("until", "Only what ended at this instant, or this duration ago, or earlier."),
    ("local", "`true`: only what the archive of the asked node has."),
    ("run", "The record of this run, wherever it is; only `local` may go with it, and no job in the path."),
];

const COMING: &[(&str, &str)] = &[
    ("n", "Occurrences of each job, 1 to 1,000; default 1."),
    ("from", "Only what is due after this instant; default now."),
    ("job", "Only this job; may be repeated."),
];

const OUTPUT: &[(&str, &str)] = &[
    ("from", "Where to begin: `next` of the previous page."),
    ("wait", "How many seconds to wait for output, at most 6; default 0."),
    ("since", "Only lines since this instant, or not older than this duration."),
    ("last", "Only about this many bytes at the end of each attempt; `skipped` says how many bytes were left out."),
    ("local", "`true`: only what the asked node keeps itself."),
    ("attempt", "With `local`: the attempt. Without it, only the list of attempts is shown."),
];

const DESCRIBED: &[Described] = &[
    get("GET /healthz", schema::<Healthy>, &[503]),
    get("GET /readyz", schema::<Readiness>, &[503]),
    get("GET /v1", schema::<Index>, &[]),
    get("GET /v1/status", schema::<Status>, &[]),
    get("GET /v1/jobs", schema::<Jobs>, &[]),
    get("GET /v1/nodes", schema::<NodesDocument>, &[]),
    get("GET /v1/jobs/{job}", schema::<OneJob>, &[404]),
    Described { query: COMING, ..get("GET /v1/next", schema::<Coming>, &[400, 404, 503]) },
    get("GET /v1/definitions", schema::<Served>, &[403]),
    Described { query: FILTER, ..get("GET /v1/jobs/{job}/history", schema::<History>, &[400, 404, 503]) },
    Described { query: FILTER, ..get("GET /v1/history", schema::<History>, &[400, 503]) },
    get("GET /v1/runs/{run}", schema::<RunAnswer>, &[404, 503]),
    Described { query: OUTPUT, ..get("GET /v1/runs/{run}/output", schema::<OutputPage>, &[400, 403, 404, 503]) },
    get("GET /v1/events", schema::<String>, &[503]),
    post("POST /v1/jobs/{job}/trigger", schema::<TriggerBody>, schema::<Triggered>, &[400, 403, 404, 503]),
    post("POST /v1/jobs/{job}/pause", schema::<PauseBody>, schema::<Paused>, &[400, 403, 404, 503]),
    post("POST /v1/jobs/{job}/resume", schema::<ResumeBody>, schema::<Resumed>, &[400, 403, 404, 503, 504]),
    post("POST /v1/jobs/{job}/recount", schema::<RecountBody>, schema::<Recounting>, &[400, 403, 404, 409, 503]),
    post("POST /v1/pause", schema::<PauseManyBody>, schema::<PausedMany>, &[400, 403, 404, 503]),
    post("POST /v1/resume", schema::<ResumeManyBody>, schema::<ResumedMany>, &[400, 403, 404, 503]),
    post("POST /v1/runs/{run}/kill", schema::<KillBody>, schema::<Killing>, &[400, 403, 404, 503]),
    post("POST /v1/handover", schema::<HandoverBody>, schema::<HandedOver>, &[400, 403, 404, 409, 503, 504]),
    post("POST /v1/nodes/{node}/drain", schema::<DrainBody>, schema::<Drained>, &[400, 403, 404, 503]),
    post("POST /v1/nodes/{node}/undrain", schema::<UndrainBody>, schema::<Undrained>, &[400, 403, 404, 503]),
    post("POST /v1/nodes/{node}/forget", schema::<ForgetBody>, schema::<ForgottenNode>, &[400, 403, 404, 409, 503]),
];

fn document() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut answers = settings.for_serialize().into_generator();
    let error = schema::<ErrorBody>(&mut answers);
    let mut paths = Map::new();
    for described in DESCRIBED {
        let (method, path) = described.request.split_once(' ').expect("a method and a path");
        let operation = operation(described, &error, &mut answers);
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[method.to_lowercase()] = operation;
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "cronkeeper",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The API of a cronkeeper node, on its Unix socket and on the address of `--listen`.",
        },
        "paths": paths,
        "components": { "schemas": answers.take_definitions(true) },
    });
    join_lines(&mut document);
    document
}

/// Joins the lines of descriptions: where a comment is wrapped says nothing.
fn join_lines(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    field => join_lines(field),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(join_lines),
        _ => {}
    }
}

fn operation(described: &Described, error: &Schema, generator: &mut SchemaGenerator) -> Value {
    let is_stream = described.request == "GET /v1/events";
    let media = if is_stream { "text/event-stream" } else { "application/json" };
    let content = |schema: &Schema| json!({ "application/json": { "schema": schema } });
    let summary = index::description(described.request).unwrap_or_default();
    let mut responses = Map::new();
    let answer = json!({ media: { "schema": (described.answer)(generator) } });
    responses.insert("200".into(), json!({ "description": "done", "content": answer }));
    // A node that is not ready says so with the same document.
    let refusal = if described.request == "GET /readyz" { (described.answer)(generator) } else { error.clone() };
    for code in described.errors {
        responses.insert(code.to_string(), json!({ "description": reason(*code), "content": content(&refusal) }));
    }
    let mut operation = json!({ "summary": summary, "responses": responses });
    if let Some(role) = index::role(described.request) {
        operation["description"] = format!("Over TCP it needs a token with the role `{role}`, or a higher one.").into();
        operation["x-role"] = role.into();
    }
    let parameters = parameters(described);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = described.body {
        operation["requestBody"] = json!({ "required": false, "content": content(&body(generator)) });
    }
    operation
}

fn parameters(described: &Described) -> Vec<Value> {
    let in_path = ["job", "run", "node"].into_iter().filter(|name| described.request.contains(&format!("{{{name}}}")));
    let in_path =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let query = described.query.iter().map(|(name, description)| {
        json!({ "name": name, "in": "query", "description": description, "schema": { "type": "string" } })
    });
    in_path.chain(query).collect()
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "the request is invalid",
        403 => "the caller does not have the role that it needs, or the request is of a web page from elsewhere",
        404 => "there is no such job, run or node",
        409 => "not possible now",
        503 => "not available now; try again later",
        504 => "not done in time; it may still be done",
        _ => "refused",
    }
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");

#[test]
fn the_file_describes_the_types() {
    let made = format!("{:#}\n", document());
    if std::env::var_os("CRONKEEPER_BLESS").is_some() {
        std::fs::write(FILE, &made).expect("it can be written");
    }
    let file = std::fs::read_to_string(FILE).expect("docs/openapi.json");
    assert!(file == made, "docs/openapi.json is outdated: CRONKEEPER_BLESS=1 renews it");
}

#[test]
fn every_request_of_the_index_is_described() {
    let described: Vec<_> = DESCRIBED.iter().map(|described| described.request).collect();
    assert_eq!(described, index::requests().collect::<Vec<_>>());
}
