//! Damaged paths: records that cannot be read, written or trusted.
//!
//! The backend ignores each such path and reports it once for as long as it stays damaged.

use std::collections::BTreeMap;
use std::fmt;

use crate::tree::Error;
use cronkeeper_core::election::BLOCKED;
use cronkeeper_core::escape;

/// Most paths that are reported. If a parent is full of damaged children, a few of them are enough.
const MOST_NAMED: usize = 200;
/// Most paths that are remembered of one source: those of thousands of jobs, should all of them be closed.
const MOST_KNOWN: usize = 20_000;
/// Most characters of a path. Cronkeeper's own have fewer.
const LONGEST_PATH: usize = 500;
/// Most characters of a reason: an error of a parser may quote all that it has read.
const LONGEST_REASON: usize = 200;
/// Most characters of a path in a command. A command that is cut would do something else.
const LONGEST_IN_COMMAND: usize = 200;

/// A damaged path and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub path: String,
    pub why: String,
}

impl Damage {
    pub fn new(path: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { path: short(path.into(), LONGEST_PATH), why: reason(&why) }
    }

    /// A path that the server, the client or this node refuses to read.
    pub fn unread(path: impl Into<String>, error: &Error) -> Self {
        Self::new(path, format_args!("cannot be read: {error}"))
    }

    /// A path that somebody must delete, with the command that does it, if there is one. It is shown for a path alone
    /// that means itself to every shell and service.
    pub fn to_delete(path: String, why: &str, command: Option<String>) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '.');
        let command = command.filter(|_| path.len() <= LONGEST_IN_COMMAND && path.chars().all(is_plain));
        let how = command.map(|command| format!(": {command}")).unwrap_or_default();
        Self { why: format!("{why}{how}"), ..Self::new(path, "") }
    }

    /// A path that the server, or the client, refuses to write.
    pub fn unwritten(path: impl Into<String>, error: &Error) -> Self {
        Self::new(path, format_args!("cannot be written: {error}"))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

/// The reason for a damage, on one line.
pub fn reason(why: &impl fmt::Display) -> String {
    short(why.to_string(), LONGEST_REASON)
}

fn short(text: String, longest: usize) -> String {
    if text.len() <= longest { text } else { escape::short(&text, longest) }
}

/// The first of these damages as text, and how many more there are.
pub fn named(damages: Vec<Damage>) -> Vec<String> {
    let left_out = damages.len().saturating_sub(MOST_NAMED);
    let named = damages.iter().take(MOST_NAMED).map(ToString::to_string);
    named.chain(more(left_out)).collect()
}

fn more(left_out: usize) -> Option<String> {
    (left_out > 0).then(|| format!("and {left_out} more"))
}

/// A kind of check. What it finds replaces what it found before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Queue,
    /// What is in the place of this node's member.
    OwnMember,
    Members,
    /// This node's own record as a place to run jobs.
    OwnPlace,
    /// The places that a leader reads.
    Places,
    /// What is placed on this node.
    Offers,
    /// Jobs and runs, as read by a leader.
    Ledger,
    /// What a leader finds among the runs later on.
    Strays,
    /// Requests of operators, and links.
    OperatorRequests,
    /// What operators want of this node.
    Wanted,
    /// Writes to the ledger.
    Writes,
    /// Writes that renew the lease and read the time.
    Renewals,
    /// Access rights on cronkeeper's paths.
    Rights,
    /// The queues of jobs' locks.
    Locks,
}

/// All damaged paths that this process knows of.
#[derive(Debug, Default)]
pub struct Damages {
    known: BTreeMap<Source, BTreeMap<String, String>>,
    named: BTreeMap<String, String>,
}

/// The damaged paths, and those of them that were not reported before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewDamage {
    /// All of them, as text.
    pub all: Vec<String>,
    /// The new ones.
    pub new: Vec<String>,
}

impl Damages {
    /// Replaces what `source` has found. Returns what to report, if anything changed.
    pub fn found(&mut self, source: Source, found: impl IntoIterator<Item = Damage>) -> Option<NewDamage> {
        let found: BTreeMap<_, _> =
            found.into_iter().take(MOST_KNOWN).map(|damage| (damage.path, damage.why)).collect();
        let before = self.known.insert(source, found.clone()).unwrap_or_default();
        if before == found { None } else { self.news() }
    }

    /// Adds a path to what `source` has found.
    pub fn add(&mut self, source: Source, damage: Damage) -> Option<NewDamage> {
        let known = self.known.entry(source).or_default();
        let is_full = known.len() >= MOST_KNOWN && !known.contains_key(&damage.path);
        if is_full || known.get(&damage.path) == Some(&damage.why) {
            return None;
        }
        known.insert(damage.path, damage.why);
        self.news()
    }

    /// Removes a path that is no longer damaged.
    pub fn mend(&mut self, source: Source, path: &str) -> Option<NewDamage> {
        self.known.get_mut(&source)?.remove(path)?;
        self.news()
    }

    /// The damaged paths that `source` has found, except those that are too long to be known in full.
    pub fn paths(&self, source: Source) -> Vec<String> {
        let known = self.known.get(&source).into_iter().flat_map(BTreeMap::keys);
        known.filter(|path| path.len() <= LONGEST_PATH).cloned().collect()
    }

    fn news(&mut self) -> Option<NewDamage> {
        let mut now = BTreeMap::new();
        for (path, why) in self.known.values().flatten() {
            now.entry(path.clone()).or_insert_with(|| why.clone());
        }
        let left_out = now.len().saturating_sub(MOST_NAMED);
        let now: BTreeMap<_, _> = now.into_iter().take(MOST_NAMED).collect();
        let before = std::mem::replace(&mut self.named, now);
        let describe = |(path, why): (&String, &String)| format!("{path}: {why}");
        let mut all: Vec<String> = self.named.iter().map(describe).collect();
        all.extend(more(left_out));
        // A path that was reported is not new, even if the reason has changed: unless nobody can lead because of it now.
        let is_new = |(path, why): &(&String, &String)| {
            let known = before.get(*path);
            known.is_none() || known != Some(*why) && why.starts_with(BLOCKED)
        };
        let new = self.named.iter().filter(is_new).map(describe).collect();
        (before != self.named).then_some(NewDamage { all, new })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(path: &str) -> Damage {
        Damage::new(path, "why")
    }

    fn new(news: Option<NewDamage>) -> Vec<String> {
        news.map(|news| news.new).unwrap_or_default()
    }

    #[test]
    fn a_path_is_named_once_for_as_long_as_it_stays_damaged() {
        let mut damages = Damages::default();
        assert_eq!(new(damages.found(Source::Ledger, [damage("/a")])), ["/a: why"]);
        assert_eq!(damages.found(Source::Ledger, [damage("/a")]), None);
        assert_eq!(damages.add(Source::Writes, damage("/a")), None, "also where another finds it");
        assert_eq!(new(damages.found(Source::Ledger, [damage("/a"), damage("/b")])), ["/b: why"]);
        assert_eq!(damages.found(Source::Ledger, []).map(|news| news.all), Some(vec!["/a: why".to_owned()]));
        assert_eq!(damages.mend(Source::Writes, "/a").map(|news| news.all), Some(Vec::new()));
        assert_eq!(new(damages.found(Source::Ledger, [damage("/a")])), ["/a: why"], "it is news again");
    }

    #[test]
    fn a_path_because_of_which_nobody_can_lead_any_more_is_news_again() {
        let mut damages = Damages::default();
        let blocks = || Damage::to_delete("/a".into(), BLOCKED, Some("`rm /a`".into()));
        assert_eq!(new(damages.found(Source::Queue, [damage("/a")])), ["/a: why"]);
        assert_eq!(new(damages.found(Source::Queue, [blocks()])), [format!("/a: {BLOCKED}: `rm /a`")]);
        assert_eq!(damages.found(Source::Queue, [blocks()]), None);
        assert_eq!(new(damages.found(Source::Queue, [damage("/a")])), [""; 0]);
    }

    #[test]
    fn a_command_is_named_only_for_a_path_that_it_means_to_every_shell() {
        let shown = |path: &str| Damage::to_delete(path.into(), "why", Some(format!("`rm {path}`"))).why;
        assert_eq!(shown("/leader/_c_1-lock-0000000001"), "why: `rm /leader/_c_1-lock-0000000001`");
        for path in ["/leader/a b", "/leader/$(reboot)", "/leader/'", "/leader/`", &format!("/{}", "a".repeat(300))] {
            assert_eq!(shown(path), "why");
        }
    }

    #[test]
    fn paths_and_reasons_of_megabytes_are_cut() {
        let mut damages = Damages::default();
        let long = Damage::new(format!("/{}", "p".repeat(1 << 20)), "r\n".repeat(1 << 20));
        let news = new(damages.found(Source::Ledger, [long, damage("/a")]));
        assert!(news.concat().len() < 3 * (LONGEST_PATH + LONGEST_REASON) && !news.concat().contains('\n'));
        assert_eq!(damages.paths(Source::Ledger), ["/a"], "the other one cannot be read again");
    }

    #[test]
    fn a_reader_is_told_of_some_damages_and_of_the_number_of_the_others() {
        let many: Vec<_> = (0..1_000).map(|n| damage(&format!("/{n}"))).collect();
        assert_eq!(named(many[..2].to_vec()), ["/0: why", "/1: why"]);
        let shown = named(many);
        assert_eq!((shown.len(), shown[MOST_NAMED].as_str()), (MOST_NAMED + 1, "and 800 more"));
    }

    #[test]
    fn a_folder_full_of_damaged_paths_fills_no_log() {
        let mut damages = Damages::default();
        let many = (0..1_000).map(|n| damage(&format!("/{n}")));
        let news = damages.found(Source::Ledger, many).expect("it is news");
        assert_eq!((news.new.len(), news.all.len()), (MOST_NAMED, MOST_NAMED + 1));
        assert_eq!(news.all.last().map(String::as_str), Some("and 800 more"));
    }
}
