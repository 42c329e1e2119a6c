//! The variables of the entries: which hold for all of them, and which for one.
//!
//! cron hands every variable to the command, so they all become `environment`. Some tell cron itself something: those
//! are remarked on where they stand.

use std::collections::BTreeMap;

use super::Remark;
use super::line::{Line, What};
use super::setting::Setting;
use super::yaml::{comment, quoted};
use crate::config;
use crate::schedule::known_zone;

/// A little less than a key may have that stands on one line with its value.
const LONGEST_KEY: usize = 1_000;

/// Variables by name.
pub(super) type Environment = BTreeMap<String, String>;

/// What is the same for all entries.
pub(super) fn shared(lines: &[Line]) -> Environment {
    let mut shared = Environment::new();
    let mut has_entry = false;
    for line in lines {
        match &line.what {
            What::Entry(_) => has_entry = true,
            What::Setting(setting) if has_entry => drop(shared.remove(&setting.name)),
            What::Setting(setting) if refused(setting).is_none() => set(&mut shared, setting),
            _ => {}
        }
    }
    shared
}

/// For the entries that follow.
pub(super) fn set(environment: &mut Environment, setting: &Setting) {
    environment.insert(setting.name.clone(), setting.value.clone());
}

/// Why a variable cannot be handed to a command as it is.
pub(super) fn refused(setting: &Setting) -> Option<&'static str> {
    let Setting { name, value } = setting;
    match name.as_str() {
        "LOGNAME" | "USER" => Some("cron overrules it: it is always the user's name"),
        "" => Some("it has no name"),
        "SHELL" if value.is_empty() => Some("a shell must be named"),
        _ if name.contains('=') => Some("its name holds a `=`"),
        _ if quoted(name).len() > LONGEST_KEY => Some("its name is longer than a key of YAML can be"),
        _ if name.len() + 1 + value.len() >= config::LONGEST_STRING => Some("it is too long to be handed to a process"),
        _ => None,
    }
}

/// What a setting means to cron besides, and whether it means it here.
pub(super) fn remarks(setting: &Setting) -> Vec<Remark> {
    let Setting { name, value } = setting;
    let value = comment(value);
    let no_mail = |what: String| Remark::loss(format!("{what}: no mail is sent; output goes into the log"));
    let remark = match name.as_str() {
        "MAILTO" if value.is_empty() => Remark::same("no mail, as here: output goes into the log"),
        "MAILTO" => {
            let instead = format!(
                r#"for mail of failures: on_failure: (printf "Subject:%s failed\n\n" "$CRONKEEPER_JOB"; cat) | /usr/sbin/sendmail {value}"#
            );
            return vec![no_mail(format!("MAILTO={value}")), Remark::same(instead)];
        }
        "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => no_mail(name.clone()),
        "CRON_TZ" if known_zone(&value).is_some() => {
            Remark::loss(format!("CRON_TZ={value}: taken as the time zone, as cronie does; Debian's cron ignores it"))
        }
        "CRON_TZ" => Remark::loss(format!("CRON_TZ={value}: no time zone of the IANA database, so it is not used")),
        "TZ" => Remark::same(format!("TZ={value}: for the commands; cron schedules by the zone of its host")),
        "RANDOM_DELAY" => match delay(&setting.value) {
            Some(0) => return Vec::new(),
            Some(minutes) => {
                Remark::same(format!("RANDOM_DELAY={minutes}: a fixed delay of so many minutes at most, `splay`"))
            }
            None => Remark::loss(format!("RANDOM_DELAY={value}: no number of minutes")),
        },
        "HOME" if !value.starts_with('/') => {
            Remark::loss(format!("HOME={value}: not an absolute path, so the commands do not start there"))
        }
        _ => return Vec::new(),
    };
    vec![remark]
}

/// cronie's: minutes, a day at most.
pub(super) fn delay(value: &str) -> Option<u16> {
    value.trim().parse().ok().filter(|minutes| *minutes <= 1_440)
}
