//! Log messages for processes that could not be started.

use std::io;

use rustix::io::Errno;
use tracing::warn;

use crate::job::JobName;
use crate::process::{StartFailure, StartStep};
use crate::run::RunId;
use crate::telemetry::TARGET;

/// Logs which step failed. A start that came too late is not logged: the host did nothing wrong.
pub(in crate::daemon) fn not_started(job: &JobName, run: &RunId, why: StartFailure) {
    if let StartFailure::Step { .. } = why {
        warn!(target: TARGET, %job, %run, "not started: {}", describe(why));
    }
}

/// Describes the failure, with the system's error where there is one.
pub(super) fn describe(why: StartFailure) -> String {
    let StartFailure::Step { step, errno } = why else { return "it was too late".to_owned() };
    let what = match step {
        StartStep::Fork if errno == Errno::AGAIN.raw_os_error() => {
            "cannot create a process: the unit (`TasksMax=`) or the host has reached its limit of processes"
        }
        StartStep::Fork => "cannot create a process",
        StartStep::Prepare => "cannot prepare its process",
        StartStep::Limits => "cannot set its limits or nice value",
        // The user was looked up before there was a process, so there is no system error to report.
        StartStep::User if errno == 0 => return "this host does not know its user or group".to_owned(),
        StartStep::User => "cannot switch to its user",
        StartStep::Directory => "cannot enter its working directory",
        StartStep::Exec => "cannot execute its program",
    };
    format!("{what}: {}", io::Error::from_raw_os_error(errno))
}
