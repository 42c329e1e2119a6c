//! Job names, derived from commands: the program or script that does the work.
//!
//! `cd /srv && nice -n 19 /usr/bin/php /srv/app/cron.php --all` becomes `app-cron`: commands that only prepare or wrap the
//! work are ignored, as are the words of the shell, and a name that says nothing has its directory's before it.

use std::collections::{BTreeSet, HashMap};

use cronkeeper_core::job::JobName;

/// The names of the jobs so far, each of them unique.
#[derive(Debug, Default)]
pub(super) struct JobNames {
    taken: BTreeSet<String>,
    /// How often each base name was requested.
    requests: HashMap<String, usize>,
}

impl JobNames {
    /// Returns a unique name for a command; a second job with the same base name gets the suffix `-2`.
    pub fn of(&mut self, command: &str) -> String {
        let base = base(command);
        let requests = self.requests.entry(base.clone()).or_default();
        loop {
            *requests += 1;
            let name = if *requests == 1 { base.clone() } else { format!("{base}-{requests}") };
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// Bytes of a command that are examined; the rest of a longer one is ignored.
const EXAMINED: usize = 4096;
/// Most characters of a base name, which leaves room for a number.
const LONGEST: usize = 60;

/// Commands that only prepare for the actual work, or say how it went.
const PREPARING: [&str; 32] = [
    "cd", "test", "[", "[[", "export", "set", "umask", "ulimit", "sleep", "true", "false", ":", ".", "source", "trap",
    "wait", "unset", "fi", "done", "for", "case", "esac", "exit", "return", "break", "continue", "shift", "read",
    "local", "echo", "printf", "pushd",
];

/// Words of the shell before a command.
const KEYWORDS: [&str; 9] = ["if", "then", "else", "elif", "do", "while", "until", "!", "time"];

/// Names of scripts that say nothing without their directory.
const COMMON: [&str; 3] = ["cron", "index", "main"];

/// Programs that run another program: name, options with a value, and number of arguments before the other program.
const WRAPPING: [(&str, &str, usize); 27] = [
    ("nice", "n", 0),
    ("ionice", "cnp", 0),
    ("chrt", "", 1),
    ("timeout", "ks", 1),
    ("flock", "wE", 1),
    ("sudo", "ugD", 0),
    ("runuser", "ug", 0),
    ("env", "uC", 0),
    ("stdbuf", "ioe", 0),
    ("systemd-cat", "tp", 0),
    ("nohup", "", 0),
    ("setsid", "", 0),
    ("exec", "", 0),
    ("command", "", 0),
    ("chronic", "", 0),
    ("run-one", "", 0),
    ("run-parts", "", 0),
    ("sh", "", 0),
    ("bash", "", 0),
    ("dash", "", 0),
    ("ksh", "", 0),
    ("zsh", "", 0),
    ("perl", "", 0),
    ("php", "dc", 0),
    ("ruby", "", 0),
    ("node", "", 0),
    ("java", "", 0),
];

fn base(command: &str) -> String {
    let end = (0..=EXAMINED.min(command.len())).rev().find(|end| command.is_char_boundary(*end)).unwrap_or(0);
    let parts = simple_commands(&command[..end]);
    let name = working(&parts).find_map(|part| program_name(part, true));
    let first = || working(&parts).find_map(|part| name_in(part.first()?));
    let name = name.or_else(first).or_else(|| parts.iter().flatten().find_map(|word| name_in(word)));
    name.unwrap_or_else(|| "job".to_owned())
}

/// The commands that do more than prepare for others, without the words of the shell before them.
fn working(parts: &[Vec<String>]) -> impl Iterator<Item = &[String]> {
    let is_keyword = |word: &&String| KEYWORDS.contains(&word.as_str());
    let commands = parts.iter().map(move |part| &part[part.iter().take_while(is_keyword).count()..]);
    commands.filter(|part| part.first().is_some_and(|word| !PREPARING.contains(&word.as_str())))
}

/// Splits a command line into simple commands, as words without quotes and without leading assignments.
fn simple_commands(text: &str) -> Vec<Vec<String>> {
    let mut parts: Vec<Vec<String>> = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for c in text.chars().chain([';']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, ' ' | '\t' | ';' | '&' | '|' | '(' | ')' | '{' | '}') => {
                let part = parts.last_mut().filter(|part| !(word.is_empty() || part.is_empty() && is_variable(&word)));
                if let Some(part) = part {
                    part.push(std::mem::take(&mut word));
                }
                word.clear();
                if !matches!(c, ' ' | '\t') {
                    parts.push(Vec::new());
                }
            }
            (None, c) => word.push(c),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// True for a program whose scripts are in a language of their own, so that no word in one names a program.
fn is_interpreter(program: &str) -> bool {
    program.starts_with("python") || matches!(program, "perl" | "php" | "ruby" | "node" | "java")
}

/// The name of the first program that is not a wrapper, or of the last wrapper if there is no other program. `None` for
/// an interpreter whose script is on the command line.
///
/// With `parses_scripts`, the script of `sh -c` is searched, too.
fn program_name(words: &[String], parses_scripts: bool) -> Option<String> {
    let mut words = words.iter();
    let mut last = None;
    while let Some(word) = words.next() {
        // Behind a wrapper, a word with a blank is a script, as in `sh -c 'a script'`, and not a path.
        if parses_scripts && last.is_some() && word.contains(' ') {
            let is_of_a_shell = last.as_deref().is_some_and(|last| !is_interpreter(last));
            return is_of_a_shell.then(|| base_of_script(word));
        }
        let program = word.rsplit('/').next().unwrap_or_default();
        let Some((_, with_word, before)) = wrapping(program) else { return name_in(word).or(last) };
        last = name_in(word).or(last);
        let mut before = before;
        let mut rest = words.as_slice();
        while let Some((next, behind)) = rest.split_first() {
            let takes_word = next.strip_prefix('-').filter(|option| option.len() == 1);
            match takes_word {
                Some(option) if with_word.contains(option) => rest = behind.get(1..).unwrap_or_default(),
                _ if next.starts_with('-') || is_variable(next) => rest = behind,
                _ if before > 0 => {
                    before -= 1;
                    rest = behind;
                }
                _ => break,
            }
        }
        words = rest.iter();
    }
    last
}

fn base_of_script(script: &str) -> String {
    let parts = simple_commands(script);
    working(&parts).find_map(|part| program_name(part, false)).unwrap_or_else(|| "job".to_owned())
}

fn wrapping(program: &str) -> Option<(&'static str, &'static str, usize)> {
    if program.starts_with("python") {
        return Some(("python", "WX", 0));
    }
    WRAPPING.iter().find(|(name, _, _)| *name == program).copied()
}

/// The last component of a path, without a script's extension, as a job name; `None` if nothing valid is left. Behind that
/// of its directory if it says nothing.
fn name_in(word: &str) -> Option<String> {
    let name = own_name_in(word)?;
    let directory = || own_name_in(word.trim_end_matches('/').rsplit_once('/')?.0);
    match COMMON.contains(&name.as_str()).then(directory).flatten() {
        Some(directory) => {
            let both: String = format!("{directory}-{name}").chars().take(LONGEST).collect();
            Some(both.trim_end_matches(['.', '_', '-']).to_owned())
        }
        None => Some(name),
    }
}

fn own_name_in(word: &str) -> Option<String> {
    const ENDINGS: [&str; 9] = [".sh", ".bash", ".py", ".pl", ".php", ".rb", ".js", ".cgi", ".jar"];
    let file = word.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = ENDINGS.iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file);
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = stem.chars().map(fit).skip_while(|c| !c.is_ascii_alphanumeric()).take(LONGEST).collect();
    let name = name.trim_end_matches(['.', '_', '-']).to_owned();
    JobName::parse(&name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_job_is_named_by_what_does_the_work() {
        for (command, name) in [
            ("/usr/local/bin/backup --full", "backup"),
            ("cd /srv && ./sync.sh > /dev/null 2>&1", "sync"),
            ("cd / && run-parts --report /etc/cron.hourly", "cron.hourly"),
            ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "cron.daily"),
            ("[ -x /usr/lib/php/sessionclean ] && /usr/lib/php/sessionclean", "sessionclean"),
            ("/usr/bin/php -d memory_limit=1G -f /var/www/app/cron.php", "app-cron"),
            ("curl -s https://x.example/cron.php", "curl"),
            ("cron.php", "cron"),
            ("/cron.php", "cron"),
            ("[ -x /usr/lib/php/x ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/x; fi", "x"),
            ("if [ -f /x ]; then /opt/do-it; fi", "do-it"),
            ("if ! /opt/check; then /opt/repair; fi", "check"),
            ("for i in 1 2; do /opt/loop $i; done", "loop"),
            ("case \"$X\" in a) /opt/a;; esac", "a"),
            ("cd /x || exit 1; ./all", "all"),
            ("printf 'x' > /tmp/f; /opt/real", "real"),
            ("sh -c 'if true; then echo x; ./load; fi'", "load"),
            ("while read line; do /opt/one $line; done < /etc/list", "one"),
            ("echo hi", "echo"),
            ("if", "if"),
            ("nice -n 19 ionice -c 3 flock -n /run/lock/x /opt/report.py", "report"),
            ("timeout 10m python3 -u /opt/a b.py", "a"),
            ("FOO=bar BAZ='x y' /opt/run.pl", "run"),
            ("bash -lc 'cd /srv; ./deploy --now'", "deploy"),
            ("sudo -u postgres /usr/bin/pg_dumpall", "pg_dumpall"),
            ("/opt/Größe", "Gr--e"),
            ("test -x certbot && perl -e 'sleep int(rand(3600))' && certbot -q renew", "certbot"),
            ("perl -e 'print 1'", "perl"),
            ("/usr/bin/python3 -c 'import os; os.x()' | /opt/load", "load"),
            ("sh", "sh"),
            ("sleep 5", "sleep"),
            ("cd /", "cd"),
            ("@@@", "job"),
            ("", "job"),
            ("\"/opt/my tool/x.sh\" -a", "x"),
        ] {
            assert_eq!(base(command), name, "{command}");
        }
    }

    #[test]
    fn no_two_jobs_have_one_name() {
        let mut names = JobNames::default();
        let of: Vec<String> = ["a", "/x/a", "a-2", "a", "a-2"].iter().map(|command| names.of(command)).collect();
        assert_eq!(of, ["a", "a-2", "a-2-2", "a-3", "a-2-3"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_command_has_a_valid_name(commands in prop::collection::vec(".{0,60}|([a-c /;&|'\"=.-]){0,20}", 0..20)) {
            let mut names = JobNames::default();
            let named: BTreeSet<String> = commands.iter().map(|command| names.of(command)).collect();
            prop_assert_eq!(named.len(), commands.len());
            prop_assert!(named.iter().all(|name| JobName::parse(name).is_ok()), "{:?}", named);
        }
    }
}
