//! Tests of the positions of errors.

use proptest::prelude::*;

use super::*;

#[test]
fn all_errors_are_reported_at_once_with_their_positions() {
    let text = r#"
defaults:
  timezone: Mars/Olympus
  command: x
  comand: x
jobs:
  backup:
    shedule: "0 2 * * *"
    command: [/bin/true, {a: b}]
    timeout: 5min
    overlap: queued
    retries: {limit: 3, delay: soon, backof: 2}
  "bad name":
    schedule: "61 * * * *"
    command: true
    umask: 999
  rerun:
    schedule: ["0 2 * * *", '  61 2 * * *']
    command: true
    interrupted: rerun
    on_lease_end: keep
  nothing:
  list: [1]
job: {}
"#;
    same(
        &reported(text),
        r#"
        j:3:13: defaults: `timezone`: `Mars/Olympus` is not a time zone of the IANA database
        j:4:3: defaults: `command` belongs to a job, not to `defaults`
        j:5:3: defaults: `comand` is not a key of a job
        j:8:5: job `backup`: `shedule` is not a key of a job, did you mean `schedule`?
        j:9:26: job `backup`: an item of `command` must be a text, not a map; put it in quotes
        j:10:14: job `backup`: `timeout`: `5min` has the unknown unit `min`, did you mean `m`?
        j:11:14: job `backup`: `overlap`: `queued` is not one of `skip`, `queue`, `allow`, `replace`, did you mean `queue`?
        j:12:38: job `backup`: `retries`: `backof` is not one of its keys, did you mean `backoff`?
        j:13:3: `bad name` is not a job name: expected a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`
        j:14:16: job `bad name`: `schedule`: minute: 61 is out of range; allowed: 0 to 59
        j:16:12: job `bad name`: `umask`: `999` is not a umask: expected octal digits from `000` to `777`
        j:18:32: job `rerun`: `schedule`: minute: 61 is out of range; allowed: 0 to 59
        j:21:19: job `rerun`: `on_lease_end: keep` with `interrupted: rerun`: another node may start the run again, so this run must be killed; leave out `on_lease_end` or write `kill`
        j:22:3: job `nothing`: must be a map of keys, not nothing
        j:23:9: job `list`: must be a map of keys, not a list
        j:24:1: `job` is not a key of a jobs file, did you mean `jobs`?
        "#,
    );
}

#[test]
fn columns_count_characters_not_bytes() {
    same(
        &reported("jobs: {Übung: {schedule: \"ä 61\", command: [ä]}, b: {schedule: '1 1 1 1 ä 61', command: äöü, x: 1}}"),
        "j:1:8: `Übung` is not a job name: expected a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`
         j:1:27: job `Übung`: `schedule`: 2 fields, expected five (minute, hour, day of month, month, day of week), six (seconds first) or seven (year last)
         j:1:72: job `b`: `schedule`: month: `ä` is neither a number nor a name; allowed: 1 to 12, jan to dec (with six fields the first is the second; with five it is the minute)
         j:1:93: job `b`: `x` is not a key of a job",
    );
}

#[test]
fn a_byte_order_mark_line_ends_and_umlauts_do_not_shift_positions() {
    for line_end in ["\n", "\r\n", "\r"] {
        let text = "\u{feff}# Öl\njobs:\n  a:\n    description: Größe\n    schedule: \"0 0 * * *\"\n    command: x\n    nicht: x\n";
        same(&reported(text.replace('\n', line_end)), "j:7:5: job `a`: `nicht` is not a key of a job");
    }
}

#[test]
fn a_position_inside_an_unescaped_expression_is_exact() {
    let reported_at = |schedule: &str| {
        let reported = reported(format!("jobs:\n  a:\n    command: x\n    schedule: {schedule}\n"));
        reported.split(": job").next().unwrap_or_default().to_owned()
    };
    assert_eq!(reported_at("0 61 * * *"), "j:4:17");
    assert_eq!(reported_at("\"0 61 * * *\""), "j:4:18");
    assert_eq!(reported_at("'0 61 * * *'"), "j:4:18");
    assert_eq!(reported_at("[0 1 * * *, \"0 61 * * *\"]"), "j:4:30");
    assert_eq!(reported_at("\n      - \"0 1 * * *\"\n      - \"0 61 * * *\""), "j:6:12");
    assert_eq!(reported_at(">\n      0 61 * * *"), "j:5:9");
    // Escaped: the position of the whole value.
    assert_eq!(reported_at("\"\\x30 61 * * *\""), "j:4:15");
}

#[test]
fn an_error_in_the_defaults_or_in_an_alias_is_reported_once() {
    same(
        &reported(
            "defaults: {timeout: soon, interrupted: rerun, on_lease_end: keep}
jobs:
  a: {schedule: \"0 0 * * *\", command: x, environment: &e {A: }}
  b: {schedule: \"0 0 * * *\", command: x, environment: *e}
",
        ),
        "j:1:21: defaults: `timeout`: `soon` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`
         j:1:61: defaults: `on_lease_end: keep` with `interrupted: rerun`: another node may start the run again, so this run must be killed; leave out `on_lease_end` or write `kill`
         j:3:59: job `a`: `environment`: `A` has no value; for an empty one write `\"\"`
         j:3:59: job `b`: `environment`: `A` has no value; for an empty one write `\"\"`",
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// The position of a plain value is that of its first character.
    #[test]
    fn the_position_of_a_value_is_that_of_its_first_character(
        keys in prop::collection::vec(("[a-zäöü日]{1,8}", "[a-zäöü日]{1,8}( [a-z0-9ß]{1,5}){0,3}", 0..4usize), 1..8)
    ) {
        let text: String = keys.iter().enumerate().map(|(i, (key, value, indent))| match indent {
            0 => format!("{key}{i}: {value}\n"),
            1 => format!("{key}{i}: [{value}, x]\n"),
            2 => format!("{key}{i}:\n  - {value}\n  - {{q: {value}}}\n"),
            _ => format!("# {value}\r\n{key}{i}:\r\n\r\n    {value}\r\n"),
        }).collect();
        let spanned = spanned::read(&text);
        prop_assert_eq!(&spanned.faults, &[]);
        let lines = source::Lines::of(&text);
        let Some(root) = spanned.root else { return Err(TestCaseError::fail("no root")) };
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            open.extend(node.items().iter().cloned());
            for entry in node.entries() {
                prop_assert!(lines.from(entry.at).starts_with(&entry.key));
                open.push(std::rc::Rc::clone(&entry.value));
            }
            if let Some(text) = node.plain() {
                prop_assert!(lines.from(node.at).starts_with(text), "{:?} at {:?}", text, node.at);
                let behind = lines.from(node.end);
                prop_assert!(lines.from(node.at).strip_prefix(text) == Some(behind), "{:?} ends before {:?}", text, behind);
            }
        }
    }
}
