//! What a multi creates besides what it was asked for, and how many round trips that takes.

use crate::paths;
use crate::tree::{AtVersion, CommitError, Committed, Error, Life, Op, Session as _};
use crate::zookeeper::tests_support::{Right, Server};

const JOBS: usize = 20;

fn create(path: impl Into<String>) -> Op {
    Op::Create { path: path.into(), data: b"{}".to_vec(), life: Life::Lasting }
}

fn history(job: usize) -> String {
    format!("{}/job-{job}", paths::HISTORY)
}

/// Creates one record of each job.
fn records(run: usize) -> Vec<Op> {
    (0..JOBS).map(|job| create(format!("{}/run-{run}", history(job)))).collect()
}

/// The result of a commit, its round trips, and the number of operations of each of its multis.
fn commit(server: &Server, ops: Vec<Op>) -> (Result<Committed, CommitError>, usize, Vec<usize>) {
    server.tree().multis.clear();
    let (result, rounds) = server.round_trips(async { server.commit(ops).await });
    (result, rounds, server.tree().multis.clone())
}

fn with_histories() -> Server {
    let server = Server::default();
    (0..JOBS).for_each(|job| server.tree().put(&history(job), ""));
    server
}

fn done(ops: &[Op]) -> Committed {
    let path = |op: &Op| match op {
        Op::Create { path, .. } => Some(path.clone()),
        _ => None,
    };
    Committed { created: ops.iter().filter_map(path).collect(), at: None, revision: None }
}

#[test]
fn the_first_records_of_many_jobs_need_one_multi_and_later_ones_nothing_else() {
    let server = Server::default();
    assert_eq!(commit(&server, records(1)), (Ok(done(&records(1))), 1, vec![2 * JOBS]));
    assert_eq!(commit(&server, records(2)), (Ok(done(&records(2))), 1, vec![JOBS]));
    assert_eq!(server.tree().listings, 1);
}

#[test]
fn two_records_of_a_job_share_a_history_that_the_first_creates() {
    let server = Server::default();
    let ops = vec![create(format!("{}/run-1", history(0))), create(format!("{}/run-2", history(0)))];
    assert_eq!(commit(&server, ops.clone()), (Ok(done(&ops)), 1, vec![3]));
}

#[test]
fn histories_that_nobody_knew_of_make_a_multi_fail_once() {
    let server = with_histories();
    assert_eq!(commit(&server, records(1)), (Ok(done(&records(1))), 2, vec![2 * JOBS, JOBS]));
}

#[test]
fn histories_that_are_gone_are_created_again_all_at_once() {
    let server = Server::default();
    commit(&server, records(1)).0.expect("they are created");
    let all = server.tree().below(paths::HISTORY);
    all.iter().rev().for_each(|path| server.tree().remove(path));
    assert_eq!(commit(&server, records(2)), (Ok(done(&records(2))), 2, vec![JOBS, 2 * JOBS]));
}

#[test]
fn a_history_that_this_session_has_removed_is_created_at_once() {
    let server = Server::default();
    let record = format!("{}/run-1", history(0));
    commit(&server, vec![create(&record)]).0.expect("it is created");
    let delete = |path: &str| Op::Delete { path: path.to_owned(), at: AtVersion::Any };
    commit(&server, vec![delete(&record), delete(&history(0))]).0.expect("both are there");
    assert_eq!(commit(&server, vec![create(&record)]).2, [2]);
}

#[test]
fn a_node_that_may_write_only_below_the_histories_writes_there() {
    for may_list in [true, false] {
        let server = with_histories();
        server.tree().close(paths::HISTORY, Right::Write);
        if !may_list {
            server.tree().close(paths::HISTORY, Right::Read);
        }
        let (result, _, multis) = commit(&server, records(1));
        assert_eq!((result, multis.len()), (Ok(done(&records(1))), if may_list { 2 } else { JOBS + 1 }));
    }
}

#[test]
fn a_history_that_cannot_be_created_is_given_up() {
    let server = Server::default();
    server.tree().close(paths::HISTORY, Right::Write);
    let (result, _, multis) = commit(&server, records(1));
    assert_eq!(result, Err(CommitError { index: Some(0), error: Error::Missing }));
    assert!(multis.len() < 5 * JOBS, "{multis:?}");
    assert_eq!(server.tree().below(paths::HISTORY), [""; 0]);
}

#[test]
fn what_a_cluster_consists_of_is_made_again_where_it_is_missing() {
    let server = Server::default();
    for (parent, is_there) in [(paths::JOBS, true), (paths::GONE, false)] {
        if is_there {
            server.tree().remove(parent);
        }
        let ops = vec![create(paths::under(parent, "backup"))];
        assert_eq!(commit(&server, ops.clone()), (Ok(done(&ops)), 2, vec![1, 1]));
    }
}

#[test]
fn of_a_multi_that_stays_refused_it_is_known_which_of_the_callers_operations_failed() {
    let server = Server::default();
    let check = Op::Check { path: paths::under(paths::LEADER, "gone"), at: AtVersion::Any };
    let ops = [records(1), vec![check]].concat();
    let refused = Err(CommitError { index: Some(JOBS), error: Error::Missing });
    assert_eq!(commit(&server, ops), (refused, 1, vec![2 * JOBS + 1]));
    let missing = Err(CommitError { index: Some(0), error: Error::Missing });
    assert_eq!(commit(&server, vec![create("/elsewhere/record")]), (missing, 1, vec![1]));
}
