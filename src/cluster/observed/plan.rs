//! A commit of the recipes in the words of a store. Pure.
//!
//! Each commit of a session begins with its own record. Operations on the same record are joined, because a store takes
//! each record once. What a folder of the history or of a lock, or the number of an appended record, needs is added.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{NUMBERS, SESSIONS};
use crate::paths;
use crate::store::{self, Found, If, Then, Wanted};
use crate::tree::{AtVersion, CommitError, Error, Life, Limits, Op};
use cronkeeper_core::run::Version;
use cronkeeper_core::term::SessionId;

/// The count in the record of a session that others have ended, while some of its entries are left.
pub const ENDED: u64 = u64::MAX;

/// Begins the data of an entry; its session and a line break follow. No other record of cronkeeper begins like this.
const ENTRY: u8 = b'@';

/// A session's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    pub v: u32,
    /// Counts the session's commits: tells which of them wrote this.
    pub count: u64,
    /// The paths of its entries. Some of them may be gone.
    pub entries: BTreeSet<String>,
}

/// The session that commits.
#[derive(Clone, Debug)]
pub struct Own {
    pub id: SessionId,
    /// The version of its record.
    pub version: Version,
    /// The number of the next commit.
    pub count: u64,
    pub entries: BTreeSet<String>,
}

impl Own {
    /// The operation on the session's record which makes it live on.
    pub fn beat(&self, entries: &BTreeSet<String>) -> store::Op {
        let record = SessionRecord { v: 1, count: self.count, entries: entries.clone() };
        let then = Then::Put(serde_json::to_vec(&record).expect("names and numbers can be written as JSON"));
        store::Op { path: session_path(&self.id), when: If::Version(self.version), then }
    }
}

pub fn session_path(id: &SessionId) -> String {
    paths::under(SESSIONS, &id.0)
}

/// The record that counts the sessions whose ids begin like this one. Each new session moves one on, so that a late copy
/// of the commit that made it makes it no second time.
pub fn sessions_counted_at(id: &SessionId) -> String {
    paths::under(&numbers_path(SESSIONS), id.0.get(..2).unwrap_or_default())
}

/// The record that has the numbers of a folder's appended records.
pub fn numbers_path(folder: &str) -> String {
    format!("{NUMBERS}{folder}")
}

/// What a session knows of records that it has read or written, as far as commits need it.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The next number of each folder, and the version of the record that has it; absent if there is none.
    pub numbers: BTreeMap<String, (i64, Option<Version>)>,
    /// Folders of the history, and whether each exists. Of thousands of jobs, so it is bounded by those that ended here.
    pub folders: BTreeMap<String, bool>,
    /// Others' entries that the next commit changes: the version, and the session of each.
    pub others: BTreeMap<String, Option<(Version, Option<SessionId>)>>,
    /// Folders that the next commit removes, and whether each is empty.
    pub emptied: BTreeMap<String, bool>,
    /// The versions of the records of those folders. Whatever is made below a folder changes it.
    pub at: BTreeMap<String, Version>,
}

impl Known {
    /// Takes what was read because [`needs`] named it.
    pub fn learn(&mut self, wanted: Wanted, found: Found) {
        match (wanted, found) {
            (Wanted::Record(path), Found::Record(found)) => match numbered_folder(&path) {
                Some(folder) => {
                    // What cannot be read is counted again from zero: a name that exists is refused.
                    let next = |data: &[u8]| number_of_ours(std::str::from_utf8(data).ok()?.parse().ok()?);
                    let known = found.map_or((0, None), |(data, meta)| (next(&data).unwrap_or(0), Some(meta.version)));
                    self.numbers.insert(folder.to_owned(), known);
                }
                None => {
                    let found = found.map(|(data, meta)| (meta.version, unwrap(&path, data).0));
                    self.others.insert(path, found);
                }
            },
            (Wanted::Meta(path), Found::Meta(found)) => {
                self.folders.insert(path.clone(), found.is_some());
                self.at.extend(found.map(|meta| (path, meta.version)));
            }
            (Wanted::Names(path), Found::Names(names)) => {
                if let Some((next, _)) = self.numbers.get_mut(&path) {
                    // Nobody has counted so far: a higher number is not one of ours.
                    let taken: BTreeSet<i64> = names.iter().filter_map(|(name, _)| number(name)).collect();
                    let highest = taken.iter().copied().filter_map(number_of_ours).max();
                    *next = (*next).max(highest.map_or(0, |highest| highest + 1));
                    // Somebody else may have written just this one.
                    while taken.contains(next) {
                        *next += 1;
                    }
                }
                self.emptied.insert(path, names.is_empty());
            }
            _ => {}
        }
    }

    /// True for a change at any version of an entry or a folder whose version was read.
    pub fn is_at_any(&self, op: &Op) -> bool {
        match op {
            Op::Set { path, at: AtVersion::Any, .. } => self.others.contains_key(path),
            Op::Delete { path, at: AtVersion::Any } => self.emptied.contains_key(path),
            Op::Check { .. } | Op::Create { .. } | Op::Append { .. } | Op::Set { .. } | Op::Delete { .. } => false,
        }
    }

    /// Forgets what was read for one commit only.
    pub fn forget_reads(&mut self) {
        (self.others, self.emptied, self.at) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    }
}

/// This number, unless it is one that nobody can have counted up to: somebody else has written it.
fn number_of_ours(number: i64) -> Option<i64> {
    (0..i64::MAX / 2).contains(&number).then_some(number)
}

/// The folder whose numbers this record has.
fn numbered_folder(path: &str) -> Option<&str> {
    path.strip_prefix(NUMBERS).filter(|folder| folder.starts_with('/'))
}

/// What to read before a commit can be planned.
pub fn needs(ops: &[Op], known: &Known) -> Vec<Wanted> {
    let unknown = |folder: &str| (!known.folders.contains_key(folder)).then(|| Wanted::Meta(folder.to_owned()));
    let mut wanted = Vec::new();
    for op in ops {
        match op {
            Op::Append { folder, .. } => {
                if !known.numbers.contains_key(folder) {
                    // The names too: a record with the next number that was damaged must not let another go first.
                    wanted.extend([Wanted::Record(numbers_path(folder)), Wanted::Names(folder.clone())]);
                }
                wanted.extend(folders_above(&paths::under(folder, "")).filter_map(unknown));
            }
            Op::Create { path, .. } => wanted.extend(folders_above(path).filter_map(unknown)),
            Op::Set { path, .. } if paths::may_be_entry(path) => wanted.push(Wanted::Record(path.clone())),
            Op::Delete { path, .. } if may_be_folder(path) => {
                wanted.extend([Wanted::Names(path.clone()), Wanted::Meta(path.clone())]);
            }
            Op::Set { .. } | Op::Delete { .. } | Op::Check { .. } => {}
        }
    }
    let mut seen = Vec::new();
    wanted.retain(|wanted| {
        !seen.contains(wanted) && {
            seen.push(wanted.clone());
            true
        }
    });
    wanted
}

/// The folders of a new record that are records too: those of histories, and of locks.
fn folders_above(path: &str) -> impl Iterator<Item = &str> {
    let is_of_lock = !paths::is_of_ledger(path) && paths::parent(path) != paths::LEADER;
    paths::ancestors(path).filter(move |above| is_of_lock || paths::is_job_history(above))
}

/// True for folders that are records: those of histories, and of locks.
fn may_be_folder(path: &str) -> bool {
    let is_of_lock = !paths::is_of_ledger(path) && paths::parent(path) != paths::LEADER;
    paths::is_job_history(path) || is_of_lock && number(paths::name(path)).is_none()
}

/// What an operation of a store is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The session's record.
    Session,
    /// The numbers of this folder.
    Numbers(String),
    /// A folder of the history.
    Folder(String),
    /// The operation with this index.
    Op(usize),
}

/// A commit as a store takes it, and what follows if it takes effect.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub ops: Vec<store::Op>,
    pub origins: Vec<Origin>,
    /// The paths of the created records.
    pub created: Vec<String>,
    /// The session's entries afterwards.
    pub entries: BTreeSet<String>,
    /// The next numbers afterwards, by folder.
    pub numbers: BTreeMap<String, i64>,
    /// The place of each record among the operations.
    places: BTreeMap<String, usize>,
}

impl Plan {
    /// Plans a commit. What [`needs`] has named must be known.
    ///
    /// # Errors
    /// If operations contradict each other, or a folder to be removed is not empty.
    pub fn of(ops: &[Op], known: &Known, own: Option<&Own>) -> Result<Self, CommitError> {
        let mut plan = Self { entries: own.map(|own| own.entries.clone()).unwrap_or_default(), ..Self::default() };
        if let Some(own) = own {
            plan.push(own.beat(&own.entries), Origin::Session);
        }
        for (index, op) in ops.iter().enumerate() {
            plan.add(op, index, known, own).map_err(|error| CommitError { index: Some(index), error })?;
        }
        for (folder, next) in &plan.numbers.clone() {
            let at = known.numbers.get(folder).and_then(|(_, at)| *at);
            let when = at.map_or(If::Absent, If::Version);
            let then = Then::Put(next.to_string().into_bytes());
            plan.push(store::Op { path: numbers_path(folder), when, then }, Origin::Numbers(folder.clone()));
        }
        if let Some(own) = own {
            plan.ops[0] = own.beat(&plan.entries);
        }
        Ok(plan)
    }

    /// True if the session's record, which lists its entries, leaves too little room.
    pub fn is_too_large(&self, limits: Limits) -> bool {
        let most = most_of_session(limits);
        let bytes = self.ops.first().map_or(0, |op| match &op.then {
            Then::Put(record) => op.path.len() + record.len(),
            Then::Nothing | Then::Delete => 0,
        });
        bytes > most
    }

    fn add(&mut self, op: &Op, index: usize, known: &Known, own: Option<&Own>) -> Result<(), Error> {
        let origin = Origin::Op(index);
        match op {
            Op::Check { path, at } => self.join(path, condition(*at), Then::Nothing, origin),
            Op::Create { path, data, life } => {
                self.make_folders(path, known)?;
                let data = self.make(path, data, *life, own)?;
                self.join(path, If::Absent, Then::Put(data), origin)
            }
            Op::Append { folder, prefix, data, life } => {
                let next = known.numbers.get(folder).map_or(0, |(next, _)| *next);
                let number = *self.numbers.entry(folder.clone()).or_insert(next);
                self.numbers.insert(folder.clone(), number + 1);
                let path = format!("{folder}/{prefix}{number:010}");
                self.make_folders(&path, known)?;
                let data = self.make(&path, data, *life, own)?;
                self.join(&path, If::Absent, Then::Put(data), origin)
            }
            Op::Set { path, data, at } => {
                let other = known.others.get(path);
                let is_made_here = self.places.get(path).is_some_and(|&place| self.ops[place].then != Then::Nothing);
                let (at, session) = match (other, is_made_here) {
                    (_, true) => (*at, own.filter(|_| self.entries.contains(path)).map(|own| own.id.clone())),
                    (Some(None), _) => return Err(Error::Missing),
                    // At the version whose session was read.
                    (Some(Some((version, session))), _) => match at {
                        AtVersion::Version(at) if at != version => return Err(Error::Changed),
                        _ => (AtVersion::Version(*version), session.clone()),
                    },
                    (None, _) => (*at, None),
                };
                self.join(path, condition(at), Then::Put(wrap(data, session.as_ref())), origin)
            }
            Op::Delete { path, at } => {
                if known.emptied.get(path) == Some(&false) {
                    return Err(Error::NotEmpty);
                }
                self.entries.remove(path);
                let at = match (at, known.at.get(path)) {
                    (AtVersion::Any, Some(&version)) if known.emptied.contains_key(path) => version.into(),
                    _ => *at,
                };
                self.join(path, condition(at), Then::Delete, origin)
            }
        }
    }

    /// The data of a new record.
    fn make(&mut self, path: &str, data: &[u8], life: Life, own: Option<&Own>) -> Result<Vec<u8>, Error> {
        self.created.push(path.to_owned());
        match (life, own) {
            (Life::Lasting, _) => Ok(wrap(data, None)),
            (Life::OfSession, Some(own)) => {
                self.entries.insert(path.to_owned());
                Ok(wrap(data, Some(&own.id)))
            }
            (Life::OfSession, None) => Err(Error::Refused("a lent session has no entries".to_owned())),
        }
    }

    /// Makes the folders of a record that are not there, and checks that the others still are.
    fn make_folders(&mut self, path: &str, known: &Known) -> Result<(), Error> {
        let folders: Vec<&str> = folders_above(path).collect();
        for (place, &folder) in folders.iter().enumerate() {
            // What is made below a folder changes it: whoever removes it at the same time is refused.
            let is_below_new = folders.get(place + 1).is_none_or(|&next| known.folders.get(next) == Some(&false));
            let then = if is_below_new { Then::Put(Vec::new()) } else { Then::Nothing };
            match (known.folders.get(folder), self.places.get(folder)) {
                // The same commit may make it for another record too.
                (_, Some(&place)) if self.ops[place].then == Then::Nothing => self.ops[place].then = then,
                (_, Some(_)) | (None, None) => {}
                (Some(is_there), None) => {
                    let (when, then) = if *is_there { (If::Exists, then) } else { (If::Absent, Then::Put(Vec::new())) };
                    self.join(folder, when, then, Origin::Folder(folder.to_owned()))?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, op: store::Op, origin: Origin) {
        self.places.insert(op.path.clone(), self.ops.len());
        self.ops.push(op);
        self.origins.push(origin);
    }

    /// Adds an operation, or joins it with the one before on the same record.
    fn join(&mut self, path: &str, when: If, then: Then, origin: Origin) -> Result<(), Error> {
        match self.places.get(path) {
            Some(&place) => join(&mut self.ops[place], when, then),
            None => {
                self.push(store::Op { path: path.to_owned(), when, then }, origin);
                Ok(())
            }
        }
    }
}

/// Joins two operations on one record: the second sees what the first has done.
fn join(first: &mut store::Op, when: If, then: Then) -> Result<(), Error> {
    let version = match (&first.then, first.when) {
        (Then::Nothing, If::Version(version)) => Some(version),
        (Then::Put(_), If::Version(version)) => Some(version.next()),
        (Then::Put(_), If::Absent) => Some(Version::FIRST),
        _ => None,
    };
    let is_there = match (&first.then, first.when) {
        (Then::Put(_), _) | (Then::Nothing, If::Exists | If::Version(_)) => true,
        (Then::Delete, _) | (Then::Nothing, If::Absent | If::Anything) => false,
    };
    if matches!((&first.then, when, &then), (Then::Put(_), If::Version(_), Then::Put(_))) {
        // The store counts it as one change, and whoever expects the next version would not find it.
        return Err(Error::Refused("a commit changes a record once".to_owned()));
    }
    match when {
        If::Absent if is_there => return Err(Error::Exists),
        If::Exists | If::Version(_) if !is_there => return Err(Error::Missing),
        If::Version(wanted) if version.is_none() && first.then == Then::Nothing => first.when = If::Version(wanted),
        If::Version(wanted) if version != Some(wanted) => return Err(Error::Changed),
        If::Absent | If::Exists | If::Version(_) | If::Anything => {}
    }
    match then {
        Then::Nothing => {}
        Then::Put(_) if first.then == Then::Delete => {
            return Err(Error::Refused("a commit cannot remove a record and make it again".to_owned()));
        }
        Then::Put(data) => first.then = Then::Put(data),
        // What it has made itself was never there: what is left is that it must not be.
        Then::Delete => first.then = if first.when == If::Absent { Then::Nothing } else { Then::Delete },
    }
    Ok(())
}

/// The folder of an appended record.
pub fn appends_to(op: &Op) -> Option<&str> {
    match op {
        Op::Append { folder, .. } => Some(folder),
        _ => None,
    }
}

/// Why a condition does not hold of what was found.
pub fn refusal(when: If, found: Option<Version>) -> Error {
    match (when, found) {
        (If::Absent, _) => Error::Exists,
        (_, None) => Error::Missing,
        (_, Some(_)) => Error::Changed,
    }
}

fn condition(at: AtVersion) -> If {
    match at {
        AtVersion::Any => If::Exists,
        AtVersion::Version(version) => If::Version(version),
    }
}

/// What a session may commit at once: what a plan adds comes on top.
pub fn within(limits: Limits) -> Limits {
    let operations = (limits.operations.saturating_sub(1) / 2).max(1);
    Limits { operations, bytes: limits.bytes / 2, in_flight: 1, ..limits }
}

/// Most bytes of a session's record: with the folders and numbers that a plan adds they take the other half.
pub fn most_of_session(limits: Limits) -> usize {
    limits.bytes / 4
}

/// Digits of the number in an appended record's name; more if it is larger.
const LEAST_DIGITS: usize = 10;

/// The number at the end of an appended record's name.
pub fn number(name: &str) -> Option<i64> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    if digits < LEAST_DIGITS { None } else { name[name.len() - digits..].parse().ok() }
}

/// What to read for what is known of a record. Folders of locks are found by what is below them.
pub fn stat_of(path: &str) -> Vec<Wanted> {
    match !paths::is_of_ledger(path) || paths::may_be_entry(path) {
        true => vec![Wanted::Record(path.to_owned()), Wanted::Names(path.to_owned())],
        false => vec![Wanted::Meta(path.to_owned())],
    }
}

fn wrap(data: &[u8], session: Option<&SessionId>) -> Vec<u8> {
    match session {
        Some(session) => [&[ENTRY], session.0.as_bytes(), b"\n", data].concat(),
        None => data.to_vec(),
    }
}

/// The session of an entry, and its data.
pub fn unwrap(path: &str, data: Vec<u8>) -> (Option<SessionId>, Vec<u8>) {
    if !paths::may_be_entry(path) || data.first() != Some(&ENTRY) {
        return (None, data);
    }
    let Some(end) = data.iter().position(|&byte| byte == b'\n') else { return (None, data) };
    let session = std::str::from_utf8(&data[1..end]).ok().and_then(|id| SessionId::try_from(id.to_owned()).ok());
    match session {
        Some(session) => (Some(session), data[end + 1..].to_vec()),
        None => (None, data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Meta;

    fn own() -> Own {
        Own {
            id: SessionId("me-4000".into()),
            version: Version(7),
            count: 9,
            entries: ["/leader/me".to_owned()].into(),
        }
    }

    fn create(path: &str) -> Op {
        Op::Create { path: path.into(), data: b"{}".to_vec(), life: Life::Lasting }
    }

    fn set(path: &str, at: AtVersion) -> Op {
        Op::Set { path: path.into(), data: b"new".to_vec(), at }
    }

    fn delete(path: &str, at: AtVersion) -> Op {
        Op::Delete { path: path.into(), at }
    }

    /// The operations besides that on the session's record.
    fn plan(ops: &[Op], known: &Known) -> Result<Vec<store::Op>, CommitError> {
        Plan::of(ops, known, Some(&own())).map(|plan| plan.ops[1..].to_vec())
    }

    fn op(path: &str, when: If, then: Then) -> store::Op {
        store::Op { path: path.into(), when, then }
    }

    #[test]
    fn each_commit_checks_and_moves_the_sessions_record() {
        let plan = Plan::of(&[create("/cronkeeper/gone/a")], &Known::default(), Some(&own())).unwrap();
        assert_eq!(
            (plan.ops[0].path.as_str(), plan.ops[0].when),
            ("/cronkeeper/sessions/me-4000", If::Version(Version(7)))
        );
        assert_eq!(plan.origins, [Origin::Session, Origin::Op(0)]);
        let without = Plan::of(&[create("/cronkeeper/gone/a")], &Known::default(), None).unwrap();
        assert_eq!(without.origins, [Origin::Op(0)]);
    }

    #[test]
    fn operations_on_one_record_are_joined() {
        const A: &str = "/cronkeeper/jobs/a";
        let at = |version| AtVersion::Version(Version(version));
        let check = |version| Op::Check { path: A.into(), at: version };
        let once = || Error::Refused("a commit changes a record once".into());
        for (ops, expected) in [
            (vec![create(A), delete(A, AtVersion::Any)], Ok((If::Absent, Then::Nothing))),
            (vec![create(A), set(A, AtVersion::Any)], Ok((If::Absent, Then::Put(b"new".to_vec())))),
            (vec![create(A), set(A, at(0))], Err(once())),
            (vec![set(A, at(3)), set(A, at(4))], Err(once())),
            (vec![set(A, at(3)), delete(A, AtVersion::Any)], Ok((If::Version(Version(3)), Then::Delete))),
            (vec![check(AtVersion::Any), check(at(3))], Ok((If::Version(Version(3)), Then::Nothing))),
            (vec![create(A), create(A)], Err(Error::Exists)),
            (vec![delete(A, AtVersion::Any), set(A, AtVersion::Any)], Err(Error::Missing)),
        ] {
            let planned = plan(&ops, &Known::default());
            let expected = expected
                .map(|(when, then)| vec![op(A, when, then)])
                .map_err(|error| CommitError { index: Some(1), error });
            assert_eq!(planned, expected, "{ops:?}");
        }
    }

    #[test]
    fn appended_records_get_numbers_in_order_and_the_next_one_is_kept() {
        let append = |prefix: &str| Op::Append {
            folder: paths::TRIGGERS.into(),
            prefix: prefix.into(),
            data: Vec::new(),
            life: Life::Lasting,
        };
        let known =
            Known { numbers: [(paths::TRIGGERS.to_owned(), (41, Some(Version(5))))].into(), ..Known::default() };
        let wanted = [
            Wanted::Record("/cronkeeper/numbers/cronkeeper/triggers".into()),
            Wanted::Names("/cronkeeper/triggers".into()),
        ];
        assert_eq!(needs(&[append("")], &Known::default()), wanted);
        assert_eq!(needs(&[append("")], &known), []);
        let planned = Plan::of(&[append(""), append("x-")], &known, None).unwrap();
        let names = ["/cronkeeper/triggers/0000000041", "/cronkeeper/triggers/x-0000000042"];
        assert_eq!(planned.created, names);
        let last = planned.ops.last().unwrap();
        let next = op("/cronkeeper/numbers/cronkeeper/triggers", If::Version(Version(5)), Then::Put(b"43".to_vec()));
        assert_eq!((last, planned.origins.last().unwrap()), (&next, &Origin::Numbers(paths::TRIGGERS.into())));
        assert_eq!(names.map(number), [Some(41), Some(42)]);
    }

    #[test]
    fn a_number_that_nobody_has_counted_up_to_is_counted_anew() {
        for (data, next) in [("41", 41), ("9223372036854775807", 8), ("-3", 8), ("garbage", 8), ("", 8)] {
            let mut known = Known::default();
            let record = Found::Record(Some((data.into(), Meta { version: Version(5), ..Meta::default() })));
            known.learn(Wanted::Record(numbers_path(paths::TRIGGERS)), record);
            let names = ["0000000007", "9223372036854775806"].map(|name| (name.to_owned(), Meta::default()));
            known.learn(Wanted::Names(paths::TRIGGERS.into()), Found::Names(names.into()));
            assert_eq!(known.numbers[paths::TRIGGERS], (next, Some(Version(5))), "{data}");
        }
    }

    #[test]
    fn a_number_that_somebody_else_has_taken_is_not_tried_for_ever() {
        let mut known = Known::default();
        known.learn(Wanted::Record(numbers_path(paths::TRIGGERS)), Found::Record(None));
        let forged = i64::MAX / 2 - 1;
        let names = [forged, forged + 1].map(|number| (number.to_string(), Meta::default()));
        known.learn(Wanted::Names(paths::TRIGGERS.into()), Found::Names(names.into()));
        assert_eq!(known.numbers[paths::TRIGGERS].0, forged + 2);
    }

    #[test]
    fn the_folder_of_a_history_is_made_once() {
        let first = [create("/cronkeeper/history/a/1"), create("/cronkeeper/history/a/2")];
        let folder = "/cronkeeper/history/a".to_owned();
        assert_eq!(needs(&first, &Known::default()), [Wanted::Meta(folder.clone())]);
        let known = |is_there| Known { folders: [(folder.clone(), is_there)].into(), ..Known::default() };
        let planned = Plan::of(&first, &known(false), None).unwrap();
        assert_eq!(planned.origins, [Origin::Folder(folder.clone()), Origin::Op(0), Origin::Op(1)]);
        let checked = Plan::of(&first, &known(true), None).unwrap();
        assert_eq!(
            (checked.origins, checked.ops[0].when),
            (planned.origins, If::Exists),
            "it may be removed meanwhile"
        );
    }

    #[test]
    fn an_entry_keeps_its_session_whoever_changes_it() {
        const THEIRS: &str = "/locks/a/entry";
        let change = [set(THEIRS, AtVersion::Any), set("/leader/me", AtVersion::Any)];
        let wanted = [Wanted::Record(THEIRS.into()), Wanted::Record("/leader/me".into())];
        assert_eq!(needs(&change, &Known::default()), wanted);
        let theirs = SessionId("other-4000".into());
        let mine = ("/leader/me".to_owned(), Some((Version(0), Some(own().id))));
        let known = |found| Known { others: [(THEIRS.to_owned(), found), mine.clone()].into(), ..Known::default() };
        let planned = plan(&change, &known(Some((Version(3), Some(theirs.clone()))))).unwrap();
        let data = |op: &store::Op| match &op.then {
            Then::Put(data) => unwrap(&op.path, data.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!((planned[0].when, data(&planned[0])), (If::Version(Version(3)), (Some(theirs), b"new".to_vec())));
        assert_eq!(data(&planned[1]), (Some(own().id), b"new".to_vec()));
        assert_eq!(plan(&change, &known(None)).unwrap_err().error, Error::Missing);
    }

    #[test]
    fn a_session_knows_its_entries() {
        let join = Op::Append {
            folder: paths::LEADER.into(),
            prefix: "_c_1-lock-".into(),
            data: Vec::new(),
            life: Life::OfSession,
        };
        let planned = Plan::of(&[join, delete("/leader/me", AtVersion::Any)], &Known::default(), Some(&own())).unwrap();
        assert_eq!(planned.entries, ["/leader/_c_1-lock-0000000000".to_owned()].into());
        let Then::Put(record) = &planned.ops[0].then else { panic!("it is written") };
        assert_eq!(serde_json::from_slice::<SessionRecord>(record).unwrap().entries, planned.entries);
    }

    #[test]
    fn only_an_entry_is_unwrapped() {
        let data = b"@me-4000\n{}".to_vec();
        assert_eq!(unwrap("/leader/x", data.clone()), (Some(SessionId("me-4000".into())), b"{}".to_vec()));
        assert_eq!(unwrap("/cronkeeper/jobs/x", data.clone()), (None, data));
        for plain in [&b"{}"[..], b"", b"@", b"@no end", b"@\xff\n", b"@a session\n"] {
            assert_eq!(unwrap("/leader/x", plain.to_vec()), (None, plain.to_vec()));
        }
    }
}
