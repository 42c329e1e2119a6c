//! A launch's limits as the kernel's for single processes: all that its cgroup does not keep.

use rustix::process::{Resource, Rlimit, getrlimit};

use super::wire::Launch;

/// Between the warning, SIGXCPU, and SIGKILL, in seconds of processor time.
const CPU_GRACE: u64 = 5;

/// What to set in the child. `open_files` is the limit it has without one of its own.
pub(super) fn of(launch: &Launch, is_placed: bool, open_files: Rlimit) -> Vec<(Resource, Rlimit)> {
    let kept = launch.cgroup.as_ref().filter(|_| is_placed);
    let limits = &launch.limits;
    let memory = limits.memory.filter(|_| kept.is_none_or(|cgroup| cgroup.memory.is_none()));
    let processes = limits.processes.filter(|_| kept.is_none_or(|cgroup| cgroup.processes.is_none()));
    let open_files = limits.open_files.map_or(open_files, |(soft, hard)| rlimit(soft, hard));
    let mut all = vec![(Resource::Nofile, open_files)];
    all.extend(memory.map(|bytes| (Resource::Data, at_most(Resource::Data, bytes, bytes))));
    all.extend(processes.map(|count| (Resource::Nproc, at_most(Resource::Nproc, count, count))));
    all.extend(limits.cpu_time.map(|time| (Resource::Cpu, at_most(Resource::Cpu, time, time + CPU_GRACE))));
    all
}

/// Never above what holds already: only root could raise that, and it is stricter.
fn at_most(resource: Resource, soft: u64, hard: u64) -> Rlimit {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    rlimit(soft.min(ceiling), hard.min(ceiling))
}

fn rlimit(soft: u64, hard: u64) -> Rlimit {
    Rlimit { current: Some(soft), maximum: Some(hard) }
}
