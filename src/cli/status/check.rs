//! `status --check`: for scripts that only want to know whether somebody must look.

use std::io::Write;

use super::show;
use crate::cli::Exit;
use crate::cli::ask::AskFailure;
use crate::status::{Status, drain_in_words};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::escape;

/// Prints one line for each problem, or who leads if there is none.
pub(super) fn run(status: &Status, out: &mut dyn Write) -> Result<Exit, AskFailure> {
    let problems = problems(status);
    for problem in &problems {
        writeln!(out, "{}", escape::plain(problem))?;
    }
    if let ([], Some(leader)) = (problems.as_slice(), &status.role.leader_node) {
        writeln!(out, "ok: {} is ready, {leader} leads", status.node)?;
    }
    out.flush()?;
    Ok(if problems.is_empty() { Exit::Fine } else { Exit::Failed })
}

fn problems(status: &Status) -> Vec<String> {
    let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
    let ready = (!status.ready).then(|| format!("{} is not ready: it waits for {awaited}", status.node));
    let leader = status.role.leader_node.is_none().then(|| match status.is_all_drained() {
        true => "nobody leads: every node is drained".to_owned(),
        false if status.role.last_leader.is_some() => format!("nobody leads: {}", show::no_leader(&status.role)),
        false => "nobody leads".to_owned(),
    });
    let drained = status.drained.iter().filter(|(node, _)| **node == status.node || status.is_all_drained());
    let drained = drained.map(|(node, drain)| drain_in_words(node, drain));
    let file = &status.jobs_file;
    let first = file.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
    let used = file.last_good.then(|| format!(" (using the last good jobs, of {}Z)", stamp(file.loaded_at)));
    let rejected = (!file.valid).then(|| format!("{} was rejected{}{first}", file.path, used.unwrap_or_default()));
    let in_error = status.jobs.iter().filter_map(|job| Some(format!("job {}: {}", job.name, job.error.as_ref()?)));
    ready.into_iter().chain(leader).chain(drained).chain(rejected).chain(in_error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    fn checked(status: &Status) -> (Exit, String) {
        let mut out = Vec::new();
        let exit = run(status, &mut out).unwrap();
        (exit, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_node_that_takes_part_under_a_leader_is_fine() {
        assert_eq!(checked(&sample::leader()), (Exit::Fine, "ok: host-a is ready, host-a leads\n".into()));
    }

    #[test]
    fn the_last_good_jobs_are_named_with_their_time() {
        let mut status = sample::leader();
        (status.jobs_file.valid, status.jobs_file.last_good) = (false, true);
        let expected = "/etc/cronkeeper/jobs.yaml was rejected (using the last good jobs, of 2026-11-19 23:11:30Z)\n";
        assert_eq!(checked(&status), (Exit::Failed, expected.into()));
    }

    #[test]
    fn each_problem_is_a_line() {
        let (exit, text) = checked(&sample::cut_off());
        let expected = "host-a is not ready: it waits for ZooKeeper at zk1:2181,zk2:2181\nnobody leads\n\
            /etc/cronkeeper/jobs.yaml was rejected: /etc/cronkeeper/jobs.yaml:3:5: unknown key `shedule`, \
            did you mean `schedule`?\njob nightly-backup: last-scheduled time is in the future\n";
        assert_eq!((exit, text.as_str()), (Exit::Failed, expected));
    }
}
