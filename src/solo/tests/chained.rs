//! Links for downstream jobs: added with an end or a skip, sent to the leader, removed with the decision they lead to.

use super::*;
use crate::ledger::OperatorRequests;
use crate::run::{Link, TriggerSeq, UpstreamResult};

fn name(job: &str) -> JobName {
    JobName::parse(job).unwrap()
}

impl Node {
    /// Waits until the leader receives `count` links.
    async fn links(&mut self, count: usize) -> Vec<(TriggerSeq, Link)> {
        let requests: OperatorRequests = self
            .until(|event| match event {
                Event::Ledger(ledger::Event::OperatorRequests(requests)) if requests.links.len() == count => {
                    Some(requests)
                }
                _ => None,
            })
            .await;
        requests.links.into_iter().collect()
    }

    /// Begins a run of `a` at second 60, whose downstream jobs are `b` and `c`.
    async fn begin_first(&mut self) -> RunRecord {
        assert_eq!(self.commit(advance("a", None, 59, None)).await, Commit::Accepted);
        let owner = Owner { node: self.name.clone(), session: self.session.clone() };
        let run = RunRecord { owner, dependents: vec![name("b"), name("c")], ..record("a", 60, "") };
        assert_eq!(self.commit(begin(&run, Version::FIRST)).await, Commit::Accepted);
        run
    }
}

fn drop_links(job: &str, links: &[TriggerSeq], dependents: &[JobName]) -> Change {
    let skip = Skip { reason: SkipReason::Upstream, ..skip(job, 60, 1, None).skip };
    let dependents = Link::of_skip(&skip, skip.first, 1, UpstreamResult::Skipped, dependents);
    Change::DropLinks { job: name(job), links: links.to_vec(), skip: Some(skip), dependents }
}

#[tokio::test]
async fn an_end_adds_links_and_the_decision_on_them_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_first().await;
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    let links = a.links(2).await;
    let summary: Vec<_> = links.iter().map(|(_, link)| (link.run().to_string(), link.result)).collect();
    let at = "19700101T000100Z";
    assert_eq!(summary, [(format!("b.{at}"), UpstreamResult::Success), (format!("c.{at}"), UpstreamResult::Success)]);
    assert_eq!(a.commit(advance("b", None, 59, None)).await, Commit::Accepted);
    let next = RunRecord { owner: run.owner.clone(), ..record("b", 60, "") };
    let follow = |at, links: &[(TriggerSeq, Link)]| Change::BeginDownstream {
        mark: Some((at, job_record(60))),
        run: next.clone(),
        links: links.iter().map(|(seq, _)| *seq).collect(),
    };
    assert_eq!(a.commit(follow(Version(1), &links[..1])).await, Commit::Superseded, "at another version");
    a.read_job("b").await;
    assert_eq!(a.commit(follow(Version(0), &links[..1])).await, Commit::Accepted);
    assert_eq!(a.commit(end(&next, 0, false)).await, Commit::Accepted);
    a.read_job("b").await;
    assert_eq!(a.commit(follow(Version(1), &links[..1])).await, Commit::Superseded, "its link is gone");
    assert_eq!(a.commit(drop_links("c", &[links[1].0], &[name("d")])).await, Commit::Accepted);
    let (last, dependents) = a.links(1).await.remove(0);
    assert_eq!(
        (dependents.job, dependents.upstream, dependents.result),
        (name("d"), name("c"), UpstreamResult::Skipped)
    );
    assert!(last > links[1].0, "no number is used again");
}

#[tokio::test]
async fn a_skip_does_not_replace_an_existing_record_of_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let ended = a.begin("b", 60).await;
    assert_eq!(a.commit(end(&ended, 0, false)).await, Commit::Accepted);
    let run = a.begin_first().await;
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    let links = a.links(2).await;
    assert_eq!(a.commit(drop_links("b", &[links[0].0], &[])).await, Commit::Accepted);
    assert!(matches!(a.history("b").await.as_slice(), [HistoryRecord::Run(_)]));
    assert_eq!(a.commit(drop_links("b", &[links[0].0, links[1].0], &[])).await, Commit::Superseded, "all or none");
    assert_eq!(a.commit(drop_links("c", &[links[1].0], &[])).await, Commit::Accepted);
}

#[tokio::test]
async fn the_leader_receives_links_that_a_draining_former_leader_adds() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_first().await;
    let mut b = Node::start(dir.path(), "b").await;
    b.request(election::Request::Campaign);
    b.following().await;
    a.request(election::Request::Resign);
    b.elected().await;
    b.request_ledger(ledger::Request::Watch(run.id()));
    b.run_event(&run.id()).await;
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    assert_eq!(b.links(2).await.len(), 2);
}

#[tokio::test]
async fn links_left_by_a_dead_leader_are_in_the_snapshot_of_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin_first().await;
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    drop(a);
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    let jobs: Vec<_> = snapshot.requests.links.values().map(|link| link.job.to_string()).collect();
    assert_eq!(jobs, ["b", "c"]);
    assert!(snapshot.damaged.is_empty() && snapshot.requests.triggers.is_empty());
}
