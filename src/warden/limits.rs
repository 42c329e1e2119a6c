//! The limits of a launch for single processes: all that its cgroup does not enforce.

use rustix::process::{Resource, Rlimit, getrlimit};

use cronkeeper_core::process::Launch;

/// Seconds of processor time between the warning, SIGXCPU, and SIGKILL.
const CPU_GRACE: u64 = 5;

/// The limits to set in the child. `open_files` applies if the launch has none of its own.
pub(super) fn of(launch: &Launch, is_in_cgroup: bool, open_files: Rlimit) -> [Option<(Resource, Rlimit)>; 4] {
    let cgroup = launch.cgroup.as_ref().filter(|_| is_in_cgroup);
    let limits = &launch.limits;
    let memory = limits.memory.filter(|_| cgroup.is_none_or(|cgroup| cgroup.memory.is_none()));
    let processes = limits.processes.filter(|_| cgroup.is_none_or(|cgroup| cgroup.processes.is_none()));
    let open_files = limits.open_files.map_or(open_files, |(soft, hard)| rlimit(soft, hard));
    [
        Some((Resource::Nofile, open_files)),
        memory.map(|bytes| (Resource::Data, at_most(Resource::Data, bytes, bytes))),
        processes.map(|count| (Resource::Nproc, at_most(Resource::Nproc, count, count))),
        limits.cpu_time.map(|time| (Resource::Cpu, at_most(Resource::Cpu, time, time + CPU_GRACE))),
    ]
}

/// Limits, but never above the present hard limit: only root could raise that.
fn at_most(resource: Resource, soft: u64, hard: u64) -> Rlimit {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    rlimit(soft.min(ceiling), hard.min(ceiling))
}

fn rlimit(soft: u64, hard: u64) -> Rlimit {
    Rlimit { current: Some(soft), maximum: Some(hard) }
}
