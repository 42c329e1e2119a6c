//! The keys for the user, nice value and limits of a job's processes.
//!
//! This module checks each value on its own and merges `limits` with the defaults key by key. [`host`](super::host)
//! checks whether the host can fulfil them.

use std::time::Duration;

use super::raw::{Given, merged};
use super::schema::shown;
use super::size;
use crate::accounts;
use cronkeeper_core::duration;
use cronkeeper_core::job::Limits;

/// The nice values that the kernel accepts.
const NICE: std::ops::RangeInclusive<i32> = -20..=19;

/// The given keys of `limits`.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitSettings {
    pub memory: Given<u64>,
    pub processes: Given<u64>,
    pub open_files: Given<u64>,
    pub cpu_time: Given<Duration>,
}

/// Merges a job's limits with the defaults, key by key.
pub(super) fn limits(own: &Given<LimitSettings>, defaults: &Given<LimitSettings>) -> Limits {
    let own = match own {
        Some(None) => return Limits::default(),
        given => given.clone().flatten().unwrap_or_default(),
    };
    let defaults = defaults.clone().flatten().unwrap_or_default();
    Limits {
        memory: merged(&own.memory, &defaults.memory),
        processes: merged(&own.processes, &defaults.processes),
        open_files: merged(&own.open_files, &defaults.open_files),
        cpu_time: merged(&own.cpu_time, &defaults.cpu_time),
    }
}

/// Checks the form of a user's or group's name or number.
pub(super) fn account(text: String) -> Result<String, String> {
    let is_fit =
        !text.is_empty() && !text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/'));
    if !is_fit {
        return Err(format!("`{}` is not the name of a user or group", shown(&text)));
    }
    // `+0` and `00` look like names and would be root.
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && accounts::number(&text).is_none() {
        return Err(format!(
            "`{}` is not the number of a user or group: expected 0 to {}, without a sign and leading zeros",
            shown(&text),
            u32::MAX - 1
        ));
    }
    Ok(text)
}

pub(super) fn nice(text: String) -> Result<i32, String> {
    let value = text.parse::<i32>().ok().filter(|value| NICE.contains(value) && !text.starts_with('+'));
    value.ok_or_else(|| format!("`{}` is not a nice value: expected -20 to 19", shown(&text)))
}

pub(super) fn memory(text: String) -> Result<u64, String> {
    match size::parse(&text) {
        Ok(0) => Err("must be more than zero".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn count(text: String) -> Result<u64, String> {
    // `u32`, because the kernel counts in signed 64-bit numbers.
    let count = text.parse::<u32>().ok().filter(|&count| count > 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
    count.map(u64::from).ok_or_else(|| format!("`{}` is not a whole number of at least 1", shown(&text)))
}

/// Parses CPU time, which the kernel limits in whole seconds.
pub(super) fn cpu_time(text: String) -> Result<Duration, String> {
    match duration::parse(&text) {
        Ok(time) if time.subsec_nanos() == 0 && !time.is_zero() => Ok(time),
        Ok(_) => Err("must be whole seconds, at least one".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
