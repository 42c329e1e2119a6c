//! `status --check`: for scripts that only want to know whether somebody must look.

use std::io::Write;

use super::show;
use crate::cli::Exit;
use crate::cli::ask::AskFailure;
use crate::status::{Status, drain_in_words, shown};
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
        false if status.has_none_that_may_lead() => "nobody leads: no node that may lead is alive".to_owned(),
        false => {
            let what = match status.is_disconnected() || status.unread.is_some() {
                true => format!("nobody can lead as far as {} knows", status.node),
                false => "nobody leads".to_owned(),
            };
            let since =
                status.role.last_leader.as_ref().map(|_| format!(": who leads is {}", show::no_leader(&status.role)));
            what + &since.unwrap_or_default()
        }
    });
    let drained = status.drained.iter().filter(|(node, _)| **node == status.node || status.is_all_drained());
    let drained = drained.map(|(node, drain)| drain_in_words(node, drain));
    let file = &status.jobs_file;
    let first = file.errors.first().and_then(|error| shown(error));
    let first = first.map(|error| format!(": {error}")).unwrap_or_default();
    let path = shown(&file.path).unwrap_or("the jobs file");
    let used = file.last_good.then(|| format!(" (using the last good jobs, of {}Z)", stamp(file.loaded_at)));
    let rejected = (!file.valid).then(|| format!("{path} was rejected{}{first}", used.unwrap_or_default()));
    let in_error = status.jobs.iter().filter_map(|job| Some((&job.name, job.error.as_deref()?)));
    let in_error = in_error.map(|(job, error)| format!("job {job}: {}", shown(error).unwrap_or(show::HIDDEN)));
    ready.into_iter().chain(leader).chain(drained).chain(rejected).chain(in_error).chain(damaged(status)).collect()
}

/// One line, however many there are: `cronkeeper status` has them all.
fn damaged(status: &Status) -> Option<String> {
    let first = shown(status.damaged.first()?).map(|damage| format!(": {damage}")).unwrap_or_default();
    let paths = match status.damaged.len() {
        1 => "a path is damaged".to_owned(),
        count => format!("{count} paths are damaged, the first"),
    };
    Some(format!("{paths}{first}; operations.md says under `coordination.damaged` what to do"))
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
    fn a_follower_that_cannot_read_who_leads_does_not_call_anybody_the_leader() {
        let mut status = sample::leader();
        status.node = cronkeeper_core::term::NodeName::new("host-b");
        status.role.token = None;
        status.unread = Some("no answer within 3 s".into());
        status.forget_leader(sample::at("2026-11-20T02:59:31Z"));
        let expected = "nobody can lead as far as host-b knows: who leads is unknown since 2026-11-20 02:59:31Z \
                        (host-a until then)\n";
        assert_eq!(checked(&status), (Exit::Failed, expected.into()));
        status.unread = None;
        assert!(checked(&status).1.starts_with("nobody leads: who leads is unknown since "));
    }

    #[test]
    fn what_is_damaged_is_one_line() {
        let remedy = "; operations.md says under `coordination.damaged` what to do\n";
        let damages = ["/c/running/a: no record", "/c/jobs/b: not allowed"].map(str::to_owned);
        let of = |damaged: &[String]| checked(&Status { damaged: damaged.to_vec(), ..sample::leader() });
        let one = format!("a path is damaged: {}{remedy}", damages[0]);
        assert_eq!(of(&damages[..1]), (Exit::Failed, one));
        let two = format!("2 paths are damaged, the first: {}{remedy}", damages[0]);
        assert_eq!(of(&damages), (Exit::Failed, two));
        // What a status withholds from its reader counts too.
        let withheld = format!("a path is damaged{remedy}");
        assert_eq!(of(&[crate::status::outline::WITHHELD.to_owned()]), (Exit::Failed, withheld));
    }

    #[test]
    fn each_problem_is_a_line() {
        let (exit, text) = checked(&sample::cut_off());
        let expected = "host-a is not ready: it waits for ZooKeeper at zk1:2181,zk2:2181\n\
            nobody can lead as far as host-a knows\n/etc/cronkeeper/jobs.yaml was rejected: /etc/cronkeeper/jobs.yaml:3:5: unknown key `shedule`, \
            did you mean `schedule`?\njob nightly-backup: last-scheduled time is in the future\n";
        assert_eq!((exit, text.as_str()), (Exit::Failed, expected));
    }
}
