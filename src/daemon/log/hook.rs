//! Log messages for hooks that have ended or were not started.

use tracing::field::display;

use cronkeeper_core::engine::hooks::{self, HookOutcome};
use cronkeeper_core::job::JobName;
use cronkeeper_core::log;
use cronkeeper_core::process::Exit;
use cronkeeper_core::run::RunId;
use cronkeeper_core::start_problem::StartProblem;

/// Logs the outcome of a hook, as a warning unless it succeeded.
///
/// A failed hook harms no run, but somebody who should have been notified was not.
pub(super) fn finished(
    hook: &str,
    job: Option<&JobName>,
    run: Option<&RunId>,
    how: HookOutcome,
    problem: Option<&StartProblem>,
) {
    let (outcome, job, run) = (how.as_str(), job.map(display), run.map(display));
    let detail = problem.map(StartProblem::for_record);
    match describe_problem(how, problem) {
        None => log!(INFO HOOK_FINISHED, job, run, hook, outcome),
        Some(why) => log!(WARN HOOK_FINISHED, job, run, hook, outcome, detail, "{why}"),
    }
}

/// Logs a file of the job that a hook starts without.
pub(super) fn without_file(hook: &str, job: &JobName, run: Option<&RunId>, problem: &StartProblem) {
    log!(
        HOOK_WITHOUT_FILE,
        %job,
        run = run.map(display),
        hook,
        step = problem.step.as_str(),
        path = problem.path,
        error = problem.error,
        "{problem}",
    );
}

fn describe_problem(how: HookOutcome, problem: Option<&StartProblem>) -> Option<String> {
    match how {
        HookOutcome::Exited(Exit::Code(0)) => None,
        HookOutcome::Exited(Exit::Code(code)) => Some(format!("exit code {code}")),
        HookOutcome::Exited(Exit::Signal { signal, .. }) => Some(format!("signal {signal}")),
        HookOutcome::NotStarted(_) => {
            Some(problem.map_or_else(
                || "it was not started in time".to_owned(),
                |problem| format!("it did not start: {problem}"),
            ))
        }
        HookOutcome::TimedOut => Some(format!("it took longer than {} s", hooks::TIMEOUT.as_secs())),
        HookOutcome::Killed => Some("the node is stopping".to_owned()),
        HookOutcome::Dropped => Some("the node is stopping, or too many hooks are waiting".to_owned()),
    }
}
