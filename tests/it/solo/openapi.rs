//! docs/openapi.json against the answers of a real daemon.

use serde_json::{Value, json};

use super::fixture::{await_record, get, leading, node, post};
use crate::support::node::Spec;
use crate::support::until;

const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

/// Checks an answer against the schema that the document has for it.
#[track_caller]
fn check(document: &Value, (path, method): (&str, &str), code: u16, answer: &Value) {
    let response = &document["paths"][path][method]["responses"][code.to_string()];
    let mut schema = response["content"]["application/json"]["schema"].clone();
    assert!(schema.is_object(), "{method} {path}: the document has no answer {code}: {answer}");
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?} in {answer:#}");
}

fn get_json(spec: &Spec, path: &str) -> (u16, Value) {
    let (code, body) = get(spec, path).expect("it answers");
    (code, serde_json::from_str(&body).expect("JSON"))
}

#[test]
fn every_answer_is_as_the_document_describes_it() {
    let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
    let jobs = "jobs:\n  a: {schedule: '* * * * * *', command: 'echo said; exit 3'}\n  b: {after: {a: always}, command: 'true'}\n";
    let spec = node("described").jobs(jobs);
    let node = leading(&spec);
    until("it can be asked", || get(&spec, "/healthz").is_some());
    let run = await_record(&spec, "a", |record| record["kind"] == "run")["run"].as_str().expect("an id").to_owned();
    await_record(&spec, "b", |record| record["kind"] == "run");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let media = methods["get"]["responses"]["200"]["content"].as_object();
        if media.is_some_and(|media| media.contains_key("application/json")) {
            let (code, answer) = get_json(&spec, &path.replace("{job}", "a").replace("{run}", &run));
            assert_eq!(code, 200, "{path}: {answer}");
            check(&document, (path, "get"), code, &answer);
        }
    }
    for (path, of) in [("/v1/jobs/{job}", "/v1/jobs/c"), ("/v1/runs/{run}", "/v1/runs/a.20200101T000000Z")] {
        let (code, answer) = get_json(&spec, of);
        assert_eq!(code, 404);
        check(&document, (path, "get"), code, &answer);
    }
    let (drain, undrain) = (format!("/v1/nodes/{}/drain", node.name()), format!("/v1/nodes/{}/undrain", node.name()));
    let forget = format!("/v1/nodes/{}/forget", node.name());
    let posts: [(&str, &str, Value, u16); 11] = [
        ("/v1/jobs/{job}/trigger", "/v1/jobs/b/trigger", json!({}), 200),
        ("/v1/jobs/{job}/pause", "/v1/jobs/a/pause", json!({ "reason": "disks" }), 200),
        ("/v1/jobs/{job}/resume", "/v1/jobs/a/resume", json!({}), 200),
        ("/v1/jobs/{job}/recount", "/v1/jobs/a/recount", json!({}), 409),
        ("/v1/runs/{run}/kill", "/v1/runs/a.20200101T000000Z/kill", json!({}), 404),
        ("/v1/pause", "/v1/pause", json!({ "select": { "jobs": ["?"] }, "for": "2h" }), 200),
        ("/v1/resume", "/v1/resume", json!({ "select": { "all": true } }), 200),
        ("/v1/handover", "/v1/handover", json!({ "to": "nobody" }), 404),
        ("/v1/nodes/{node}/drain", &drain, json!({ "reason": "disks" }), 200),
        ("/v1/nodes/{node}/undrain", &undrain, json!({}), 200),
        ("/v1/nodes/{node}/forget", &forget, json!({}), 409),
    ];
    for (path, of, body, expected) in posts {
        let (code, answer) = post(&spec, of, &body);
        assert_eq!(code, expected, "{path}: {answer}");
        check(&document, (path, "post"), code, &answer);
    }
}
