//! Variables of a crontab, which become `environment` of the jobs, and SHELL their `shell`.
//!
//! cron passes every variable to the commands, so all of them are kept. Some also have a meaning for cron itself; these
//! get a remark at their place.

use std::collections::BTreeMap;

use super::Remark;
use super::line::{Line, LineKind};
use super::mail;
use super::setting::Setting;
use super::yaml::{comment, quoted};
use cronkeeper_core::environment_file::{LONGEST_STRING, is_variable_name};
use cronkeeper_core::schedule::known_zone;

/// Most characters of a key. YAML limits a key on one line with its value to 1024.
const LONGEST_KEY: usize = 1_000;

/// Variables by name.
pub(super) type Environment = BTreeMap<String, String>;

/// The variables that have the same value for all entries.
pub(super) fn shared(lines: &[Line]) -> Environment {
    let mut shared = Environment::new();
    let mut has_entry = false;
    for line in lines {
        match &line.kind {
            LineKind::Entry(_) => has_entry = true,
            LineKind::Setting(setting) if has_entry => drop(shared.remove(&setting.name)),
            LineKind::Setting(setting) => set(&mut shared, setting),
            _ => {}
        }
    }
    shared
}

/// Sets a variable for the entries that follow, unless it cannot be passed to a command.
pub(super) fn set(environment: &mut Environment, setting: &Setting) {
    if refused(setting).is_none() {
        environment.insert(setting.name.clone(), setting.value.clone());
    } else if is_no_shell(setting) {
        // The shell before must not run the entries below.
        environment.remove(&setting.name);
    }
}

fn is_no_shell(Setting { name, value }: &Setting) -> bool {
    name == "SHELL" && value.trim().is_empty()
}

/// Why a variable cannot be passed to a command, if so.
pub(super) fn refused(setting: &Setting) -> Option<&'static str> {
    let Setting { name, value } = setting;
    match name.as_str() {
        "LOGNAME" | "USER" => Some("cron ignores it: the variable is always the user's name"),
        "" => Some("the variable has no name"),
        "SHELL" if is_no_shell(setting) => Some("the shell must not be empty; the entries below get /bin/sh"),
        _ if name.contains('=') => Some("its name contains `=`"),
        _ if !is_variable_name(name) => Some("its name contains a space or a control character"),
        _ if quoted(name).len() > LONGEST_KEY => Some("its name is too long for a YAML key"),
        _ if name.len() + 1 + value.len() >= LONGEST_STRING => Some("it is too long to be passed to a process"),
        _ => None,
    }
}

/// Remarks on variables that have a meaning for cron itself.
pub(super) fn remarks(setting: &Setting) -> Vec<Remark> {
    let Setting { name, value } = setting;
    let value = comment(value);
    let remark = match name.as_str() {
        "CRON_TZ" if setting.value.is_empty() => {
            Remark::same("CRON_TZ=: the time zone of the host again, as in cronie")
        }
        "CRON_TZ" if known_zone(&value).is_some() => {
            Remark::loss(format!("CRON_TZ={value}: used as the time zone, as in cronie; Debian's cron ignores it"))
        }
        "CRON_TZ" => Remark::loss(format!("CRON_TZ={value}: not an IANA time zone, so it is ignored")),
        "TZ" => Remark::same(format!(
            "TZ={value}: applies to the commands only; cron schedules in the time zone of its host"
        )),
        "RANDOM_DELAY" if setting.value.is_empty() => Remark::same("RANDOM_DELAY=: no delay, as in cronie"),
        "RANDOM_DELAY" => match delay(&setting.value) {
            Some(0) => return Vec::new(),
            Some(minutes) => Remark::same(format!(
                "RANDOM_DELAY={minutes}: each job gets a fixed delay of less than that many minutes, with `splay`"
            )),
            None => Remark::loss(format!("RANDOM_DELAY={value}: not a number of minutes")),
        },
        "HOME" if !value.starts_with('/') => {
            Remark::loss(format!("HOME={value}: not an absolute path, so the commands do not start there"))
        }
        _ => return mail::remark(setting).into_iter().collect(),
    };
    vec![remark]
}

/// Parses cronie's RANDOM_DELAY in minutes; at most one day.
pub(super) fn delay(value: &str) -> Option<u16> {
    value.trim().parse().ok().filter(|minutes| *minutes <= 1_440)
}
