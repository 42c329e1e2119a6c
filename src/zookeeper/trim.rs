//! Old history goes: the newest twenty runs by end stay, and apart from them the newest twenty skip records.
//!
//! In the background, by whoever made the history grow; never part of an end. What fails is left for the next time.

use super::client::{Client, Error, Stat};
use super::desk::{self, At as _, Desk, Trouble};
use super::paths;
use crate::clock::Clock;
use crate::job::JobName;

/// How many records of a kind stay.
const KEPT: usize = 20;

/// Trims one job's history.
pub async fn trim<C: Client, K: Clock>(desk: Desk<C, K>, job: JobName) -> Result<(), Trouble> {
    let folder = paths::job_history(&job);
    let names = desk::children(desk.line()?, &folder).await?;
    if names.len() <= KEPT {
        return Ok(());
    }
    let found = desk::get_history(desk.line()?, &folder, names).await?.found;
    for (name, version) in surplus(found) {
        let path = paths::under(&folder, &name);
        match desk.line()?.delete(&path, version).await {
            // Another trimmed it, or a skip record has grown meanwhile.
            Ok(()) | Err(Error::NoNode | Error::BadVersion) => {}
            Err(error) => return Err(error).at(&path),
        }
    }
    Ok(())
}

/// The records that are too many of their kind, oldest last. A run's record is made when it ends; a skip record grows.
fn surplus(found: Vec<desk::Found>) -> Vec<(String, i32)> {
    let (skips, runs): (Vec<_>, Vec<_>) =
        found.into_iter().map(|(name, data, stat)| (is_skip(&data), name, stat)).partition(|&(is_skip, ..)| is_skip);
    let mut surplus = beyond_kept(runs, |stat| stat.czxid);
    surplus.extend(beyond_kept(skips, |stat| stat.mzxid));
    surplus
}

fn beyond_kept(mut records: Vec<(bool, String, Stat)>, age: impl Fn(&Stat) -> i64) -> Vec<(String, i32)> {
    records.sort_by_key(|(_, _, stat)| std::cmp::Reverse(age(stat)));
    records.into_iter().skip(KEPT).map(|(_, name, stat)| (name, stat.version)).collect()
}

/// Judges by the kind alone: an end's whole record, with what the run printed last, is not needed to count it.
fn is_skip(data: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: &'a str,
    }
    matches!(serde_json::from_slice(data), Ok(Kind { kind: "skip" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::HistoryRecord;
    use crate::zookeeper::desk::json;
    use crate::zookeeper::lower::tests::skip;

    fn found(name: &str, data: Vec<u8>, czxid: i64) -> desk::Found {
        (name.into(), data, Stat { czxid, mzxid: czxid, ..Stat::default() })
    }

    #[test]
    fn the_newest_twenty_of_each_kind_stay() {
        let runs = (0..25).map(|at| found(&format!("run-{at}"), b"a run".to_vec(), 100 - at));
        let skips = (0..21).map(|at| found(&format!("skip-{at}"), json(&HistoryRecord::Skip(skip("backup", 60))), at));
        let gone: Vec<_> = surplus(runs.chain(skips).collect()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(gone, ["run-20", "run-21", "run-22", "run-23", "run-24", "skip-0"]);
    }
}
