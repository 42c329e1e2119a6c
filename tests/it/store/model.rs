//! Random commits and reads, held against the store in memory.

use proptest::prelude::*;

use super::*;

const PATHS: [&str; 6] = ["/f/a", "/f/b", "/f/b/c", "/g/a", "/f", "/h"];

fn condition() -> impl Strategy<Value = If> {
    prop_oneof![
        2 => Just(If::Absent),
        2 => Just(If::Exists),
        3 => (0_i32..4).prop_map(at),
        1 => Just(If::Anything),
    ]
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Then::Put),
        1 => Just(Then::Delete),
        1 => Just(Then::Nothing),
    ]
}

/// Operations that name each record once.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::sample::subsequence(&PATHS, 1..4).prop_shuffle().prop_flat_map(|paths| {
        let op = |path: &'static str| {
            (condition(), then()).prop_map(move |(when, then)| Op { path: path.to_owned(), when, then })
        };
        paths.into_iter().map(op).collect::<Vec<_>>()
    })
}

/// All that can be read, without times, which differ. Names have no order.
async fn all<S: Store>(store: &S) -> Vec<Found> {
    let records = PATHS.iter().map(|path| Wanted::Record((*path).to_owned()));
    let folders = ["/f", "/f/b", "/g", "/x"].map(|folder| Wanted::Names(folder.to_owned()));
    let (_, found) = store.read(records.chain(folders).collect()).await.expect("they can be read");
    let without_times = |meta: Meta| Meta { created_at: Default::default(), changed_at: Default::default(), ..meta };
    let bare = |found| match found {
        Found::Meta(meta) => Found::Meta(meta.map(without_times)),
        Found::Record(record) => Found::Record(record.map(|(data, meta)| (data, without_times(meta)))),
        Found::Nonce(_) => panic!("nobody has asked for it"),
        Found::Names(mut names) => {
            names.sort_by(|(a, _), (b, _)| a.cmp(b));
            Found::Names(names.into_iter().map(|(name, meta)| (name, without_times(meta))).collect())
        }
    };
    found.into_iter().map(bare).collect()
}

async fn agree(commits: Vec<Vec<Op>>, place: impl Place) -> Result<(), TestCaseError> {
    let (model, clients) = (Memory::default(), [place.client(), place.client()]);
    for (number, ops) in commits.into_iter().enumerate() {
        let expected = model.commit(ops.clone()).await.map(|done| done.revision);
        let found = clients[number % 2].commit(ops.clone()).await.map(|done| done.revision);
        prop_assert_eq!(found, expected, "{:?}", ops);
        prop_assert_eq!(all(&clients[(number + 1) % 2]).await, all(&model).await, "after {:?}", ops);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_file_of_sqlite_does_as_the_model_does(commits in prop::collection::vec(ops(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(agree(commits, in_file()))?;
    }
}
