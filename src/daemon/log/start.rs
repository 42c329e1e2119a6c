//! A process that was not started: which step failed, and how.

use std::io;

use rustix::io::Errno;
use tracing::warn;

use crate::job::JobName;
use crate::run::RunId;
use crate::telemetry::TARGET;
use crate::warden::wire::{StartFailure, Step};

/// That there was none in time is no fault of the host.
pub(in crate::daemon) fn not_started(job: &JobName, run: &RunId, why: StartFailure) {
    if let StartFailure::Step { .. } = why {
        warn!(target: TARGET, %job, %run, "not started: {}", in_words(why));
    }
}

/// What failed.
pub(super) fn in_words(why: StartFailure) -> String {
    let StartFailure::Step { step, errno } = why else { return "it was too late".to_owned() };
    let what = match step {
        Step::Fork if errno == Errno::AGAIN.raw_os_error() => {
            "no process could be had, for there are as many as the unit (`TasksMax=`) or the host allows"
        }
        Step::Fork => "no process could be had",
        Step::Prepare => "its process could not be prepared",
        Step::Limits => "its limits or nice value could not be set",
        // Looked up before there is a process: the system was not asked.
        Step::User if errno == 0 => return "this host does not know its user or group".to_owned(),
        Step::User => "its process could not become the user",
        Step::Directory => "its directory could not be entered",
        Step::Exec => "its program could not be executed",
    };
    format!("{what}: {}", io::Error::from_raw_os_error(errno))
}
