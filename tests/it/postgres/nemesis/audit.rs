//! Everything that a server commits for a cluster, in order: a function around `cronkeeper.apply` notes it in the same
//! transaction. So a server that lacks a commit lacks the note of it too.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::postgres::SCHEMA;
use cronkeeper_cluster::store::{If, Op, Then};
use cronkeeper_core::run::Version;
use serde::Deserialize;

use crate::ledger::txn::{Change, Txn, in_znodes};
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
        let (mut sessions, mut there) = (BTreeMap::new(), BTreeSet::new());
        let text = server.sql("postgres", READ);
        let notes = text.lines().map(|line| serde_json::from_str::<Note>(line).expect("it is a note"));
        notes.map(|note| note.into_txn(&mut sessions, &mut there)).collect()
    }
}

impl Note {
    fn into_txn(self, sessions: &mut BTreeMap<String, i64>, there: &mut BTreeSet<String>) -> Txn {
        let number = |id: String| {
            let next = i64::try_from(sessions.len()).expect("there are few") + 1;
            *sessions.entry(id).or_insert(next)
        };
        let session = self.paths.iter().find_map(|path| path.strip_prefix("/cronkeeper/sessions/")).map(str::to_owned);
        let session = session.map_or(0, number);
        let mut changes = Vec::new();
        for (((path, condition), data), delete) in
            self.paths.into_iter().zip(self.conditions).zip(self.datas).zip(self.deletes)
        {
            let when = match condition {
                -1 => If::Absent,
                -2 => If::Exists,
                -3 => If::Anything,
                version => If::Version(Version(version)),
            };
            let then = match data {
                Some(hex) => Then::Put(bytes(&hex)),
                None if delete => Then::Delete,
                None => Then::Nothing,
            };
            let is_there = there.contains(&path);
            match &then {
                Then::Put(_) => _ = there.insert(path.clone()),
                Then::Delete => _ = there.remove(&path),
                Then::Nothing => {}
            }
            let is_internal = ["/cronkeeper/sessions/", "/cronkeeper/numbers/"].iter().any(|of| path.starts_with(of));
            changes.extend(in_znodes(&Op { path, when, then }, is_there).filter(|_| !is_internal));
        }
        Txn { zxid: self.revision, time_ms: self.moment / 1_000, session, change: Change::Ops(changes) }
    }
}

/// What hexadecimal digits stand for.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(|pair| byte(pair).expect("they are pairs of digits")).collect()
}
