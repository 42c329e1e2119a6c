//! Whether the store has lost commits. Pure.
//!
//! A store that fails over to a copy, or is restored from a backup, has lost its newest commits, and continues with
//! others. So a process remembers the newest moments in the order of commits that it was shown, and has each of its
//! reads show that they are still there.

use jiff::Timestamp;

use crate::store::{Found, Head, Wanted};

/// Most commits between two reads that the next one asks for.
const MOST_UNREAD: usize = 256;

/// The newest moments that a process was shown.
#[derive(Clone, Debug, Default)]
pub struct Heads {
    /// By its newest read.
    read: Option<Head>,
    /// By the acknowledged commits that no read has shown to be there yet.
    written: Vec<Head>,
    /// Commits are lost, and no record says so yet: what was to begin until then may have begun. The session that has
    /// found it may be over, because its own commits are lost too.
    unreported: Option<Timestamp>,
}

impl Heads {
    /// Those of a process that was shown this one before it began.
    pub fn since(read: Option<Head>) -> Self {
        Self { read, ..Self::default() }
    }

    /// Notes what has to be reported.
    pub fn note_loss(&mut self, until: Timestamp) {
        self.unreported = self.unreported.max(Some(until));
    }

    /// Until when what was to begin may have begun by a lost commit, if no record says so yet.
    pub fn unreported(&self) -> Option<Timestamp> {
        self.unreported
    }

    /// A record says so now.
    pub fn reported(&mut self, until: Timestamp) {
        self.unreported.take_if(|newest| *newest == until);
    }

    /// The newest moment that a read has shown: what to remember for the next process.
    pub fn read(&self) -> Option<Head> {
        self.read
    }

    /// What the next read has to show.
    pub fn newest(&self) -> Vec<Head> {
        self.read.iter().chain(&self.written).copied().collect()
    }

    /// Takes the moment of an acknowledged commit.
    pub fn wrote(&mut self, head: Head) {
        self.written.push(head);
        if self.written.len() > MOST_UNREAD {
            self.written.remove(0);
        }
    }

    /// Takes the moment of a read, which was asked for these earlier ones. Returns one that is not there any more.
    pub fn see(&mut self, head: Head, asked: &[Head], found: &[Found]) -> Option<Head> {
        let is_lost = |(asked, found): &(&Head, &Found)| match found {
            // A nonce that is not kept any more is so old that others have gone on from it.
            Found::Nonce(nonce) => head.revision < asked.revision || nonce.is_some_and(|nonce| nonce != asked.nonce),
            Found::Meta(_) | Found::Record(_) | Found::Names(_) => false,
        };
        let lost = asked.iter().zip(found).find(is_lost).map(|(asked, _)| *asked);
        if lost.is_some() {
            self.written.clear();
        }
        self.written.retain(|written| !asked.contains(written));
        let is_newer = self.read.is_none_or(|read| read.revision < head.revision);
        if is_newer || lost.is_some() {
            self.read = Some(head);
        }
        lost
    }
}

/// The question for what this moment is known by.
pub fn wanted(head: &Head) -> Wanted {
    Wanted::Nonce(head.revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Revision;

    fn head(revision: i64, nonce: u64) -> Head {
        Head { revision: Revision(revision), nonce }
    }

    /// What a read at `head` says of the newest known moments, if the store knows their revisions by these nonces.
    fn see(heads: &mut Heads, at: Head, nonces: &[Option<u64>]) -> Option<Head> {
        let found: Vec<Found> = nonces.iter().map(|nonce| Found::Nonce(*nonce)).collect();
        let asked = heads.newest();
        assert_eq!(asked.len(), found.len());
        heads.see(at, &asked, &found)
    }

    #[test]
    fn commits_are_lost_if_the_newest_moment_is_not_there_any_more() {
        let mut heads = Heads::default();
        assert_eq!(see(&mut heads, head(5, 50), &[]), None);
        assert_eq!(see(&mut heads, head(7, 70), &[Some(50)]), None);
        assert_eq!(see(&mut heads, head(6, 60), &[None]), Some(head(7, 70)), "the store is not as far any more");
        assert_eq!(see(&mut heads, head(9, 90), &[Some(60)]), None, "that is reported once");
        assert_eq!(see(&mut heads, head(12, 12), &[Some(91)]), Some(head(9, 90)), "others have gone on since");
        assert_eq!(see(&mut heads, head(9_999, 1), &[None]), None, "it is too old to be known");
    }

    #[test]
    fn an_acknowledged_commit_must_be_there_too() {
        let mut heads = Heads::since(Some(head(5, 50)));
        heads.wrote(head(8, 80));
        assert_eq!(see(&mut heads, head(9, 90), &[Some(50), Some(81)]), Some(head(8, 80)));
        assert_eq!(heads.newest(), [head(9, 90)]);
        heads.wrote(head(10, 100));
        assert_eq!(see(&mut heads, head(10, 100), &[Some(90), Some(100)]), None);
        assert_eq!(heads.newest(), [head(10, 100)]);
    }

    /// The one before it may be lost although it is there.
    #[test]
    fn each_acknowledged_commit_must_be_there() {
        let mut heads = Heads::since(Some(head(99, 1)));
        heads.wrote(head(100, 2));
        heads.wrote(head(101, 3));
        assert_eq!(see(&mut heads, head(101, 3), &[Some(1), Some(7), Some(3)]), Some(head(100, 2)));
        for revision in 0..1_000 {
            heads.wrote(head(revision, 4));
        }
        assert_eq!(heads.newest().len(), MOST_UNREAD + 1);
    }

    #[test]
    fn a_commit_that_is_answered_while_a_read_is_on_its_way_is_asked_for_by_the_next() {
        let mut heads = Heads::since(Some(head(5, 50)));
        let asked = heads.newest();
        heads.wrote(head(6, 60));
        assert_eq!(heads.see(head(5, 50), &asked, &[Found::Nonce(Some(50))]), None);
        assert_eq!(heads.newest(), [head(5, 50), head(6, 60)]);
    }
}
