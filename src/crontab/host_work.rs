//! Entries that do the work of each host, as most entries of a distribution's own crontabs do, and remarks on them.
//!
//! cron runs them on every host, so their jobs have `run_on: every`. Some begin with a guard, which asks the host whether
//! another program does this work: on one host the job then does nothing, and on another it does.

use super::Remark;
use super::when::word;

/// Programs that maintain the host that they run on.
const PROGRAMS: [&str; 28] = [
    "anacron",
    "apt",
    "apt-get",
    "aptitude",
    "certbot",
    "checkarray",
    "debian-sa1",
    "dnf",
    "e2scrub_all",
    "e2scrub_all_cron",
    "fstrim",
    "hwclock",
    "logrotate",
    "man-db",
    "mandb",
    "ntpdate",
    "run-parts",
    "sa1",
    "sa2",
    "sessionclean",
    "smartctl",
    "systemd-tmpfiles",
    "tmpreaper",
    "tmpwatch",
    "unattended-upgrade",
    "updatedb",
    "yum",
    "zypper",
];

const ANACRON: &str = "anacron";
const JOURNALCTL: &str = "journalctl";
const OF_SYSTEMD: &str = "/run/systemd/system";

/// What is to be said of an entry that maintains its host, and the program that does so, if there is one.
pub(super) fn remarks(command: &str) -> (Vec<Remark>, Option<&str>) {
    let words: Vec<&str> = words(command).collect();
    let asked = |program: &str| {
        let is_asked = |pair: &[&str]| matches!(pair[0], "-x" | "-e" | "-f") && name_of(pair[1]) == program;
        words.windows(2).any(is_asked)
    };
    let is_guarded = asked(ANACRON);
    let mut remarks = Vec::new();
    if is_guarded {
        remarks.push(Remark::loss(
            "the command does nothing on a host with anacron, which does this work there, on each host",
        ));
    }
    if words.contains(&OF_SYSTEMD) {
        remarks.push(Remark::loss(
            "the command checks whether its host has systemd; if it has, a timer usually does this work, on each host",
        ));
    }
    // It reads the journal too.
    let is_vacuum = words.iter().any(|word| word.starts_with("--vacuum-"));
    let program = words.iter().map(|word| name_of(word)).find(|name| {
        let is_guard = is_guarded && *name == ANACRON;
        !is_guard && (PROGRAMS.contains(name) || is_vacuum && *name == JOURNALCTL)
    });
    remarks.extend(program.map(|program| {
        Remark::loss(format!(
            "`{program}` probably maintains the host that it runs on: the job runs on every host, as with cron"
        ))
    }));
    (remarks, program)
}

/// True for a line of an anacrontab: a period in days, a delay in minutes, a name and the command.
///
/// No line of a crontab looks like this: a day of month has no letters, and no command is a number. A line of five
/// fields whose day of month is wrong, such as `0 5 L * * x`, has a field where an anacrontab has the command.
pub(super) fn is_of_an_anacrontab(line: &str) -> bool {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let (period, rest) = word(line);
    let (delay, rest) = word(rest);
    let (name, command) = word(rest);
    if !is_number(delay) || name.is_empty() || command.is_empty() {
        return false;
    }
    let is_name = name.bytes().any(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    match period {
        "@daily" | "@weekly" | "@monthly" | "@yearly" | "@annually" => true,
        period => is_number(period) && is_name && !is_time(word(command).0),
    }
}

/// True for a month or weekday as crontabs of any program have it.
fn is_time(field: &str) -> bool {
    let names = "jan feb mar apr may jun jul aug sep oct nov dec sun mon tue wed thu fri sat";
    let is_item = |item: &str| match item.bytes().all(|byte| !byte.is_ascii_alphabetic()) {
        true => item.bytes().all(|byte| b"0123456789*?#~".contains(&byte)),
        false => item.get(..3).is_some_and(|start| names.split(' ').any(|name| name.eq_ignore_ascii_case(start))),
    };
    field.split([',', '-', '/']).all(is_item)
}

/// The words of a command line, without what separates commands and without quotes.
fn words(command: &str) -> impl Iterator<Item = &str> {
    let separates =
        |c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')' | '{' | '}' | '"' | '\'' | '`');
    command.split(separates).filter(|word| !word.is_empty())
}

fn name_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(command: &str) -> Vec<String> {
        remarks(command).0.into_iter().map(|remark| remark.text).collect()
    }

    #[test]
    fn work_of_each_host_is_named() {
        for (command, program) in [
            ("cd / && run-parts --report /etc/cron.hourly", "run-parts"),
            ("/usr/sbin/logrotate /etc/logrotate.conf", "logrotate"),
            ("certbot -q renew", "certbot"),
            ("nice -n 19 sh -c '/sbin/fstrim -a'", "fstrim"),
            ("/usr/sbin/anacron -s", "anacron"),
            ("/usr/lib/x86_64-linux-gnu/e2fsprogs/e2scrub_all_cron", "e2scrub_all_cron"),
            ("journalctl --vacuum-time=7d", "journalctl"),
            ("/bin/journalctl -q --vacuum-size 1G", "journalctl"),
        ] {
            let about = about(command);
            assert!(about.len() == 1 && about[0].starts_with(&format!("`{program}` probably maintains")), "{about:?}");
        }
        for command in ["/usr/local/bin/backup", "echo /etc/logrotate.d/x", "my-run-parts", "journalctl -u x", ""] {
            assert_eq!(about(command), [""; 0], "{command}");
        }
    }

    #[test]
    fn a_guard_is_about_the_host() {
        let anacron = about("test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }");
        assert!(anacron.len() == 2 && anacron[0].contains("a host with anacron"), "{anacron:?}");
        assert!(anacron[1].starts_with("`run-parts`"), "{anacron:?}");
        let systemd = about("[ -x /usr/lib/x ] && if [ ! -d /run/systemd/system ]; then /usr/lib/x; fi");
        assert!(systemd.len() == 1 && systemd[0].contains("has systemd"), "{systemd:?}");
    }

    #[test]
    fn an_anacrontab_is_recognized() {
        for line in [
            "1\t5\tcron.daily\tnice run-parts /etc/cron.daily",
            "@monthly 45 cron.monthly run-parts /x",
            "@daily 10 9backup /bin/x",
            "1 0 my-backup /usr/bin/x y z",
            "1 10 _b /bin/x",
            "30 5 2nd.backup /bin/x",
            "7 25 a at x",
        ] {
            assert!(is_of_an_anacrontab(line), "{line}");
        }
        for line in [
            "1 5 * * * x",
            "@monthly backup 45",
            "@monthly 7z a x",
            "1 5 1 jan mon x",
            "1 5",
            "",
            "1 5 x",
            "0 5 L * * x",
            "0 5 LW * ? x",
            "30 2 mon * * x",
            "30 2 jan 1 * x",
            "0 5 sun root x".get(..7).unwrap_or_default(),
            "0 5 15W 1-5/2 mon-fri x",
            "@daily 10 x",
            "@hourly 10 x y",
        ] {
            assert!(!is_of_an_anacrontab(line), "{line}");
        }
    }
}
