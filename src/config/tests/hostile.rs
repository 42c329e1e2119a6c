//! Tests of malicious files: no panic, no hang, no excessive memory.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// CPU time of this thread, which does not depend on other builds and tests on the machine.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Parses with a time limit: far more than these files take on a loaded machine, far less than they would take without
/// the limits.
#[track_caller]
fn quickly(text: impl AsRef<[u8]>) -> String {
    let start = worked();
    let reported = reported(text);
    let took = worked() - start;
    assert!(took < Duration::from_secs(60), "took {took:?}");
    reported
}

#[test]
fn yaml_features_that_a_jobs_file_must_not_use() {
    same(&reported("jobs: {}\n---\njobs: {}\n"), "j:2:1: a second document begins here; a jobs file is one document");
    same(
        &reported("jobs:\n  <<: {a: b}\n"),
        "j:2:3: `<<` is not supported; put what jobs have in common under `defaults`",
    );
    same(&reported("jobs: {}\n[a]: b\n"), "j:2:1: a key is a text, not a list or a map");
    same(
        &reported("jobs: {}\njobs: {}\n\"jobs\": {}\n"),
        "j:2:1: `jobs` is already given in line 1\nj:3:1: `jobs` is already given in line 1",
    );
    same(&reported("jobs: {a: &a [*a]}"), "j:1:15: this alias refers to a value that contains it");
}

#[test]
fn unquoted_stars_and_at_signs_are_explained() {
    let star = "(in YAML an unquoted `*` begins an alias)";
    let at = "(in YAML an unquoted `@` is reserved)";
    for (schedule, column, expression, why) in [
        ("* * * * *", 15, "* * * * *", star),
        ("*/5 * * * *   # often", 15, "*/5 * * * *", star),
        ("@daily", 15, "@daily", at),
        ("[@daily]", 16, "@daily", at),
        ("[0 0 * * *, @daily]", 27, "@daily", at),
        ("\n    - * * * * *", 7, "* * * * *", star),
        ("\n    - @every 5m", 7, "@every 5m", at),
    ] {
        let line = if schedule.starts_with('\n') { 4 } else { 3 };
        let text = format!("jobs:\n  a:\n    schedule: {schedule}\n    command: x\n");
        same(&reported(text), &format!("j:{line}:{column}: quote it: \"{expression}\" {why}"));
    }
    same(&reported("jobs: {a: {schedule: @daily, command: x}}"), &format!("j:1:22: quote it: \"@daily\" {at}"));
}

#[test]
fn a_space_of_several_bytes_before_an_unquoted_star_is_no_boundary_to_split_at() {
    for space in ['\u{a0}', '\u{2003}', '\u{3000}'] {
        let problems = reported(format!("jobs: {{a: {{command: x,{space}schedule: * * * * *}}}}"));
        assert!(!problems.is_empty(), "{space:?}");
    }
}

/// Files with an error in or near a value under `environment`. Error messages are logged and displayed, so they must
/// not quote it.
#[test]
fn values_under_environment_are_never_quoted() {
    for environment in [
        "{DB_PASSWORD: @hunter2!}",
        "{DB_PASSWORD: *hunter2}",
        "\n      DB_PASSWORD: @hunter2!",
        "\n      DB_PASSWORD: *hunter2",
        "\n      DB_PASSWORD: %hunter2",
        "\n      DB_PASSWORD: `hunter2`",
        "\n      schedule: x\n      DB_PASSWORD: @hunter2",
        "\n      NOTE: schedule: @hunter2",
        "\n      - @hunter2",
        "\n      - DB_PASSWORD=hunter2",
        "[DB_PASSWORD=hunter2]",
        "{DB_PASSWORD=hunter2}",
        "{DB_PASSWORD=hunter2: x, DB_PASSWORD=hunter2: x}",
        "DB_PASSWORD=hunter2",
        "{DB_PASSWORD: [hunter2]}",
        "{DB_PASSWORD: {hunter2: x}}",
        "{DB_PASSWORD: !secret hunter2}",
        "{DB_PASSWORD: \"hunter2\\0\"}",
        "{DB_PASSWORD: \"hunter2}",
        "{DB_PASSWORD: 'hunter2}",
        "\n    DB_PASSWORD=hunter2: x",
    ] {
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    environment: {environment}\n    command: x\n");
        let reported = reported(&text);
        assert!(!reported.is_empty() && !reported.contains("hunter2"), "{text}{reported}");
    }
}

#[test]
fn invalid_characters_are_reported_at_their_position() {
    same(
        &reported(b"jobs: {}\n# \xc3\xa4 \xff\n"),
        "j:2:5: the file is not UTF-8 from here on; if it is Latin-1, convert it with `iconv -f ISO-8859-1 -t UTF-8 FILE`",
    );
    same(
        &reported("jobs: {}\r\n#ä\0\n"),
        "j:2:3: a NUL byte (U+0000), which no jobs file has; the file is damaged, restore it",
    );
    same(
        &reported("jobs: {}\n# a\u{2028}b"),
        "j:2:4: the character U+2028 is not allowed in a jobs file; in double quotes write `\\u2028`",
    );
    same(&reported("jobs:\n\ta: b\n"), "j:2:1: a tab; YAML wants spaces here");
    let large = format!("jobs: {{}}\n#{}", "x".repeat(4 << 20));
    same(&quickly(large), "j:1:1: the file is larger than 4 MiB");
}

#[test]
fn expansion_bombs_are_rejected_quickly() {
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..30 {
        let alias = format!("*a{}, ", i - 1);
        laughs.push_str(&format!("a{i}: &a{i} [{}]\n", alias.repeat(10)));
    }
    laughs.push_str("jobs: {}\n");
    assert!(quickly(&laughs).contains("aliases repeat more than 16 MiB of text"));
    let wide = format!("x: &x \"{}\"\njobs: [{}]\n", "y".repeat(1 << 20), "*x, ".repeat(500_000));
    assert!(quickly(wide).contains("aliases repeat more than 16 MiB of text"));
    for (text, message) in [
        ("[".repeat(1 << 20), "j:1:256: nested too deep"),
        ("{".repeat(1 << 20), "j:1:"),
        ("- ".repeat(1 << 20), "nested more than 32 levels deep"),
        ("? ".repeat(1 << 20), "nested more than 32 levels deep"),
        ("a: ".repeat(1 << 20), "j:1:"),
        ("[a: ".repeat(1 << 19), "j:1:1021: nested too deep"),
        ("\"".repeat(1 << 20), "j:1:"),
        ("'".repeat(1 << 20), "j:1:"),
        ("&a ".repeat(1 << 20), "j:1:"),
        ("!a ".repeat(1 << 20), "j:1:"),
        ("\n".repeat(1 << 20), "j:1:1: the file is empty"),
        ("a".repeat(1 << 20), "j:1:1: a jobs file is a map"),
        (format!("[{}]", "a,".repeat(1 << 20)), "the file holds more than 500000 values"),
        (
            format!("jobs: {{}}\n{}", (0..100_000).map(|i| format!("k{i}: v\n")).collect::<String>()),
            "`k99999` is not a key of a jobs file",
        ),
        (format!("? {}\n: x", "k".repeat(1 << 20)), "`jobs` is missing"),
        ("---\n".repeat(1 << 18), "a second document begins here"),
        ("%YAML 1.2\n".repeat(1 << 16), "j:2:"),
        ("\t".repeat(1 << 20), "j:1:1"),
        ("#".repeat(1 << 20), "j:1:1: the file is empty"),
        ("|\n".repeat(1 << 19), "a jobs file is a map"),
        ("a:\n".repeat(1 << 19), "is already given in line 1"),
    ] {
        let reported = quickly(&text);
        let start: String = text.chars().take(10).collect();
        assert!(reported.contains(message), "{start:?}: {}", reported.chars().take(300).collect::<String>());
    }
}

#[test]
fn a_message_does_not_control_a_terminal_and_has_limited_length() {
    let reported = reported(format!("jobs: {{}}\n\"\\e[31m\\n{}\": x\n", "y".repeat(900)));
    assert!(reported.starts_with("j:2:1: `\\u{1b}[31m\\nyyy") && reported.len() < 300, "{reported}");
    let reordered = super::reported("jobs: {a: {schedule: * * * * *\u{202e}, command: x}}");
    assert!(reordered.contains("* * * * *\\u{202e}"), "{reordered}");
    let reported = reported_for_keys(&format!("timeout: \"\\e[31m{}\"", "y".repeat(100_000)));
    assert!(reported.len() < 800 && !reported.contains('\u{1b}'), "{reported}");
}

/// Fragments with which a random text tests more of the parser than random letters would.
const PIECES: [&str; 34] = [
    "jobs:",
    "\n",
    "\n  ",
    "\n    ",
    "a",
    "b: ",
    "a: ",
    "schedule: ",
    "\"0 0 * * *\"",
    "command: ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "- ",
    "? ",
    ": ",
    "&x ",
    "*x",
    "!t ",
    "|",
    ">",
    "'",
    "\"",
    "#",
    " # ",
    "~",
    "<<: ",
    "---\n",
    "\t",
    "\r\n",
    "ä",
    "environment: ",
];

fn files() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "\\PC{0,80}".prop_map(String::into_bytes),
        prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40)
            .prop_map(|pieces| pieces.concat().into_bytes()),
        prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..12).prop_map(|pieces| {
            format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: x\n    {}", pieces.concat()).into_bytes()
        }),
    ]
}

#[test]
fn ten_thousand_random_files_are_accepted_or_rejected() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&files(), |bytes| {
        if let Err(problems) = parse("j", &bytes) {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.iter().all(|problem| problem.line > 0 && problem.column > 0));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// A text as serde_yaml parses it: values with their types, keys as text.
struct Shape(String);

impl<'de> serde::Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor).map(Self)
    }
}

struct ShapeVisitor;

impl<'de> serde::de::Visitor<'de> for ShapeVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }
    fn visit_unit<E>(self) -> Result<String, E> {
        Ok("null".into())
    }
    fn visit_bool<E>(self, flag: bool) -> Result<String, E> {
        Ok(flag.to_string())
    }
    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(format!("{text:?}"))
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<String, A::Error> {
        let mut all = String::new();
        while let Some(Shape(item)) = items.next_element()? {
            all.push_str(&item);
            all.push(',');
        }
        Ok(format!("[{all}]"))
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut entries: A) -> Result<String, A::Error> {
        let mut all = String::new();
        while let Some((key, Shape(value))) = entries.next_entry::<String, Shape>()? {
            all.push_str(&format!("{key:?}: {value},"));
        }
        Ok(format!("{{{all}}}"))
    }
}

fn marked_shape(node: &spanned::Node) -> String {
    let mut text = String::new();
    spanned::write(node, &mut text);
    serde_yaml::from_str::<Shape>(&text).unwrap_or_else(|error| panic!("{error}: {text}")).0
}

#[test]
fn both_passes_read_the_same() {
    // With a final line break, because without it one of the parsers adds one to a last `|` block. serde_yaml supplies
    // the values.
    let pieces = prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..14);
    let pieces = pieces.prop_map(|pieces| pieces.concat() + "\n");
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 60_000, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&pieces, |text| {
        let spanned = spanned::read(&text);
        let (Some(root), true) = (spanned.root, spanned.faults.is_empty()) else { return Ok(()) };
        if root.entries().is_empty() {
            return Ok(());
        }
        // If only one of the passes accepts the text, it is rejected; if both do, they must agree.
        if let Ok(Shape(shape)) = serde_yaml::from_str(&text) {
            prop_assert_eq!(shape, marked_shape(&root), "{:?}", text);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn ten_thousand_jobs_are_read_in_time() {
    let job = |i: usize| {
        format!(
            "  job-{i}:\n    description: number {i}\n    schedule: \"{} 2 * * *\"\n    timezone: Europe/Berlin\n    command: [/bin/echo, \"{i}\"]\n    timeout: 5m\n    environment: {{A: b, C: d}}\n",
            i % 60
        )
    };
    let text: String =
        std::iter::once("defaults: {umask: \"027\"}\njobs:\n".to_owned()).chain((0..10_000).map(job)).collect();
    let start = worked();
    let (set, _) = parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let took = worked() - start;
    println!("10,000 jobs, {} KiB: {took:?}", text.len() >> 10);
    assert_eq!(set.jobs.len(), 10_000);
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn a_job_that_asks_for_any_number_of_labels_is_refused_at_once() {
    let labels: Vec<String> = (0..100_000).map(|n| format!("l{n}")).collect();
    let labels = labels.join(", ");
    let text = format!("jobs: {{a: {{schedule: '@daily', command: x, run_on: any, run_where: [{labels}]}}}}");
    same(&quickly(text), "j:1:68: job `a`: `run_where`: a job has at most 32 of them");
}
