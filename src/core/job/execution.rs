//! A digest of what the node that runs a job reads of its definition.

use std::path::Path;

use serde_json::{Value, json};

use super::{CommandLine, Digest, Job};

impl Job {
    /// Digest of all that the node which runs the job reads of it: command, environment, policies of its processes and
    /// hooks, and where it runs. Not of what only the leader reads: schedule, calendar, alarms, groups, misfires.
    ///
    /// A node runs what the leader has placed there only if this is the same in its own file. The digest is written out
    /// by hand, so that it is the same in every version that reads the same of a job.
    pub fn execution_digest(&self) -> Digest {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let environment_files = self.environment_file.iter().map(|file| json!([path(&file.path), file.is_optional]));
        let secrets = self.secrets.iter().map(|(name, file)| json!([name, path(file)]));
        let limits = self.limits;
        let retries = &self.retries;
        let parts = json!([
            command(&self.command),
            self.environment,
            environment_files.collect::<Vec<_>>(),
            secrets.collect::<Vec<_>>(),
            self.parameters,
            [&self.run_as.user, &self.run_as.group],
            self.nice,
            [limits.memory, limits.processes, limits.open_files, limits.cpu_time.map(|time| time.as_secs())],
            self.working_directory.as_deref().map(path),
            self.umask,
            self.timeout.map(|timeout| timeout.as_nanos().to_string()),
            self.kill_grace.as_nanos().to_string(),
            json!([
                retries.limit,
                retries.delay.as_nanos().to_string(),
                retries.backoff.to_bits(),
                retries.max_delay.as_nanos().to_string()
            ]),
            format!("{:?}", self.overlap),
            format!("{:?}", self.interrupted),
            format!("{:?}", self.on_lease_end),
            self.lock.iter().map(ToString::to_string).collect::<Vec<_>>(),
            self.success_exit_codes,
            self.max_output,
            self.hooks.iter().map(|(hook, line)| json!([hook.as_str(), command(line)])).collect::<Vec<_>>(),
            self.splay.within().as_nanos().to_string(),
            format!("{:?}", self.run_on),
            self.run_where.to_string(),
        ]);
        Digest::of(parts.to_string().as_bytes())
    }
}

fn command(line: &CommandLine) -> Value {
    match line {
        CommandLine::Argv(argv) => json!(["argv", argv]),
        CommandLine::Shell(script) => json!(["shell", script]),
        CommandLine::OtherShell { shell, script } => json!(["other", shell, script]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::job::{Group, Job, RunOn};
    use crate::test_records::job;

    #[test]
    fn only_what_the_node_that_runs_it_reads_is_in_the_digest() {
        let base = || job("load", "* * * * *");
        let same = [
            Job { description: Some("x".into()), ..base() },
            Job { history_limit: 7, ..base() },
            Job { concurrency_group: Some(Group { name: "x".into(), limit: 1 }), ..base() },
            job("load", "0 0 * * *"),
        ];
        same.iter().for_each(|job| assert_eq!(job.execution_digest(), base().execution_digest()));
        let other = [
            Job { environment: BTreeMap::from([("A".into(), "1".into())]), ..base() },
            Job { timeout: Some(Duration::from_millis(1)), ..base() },
            Job { umask: 0o077, ..base() },
            Job { run_on: RunOn::Any, ..base() },
        ];
        other.iter().for_each(|job| assert_ne!(job.execution_digest(), base().execution_digest()));
        assert_eq!(base().execution_digest().as_str(), "42472a14686bd891", "as in every version");
    }
}
