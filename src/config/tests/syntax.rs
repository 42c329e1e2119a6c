//! Tests of the explanations of YAML syntax errors.

use super::*;
use proptest::prelude::*;

const ADVICE: &str = "put the command in quotes or under `command: |`";
const LIST: &str = "an unquoted `[` begins a list";
const QUOTE: &str = "a text that begins with a quote ends at the next one";
const COLON: &str = "an unquoted `: ` turns what is before it into a key";
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
    let quote = "this quote is not closed";
    for (text, at) in [
        ("jobs:\n  a:\n    command: x\n    schedule:\n      - \"@daily\n      - \"@hourly\"\n", "5:9"),
        ("jobs:\n  a:\n    command: x\n    schedule:\n      - '@daily\n      - '@hourly'\n", "5:9"),
        ("jobs:\n  a:\n    command: x\n    schedule: ['@daily, '@hourly']\n", "4:16"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [\"echo, \"x\"]\n    user: y\n", "4:15"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [\"echo\",\n      \"x,\n      \"y\"]\n", "5:7"),
        ("jobs:\n  a:\n    \"schedule: \"@daily\"\n    command: x\n", "3:5"),
        ("jobs:\n  a:\n    schedule: \"@daily\n    command: \"echo x\"\n", "3:15"),
    ] {
        same(&reported(text), &format!("j:{at}: {quote}"));
    }
    for (text, at) in [
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: [\"echo\", \"x]\n", "4:23"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: ['echo', 'x]\n    user: y\n", "4:23"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command:\n      - echo\n      - \"x\n", "6:9"),
    ] {
        let reported = reported(text);
        assert!(reported.starts_with(&format!("j:{at}: this is not YAML: {quote}")), "{text}: {reported}");
    }
}

#[test]
fn a_tab_where_yaml_wants_spaces_is_named() {
    let message = "a tab; YAML wants spaces here";
    for (text, at) in [
        ("jobs:\n\ta:\n\t\tschedule: '@daily'\n\t\tcommand: x\n", "2:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n\tcommand: x\n", "4:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n   \tcommand: x\n", "4:4"),
        ("jobs:\n  a:\n  \tschedule: '@daily'\n  \tcommand: x\n", "3:3"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: |\n\tx\n", "5:1"),
        ("jobs:\n  a:\n    schedule: '@daily'\n    command: x\n\ty\n", "5:1"),
    ] {
        same(&reported(text), &format!("j:{at}: {message}"));
    }
}

/// YAML 1.2, `s-separate-in-line`: spaces and tabs separate a value from what is before it, and a comment from a value.
#[test]
fn a_tab_separates_as_a_space_does() {
    for text in [
        "jobs:\n  a:\n    schedule:~'@daily'\n    command:~x\n    enabled:~true\n",
        "jobs:\n  a:\n    schedule:~0 1 * * *\n    command:~[x, y]\n    description:~a b\n",
        "jobs:\n  a:\n    schedule:~0 1 * * *~# why\n    command:~x~# c\n    nice:~-5\n",
        "jobs:\n  a:\n    schedule: '@daily'\n    \"command\":~x\n    retries:~{limit:~3}\n",
        "jobs:\n  a: {schedule: '@daily', command:~x,~user:~y~}\n",
        "jobs:\n  a:\n    schedule: '@daily'\n    command:~|\n      x:~y\n    environment:\n      A:~'b:~c'\n",
        "jobs:\n  a:\n    schedule:\n    -~'@daily'\n    - ~'@hourly'\n    command:\n    -~x\n    - ~y\n",
        "jobs:\n~\n  a:\n    schedule: '@daily'\n~\n  ~  \n    command: x\n~\n",
        "jobs:~\n  a:~# x\n    schedule: '@daily'\n    command:~\n      x\n",
    ] {
        // In a text under `|` and in quotes, a tab is a part of the text.
        let inside = |text: &str| text.replace("x:~y", "x:\ty").replace("b:~c", "b:\tc");
        let of = |text: &str| {
            let (set, warnings) = parse("j", text.as_bytes()).unwrap_or_else(|all| panic!("{text:?}: {}", lines(&all)));
            (set.jobs, lines(&warnings))
        };
        assert_eq!(of(&inside(text).replace('~', "\t")), of(&inside(text).replace('~', " ")), "{text}");
    }
    // What a space does not separate, a tab does not either.
    for (text, why) in [
        ("jobs:\n  a:~schedule: '@daily'\n", "this is not YAML"),
        ("jobs:\n  a:\n    command:~- x\n", "an unquoted `- ` begins a list"),
    ] {
        for separator in [" ", "\t"] {
            let reported = reported(text.replace('~', separator));
            assert!(reported.contains(why), "{text}: {reported}");
        }
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
    for value in [r#""a\n\\b \x41 \u00e4 \U0001F600 \/""#, r"'C:\dir'", r"C:\dir"] {
        same(&reported(format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n")), "");
    }
}

#[test]
fn an_escape_that_changes_a_command_is_a_warning() {
    let of = |keys: &str| reported(format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {keys}\n"));
    let warning = |key: &str, letter: char, meaning: &str, block: &str| {
        format!(
            "job `a`: `{key}`: in double quotes `\\{letter}` is {meaning}; for a backslash, put the text in single \
             quotes{block}, or double the backslash"
        )
    };
    let block = " or under `command: |`";
    for (value, at, letter, meaning) in [
        (r#""C:\temp""#, "4:17", 't', "a tab"),
        (r#""dir C:\new""#, "4:21", 'n', "a line break"),
        (r#""dir C:\\new\x41\net""#, "4:30", 'n', "a line break"),
        (r#""dir \\\\host\new""#, "4:27", 'n', "a line break"),
        (r#""grep '\bx\b' y""#, "4:21", 'b', "a backspace"),
        (r#""printf '\e[1m'""#, "4:23", 'e', "an escape character (U+001B)"),
        (r#""ls my\ file""#, "4:20", ' ', "a space"),
        (r#""sed 's/a\/b/c/'""#, "4:23", '/', "a slash"),
        (r#""x C:\Logs""#, "4:19", 'L', "a line separator (U+2028)"),
        ("\"echo x\n      C:\\temp\"", "5:9", 't', "a tab"),
    ] {
        same(&of(value), &format!("j:{at}: {}", warning("command", letter, meaning, block)));
    }
    same(&of(r#"["dir", "C:\temp"]"#), &format!("j:4:25: {}", warning("command", 't', "a tab", "")));
    let hook = of("x\n    on_failure: \"C:\\temp\"");
    same(&hook, &format!("j:5:20: {}", warning("on_failure", 't', "a tab", " or under `on_failure: |`")));
    let defaults = reported("defaults: {on_failure: \"C:\\temp\"}\njobs: {}\n");
    assert!(defaults.starts_with("j:1:27: defaults: `on_failure`: in double quotes `\\t`"), "{defaults}");
    for value in [
        r#""cd x\nmake\n""#,
        r#""echo \"a\" \\ \x1b""#,
        r#""\/bin\/true""#,
        r"'C:\temp'",
        r"C:\temp",
        "|\n      C:\\temp",
        "x\n    environment: {IFS: \" \\t\\n\"}",
    ] {
        same(&of(value), "");
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
        ("jobs:\n  a:\n    schedule: [\"* * *\"\n    command: x\n", "3:15", '['),
        ("jobs:\n  a:\n    schedule: [\"* * *\"  # why\n    # more\n    command: x\n", "3:15", '['),
        ("jobs:\n  a:\n    schedule: ['@daily'\n    environment: {A: b}\n    command: x\n", "3:15", '['),
        ("jobs:\n  a:\n    schedule: ['@daily']\n    environment: {A: b\n    command: x\n", "4:18", '{'),
        ("jobs:\n  a:\n    command: x\n    environment: {A: b\n", "4:18", '{'),
        ("jobs:\n  a:\n    command: x\n    schedule:\n      - [\"@daily\"\n      - \"@hourly\"\n", "5:9", '['),
        ("jobs:\n  a:\n    command: [echo, x\n  b:\n    schedule: '@daily'\n    command: y\n", "3:14", '['),
        ("jobs:\n  a:\n    command: [echo,\n      x,\n      y\n    user: z\n", "3:14", '['),
        ("defaults:\n  lock: [/a\njobs:\n  a:\n    command: x\n", "2:9", '['),
        ("{jobs: {a: {schedule: '@daily', command: x}}\n", "1:1", '{'),
        ("jobs:\r\n  a:\r\n    schedule: ['@daily'\r\n    command: x\r\n", "3:15", '['),
        ("jobs:\n  a:\n    command: x\n    schedule: ['@daily',\n", "4:15", '['),
        ("jobs:\n  a:\n    command: x\n    schedule: [\n", "4:15", '['),
        ("jobs:\n  a:\n    command: x\n    environment: {A: b,\n", "4:18", '{'),
    ] {
        let close = if open == '[' { ']' } else { '}' };
        let message = format!("this is not YAML: this `{open}` is not closed; its `{close}` is missing");
        same(&reported(text), &format!("j:{at}: {message}"));
    }
}

#[test]
fn a_bracket_that_closes_none_is_named_and_not_the_value_before_it() {
    for (value, at) in [("[echo]]", "4:20"), ("[echo]] # why", "4:20"), ("[echo, [x]]]", "4:25")] {
        let text = format!("jobs:\n  a:\n    schedule: '@daily'\n    command: {value}\n    user: x\n");
        same(&reported(text), &format!("j:{at}: this is not YAML: this bracket closes nothing"));
    }
    for (text, at) in [
        ("jobs:\n  a:\n    schedule: \"@daily\"]\n    command: x\n", "3:23"),
        ("jobs:\n  a:\n    schedule: '@daily'  }\n    command: x\n", "3:25"),
        ("jobs:\n  a:\n    command: x\n    environment: {A: b}}\n    user: y\n", "4:24"),
    ] {
        same(&reported(text), &format!("j:{at}: this is not YAML: this bracket closes nothing"));
    }
}

#[test]
fn a_line_without_a_key_is_named() {
    let missing = "a space is missing after the colon of this key";
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
    let message = "an unusual space (U+00A0); YAML wants ordinary spaces";
    same(&reported("jobs:\n  a:\n    schedule: '@daily'\n    command:\u{a0}x\n"), &format!("j:4:13: {message}"));
    let key = reported("jobs:\n  a:\n    command: x\n    schedule: '@daily'\n    \u{a0}user: x\n");
    assert!(key.contains("it has an unusual space (U+00A0): write ordinary spaces"), "{key}");
    same(&reported("jobs:\n  a:\n    schedule: '@daily'\n    command: echo\u{a0}x\n"), "");
}

#[test]
fn what_else_is_not_yaml_has_plain_words() {
    let job = |line: &str| format!("jobs:\n  a:\n    schedule: '@daily'\n{line}\n");
    for (text, message) in [
        (job("    command: x\n   user: y"), "5:4: this is not YAML: the indentation of this line matches none"),
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
