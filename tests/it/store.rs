//! What every store promises the sessions that are built on it: one suite for all.
//!
//! A promise is an async function over a [`Place`], which opens clients of one and the same store.

mod commits;
mod model;
mod reads;
mod removal;

use std::path::PathBuf;

use cronkeeper_cluster::etcd::Etcd;
use cronkeeper_cluster::memory::Memory;
use cronkeeper_cluster::postgres::{Postgres, SCHEMA};
use cronkeeper_cluster::redis::Redis;
use cronkeeper_cluster::sqlite::Sqlite;
use cronkeeper_cluster::store::{
    Done, Found, If, LEAST_BYTES, LEAST_OPERATIONS, Meta, NotDone, Op, Rewinds, Store, Then, Wanted,
};
use cronkeeper_cluster::tree::Revision;
use cronkeeper_core::run::Version;

use crate::support::LONG as PATIENCE;
use crate::support::etcd;
use crate::support::postgres::{Database, shared};
use crate::support::redis;

/// Where a store is.
trait Place {
    type Store: Store;

    /// Another client of the store.
    fn client(&self) -> Self::Store;
}

struct InMemory(Memory);

impl Place for InMemory {
    type Store = Memory;

    fn client(&self) -> Memory {
        self.0.clone()
    }
}

struct InFile {
    ledger: PathBuf,
    _folder: tempfile::TempDir,
}

impl Place for InFile {
    type Store = Sqlite;

    fn client(&self) -> Sqlite {
        Sqlite::open(&self.ledger).expect("the file can be used")
    }
}

struct InDatabase(Database<'static>);

impl Place for InDatabase {
    type Store = Postgres;

    fn client(&self) -> Postgres {
        Postgres::new(self.0.settings(), PATIENCE, Rewinds::Accepted)
    }
}

struct InEtcd(String);

impl Place for InEtcd {
    type Store = Etcd;

    fn client(&self) -> Etcd {
        Etcd::new(etcd::settings(&self.0), PATIENCE, Rewinds::Refused)
    }
}

struct InRedis(String);

impl Place for InRedis {
    type Store = Redis;

    fn client(&self) -> Redis {
        Redis::new(redis::settings(&self.0), PATIENCE, Rewinds::Refused)
    }
}

fn in_redis() -> InRedis {
    InRedis(redis::shared().place())
}

fn in_etcd() -> InEtcd {
    InEtcd(etcd::shared().place())
}

fn in_database() -> InDatabase {
    let database = shared().database();
    // A node's session makes it before it commits.
    database.sql(SCHEMA);
    InDatabase(database)
}

fn in_memory() -> InMemory {
    InMemory(Memory::default())
}

fn in_file() -> InFile {
    let folder = tempfile::tempdir().expect("a folder can be made");
    InFile { ledger: folder.path().join("ledger"), _folder: folder }
}

/// Makes a test of each promise on each store.
macro_rules! on_every_store {
    ($($promise:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::store::in_memory()).await; })+
        }
        mod sqlite {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::store::in_file()).await; })+
        }
        mod etcd {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::store::in_etcd()).await; })+
        }
        mod redis {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::store::in_redis()).await; })+
        }
        mod postgres {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::store::in_database()).await; })+
        }
    };
}
use on_every_store;

fn put(path: &str, when: If, data: &str) -> Op {
    Op { path: path.into(), when, then: Then::Put(data.as_bytes().to_vec()) }
}

fn make(path: &str) -> Op {
    put(path, If::Absent, "first")
}

fn delete(path: &str, when: If) -> Op {
    Op { path: path.into(), when, then: Then::Delete }
}

fn check(path: &str, when: If) -> Op {
    Op { path: path.into(), when, then: Then::Nothing }
}

fn at(version: i32) -> If {
    If::Version(Version(version))
}

/// Commits what must take effect.
async fn commit<S: Store>(store: &S, ops: Vec<Op>) -> Done {
    store.commit(ops).await.expect("it takes effect")
}

/// Commits what must be refused. Returns which operation is, and the version of its record.
async fn refused<S: Store>(store: &S, ops: Vec<Op>) -> (usize, Option<Version>) {
    match store.commit(ops).await {
        Err(NotDone::Refused { index, found }) => (index, found),
        other => panic!("it is refused: {other:?}"),
    }
}

async fn read<S: Store>(store: &S, path: &str) -> Option<(String, Meta)> {
    match store.read(vec![Wanted::Record(path.into())]).await.expect("it can be read").1.pop() {
        Some(Found::Record(found)) => found.map(|(data, meta)| (String::from_utf8(data).expect("it is text"), meta)),
        other => panic!("a record: {other:?}"),
    }
}

async fn names<S: Store>(store: &S, folder: &str) -> Vec<String> {
    match store.read(vec![Wanted::Names(folder.into())]).await.expect("they can be read").1.pop() {
        Some(Found::Names(found)) => {
            let mut names: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
            names.sort();
            names
        }
        other => panic!("names: {other:?}"),
    }
}

async fn revision<S: Store>(store: &S) -> Revision {
    store.read(Vec::new()).await.expect("it can be read").0.revision
}
