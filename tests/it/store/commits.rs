//! Commits: all or nothing, only if everything is as compared, in one order.

use std::collections::BTreeSet;

use super::*;

on_every_store! {
    a_record_that_is_made_has_its_first_version,
    what_is_made_must_not_be_there,
    a_version_that_is_compared_must_be_the_newest,
    what_must_exist_and_does_not_is_refused,
    a_condition_on_an_absent_record_holds_while_it_is_absent,
    without_a_condition_a_record_is_made_or_changed,
    a_check_changes_nothing,
    each_change_counts_one_version_further,
    a_record_that_is_removed_and_made_again_begins_anew,
    of_a_refused_commit_nothing_is_written,
    the_first_condition_that_does_not_hold_is_named,
    a_commit_of_nothing_takes_effect,
    revisions_grow_with_every_commit_whoever_commits,
    of_two_that_make_the_same_record_one_does,
    of_many_that_count_at_once_none_is_lost,
    a_commit_is_not_seen_in_part,
    a_commit_may_be_as_large_as_the_limits_say,
    any_bytes_are_kept_as_they_are,
    paths_are_told_apart_by_every_character,
    a_commit_that_is_given_up_is_carried_out_or_not_but_never_in_part,
    the_time_of_a_commit_does_not_go_back_by_itself,
    a_commit_may_be_as_large_as_one_change_needs,
    a_commit_is_known_by_its_nonce,
    a_commit_that_is_larger_than_the_limits_say_is_refused,
}

async fn a_record_that_is_made_has_its_first_version(place: impl Place) {
    let store = place.client();
    let done = commit(&store, vec![make("/a")]).await;
    let (data, meta) = read(&store, "/a").await.expect("it is there");
    assert_eq!((data.as_str(), meta.version, meta.bytes), ("first", Version::FIRST, 5));
    assert_eq!((meta.created, meta.changed), (done.revision, done.revision));
}

async fn what_is_made_must_not_be_there(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a")]).await;
    assert_eq!(refused(&store, vec![make("/a")]).await, (0, Some(Version(0))));
    assert_eq!(read(&store, "/a").await.map(|(_, meta)| meta.version), Some(Version(0)));
}

async fn a_version_that_is_compared_must_be_the_newest(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a")]).await;
    commit(&store, vec![put("/a", at(0), "second")]).await;
    assert_eq!(refused(&store, vec![put("/a", at(0), "third")]).await, (0, Some(Version(1))));
    assert_eq!(refused(&store, vec![put("/a", at(2), "third")]).await, (0, Some(Version(1))));
    assert_eq!(refused(&store, vec![delete("/a", at(0))]).await, (0, Some(Version(1))));
    commit(&store, vec![delete("/a", at(1))]).await;
    assert_eq!(read(&store, "/a").await, None);
}

async fn what_must_exist_and_does_not_is_refused(place: impl Place) {
    let store = place.client();
    for op in [put("/a", If::Exists, "x"), put("/a", at(0), "x"), delete("/a", If::Exists), check("/a", If::Exists)] {
        assert_eq!(refused(&store, vec![op]).await, (0, None));
    }
    commit(&store, vec![make("/a")]).await;
    commit(&store, vec![put("/a", If::Exists, "second")]).await;
    assert_eq!(read(&store, "/a").await.map(|(data, _)| data), Some("second".into()));
}

async fn a_condition_on_an_absent_record_holds_while_it_is_absent(place: impl Place) {
    let store = place.client();
    commit(&store, vec![check("/a", If::Absent), make("/b")]).await;
    commit(&store, vec![make("/a")]).await;
    assert_eq!(refused(&store, vec![make("/c"), check("/a", If::Absent)]).await, (1, Some(Version(0))));
    assert_eq!(read(&store, "/c").await, None);
}

async fn without_a_condition_a_record_is_made_or_changed(place: impl Place) {
    let store = place.client();
    for (data, version) in [("one", 0), ("two", 1)] {
        commit(&store, vec![put("/a", If::Anything, data)]).await;
        let found = read(&store, "/a").await.expect("it is there");
        assert_eq!((found.0.as_str(), found.1.version), (data, Version(version)));
    }
    commit(&store, vec![delete("/a", If::Anything), delete("/b", If::Anything)]).await;
    assert_eq!(read(&store, "/a").await, None);
}

async fn a_check_changes_nothing(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a")]).await;
    let before = read(&store, "/a").await;
    commit(&store, vec![check("/a", at(0)), check("/b", If::Absent), check("/c", If::Anything)]).await;
    assert_eq!(read(&store, "/a").await, before);
    assert_eq!((read(&store, "/b").await, read(&store, "/c").await), (None, None));
}

async fn each_change_counts_one_version_further(place: impl Place) {
    let store = place.client();
    let made = commit(&store, vec![make("/a")]).await;
    for version in 0..20 {
        // Also if the data stays the same.
        let done = commit(&store, vec![put("/a", at(version), "first")]).await;
        let (_, meta) = read(&store, "/a").await.expect("it is there");
        assert_eq!((meta.version, meta.created, meta.changed), (Version(version + 1), made.revision, done.revision));
    }
}

async fn a_record_that_is_removed_and_made_again_begins_anew(place: impl Place) {
    let store = place.client();
    let first = commit(&store, vec![make("/a")]).await;
    commit(&store, vec![put("/a", at(0), "second")]).await;
    commit(&store, vec![delete("/a", at(1))]).await;
    let again = commit(&store, vec![make("/a")]).await;
    let (_, meta) = read(&store, "/a").await.expect("it is there");
    assert_eq!((meta.version, meta.created), (Version(0), again.revision));
    assert!(again.revision > first.revision);
}

async fn of_a_refused_commit_nothing_is_written(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a"), make("/b")]).await;
    let before = (read(&store, "/a").await, read(&store, "/b").await, revision(&store).await);
    let ops = vec![put("/a", at(0), "new"), delete("/b", at(0)), make("/c"), check("/d", If::Exists)];
    assert_eq!(refused(&store, ops).await, (3, None));
    assert_eq!((read(&store, "/a").await, read(&store, "/b").await, revision(&store).await), before);
    assert_eq!(read(&store, "/c").await, None);
}

async fn the_first_condition_that_does_not_hold_is_named(place: impl Place) {
    let store = place.client();
    commit(&store, vec![make("/a")]).await;
    commit(&store, vec![put("/a", at(0), "second")]).await;
    let ops = vec![make("/b"), put("/a", at(7), "x"), make("/a/b"), delete("/c", If::Exists)];
    assert_eq!(refused(&store, ops).await, (1, Some(Version(1))));
}

async fn a_commit_of_nothing_takes_effect(place: impl Place) {
    let store = place.client();
    let before = revision(&store).await;
    assert!(commit(&store, Vec::new()).await.revision > before);
}

async fn revisions_grow_with_every_commit_whoever_commits(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    let mut newest = revision(&a).await;
    for number in 0..10 {
        let store = if number % 2 == 0 { &a } else { &b };
        let done = commit(store, vec![make(&format!("/{number}"))]).await;
        assert!(done.revision > newest, "{done:?} after {newest:?}");
        newest = done.revision;
        assert!(revision(&a).await >= newest && revision(&b).await >= newest);
    }
}

async fn of_two_that_make_the_same_record_one_does(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    for number in 0..20 {
        let path = format!("/{number}");
        let (first, second) = futures_util::join!(a.commit(vec![make(&path)]), b.commit(vec![make(&path)]));
        assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
    }
}

async fn of_many_that_count_at_once_none_is_lost(place: impl Place) {
    let first = place.client();
    commit(&first, vec![put("/count", If::Absent, "0")]).await;
    let counters = [place.client(), place.client(), place.client(), place.client()];
    futures_util::future::join_all(counters.iter().map(count)).await;
    let (data, meta) = read(&first, "/count").await.expect("it is there");
    assert_eq!((data, meta.version), ((4 * TIMES).to_string(), Version(4 * TIMES)));
}

const TIMES: i32 = 20;

async fn count<S: Store>(store: &S) {
    for _ in 0..TIMES {
        loop {
            let (data, meta) = read(store, "/count").await.expect("it is there");
            let next = data.parse::<i32>().expect("a number") + 1;
            if store.commit(vec![put("/count", If::Version(meta.version), &next.to_string())]).await.is_ok() {
                break;
            }
        }
    }
}

async fn a_commit_is_not_seen_in_part(place: impl Place) {
    let (writer, reader) = (place.client(), place.client());
    commit(&writer, vec![put("/a", If::Absent, "0"), put("/b", If::Absent, "0")]).await;
    let writing = async {
        for number in 1..100 {
            let data = number.to_string();
            commit(&writer, vec![put("/a", If::Exists, &data), put("/b", If::Exists, &data)]).await;
        }
    };
    let reading = async {
        let mut seen = BTreeSet::new();
        while !seen.contains("99") {
            let wanted = vec![Wanted::Record("/a".into()), Wanted::Names("/".into()), Wanted::Record("/b".into())];
            let (_, found) = reader.read(wanted).await.expect("they can be read");
            let data = |found: &Found| match found {
                Found::Record(Some((data, _))) => String::from_utf8(data.clone()).expect("it is text"),
                other => panic!("a record: {other:?}"),
            };
            assert_eq!(data(&found[0]), data(&found[2]));
            seen.insert(data(&found[0]));
            tokio::task::yield_now().await;
        }
    };
    futures_util::join!(writing, reading);
}

async fn a_commit_may_be_as_large_as_the_limits_say(place: impl Place) {
    let store = place.client();
    let limits = store.limits();
    let each = limits.bytes / limits.operations - 16;
    let ops = (0..limits.operations).map(|number| put(&format!("/f/{number:06}"), If::Absent, &"x".repeat(each)));
    commit(&store, ops.collect()).await;
    assert_eq!(names(&store, "/f").await.len(), limits.operations);
}

async fn any_bytes_are_kept_as_they_are(place: impl Place) {
    let store = place.client();
    let data: Vec<u8> = (0..=255).chain([0, 0, 10]).collect();
    for (path, data) in [("/all", data), ("/none", Vec::new())] {
        commit(&store, vec![Op { path: path.into(), when: If::Absent, then: Then::Put(data.clone()) }]).await;
        let found = store.read(vec![Wanted::Record(path.into())]).await.expect("it can be read").1;
        assert!(
            matches!(&found[..], [Found::Record(Some((found, meta)))] if *found == data && meta.bytes == data.len())
        );
    }
}

async fn paths_are_told_apart_by_every_character(place: impl Place) {
    let store = place.client();
    let paths = ["/a", "/A", "/a ", "/ä", "/a_", "/a%", "/a'", "/a\"", "/a\\", "/a.b", "/a/b"];
    for path in paths {
        commit(&store, vec![put(path, If::Absent, path)]).await;
    }
    for path in paths {
        assert_eq!(read(&store, path).await.map(|(data, _)| data).as_deref(), Some(path));
    }
}

async fn a_commit_that_is_given_up_is_carried_out_or_not_but_never_in_part(place: impl Place) {
    let store = place.client();
    for number in 0..50 {
        let (a, b) = (format!("/a{number}"), format!("/b{number}"));
        drop(store.commit(vec![make(&a), make(&b)]));
        // Whatever has become of it: this one comes after it or before it.
        let _ = store.commit(vec![make(&a), make(&b)]).await;
        assert!(read(&store, &a).await.is_some() && read(&store, &b).await.is_some());
    }
}

async fn the_time_of_a_commit_does_not_go_back_by_itself(place: impl Place) {
    let store = place.client();
    let mut newest = None;
    for number in 0..10 {
        let path = format!("/{number}");
        let done = commit(&store, vec![make(&path)]).await;
        let (_, meta) = read(&store, &path).await.expect("it is there");
        assert_eq!(meta.created_at, meta.changed_at);
        if let Some(at) = done.at {
            assert!(Some(at) >= newest, "{at}");
            newest = Some(at);
        }
    }
}

async fn a_commit_is_known_by_its_nonce(place: impl Place) {
    let (a, b) = (place.client(), place.client());
    let mut done = Vec::new();
    for name in 0..200 {
        done.push(commit(&a, vec![make(&format!("/{name}"))]).await);
        let (head, _) = b.read(Vec::new()).await.expect("it can be read");
        assert_eq!(head, done[name].head());
    }
    let wanted = done.iter().map(|done| Wanted::Nonce(done.revision)).collect();
    let (_, found) = b.read(wanted).await.expect("they can be read");
    assert_eq!(found, done.iter().map(|done| Found::Nonce(Some(done.nonce))).collect::<Vec<_>>());
    let nonces: BTreeSet<u64> = done.iter().map(|done| done.nonce).collect();
    assert_eq!(nonces.len(), done.len());
    let later = Wanted::Nonce(Revision(done[199].revision.0 + 1));
    assert_eq!(b.read(vec![later]).await.expect("it can be read").1, [Found::Nonce(None)]);
}

async fn a_commit_that_is_larger_than_the_limits_say_is_refused(place: impl Place) {
    let store = place.client();
    let limits = store.limits();
    let many = (0..=limits.operations).map(|name| check(&format!("/{name}"), If::Absent)).collect();
    let large = vec![Op { path: "/a".into(), when: If::Absent, then: Then::Put(vec![b'x'; limits.bytes + 1]) }];
    let twice = vec![make("/a"), check("/a", If::Absent)];
    for ops in [many, large, twice] {
        assert!(matches!(store.commit(ops).await, Err(NotDone::Failed(_))));
    }
    assert_eq!(names(&store, "").await, [""; 0]);
}

async fn a_commit_may_be_as_large_as_one_change_needs(place: impl Place) {
    let limits = place.client().limits();
    assert!(limits.operations >= LEAST_OPERATIONS && limits.bytes >= LEAST_BYTES, "{limits:?}");
}
