//! Page after page of the history, and what is missing in all of them together.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write};

use jiff::Timestamp;

use super::super::ask::AskFailure;
use crate::api::client::Client;
use crate::api::history::{History, MissingNode, path};
use crate::status::HistoryEntry;
use cronkeeper_core::clock::stamp;
use cronkeeper_core::escape;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::{Kind, Position};
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Most records of one answer.
const PAGE: usize = 1_000;
/// Most nodes that one line names.
const MOST_NAMED: usize = 8;

/// Asks for one page after the other.
pub(super) struct Pages<'a> {
    client: &'a Client,
    filter: Filter,
    left: usize,
    local: bool,
    is_over: bool,
    /// The skip records that were shown: one that has grown since may be in another archive as it was before.
    skips: HashSet<String>,
    lacks: Lacks,
}

impl<'a> Pages<'a> {
    pub fn new(client: &'a Client, filter: Filter, number: usize, local: bool) -> Self {
        let (skips, lacks) = (HashSet::new(), Lacks::default());
        Self { client, filter, left: number, local, is_over: false, skips, lacks }
    }

    /// The records of the next page; `None` if there is none, or enough were shown.
    pub fn next_page(&mut self) -> Result<Option<Vec<HistoryEntry>>, AskFailure> {
        if self.is_over || self.left == 0 {
            return Ok(None);
        }
        let limit = self.left.min(PAGE);
        let mut page: History = self.client.get(&path(&self.filter, limit, self.local))?;
        self.lacks.add(&page);
        page.records.retain(|record| {
            let Position { run, kind, .. } = record.position();
            kind == Kind::Run || self.skips.insert(run)
        });
        page.records.truncate(self.left);
        self.left -= page.records.len();
        let next = page.next.as_deref().and_then(|next| Position::parse(next).ok());
        // A daemon that repeats itself would be asked forever.
        let is_older = |next: &Position| self.filter.before.as_ref().is_none_or(|before| next < before);
        let next = next.filter(is_older);
        self.is_over = next.is_none();
        self.filter.before = next;
        Ok(Some(page.records))
    }

    /// What is missing in the pages so far.
    pub fn lacks(&self) -> &Lacks {
        &self.lacks
    }
}

/// What is missing in the pages that were shown.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    /// Up to when there may be gaps, if there may be any.
    gap: Option<Timestamp>,
    /// The oldest record so far.
    oldest: Option<Timestamp>,
    /// The nodes whose archives have answered.
    nodes: BTreeSet<NodeName>,
    /// Why those of other nodes have not.
    missing: BTreeMap<NodeName, String>,
    missing_more: usize,
    has_more: bool,
    older_elsewhere: bool,
    ledger_error: Option<String>,
    /// The most of any page, because they look at the same records again.
    unreadable: usize,
    archive_error: Option<String>,
}

impl Lacks {
    fn add(&mut self, page: &History) {
        // Where this page begins, the ones before it may have been complete.
        let gap = page.gap().map(|before| self.oldest.map_or(before, |oldest| before.min(oldest)));
        self.gap = self.gap.max(gap);
        if gap.is_some() {
            let missing = page.missing.iter().map(|MissingNode { node, why }| (node.clone(), why.clone()));
            self.missing.extend(missing);
            self.missing_more = self.missing_more.max(page.missing_more);
        }
        self.nodes.extend(page.nodes.iter().cloned());
        self.oldest = page.records.last().map(HistoryEntry::at).or(self.oldest);
        (self.has_more, self.older_elsewhere) = (page.next.is_some(), page.older_elsewhere);
        self.ledger_error = page.ledger_error.clone().or(self.ledger_error.take());
        self.unreadable = self.unreadable.max(page.unreadable);
        self.archive_error = page.archive_error.clone().or(self.archive_error.take());
    }

    /// Up to when there may be gaps in what was shown.
    pub fn gap(&self) -> Option<Timestamp> {
        self.gap
    }

    /// The nodes whose archives are in what was shown, without those that failed in between.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.nodes.iter().filter(|node| !self.missing.contains_key(*node)).cloned().collect()
    }

    /// Says what was not shown.
    pub fn write(&self, err: &mut dyn Write) -> io::Result<()> {
        if let Some(error) = &self.ledger_error {
            let error = escape::plain(error);
            writeln!(err, "cronkeeper: the ledger cannot be reached, so only the archives are shown: {error}")?;
        }
        if self.unreadable > 0 {
            let records = counted(self.unreadable, "record");
            writeln!(
                err,
                "cronkeeper: {records} of the ledger cannot be read, and are missing unless an archive has them"
            )?;
        }
        if let Some(error) = &self.archive_error {
            let error = escape::plain(error);
            writeln!(err, "cronkeeper: the archive of the node that was asked cannot be read: {error}")?;
        }
        self.write_missing(err)?;
        if self.has_more {
            writeln!(
                err,
                "cronkeeper: there are older records: `-n` shows more of them, `--until` those before a \
                time"
            )?;
        } else if self.older_elsewhere && self.gap.is_none() {
            let how = "use the socket or the token to see them";
            writeln!(err, "cronkeeper: other nodes have older records in their archives: {how}")?;
        }
        Ok(())
    }

    /// Names the nodes whose records are missing, those with the same reason in one line.
    fn write_missing(&self, err: &mut dyn Write) -> io::Result<()> {
        let Some(before) = self.gap.map(stamp) else { return Ok(()) };
        let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
        self.missing.iter().for_each(|(node, why)| reasons.entry(why).or_default().push(node.as_str()));
        for (why, nodes) in reasons {
            let (first, rest) = nodes.split_at(nodes.len().min(MOST_NAMED));
            let first = first.join(", ");
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            let have = if nodes.len() == 1 { "has" } else { "have" };
            let (of, why) = (escape::plain(&first), escape::plain(why));
            writeln!(err, "cronkeeper: records before {before} that only {of}{more} {have} may be missing: {why}")?;
        }
        if self.missing_more > 0 {
            let more = self.missing_more;
            writeln!(err, "cronkeeper: records before {before} that only {more} other nodes have may be missing")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};
    use cronkeeper_core::run::HistoryRecord;

    fn page(seconds: &[i64], json: &str) -> History {
        let records = seconds.iter().map(|second| HistoryRecord::Run(success(record("load", *second, "s"))).into());
        History { records: records.collect(), ..serde_json::from_str(json).unwrap() }
    }

    fn said(pages: &[History]) -> (Option<i64>, String) {
        let (mut lacks, mut text) = (Lacks::default(), Vec::new());
        pages.iter().for_each(|page| lacks.add(page));
        lacks.write(&mut text).unwrap();
        (lacks.gap().map(Timestamp::as_second), String::from_utf8(text).unwrap())
    }

    #[test]
    fn an_answer_without_the_ledger_is_told_from_a_whole_one() {
        assert_eq!(said(&[page(&[], r#"{"records": []}"#)]), (None, String::new()));
        let without = r#"{"records": [], "ledger_error": "no answer within 3 s", "older_elsewhere": true,
                          "incomplete_before": "1970-01-01T00:01:00Z"}"#;
        let expected =
            "cronkeeper: the ledger cannot be reached, so only the archives are shown: no answer within 3 s\n";
        assert_eq!(said(&[page(&[], without)]), (Some(60), expected.to_owned()));
    }

    const AWAY: &str = r#"{"records": [], "incomplete_before": "1970-01-01T00:01:00Z", "nodes": ["a"],
        "missing": [{"node": "b", "why": "b is away"}, {"node": "c", "why": "no token"}, {"node": "d", "why": "no token"}]}"#;

    #[test]
    fn nodes_that_were_not_asked_are_named_where_it_matters() {
        let (gap, text) = said(&[page(&[50], AWAY)]);
        let expected = "cronkeeper: records before 1970-01-01 00:01:00 that only b has may be missing: b is away\n\
                        cronkeeper: records before 1970-01-01 00:01:00 that only c, d have may be missing: no token\n";
        assert_eq!((gap, text.as_str()), (Some(60), expected));
        let newer = History { next: Some("1.run.x".to_owned()), ..page(&[90, 80], AWAY) };
        let (gap, text) = said(&[newer]);
        assert!(gap.is_none() && text.contains("there are older records") && !text.contains("away"), "{text}");
    }

    #[test]
    fn a_gap_begins_where_the_pages_before_it_end() {
        let whole = History { next: Some("1.run.x".to_owned()), ..page(&[55, 40], r#"{"records": []}"#) };
        // The end of a run is one second after it was due.
        assert_eq!(said(&[whole.clone(), page(&[30], AWAY)]).0, Some(41));
        assert_eq!(said(&[page(&[90], AWAY), whole]).0, Some(60));
    }

    #[test]
    fn without_the_token_it_is_said_that_there_may_be_more() {
        let (_, text) = said(&[page(&[50], r#"{"records": [], "older_elsewhere": true}"#)]);
        assert!(text.contains("other nodes have older records") && text.contains("or the token"), "{text}");
    }
}
