//! The manifests of docs/kubernetes belong together, and ask for what the daemon has.

use clap::Parser as _;
use cronkeeper::cli::Cli;
use cronkeeper_core::duration;
use serde::Deserialize as _;
use serde_yaml::Value;

use super::{CONTRACT, MANIFESTS, jobs};

fn manifests() -> Vec<Value> {
    let documents = MANIFESTS.iter().flat_map(|text| serde_yaml::Deserializer::from_str(text));
    documents.map(|document| Value::deserialize(document).expect("a manifest is YAML")).collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    manifests().into_iter().filter(|manifest| manifest["kind"] == kind).collect()
}

fn only(kind: &str) -> Value {
    let [manifest] = <[Value; 1]>::try_from(of_kind(kind)).unwrap_or_else(|found| panic!("{kind}: {found:?}"));
    manifest
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value:?} is no text"))
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut items = list.as_sequence().unwrap_or_else(|| panic!("{list:?} is no list")).iter();
    items.find(|item| item["name"] == name).unwrap_or_else(|| panic!("{name} is not in {list:?}"))
}

/// What is the same for each pod of the StatefulSet.
fn pod() -> Value {
    only("StatefulSet")["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    named(&pod()["containers"], "cronkeeper").clone()
}

#[test]
fn all_that_selects_pods_selects_those_of_the_stateful_set() {
    let set = only("StatefulSet");
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert!(labels.as_mapping().is_some_and(|labels| !labels.is_empty()), "{labels:?}");
    assert_eq!(&set["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels);
    let services = of_kind("Service");
    assert!(services.iter().all(|service| &service["spec"]["selector"] == labels), "{services:?}");
    let governing = services.iter().find(|service| service["metadata"]["name"] == set["spec"]["serviceName"]);
    assert_eq!(governing.expect("the governing Service is there")["spec"]["clusterIP"], "None");
}

/// The settings of the daemon, as they are in a pod.
fn settings() -> Vec<(String, String)> {
    let container = container();
    let env = container["env"].as_sequence().expect("a list").clone();
    let of_daemon = env.into_iter().filter(|variable| text(&variable["name"]).starts_with("CRONKEEPER_"));
    let value = |variable: &Value| match text(&variable["name"]) {
        "CRONKEEPER_NODE" => {
            assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
            "cronkeeper-0".to_owned()
        }
        _ => text(&variable["value"]).replace("$(POD_IP)", "192.0.2.7"),
    };
    of_daemon.map(|variable| (text(&variable["name"]).to_owned(), value(&variable))).collect()
}

fn setting(name: &str) -> String {
    settings().into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name} is not set")).1
}

#[test]
fn the_daemon_takes_the_settings_and_starts_only_with_a_service() {
    let mut words = vec!["cronkeeper".to_owned(), "run".to_owned()];
    for (name, value) in settings() {
        words.push(format!("--{}", name["CRONKEEPER_".len()..].to_lowercase().replace('_', "-")));
        words.extend(Some(value).filter(|value| value != "true"));
    }
    Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert_eq!(setting("CRONKEEPER_CLUSTER"), "true");
    // With a Service of that name Kubernetes sets variables that the daemon refuses.
    assert_eq!(pod()["enableServiceLinks"], false);
}

#[test]
fn the_probes_ask_for_what_the_api_has() {
    let container = container();
    let port = container["ports"][0]["containerPort"].as_u64().expect("a port is a number");
    assert!(setting("CRONKEEPER_LISTEN").ends_with(&format!(":{port}")));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let asked = &container[probe]["httpGet"];
        assert_eq!(asked["path"], path);
        assert_eq!(asked["port"], container["ports"][0]["name"]);
        assert!(CONTRACT.contains(&format!("| `GET {path}` |")), "{path}");
    }
}

#[test]
fn a_pod_that_stops_has_the_time_to_drain() {
    let drain = duration::parse(&setting("CRONKEEPER_DRAIN_TIMEOUT")).expect("it is a duration");
    let grace = pod()["terminationGracePeriodSeconds"].as_u64().expect("seconds are a number");
    assert!(grace >= drain.as_secs() + 20, "{grace}");
}

#[test]
fn every_volume_is_there_and_the_state_outlives_the_pod() {
    let (pod, container) = (pod(), container());
    let claims = only("StatefulSet")["spec"]["volumeClaimTemplates"].clone();
    let is_claimed = |name: &Value| {
        claims.as_sequence().is_some_and(|claims| claims.iter().any(|claim| &claim["metadata"]["name"] == name))
    };
    for mount in container["volumeMounts"].as_sequence().expect("a list") {
        let is_state = mount["mountPath"] == "/var/lib/cronkeeper";
        assert_eq!(is_claimed(&mount["name"]), is_state, "{mount:?}");
        if !is_state {
            named(&pod["volumes"], text(&mount["name"]));
            assert_eq!(mount["readOnly"], true, "{mount:?}");
        }
    }
    // Nobody else may write to the state directory.
    let closing = &named(&pod["initContainers"], "close-state")["command"][2];
    assert!(text(closing).contains("chmod 700 /var/lib/cronkeeper"), "{closing:?}");
    // Nobody else may read the token.
    assert!(MANIFESTS.iter().any(|text| text.contains("secretName: cronkeeper-token, defaultMode: 0400}")));
}

#[test]
fn the_jobs_are_valid_and_where_the_daemon_looks_for_them() {
    let map = only("ConfigMap");
    assert!(!jobs(text(&map["data"]["jobs.yaml"])).jobs.is_empty());
    let (pod, container) = (pod(), container());
    let volume = named(&pod["volumes"], "jobs");
    assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
    let folder = text(&named(&container["volumeMounts"], "jobs")["mountPath"]).to_owned();
    assert_eq!(setting("CRONKEEPER_JOBS"), format!("{folder}/jobs.yaml"));
}
