//! Files that nobody means well: no panic, no hang, no growth.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// The processor's time of this thread: other builds and tests on the machine do not count.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Far more than any of these takes on a loaded machine, far less than what they would take if they got through.
#[track_caller]
fn quickly(text: impl AsRef<[u8]>) -> String {
    let start = worked();
    let said = said(text);
    let took = worked() - start;
    assert!(took < Duration::from_secs(60), "took {took:?}");
    said
}

#[test]
fn what_yaml_allows_and_a_jobs_file_does_not() {
    same(&said("jobs: {}\n---\njobs: {}\n"), "j:2:1: a second document begins here; a jobs file is one document");
    same(
        &said("jobs:\n  <<: {a: b}\n"),
        "j:2:3: `<<` is not supported; what several jobs share belongs under `defaults`",
    );
    same(&said("jobs: {}\n[a]: b\n"), "j:2:1: a key is a text, not a list or a map");
    same(
        &said("jobs: {}\njobs: {}\n\"jobs\": {}\n"),
        "j:2:1: `jobs` is already given in line 1\nj:3:1: `jobs` is already given in line 1",
    );
    same(&said("jobs: {a: &a [*a]}"), "j:1:15: this alias stands for something that it is itself a part of");
}

#[test]
fn unquoted_stars_and_at_signs_are_to_be_quoted() {
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
        same(&said(text), &format!("j:{line}:{column}: quote it: \"{expression}\" {why}"));
    }
    same(&said("jobs: {a: {schedule: @daily, command: x}}"), &format!("j:1:22: quote it: \"@daily\" {at}"));
}

/// Files in which a value under `environment` is wrong, or stands beside what is. The log tells what is said of them, and so may others.
#[test]
fn what_stands_under_environment_is_never_quoted() {
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
        let said = said(&text);
        assert!(!said.is_empty() && !said.contains("hunter2"), "{text}{said}");
    }
}

#[test]
fn what_is_not_text_is_said_where_it_begins() {
    same(&said(b"jobs: {}\n# \xc3\xa4 \xff\n"), "j:2:5: the file is not UTF-8 from here on");
    same(
        &said("jobs: {}\r\n#ä\0\n"),
        "j:2:3: the character U+0000 cannot stand in a jobs file; in double quotes write `\\u0000`",
    );
    same(
        &said("jobs: {}\n# a\u{2028}b"),
        "j:2:4: the character U+2028 cannot stand in a jobs file; in double quotes write `\\u2028`",
    );
    same(&said("jobs:\n\ta: b\n").split(": ").take(2).collect::<Vec<_>>().join(": "), "j:2:2: this is not YAML");
    let large = format!("jobs: {{}}\n#{}", "x".repeat(4 << 20));
    same(&quickly(large), "j:1:1: the file is larger than 4 MiB");
}

#[test]
fn bombs_do_not_go_off() {
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..30 {
        let alias = format!("*a{}, ", i - 1);
        laughs.push_str(&format!("a{i}: &a{i} [{}]\n", alias.repeat(10)));
    }
    laughs.push_str("jobs: {}\n");
    assert!(quickly(&laughs).contains("aliases repeat more than 16 MiB of text"));
    let wide = format!("x: &x \"{}\"\njobs: [{}]\n", "y".repeat(1 << 20), "*x, ".repeat(500_000));
    assert!(quickly(wide).contains("aliases repeat more than 16 MiB of text"));
    for (text, says) in [
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
        let said = quickly(&text);
        let start: String = text.chars().take(10).collect();
        assert!(said.contains(says), "{start:?}: {}", said.chars().take(300).collect::<String>());
    }
}

#[test]
fn a_message_does_nothing_to_a_terminal_and_ends() {
    let said = said(format!("jobs: {{}}\n\"\\e[31m\\n{}\": x\n", "y".repeat(900)));
    assert!(said.starts_with("j:2:1: `\\u{1b}[31m\\nyyy") && said.len() < 300, "{said}");
    let reordered = super::said("jobs: {a: {schedule: * * * * *\u{202e}, command: x}}");
    assert!(reordered.contains("* * * * *\\u{202e}"), "{reordered}");
    let said = said_of(&format!("timeout: \"\\e[31m{}\"", "y".repeat(100_000)));
    assert!(said.len() < 800 && !said.contains('\u{1b}'), "{said}");
}

/// Pieces that make a random text reach deeper than random letters would.
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
fn a_hundred_thousand_random_files_are_read_or_refused() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&files(), |bytes| {
        if let Err(problems) = parse("j", &bytes) {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.iter().all(|problem| problem.line > 0 && problem.column > 0));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// What serde_yaml makes of a text: its values by type, its keys as text.
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
    // With a line break at the end: without it, one of them adds it to a last `|` block. The values are serde_yaml's.
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
        // What only one of them reads is refused; what both read must be one thing.
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
