//! Everything that a server commits for a cluster, in order: a function around `cronkeeper.apply` notes it in the same
//! transaction. So a server that lacks a commit lacks the note of it too.

use cronkeeper_cluster::postgres::SCHEMA;
use cronkeeper_cluster::store::{Op, Then};
use jiff::Timestamp;
use serde::Deserialize;

use crate::ledger::txn::Txn;
use crate::nemesis::stores::commits::{self, Commit, txns};
use crate::support::postgres::Server;

const NOTES: &str = "
    CREATE SCHEMA audit;
    CREATE TABLE audit.commits (
        revision int8, moment int8, paths text[], conditions int4[], datas bytea[], deletes bool[]
    );
    CREATE FUNCTION cronkeeper.apply(
        paths text[], parents text[], conditions int4[], datas bytea[], deletes bool[], nonce int8, kept int8,
        OUT refused int4, OUT version int4, OUT revision int8, OUT moment int8
    ) LANGUAGE plpgsql AS $$
    BEGIN
        SELECT done.* INTO refused, version, revision, moment
            FROM cronkeeper.unnoted(paths, parents, conditions, datas, deletes, nonce, kept) AS done;
        IF refused IS NULL THEN
            INSERT INTO audit.commits VALUES (revision, moment, paths, conditions, datas, deletes);
        END IF;
    END
    $$;";

/// One line of JSON for each commit.
const READ: &str = "
    SELECT json_build_object(
        'revision', revision, 'moment', moment, 'paths', paths, 'conditions', conditions, 'deletes', deletes,
        'datas', (SELECT json_agg(encode(data, 'hex') ORDER BY place)
                  FROM unnest(datas) WITH ORDINALITY AS part (data, place)))
    FROM audit.commits ORDER BY revision";

#[derive(Deserialize)]
struct Note {
    revision: i64,
    /// In microseconds.
    moment: i64,
    paths: Vec<String>,
    conditions: Vec<i32>,
    datas: Vec<Option<String>>,
    deletes: Vec<bool>,
}

pub struct Audit(());

impl Audit {
    /// Makes the schema, and notes from then on.
    pub fn begin(server: &Server) -> Self {
        server.sql("postgres", &SCHEMA.replace("apply", "unnoted"));
        server.sql("postgres", NOTES);
        Self(())
    }

    /// What this server has, in ZooKeeper's words.
    pub fn committed(&self, server: &Server) -> Vec<Txn> {
        let text = server.sql("postgres", READ);
        let notes = text.lines().map(|line| serde_json::from_str::<Note>(line).expect("it is a note"));
        txns(notes.map(Note::into_commit))
    }
}

impl Note {
    fn into_commit(self) -> Commit {
        let each = self.paths.into_iter().zip(self.conditions).zip(self.datas).zip(self.deletes);
        let op = |(((path, condition), data), delete): (((String, i32), Option<String>), bool)| {
            let when = commits::condition(condition);
            let then = match data {
                Some(hex) => Then::Put(bytes(&hex)),
                None if delete => Then::Delete,
                None => Then::Nothing,
            };
            Op { path, when, then }
        };
        let at = Timestamp::from_microsecond(self.moment).expect("the server has a sane clock");
        Commit { revision: self.revision, at, ops: each.map(op).collect() }
    }
}

/// What hexadecimal digits stand for.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(|pair| byte(pair).expect("they are pairs of digits")).collect()
}
