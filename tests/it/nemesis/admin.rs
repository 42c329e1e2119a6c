//! An operator's access to ZooKeeper: reads its state, and deletes what should not be deleted.
//!
//! It works from the test's own network, with a new session each time, so that unreachable servers cost a moment and
//! never the test.

use std::collections::BTreeMap;
use std::time::Duration;

use cronkeeper_core::run::{JobRecord, RunId};
use futures_util::future::try_join_all;
use jiff::Timestamp;
use serde_json::Value;
use tokio::runtime::Runtime;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::losses::Tree;
use super::work::Work;
use crate::support::zookeeper::Ensemble;

/// How long to wait for servers.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The target of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The candidate of the node of this name.
    Candidate(String),
    /// The member of the node of this name.
    Member(String),
    /// `/leader` and everything in it.
    Queue,
}

pub struct Admin {
    runtime: Runtime,
    servers: String,
    chroot: String,
}

impl Admin {
    /// Uses a new chroot on these servers.
    pub fn new(servers: &str, chroot: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
        let admin = Self { runtime, servers: servers.to_owned(), chroot: chroot.to_owned() };
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let made = admin.ask_at(servers, async |client| client.create(chroot, b"", &options).await);
        assert!(made.is_some(), "the servers serve, and the name is new");
        admin
    }

    /// True once it is deleted, or if it does not exist.
    pub fn delete(&self, target: &Target) -> bool {
        let done = self.ask(async |client| match target {
            Target::Candidate(node) => match candidate_of(client, node).await? {
                Some(name) => remove(client, &format!("/leader/{name}")).await,
                None => Ok(()),
            },
            Target::Member(node) => remove(client, &format!("/cronkeeper/nodes/{node}")).await,
            Target::Queue => remove_queue(client).await,
        });
        done.is_some()
    }

    /// Lists what is not yet as it must be when everything is well: the mark and the runs of every job up to `horizon`
    /// are settled, and exactly these nodes are in the queue and among the members. `None` while no server answers.
    pub fn unsettled(&self, work: &Work, horizon: Timestamp, nodes: &[&str]) -> Option<Vec<String>> {
        self.ask(async |client| {
            let mut missing = Vec::new();
            for (name, job) in &work.jobs.jobs {
                let mark = data(client, &format!("/cronkeeper/jobs/{name}")).await?;
                let mark = mark.and_then(|data| serde_json::from_slice::<JobRecord>(&data).ok());
                let due = |mark: &JobRecord| job.last_before_or_at(horizon, mark.last_scheduled).is_some();
                if mark.as_ref().is_none_or(due) {
                    missing.push(format!("the mark of {name} is {:?}", mark.map(|mark| mark.last_scheduled)));
                }
            }
            let runs = client.list_children("/cronkeeper/running").await?;
            let is_old = |run: &&String| RunId::parse(run).is_ok_and(|run| run.scheduled_at() <= horizon);
            missing.extend(runs.iter().filter(is_old).map(|run| format!("{run} has not ended")));
            let mut queue = Vec::new();
            for name in client.list_children("/leader").await? {
                queue.extend(node_of(client, &name).await?);
            }
            let mut members = client.list_children("/cronkeeper/nodes").await?;
            for (what, found) in [("the queue", &mut queue), ("the members", &mut members)] {
                found.sort();
                if found.iter().ne(nodes.iter().copied()) {
                    missing.push(format!("in {what} are {found:?}"));
                }
            }
            Ok(missing)
        })
    }

    /// The records that each server has; none of those that do not answer.
    pub fn trees(&self, ensemble: &Ensemble) -> Vec<Tree> {
        let of = |server| {
            let zxid = ensemble.zxid(server)?;
            let connect = format!("{}{}", ensemble.connect_string_of(server), self.chroot);
            let znodes = self.ask_at(&connect, async |client| tree(client).await)?;
            Some(Tree { server, zxid, znodes })
        };
        (0..ensemble.len()).filter_map(of).collect()
    }

    fn ask<T>(&self, question: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Option<T> {
        self.ask_at(&format!("{}{}", self.servers, self.chroot), question)
    }

    fn ask_at<T>(&self, connect: &str, question: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Option<T> {
        let asked = async {
            let connector = Client::connector().with_session_timeout(TIMEOUT).with_fail_eagerly();
            let client = connector.connect(connect).await.ok()?;
            question(&client).await.ok()
        };
        self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, asked).await }).ok()?
    }
}

/// Everything below `/cronkeeper`. All znodes of a level are asked for at once, so that many take no longer than few.
async fn tree(client: &Client) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let mut tree = BTreeMap::new();
    let mut level = vec!["/cronkeeper".to_owned()];
    while !level.is_empty() {
        let ask = async |path| Ok::<_, Error>((data(client, path).await?, children(client, path).await?));
        let read = try_join_all(level.iter().map(|path| ask(path))).await?;
        let mut next = Vec::new();
        for (path, (data, names)) in level.into_iter().zip(read) {
            next.extend(names.into_iter().map(|name| format!("{path}/{name}")));
            tree.extend(data.map(|data| (path, data)));
        }
        level = next;
    }
    Ok(tree)
}

async fn candidate_of(client: &Client, node: &str) -> Result<Option<String>, Error> {
    for name in children(client, "/leader").await? {
        if node_of(client, &name).await?.as_deref() == Some(node) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The node that owns this candidate.
async fn node_of(client: &Client, candidate: &str) -> Result<Option<String>, Error> {
    let data = data(client, &format!("/leader/{candidate}")).await?;
    let said = data.and_then(|data| serde_json::from_slice::<Value>(&data).ok());
    Ok(said.and_then(|said| said["node"].as_str().map(str::to_owned)))
}

async fn children(client: &Client, path: &str) -> Result<Vec<String>, Error> {
    match client.list_children(path).await {
        Err(Error::NoNode) => Ok(Vec::new()),
        other => other,
    }
}

async fn data(client: &Client, path: &str) -> Result<Option<Vec<u8>>, Error> {
    match client.get_data(path).await {
        Ok((data, _)) => Ok(Some(data)),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn remove(client: &Client, path: &str) -> Result<(), Error> {
    match client.delete(path, None).await {
        Err(Error::NoNode) => Ok(()),
        other => other,
    }
}

/// Nodes rejoin meanwhile, so the parent is removed at a moment when it is empty.
async fn remove_queue(client: &Client) -> Result<(), Error> {
    loop {
        for name in children(client, "/leader").await? {
            remove(client, &format!("/leader/{name}")).await?;
        }
        match remove(client, "/leader").await {
            Err(Error::NotEmpty) => {}
            other => return other,
        }
    }
}
