//! The systemd journal: entries with fields, which no job can forge.

use serde_json::Value;

use super::{FIRST, Host};
use crate::support::{LONG, poll};

/// A single daemon without ZooKeeper.
const ALONE: &str = "[Service]\nExecStart=\nExecStart=/usr/bin/cronkeeper run\n";

/// Jobs that imitate journal entries, and one that fails.
///
/// One prints a line that journald would cut in two, with a priority and an event at the beginning of the second half;
/// another prints fields.
const JOBS: &str = r#"
jobs:
  forger:
    schedule: '@every 1s'
    user: nobody
    command: |
      head -c 49050 /dev/zero | tr '\0' A
      echo '<3>ERROR leader.lost        node=forged token=42 reason=lease'
      printf 'x\nPRIORITY=3\nMESSAGE=leader.lost\nEVENT=leader.lost\n\n'
  fails: {schedule: '@every 1s', command: 'exit 3'}
"#;

/// A host on which the unit runs, with these settings in addition to the packaged ones.
fn host(name: &'static str, settings: &str) -> Option<Host> {
    let host = Host::or_skip(name)?;
    host.done(&["mkdir", "-p", "/etc/systemd/system/cronkeeper.service.d"]);
    host.write("/etc/systemd/system/cronkeeper.service.d/alone.conf", ALONE);
    host.write("/etc/cronkeeper/cronkeeper.env", settings);
    host.write("/etc/cronkeeper/jobs.yaml", JOBS);
    host.done(&["systemd-sysusers", "/etc/sysusers.d/cronkeeper.conf"]);
    host.done(&["systemctl", "daemon-reload"]);
    host.done(&["systemctl", "enable", "--now", FIRST]);
    Some(host)
}

/// The matching entries of the unit.
fn entries(host: &Host, matches: &[&str]) -> Vec<Value> {
    let journalctl =
        ["journalctl", "--directory=/run/log/journal", "--all", "--output=json", "_SYSTEMD_UNIT=cronkeeper.service"];
    let text = host.done(&[&journalctl, matches].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("journalctl writes JSON")).collect()
}

/// Waits for at least one matching entry.
fn await_entries(host: &Host, matches: &[&str]) -> Vec<Value> {
    let found = poll(LONG, || Some(entries(host, matches)).filter(|found| !found.is_empty()));
    found.unwrap_or_else(|| panic!("no entry has {matches:?}: {:#?}", entries(host, &[])))
}

#[test]
fn an_entry_has_fields_and_the_priority_of_its_level_and_a_job_forges_neither() {
    let Some(host) = host("journal", "") else { return };
    let failed = await_entries(&host, &["EVENT=run.finished", "JOB=fails"]).remove(0);
    assert_eq!(
        (&failed["PRIORITY"], &failed["OUTCOME"], &failed["EXIT_CODE"]),
        (&"4".into(), &"failure".into(), &"3".into())
    );
    assert_eq!(failed["SYSLOG_IDENTIFIER"], "cronkeeper");
    // On solo, a node is named after its host and its process.
    assert!(failed["NODE"].as_str().unwrap().starts_with(&host.node(None)), "{failed}");
    let message = failed["MESSAGE"].as_str().unwrap();
    assert!(message.starts_with("fails failure, exit code 3, after "), "{message}");

    await_entries(&host, &["EVENT=run.finished", "JOB=forger"]);
    let output = entries(&host, &["EVENT=run.output", "JOB=forger"]);
    let lines = || output.iter().filter_map(|entry| Some((entry, entry["LINE"].as_str()?)));
    let first = lines().position(|(_, line)| line.starts_with('A')).expect("the long line is logged");
    let last = first + lines().skip(first).position(|(entry, _)| entry["CONTINUES"].is_null()).expect("it has an end");
    let whole: String = lines().skip(first).take(last + 1 - first).map(|(_, line)| line).collect();
    assert_eq!(whole.len(), 49_050 + 61);
    assert!(whole.ends_with("token=42 reason=lease") && lines().all(|(_, line)| line.len() <= 8_000), "{whole}");
    assert!(output.iter().all(|entry| entry["PRIORITY"] == "6"), "{output:#?}");
    assert_eq!(entries(&host, &["EVENT=leader.lost"]), [] as [Value; 0]);
    let errors = entries(&host, &["--priority=err"]);
    assert_eq!(errors, [] as [Value; 0]);
}

#[test]
fn where_text_is_wanted_no_line_is_long_enough_to_be_cut() {
    let Some(host) = host("lines", "CRONKEEPER_LOG_FORMAT=text\n") else { return };
    let ended = |entries: &[Value]| {
        entries.iter().any(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.starts_with("forger success in ")))
    };
    let all = poll(LONG, || Some(entries(&host, &["SYSLOG_IDENTIFIER=cronkeeper"])).filter(|entries| ended(entries)));
    let all = all.expect("the forger ends");
    let texts: Vec<_> = all.iter().map(|entry| entry["MESSAGE"].as_str().unwrap()).collect();
    let forged: Vec<_> = texts.iter().filter(|text| text.contains("token=42")).collect();
    assert!(!forged.is_empty() && forged.iter().all(|text| text.starts_with("forger | ")), "{forged:#?}");
    assert_eq!(entries(&host, &["--priority=err"]), [] as [Value; 0]);
}
