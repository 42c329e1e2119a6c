//! Reads: of one moment, as new as what has been answered to anybody, and hints of what is newer.

use std::time::Duration;

use super::*;

on_every_store! {
    what_was_answered_is_seen_by_every_client,
    a_read_has_one_answer_for_each_part_in_order,
    a_record_that_is_not_there_is_none,
    the_names_of_a_folder_are_those_directly_below_it,
    a_folder_needs_no_record_of_its_own,
    names_come_with_what_is_known_of_their_records,
    a_read_of_nothing_tells_the_revision,
    a_read_does_not_change_the_revision,
    a_thousand_records_are_read_at_once,
    a_hint_comes_after_another_clients_commit,
    a_hint_comes_for_what_was_committed_before_it_was_asked_for,
    a_hint_that_is_given_up_harms_nothing,
    a_client_that_comes_later_finds_everything,
}

async fn what_was_answered_is_seen_by_every_client(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    for number in 0..50 {
        let path = format!("/{number}");
        commit(&a, vec![make(&path)]).await;
        assert!(read(&b, &path).await.is_some(), "{path}");
    }
}

async fn a_read_has_one_answer_for_each_part_in_order(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/f/a"), make("/f/b")]).await;
    let wanted = vec![
        Wanted::Names("/f".into()),
        Wanted::Meta("/f/b".into()),
        Wanted::Record("/f/x".into()),
        Wanted::Record("/f/a".into()),
        Wanted::Meta("/f/x".into()),
        Wanted::Names("/x".into()),
    ];
    let (_, found) = store.read(wanted).await.expect("they can be read");
    assert!(
        matches!(&found[..], [
            Found::Names(two), Found::Meta(Some(_)), Found::Record(None), Found::Record(Some(_)), Found::Meta(None),
            Found::Names(none),
        ] if two.len() == 2 && none.is_empty()),
        "{found:?}"
    );
}

async fn a_record_that_is_not_there_is_none(place: impl Place) {
    let store = place.client();
    assert_eq!(read(&store, "/a").await, None);
    commit(&store, vec![make("/a/b")]).await;
    assert_eq!(read(&store, "/a").await, None, "a folder is no record");
}

async fn the_names_of_a_folder_are_those_directly_below_it(place: impl Place) {
    let store = place.client();
    let paths = ["/f/a", "/f/b", "/f/b/c", "/f", "/fa", "/g/f/a", "/f.a"];
    commit(&store, paths.map(make).into()).await;
    assert_eq!(names(&store, "/f").await, ["a", "b"]);
    assert_eq!(names(&store, "/f/b").await, ["c"]);
    commit(&store, vec![delete("/f/a", If::Exists)]).await;
    assert_eq!(names(&store, "/f").await, ["b"]);
}

async fn a_folder_needs_no_record_of_its_own(place: impl Place) {
    let store = place.client();
    assert_eq!(names(&store, "/f").await, [""; 0]);
    commit(&store, vec![make("/f/g/a")]).await;
    assert_eq!((names(&store, "/f/g").await.len(), names(&store, "/f").await.len()), (1, 0));
    commit(&store, vec![make("/f/g")]).await;
    assert_eq!(names(&store, "/f").await, ["g"]);
}

async fn names_come_with_what_is_known_of_their_records(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/f/a")]).await;
    commit(&store, vec![put("/f/a", at(0), "second"), make("/f/b")]).await;
    let (_, found) = store
        .read(vec![Wanted::Names("/f".into()), Wanted::Meta("/f/a".into()), Wanted::Meta("/f/b".into())])
        .await
        .expect("they can be read");
    let [Found::Names(names), Found::Meta(Some(a)), Found::Meta(Some(b))] = &found[..] else { panic!("{found:?}") };
    let known = |name: &str| names.iter().find(|(found, _)| found == name).map(|(_, meta)| meta);
    assert_eq!((known("a"), known("b")), (Some(a), Some(b)));
    assert_eq!((a.version, b.version), (Version(1), Version(0)));
}

async fn a_read_of_nothing_tells_the_revision(place: impl Place) {
    let store = place.client();
    let done = commit(&store, vec![make("/a")]).await;
    assert_eq!(store.read(Vec::new()).await.expect("it can be read"), (done.head(), Vec::new()));
}

async fn a_read_does_not_change_the_revision(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a")]).await;
    let before = revision(&store).await;
    read(&store, "/a").await;
    refused(&store, vec![make("/a")]).await;
    assert_eq!(revision(&store).await, before, "nor does a refused commit");
}

async fn a_thousand_records_are_read_at_once(place: impl Place) {
    let store = place.client();
    for hundred in 0..10 {
        commit(&store, (0..100).map(|number| make(&format!("/f/{hundred}{number:02}"))).collect()).await;
    }
    let all = names(&store, "/f").await;
    let wanted = all.iter().map(|name| Wanted::Record(format!("/f/{name}"))).collect();
    let (_, found) = store.read(wanted).await.expect("they can be read");
    assert!(found.len() == 1_000 && found.iter().all(|found| matches!(found, Found::Record(Some(_)))));
}

/// Longer than a hint takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

async fn a_hint_comes_after_another_clients_commit(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    let hint = a.changed(revision(&a).await);
    commit(&b, vec![make("/a")]).await;
    tokio::time::timeout(LONG, hint).await.expect("the hint comes");
}

async fn a_hint_comes_for_what_was_committed_before_it_was_asked_for(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    let before = revision(&a).await;
    commit(&b, vec![make("/a")]).await;
    tokio::time::timeout(LONG, a.changed(before)).await.expect("the hint comes");
}

async fn a_hint_that_is_given_up_harms_nothing(place: impl Place) {
    let store = place.client();
    for _ in 0..100 {
        let hint = store.changed(revision(&store).await);
        assert!(tokio::time::timeout(Duration::from_millis(1), hint).await.is_err(), "nothing has changed");
    }
    commit(&store, vec![make("/a")]).await;
}

async fn a_client_that_comes_later_finds_everything(place: impl Place) {
    let done = {
        let first = place.client();
        commit(&first, vec![make("/a"), make("/f/b")]).await;
        commit(&first, vec![put("/a", at(0), "second")]).await
    };
    let later = place.client();
    let (data, meta) = read(&later, "/a").await.expect("it is there");
    assert_eq!((data.as_str(), meta.version, meta.changed), ("second", Version(1), done.revision));
    assert_eq!((names(&later, "/f").await, revision(&later).await), (vec!["b".to_owned()], done.revision));
}
