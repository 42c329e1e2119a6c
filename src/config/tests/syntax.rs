//! Tests of the explanations of YAML syntax errors.

use super::*;
use proptest::prelude::*;

const ADVICE: &str = "put the command in quotes or under `command: |`";
const LIST: &str = "an unquoted `[` begins a list";
const QUOTE: &str = "a text that begins with a quote ends with the next one";
const COLON: &str = "an unquoted `: ` makes a key of what is before it";
const BLOCK: &str = "an unquoted `|` or `>` begins a text of several lines";

/// Commands that YAML does not read as a text, each with the reason.
const COMMANDS: [(&str, &str); 24] = [
    ("echo \"oh no: fire\"", COLON),
    ("echo 'pg_dump: error: x'   # why", COLON),
    ("echo x:", COLON),
    ("user: x: y", COLON),
    ("[ -f x ] && y", LIST),
    ("[ -f x ]&&y", LIST),
    ("[[ -f x ]] && y", LIST),
    ("[ \"$a\" = b ] && y", LIST),
    ("[ \"$a\" = b ]", LIST),
    ("\"$HOME/x\" --all", QUOTE),
    ("\"true\" && x", QUOTE),
    ("'it''s' x", QUOTE),
    ("\"a \\\" b\" x", QUOTE),
    ("`date`", "an unquoted backtick is reserved"),
    ("%x", "an unquoted `%` is reserved"),
    ("* x", "an unquoted `*` begins an alias"),
    ("@x", "an unquoted `@` is reserved"),
    ("> /tmp/x echo y", BLOCK),
    (">file echo y", BLOCK),
    ("| cat", BLOCK),
    ("& x", "an unquoted `&` begins an anchor"),
    ("- x", "an unquoted `- ` begins a list"),
    ("] x", "an unquoted `]` or `}` ends a list or a map"),
    ("{ a; } > x", "an unquoted `{` begins a map"),
];

#[test]
fn a_command_that_yaml_does_not_read_as_a_text_is_explained() {
    for (command, why) in COMMANDS {
        for line_end in ["\n", "\r\n"] {
            let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {command}\n    user: x\n");
            same(&reported(text.replace('\n', line_end)), &format!("j:4:14: {ADVICE} (in YAML {why})"));
        }
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {command}\n");
        same(&reported(text), &format!("j:4:14: {ADVICE} (in YAML {why})"));
        let text = format!("defaults:\n  on_failure: {command}\njobs: {{}}\n");
        let advice = ADVICE.replace("command:", "on_failure:");
        same(&reported(text), &format!("j:2:15: {advice} (in YAML {why})"));
    }
}

#[test]
fn a_command_in_braces_is_explained_too() {
    for (command, why) in [
        ("echo \"oh no: fire\"", COLON),
        ("[ -f x ] && y", LIST),
        ("\"$HOME/x\" --all", QUOTE),
        ("`date`", "an unquoted backtick is reserved"),
        ("%x", "an unquoted `%` is reserved"),
        ("@x", "an unquoted `@` is reserved"),
    ] {
        for more in ["", ", user: x"] {
            let text = format!("jobs:\n  a: {{schedule: '@daily', command: {command}{more}}}\n");
            same(&reported(text), &format!("j:2:36: put the command in quotes (in YAML {why})"));
        }
    }
    // What is wrong is not the command.
    for text in ["{command: x}}", "{command: x, user: y}}", "{command: x, foo: z}}", "{command: x, user: [y}"] {
        let reported = reported(format!("jobs:\n  a: {text}\n"));
        assert!(reported.contains("this is not YAML"), "{text}: {reported}");
    }
}

#[test]
fn the_later_lines_of_a_command_are_explained() {
    let text = "jobs:\n  a:\n    schedule: '@daily'\n    command: echo a &&\n      echo \"b: c\"\n";
    same(&reported(text), &format!("j:5:7: {ADVICE} (in YAML {COLON})"));
}

#[test]
fn another_value_that_is_no_text_is_explained_without_it() {
    for (keys, at, why) in [
        ("description: at: night", "4:18", COLON),
        ("description: \"a\" b", "4:18", QUOTE),
        ("working_directory: `pwd`", "4:24", "an unquoted backtick is reserved"),
        ("environment:\n      A: hunter2: x", "5:10", COLON),
        ("environment:\n      A: \"hunter2\" x", "5:10", QUOTE),
        ("environment:\n      command: \"hunter2\" x", "5:16", QUOTE),
    ] {
        let reported = reported(format!("jobs:\n  a:\n    command: x\n    {keys}\n    schedule: '@daily'\n"));
        assert!(
            reported.starts_with(&format!("j:{at}: ")) && reported.ends_with(&format!("(in YAML {why})")),
            "{reported}"
        );
        assert!(!reported.contains("hunter2"), "{reported}");
    }
    // Quotes would not help.
    for text in
        ["jobs: a: {command: x}", "jobs:\n  a: schedule: '@daily'\n", "jobs:\n  a:\n    command: x\n   user: y\n"]
    {
        let reported = reported(text);
        assert!(reported.contains("this is not YAML"), "{text}: {reported}");
    }
}

#[test]
fn a_quote_that_is_not_closed_is_found() {
    for (value, more) in [("\"echo x", ""), ("'it''s", "    user: x\n"), ("\"echo x", "  b:\n    command: y\n")] {
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n{more}");
        same(&reported(text), "j:4:14: this quote is not closed");
    }
}

#[test]
fn a_tab_where_yaml_wants_spaces_is_named() {
    let message = "a tab; YAML wants spaces here";
    for (text, at) in [
        ("jobs:\n  a:\n    schedule: '@daily'\n\t\n    command: x\n", "4:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n  \t  \n    command: x\n", "4:3"),
        ("jobs:\n\t\n  a:\n    schedule: '@daily'\n    command: x\n", "2:1"),
        ("\t\njobs: {}\n", "1:1"),
        ("jobs: {}\n\t\n", "2:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command:\n    -\tx\n", "5:6"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command:\n    - \tx\n    - y\n", "5:7"),
        ("jobs:\n  a:\n    schedule:\n    -\t'@daily'\n    command: x\n", "4:6"),
        ("jobs:\n\ta:\n\t\tschedule: '@daily'\n\t\tcommand: x\n", "2:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n\tcommand: x\n", "4:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n   \tcommand: x\n", "4:4"),
        ("jobs:\n  a:\n  \tschedule: '@daily'\n  \tcommand: x\n", "3:3"),
        ("jobs:\r\n  a:\r\n    schedule: '@daily'\r\n\t\r\n    command: x\r\n", "4:1"),
        // Behind a colon, the parser takes a tab only in front of some values.
        ("jobs:\n  a:\n    schedule: '@daily'\n    command:\tx\n", "4:13"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    \"command\":\tx\n", "4:15"),
        ("jobs:\n  a: {schedule: '@daily', command:\tx}\n", "2:35"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: |\n\tx\n", "5:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: x\n\ty\n", "5:1"),
    ] {
        same(&reported(text), &format!("j:{at}: {message}"));
    }
    // Here a tab is part of a text, or only separates.
    for text in [
        "jobs:\n  a:\n    schedule: '@daily'\n    command: |\n      x\n      \ty\n",
        "jobs:\n  a:\n    schedule:\t'@daily'\n    command: a\tb\n",
    ] {
        same(&reported(text), "");
    }
}

#[test]
fn a_backslash_that_begins_no_escape_is_found() {
    let advice = "a backslash in double quotes begins an escape, and YAML does not have this one; use single quotes or \
                  `|`, or double the backslash";
    for (value, at) in [
        (r#""C:\dir""#, "4:17"),
        (r#""C:\Users\x""#, "4:17"),
        (r#""grep \. x""#, "4:20"),
        (r#""a \\ \n \$HOME""#, "4:23"),
        (r#""\xZZ""#, "4:15"),
        (r#""\u12""#, "4:15"),
        (r#""\ud800""#, "4:15"),
        (r#"["grep", "\d+"]"#, "4:24"),
        ("\"a\n      b \\d\"", "5:9"),
        ("\"a \\\n      b \\d\"", "5:9"),
    ] {
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n");
        same(&reported(text), &format!("j:{at}: {advice}"));
    }
    let secret = reported("jobs:\n  a:\n    command: x\n    environment:\n      A: \"hunter2\\d\"\n");
    same(&secret, &format!("j:5:18: {advice}"));
    same(&reported(r#"{"jobs": {"a": {"schedule": "@daily", "command": "a\d"}}}"#), &format!("j:1:52: {advice}"));
    for value in [r#""a\tb \x41 \u00e4 \U0001F600 \/""#, r"'C:\dir'", r"C:\dir"] {
        same(&reported(format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n")), "");
    }
}

#[test]
fn a_bracket_that_is_not_closed_is_found() {
    for (text, at, open) in [
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [x\n", "4:14", '['),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [x, y\n    user: z\n", "4:14", '['),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [x}\n", "4:14", '['),
        ("jobs: {a: {schedule: '@daily', command: x}\n", "1:7", '{'),
        ("jobs:\n  a: {schedule: ['@daily', command: x}\n", "2:17", '['),
    ] {
        same(&reported(text), &format!("j:{at}: this is not YAML: this `{open}` is not closed"));
    }
}

#[test]
fn a_line_without_a_key_is_named() {
    let missing = "a space is missing behind the colon of this key";
    let expected = "this is not YAML: `key: value` is expected here; add the colon, or indent the line further if it \
                    belongs to the value above";
    for (text, at, message) in [
        ("jobs:\n  a:\n    schedule: '@daily'\n    command:x\n", "4:13", missing),
        ("jobs:\n  a:\n    schedule:'@daily'\n    command: x\n", "3:14", missing),
        ("jobs:\n  a\n    schedule: '@daily'\n    command: x\n", "2:3", expected),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command\n", "4:5", expected),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: |\n    x\n", "5:5", expected),
    ] {
        same(&reported(text), &format!("j:{at}: {message}"));
    }
}

#[test]
fn a_space_that_does_not_break_is_named() {
    let message = "a space of another kind (U+00A0); YAML wants ordinary spaces";
    same(&reported("jobs:\n  a:\n    schedule: '@daily'\n    command:\u{a0}x\n"), &format!("j:4:13: {message}"));
    let key = reported("jobs:\n  a:\n    command: x\n    schedule: '@daily'\n    \u{a0}user: x\n");
    assert!(key.contains("it has a space of another kind (U+00A0): write ordinary spaces"), "{key}");
    same(&reported("jobs:\n  a:\n    schedule: '@daily'\n    command: echo\u{a0}x\n"), "");
}

#[test]
fn what_else_is_not_yaml_has_plain_words() {
    let job = |line: &str| format!("jobs:\n  a:\n    schedule: '@daily'\n{line}\n");
    for (text, message) in [
        (job("    command: x\n   user: y"), "5:4: this is not YAML: the indentation of this line fits none"),
        (job("    command: !e!x y"), "4:14: this is not YAML: tags (`!…`) are not supported"),
        (job("    %x: y"), "4:5: this is not YAML: a value cannot begin with this character"),
        (job("    \"command: x"), "4:5: this is not YAML: this quote is not closed"),
        (job("<<<<<<< HEAD\n    command: x\n=======\n    command: y\n>>>>>>> b"), "4:1: a merge conflict"),
        ("%YAML x\n---\njobs: {}\n".to_owned(), "1:1: a jobs file is YAML 1.2"),
        ("%YAML 3.0\n---\njobs: {}\n".to_owned(), "1:1: a jobs file is YAML 1.2"),
        ("%YAML 1.2\njobs: {}\n".to_owned(), "2:1: this is not YAML: a line that begins with `%`"),
    ] {
        let reported = reported(&text);
        assert!(reported.starts_with(&format!("j:{message}")) && reported.lines().count() == 1, "{text}: {reported}");
    }
    same(&reported("%YAML 1.1\n---\njobs: {}\n"), "");
}

#[test]
fn another_encoding_is_named_with_the_command_that_converts_it() {
    let utf16 = |order: fn(u16) -> [u8; 2]| "jobs: {}\n".encode_utf16().flat_map(order).collect::<Vec<u8>>();
    let (little, big) = (utf16(u16::to_le_bytes), utf16(u16::to_be_bytes));
    let marked = |mark: &[u8], text: &[u8]| [mark, text].concat();
    for (bytes, at) in
        [(marked(b"\xff\xfe", &little), "1:1"), (marked(b"\xfe\xff", &big), "1:1"), (little, "1:2"), (big, "1:1")]
    {
        same(&reported(bytes), &format!("j:{at}: the file is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 FILE`"));
    }
    let utf32 = reported(b"\xff\xfe\0\0j\0\0\0");
    same(&utf32, "j:1:1: the file is UTF-32; convert it with `iconv -f UTF-32 -t UTF-8 FILE`");
    same(&reported(b"\x1f\x8b\x08\0\xff"), "j:1:1: the file is compressed; unpack it with `gunzip`");
    same(&reported("jobs: {}\n\u{feff}"), "j:2:1: a byte order mark (U+FEFF) inside the file; delete it");
}

/// What is shown of a file that is not YAML: the job, the key, and the line with its mark.
fn shown(text: &str) -> Option<(String, String, String, usize)> {
    let content = Content::of_files(Path::new("j"), [("j".into(), text.as_bytes().to_owned())]);
    let Err(LoadError::Invalid { mut problems, .. }) = content.load_for_any_host() else { panic!("valid: {text}") };
    content.locate(&mut problems);
    let place = problems.swap_remove(0).place;
    let excerpt = place.excerpt?;
    Some((place.job.unwrap_or_default(), place.key.unwrap_or_default(), excerpt.text, excerpt.offset))
}

#[test]
fn a_command_and_a_schedule_are_shown_with_a_mark() {
    let of = |job: &str, key: &str, line: &str| Some((job.to_owned(), key.to_owned(), line.to_owned(), key.len() + 2));
    let job = |line: &str| {
        format!("jobs:\n  # A job.\n  b: # x\n    environment: {{A: hunter2}}\n\n    {line}\n    user: x\n")
    };
    for (command, _) in COMMANDS {
        let line = format!("command: {command}");
        assert_eq!(shown(&job(&line)), of("b", "command", &line));
    }
    for line in ["schedule: * * * * *", "schedule: @daily"] {
        assert_eq!(shown(&job(line)), of("b", "schedule", line));
    }
    let line = "on_failure: echo \"a: b\"";
    assert_eq!(shown(&format!("defaults:\n  {line}\njobs: {{}}\n")), of("", "on_failure", line));
}

#[test]
fn what_may_be_secret_is_not_shown() {
    for text in [
        "jobs:\n  a:\n    environment:\n      A: hunter2: x\n",
        "jobs:\n  a:\n    environment:\n      command: hunter2: x\n",
        "jobs:\n  a:\n    environment:\n    command: x\n    secrets:\n      schedule: @hunter2\n",
        "jobs:\n  a: {environment: {A: hunter2}, command: \"x\" y}\n",
        "jobs:\n  a:\n    env: x\n    unknown: `hunter2`\n",
        "other:\n  a:\n    command: `hunter2`\n",
        "command: `hunter2`\n",
        "jobs:\n  command: `hunter2`\n",
        "jobs:\n  a:\n    - command: `hunter2`\n",
    ] {
        assert_eq!(shown(text), None, "{text}");
    }
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]

    /// Any text is explained without a panic, and what is under `environment` is neither quoted nor shown.
    #[test]
    fn any_value_is_explained(value in "[ -~\t]{0,12}|([\\[\\]{}\"'`:, #&*@%|>a\t-]){0,10}") {
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n");
        let _ = reported(&text);
        let secret = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: x\n    environment:\n      A: hunter2 {value}\n");
        let content = Content::of_files(Path::new("j"), [("j".into(), secret.as_bytes().to_owned())]);
        if let Err(LoadError::Invalid { mut problems, .. }) = content.load_for_any_host() {
            content.locate(&mut problems);
            prop_assert!(!format!("{problems:?}").contains("hunter2"), "{problems:?}");
        }
    }
}
