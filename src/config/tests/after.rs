//! Tests of `after`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use cronkeeper_core::job::Condition;

#[test]
fn a_job_runs_after_others_in_place_of_a_schedule() {
    let text = "defaults: {timezone: Europe/Berlin, splay: 5m}\njobs:\n  \
                a: {schedule: \"0 0 * * *\", command: x}\n  b: {after: {a: success, c: always}, command: x}\n  \
                c: {after: {a: always}, command: x}\n";
    let (set, warnings) = parse("j", text.as_bytes()).unwrap();
    assert_eq!(warnings, []);
    let b = &set.jobs[&JobName::parse("b").unwrap()];
    let upstreams: Vec<_> = b.upstreams().unwrap().iter().map(|(name, how)| (name.as_str(), *how)).collect();
    assert_eq!(upstreams, [("a", Condition::Success), ("c", Condition::Always)]);
    assert_eq!(set.root_of(b).unwrap().name.as_str(), "a");
    assert!(b.splay.delay().is_zero() && b.schedule().is_none());
    let dependents = set.dependents_of(&JobName::parse("a").unwrap());
    assert_eq!(dependents.iter().map(JobName::as_str).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn all_errors_in_after_are_reported_at_once_with_their_positions() {
    let text = r#"
defaults:
  after: {a: success}
jobs:
  a: {schedule: "0 0 * * *", command: x}
  z: {schedule: "0 1 * * *", command: x}
  both: {schedule: "0 0 * * *", after: {a: success}, command: x}
  itself: {after: {itself: success}, command: x}
  stranger:
    after: {extrct: success, a: sucess, "b c": always}
    command: x
  extract: {after: {a: always}, command: x}
  mixed: {after: {a: success, z: success}, command: x}
  deep: {after: {extract: success, last: always}, command: x}
  last: {after: {z: success}, command: x}
  one: {after: {two: success}, command: x}
  three: {after: {one: success}, command: x}
  two: {after: {a: success, three: success}, command: x}
  behind: {after: {two: success}, command: x}
  none: {after: {}, command: x}
  list: {after: [a], command: x}
  wrong: {after: {broken: success}, command: x}
  broken: {schedule: "61 * * * *", command: x}
"#;
    same(
        &reported(text),
        r#"
        j:3:3: defaults: `after` belongs to a job, not to `defaults`
        j:7:33: job `both`: `after` replaces `schedule`; a job must have exactly one of them
        j:8:20: job `itself`: `after`: a job cannot run after itself
        j:10:13: job `stranger`: `after`: there is no job `extrct`, did you mean `extract`?
        j:10:33: job `stranger`: `after`: `a`: `sucess` is not one of `success`, `always`, did you mean `success`?
        j:10:41: job `stranger`: `after`: `b c` is not a job name
        j:13:31: job `mixed`: `after`: all chains of a job must start at the same scheduled job; the chain through `z` starts at `z`, earlier ones at `a`
        j:14:36: job `deep`: `after`: all chains of a job must start at the same scheduled job; the chain through `last` starts at `z`, earlier ones at `a`
        j:16:17: job `one`: `after`: it runs after itself: after `two`, which runs after `three`, which runs after `one`
        j:20:17: job `none`: `after`: must name at least one job
        j:21:17: job `list`: `after` must be a map of texts, not a list; write `after: {a: success}`
        j:23:23: job `broken`: `schedule`: minute: 61 is out of range; allowed: 0 to 59
        "#,
    );
}

#[test]
fn nothing_runs_after_a_job_on_every_node() {
    let text = r#"
jobs:
  rotate: {schedule: "@daily", command: x, run_on: every}
  report: {after: {rotate: success}, command: x}
  load: {schedule: "@daily", command: x}
  publish: {after: {load: success}, command: x, run_on: every}
"#;
    same(
        &reported(text),
        "j:4:20: job `report`: `after`: `rotate` has `run_on: every`, and no job can run after a job on every node",
    );
}

#[test]
fn a_job_that_never_runs_by_itself_and_keys_without_effect_give_warnings() {
    let text = r#"
jobs:
  a: {schedule: "0 0 * * *", command: x}
  off: {after: {a: success}, command: x, enabled: false}
  b: {after: {off: success}, command: x, splay: 5m, dst: skip}
  c: {after: {off: always}, command: x}
  d: {after: {b: success}, command: x}
  never: {schedule: "0 0 * * *", command: x, enabled: false}
  e: {after: {never: always}, command: x}
"#;
    same(
        &reported(text),
        r#"
        j:5:15: job `b`: `after`: it never runs by itself, because `off` never does or is disabled
        j:5:49: job `b`: `splay` has no effect with `after`
        j:5:58: job `b`: `dst` has no effect with `after`
        j:7:15: job `d`: `after`: it never runs by itself, because `b` never does or is disabled
        j:9:15: job `e`: `after`: it never runs by itself, because `never` never does or is disabled
        "#,
    );
}

#[test]
fn more_than_sixty_four_jobs_directly_after_one_are_rejected() {
    let crowd = |count: usize| {
        let jobs = (0..count).map(|i| format!("  b{i:03}: {{after: {{a: success}}, command: x}}\n"));
        let jobs: String = jobs.collect();
        reported(format!("jobs:\n  a: {{schedule: \"0 0 * * *\", command: x}}\n{jobs}"))
    };
    assert_eq!(crowd(64), "");
    let refused =
        "j:67:18: job `b064`: `after`: at most 64 jobs may run directly after one job, and this is number 65 after `a`";
    assert_eq!(crowd(65), refused);
}

/// A file with jobs that run after the jobs with these numbers, or by a schedule if there are none.
fn file(jobs: &BTreeMap<usize, BTreeSet<usize>>) -> String {
    let job = |(number, upstreams): (&usize, &BTreeSet<usize>)| {
        let upstreams: Vec<_> = upstreams.iter().map(|upstream| format!("j{upstream}: success")).collect();
        let due = match upstreams.is_empty() {
            true => "schedule: \"0 0 * * *\"".to_owned(),
            false => format!("after: {{{}}}", upstreams.join(", ")),
        };
        format!("  j{number}: {{{due}, command: x}}\n")
    };
    format!("jobs:\n{}", jobs.iter().map(job).collect::<String>())
}

/// The scheduled jobs at which a job's chains start, found by following every path up; `None` if one is a cycle.
fn starts(jobs: &BTreeMap<usize, BTreeSet<usize>>, job: usize, way: &[usize]) -> Option<BTreeSet<usize>> {
    let upstreams = &jobs[&job];
    if way.contains(&job) {
        return None;
    }
    if upstreams.is_empty() {
        return Some([job].into());
    }
    let way = [way, &[job]].concat();
    let found: Option<Vec<_>> = upstreams.iter().map(|&upstream| starts(jobs, upstream, &way)).collect();
    Some(found?.into_iter().flatten().collect())
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn a_file_is_rejected_exactly_if_a_job_runs_after_itself_or_starts_at_two(
        edges in proptest::collection::vec((0..7usize, 0..7usize), 0..12)
    ) {
        let mut jobs: BTreeMap<usize, BTreeSet<usize>> = (0..7).map(|job| (job, BTreeSet::new())).collect();
        for (job, upstream) in edges {
            jobs.entry(job).or_default().insert(upstream);
        }
        let is_good = jobs.keys().all(|&job| starts(&jobs, job, &[]).is_some_and(|roots| roots.len() == 1));
        match parse("j", file(&jobs).as_bytes()) {
            Ok((set, _)) => {
                prop_assert!(is_good, "{}", file(&jobs));
                for job in set.jobs.values() {
                    let number: usize = job.name.as_str()[1..].parse().unwrap();
                    let root = set.root_of(job).unwrap().name.as_str()[1..].parse().unwrap();
                    prop_assert_eq!(starts(&jobs, number, &[]), Some([root].into()));
                }
            }
            Err(problems) => prop_assert!(!is_good, "{}", lines(&problems)),
        }
    }
}
