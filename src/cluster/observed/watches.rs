//! The one-time watches of a session: what each saw, to be compared with what a later read shows. Pure.

use std::collections::BTreeSet;

use tokio::sync::oneshot;

use crate::store::{Found, Meta, Wanted};
use crate::tree::Revision;
use cronkeeper_core::run::Version;

/// What a watch compares.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// The write that created the record, and its version; absent: there was none.
    Record(Option<(Revision, Version)>),
    /// The write that created each: a record that is created again is a different one.
    Names(BTreeSet<(String, Revision)>),
    Nonce(Option<u64>),
}

impl From<&Found> for Seen {
    fn from(found: &Found) -> Self {
        let record = |meta: Option<&Meta>| Self::Record(meta.map(|meta| (meta.created, meta.version)));
        match found {
            Found::Meta(meta) => record(meta.as_ref()),
            Found::Record(found) => record(found.as_ref().map(|(_, meta)| meta)),
            Found::Nonce(nonce) => Self::Nonce(*nonce),
            Found::Names(names) => Self::Names(names.iter().map(|(name, meta)| (name.clone(), meta.created)).collect()),
        }
    }
}

struct Watched {
    /// What is read again.
    wanted: Wanted,
    seen: Seen,
    fire: oneshot::Sender<()>,
}

/// The watches that have not fired.
#[derive(Default)]
pub struct Watches(Vec<Watched>);

impl Watches {
    /// Sets a watch on what was just read.
    pub fn set(&mut self, wanted: Wanted, found: &Found) -> oneshot::Receiver<()> {
        let (fire, fires) = oneshot::channel();
        let wanted = match wanted {
            Wanted::Record(path) => Wanted::Meta(path),
            other => other,
        };
        self.0.push(Watched { wanted, seen: found.into(), fire });
        fires
    }

    /// What to read again, of watches that somebody still waits for.
    pub fn wanted(&mut self) -> Vec<Wanted> {
        self.0.retain(|watched| !watched.fire.is_closed());
        self.0.iter().map(|watched| watched.wanted.clone()).collect()
    }

    /// Fires those that see something else now. `found` answers what [`wanted`](Self::wanted) returned.
    pub fn see(&mut self, found: &[Found]) {
        let watched = std::mem::take(&mut self.0).into_iter().zip(found);
        let (changed, same): (Vec<_>, Vec<_>) =
            watched.partition(|(watched, found)| watched.seen != Seen::from(*found));
        changed.into_iter().for_each(|(watched, _)| _ = watched.fire.send(()));
        self.0 = same.into_iter().map(|(watched, _)| watched).collect();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(created: i64, version: i32) -> Meta {
        Meta { created: Revision(created), version: Version(version), ..Meta::default() }
    }

    /// True if a watch on the first fires when the second is read.
    fn fires(before: Found, after: Found) -> bool {
        let mut watches = Watches::default();
        let mut fires = watches.set(Wanted::Meta("/a".into()), &before);
        assert_eq!(watches.wanted().len(), 1);
        watches.see(&[after]);
        let has_fired = fires.try_recv().is_ok();
        assert_eq!(watches.is_empty(), has_fired);
        has_fired
    }

    #[test]
    fn a_record_that_was_made_changed_removed_or_made_anew_fires() {
        let there = |created, version| Found::Meta(Some(meta(created, version)));
        assert!(fires(Found::Meta(None), there(1, 0)));
        assert!(fires(there(1, 0), there(1, 1)));
        assert!(fires(there(1, 0), Found::Meta(None)));
        assert!(fires(there(1, 0), there(2, 0)), "the version is the same");
        assert!(!fires(there(1, 1), there(1, 1)) && !fires(Found::Meta(None), Found::Meta(None)));
    }

    #[test]
    fn a_name_that_comes_or_goes_fires_and_a_change_of_its_record_does_not() {
        let names = |names: &[(&str, i32)]| {
            Found::Names(names.iter().map(|(name, version)| ((*name).to_owned(), meta(1, *version))).collect())
        };
        assert!(fires(names(&[]), names(&[("a", 0)])));
        assert!(fires(names(&[("a", 0)]), names(&[("b", 0)])));
        assert!(!fires(names(&[("a", 0), ("b", 0)]), names(&[("b", 1), ("a", 2)])));
    }

    #[test]
    fn a_watch_that_nobody_waits_for_costs_no_read() {
        let mut watches = Watches::default();
        drop(watches.set(Wanted::Meta("/a".into()), &Found::Meta(None)));
        assert_eq!(watches.wanted(), []);
    }
}
