//! Launches without anything that a simulated process does not see.

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::engine::Start;
use cronkeeper_core::engine::hooks::HookStart;
use cronkeeper_core::event_loop::Launcher;
use cronkeeper_core::event_loop::variables::{self, Variables};
use cronkeeper_core::process::{Deadline, ExecStrings, Launch, LaunchFiles, Limits, TreeId};
use cronkeeper_core::run::Parameters;
use cronkeeper_core::term::NodeName;

/// The variable that says by which definition of its job a process runs: the job's execution digest.
pub const DEFINITION: &str = "DEFINITION";

/// The launcher of a node.
pub struct SimulatedLauncher(pub NodeName);

impl Launcher for SimulatedLauncher {
    fn launch(&self, start: &Start) -> Option<Launch> {
        let mut ours = variables::of_run(&start.run, &self.0);
        ours.extend(start.lock.iter().flat_map(variables::of_lock));
        let Start { not_before, not_after, deadline, .. } = *start;
        let mut environment = environment(&ours, &start.run.parameters);
        environment.push_variable(DEFINITION, start.job.execution_digest().as_str());
        Some(Launch { not_before, not_after, deadline, ..launch(start.tree_id, environment) })
    }

    fn hook(&self, start: &HookStart) -> Option<Launch> {
        let environment = environment(&variables::of_hook(&start.call, &self.0), &start.call.parameters());
        Some(Launch { deadline: Deadline::At(start.until), ..launch(start.tree_id, environment) })
    }
}

fn environment(ours: &Variables, parameters: &Parameters) -> ExecStrings {
    let ours: Vec<_> = ours.iter().map(|(name, value)| (format!("CRONKEEPER_{name}"), value.as_str())).collect();
    let ours = ours.iter().map(|(name, value)| (name.as_str(), *value));
    ExecStrings::of_variables(parameters.iter().chain(ours))
}

/// A launch at once, without a deadline.
pub fn launch(tree_id: TreeId, environment: ExecStrings) -> Launch {
    Launch {
        tree_id,
        argv: ["true"].into_iter().collect(),
        environment,
        files: LaunchFiles::default(),
        input: String::new(),
        streams: None,
        directory: "/".into(),
        or_root: false,
        umask: 0o022,
        user: None,
        nice: None,
        limits: Limits::default(),
        cgroup: None,
        not_before: None,
        not_after: Uptime::NEVER,
        deadline: Deadline::None,
        // The models of daemons are stalled, but no run has a timeout that a stalled one would miss.
        time_limit: None,
        max_output: 0,
    }
}
