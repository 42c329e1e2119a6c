//! What `cronkeeper locks` shows: whatever makes a lock wait.

use zookeeper_client::{Acls, Client as ZooKeeper, CreateMode};

use super::fixture::{Client, printed};
use crate::support::zookeeper::shared;

async fn zookeeper(connect: &str) -> ZooKeeper {
    ZooKeeper::connect(connect).await.unwrap()
}

async fn make(zookeeper: &ZooKeeper, path: &str, mode: CreateMode) {
    zookeeper.create(path, b"theirs", &mode.with_acls(Acls::anyone_all())).await.unwrap();
}

/// The roles that are listed, in order.
fn roles(text: &str) -> Vec<&str> {
    text.split("\"role\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_with_any_name_is_shown_if_a_lock_waits_for_it() {
    let connect = shared();
    let theirs = zookeeper(&connect).await;
    for path in ["/locks", "/locks/a", "/locks/b"] {
        make(&theirs, path, CreateMode::Persistent).await;
    }
    make(&theirs, "/locks/a/ex0000000000", CreateMode::Persistent).await;
    make(&theirs, "/locks/b/mine0000000000", CreateMode::Ephemeral).await;
    for path in ["/locks/a", "/locks/b"] {
        let (code, _) = printed(&connect, &["lock", "--timeout", "0s", path, "--", "true"]);
        assert_eq!(code, Some(75), "it makes a lock wait");
        let (_, text) = printed(&connect, &["locks", path]);
        assert!(text.contains(path) && text.contains("holds") && text.contains("theirs"), "{text}");
        let name =
            if path == "/locks/a" { "entry `ex0000000000`, ends with no session" } else { "entry `mine0000000000`" };
        assert!(text.contains(name), "{text}");
    }
    let (_, all) = printed(&connect, &["locks"]);
    assert!(all.contains("/locks/b") && !all.contains("/locks/a"), "a queue of messages is no lock: {all}");
    let (code, text) = printed(&connect, &["lock", "--revoke", "/locks/a"]);
    assert_eq!(code, Some(1), "nobody can be asked: {text}");
    assert!(text.contains("`/locks/a` is blocked by `/locks/a/ex0000000000`") && text.contains("deletes it"), "{text}");
    let (data, _) = theirs.get_data("/locks/a/ex0000000000").await.unwrap();
    assert_eq!(data, b"theirs", "and what is no client's is left as it is");
    let waiting = Client::start(&connect, &["/locks/a"]);
    crate::support::until("both are listed", || {
        roles(&printed(&connect, &["locks", "--json"]).1) == ["holds", "waits", "holds"]
    });
    theirs.delete("/locks/a/ex0000000000", None).await.unwrap();
    waiting.await_held();
    waiting.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_takes_a_permit_is_shown() {
    let connect = shared();
    let permits = |path: &'static str| ["lock", "--permits", "1", "--timeout", "0s", path, "--", "true"];
    assert_eq!(printed(&connect, &permits("/locks/sem")).0, Some(0));
    let theirs = zookeeper(&connect).await;
    make(&theirs, "/locks/sem/leases/any-name", CreateMode::Persistent).await;
    assert_eq!(printed(&connect, &permits("/locks/sem")).0, Some(75));
    let (_, text) = printed(&connect, &["locks", "--json", "/locks/sem"]);
    assert_eq!(roles(&text), ["has_permit"], "{text}");
}

#[test]
fn a_semaphore_of_kazoo_is_shown_with_its_queue() {
    let connect = shared();
    let line = ["--recipe", "kazoo", "--permits", "1", "/locks/sem"];
    let holder = Client::start(&connect, &line);
    holder.await_held();
    let waiting = Client::start(&connect, &line);
    for named in [&["locks", "--json"][..], &["locks", "--json", "/locks/sem"]] {
        crate::support::until("both are listed", || {
            let (_, text) = printed(&connect, named);
            text.contains("\"path\":\"/locks/sem\"") && roles(&text) == ["has_permit", "waits"]
        });
    }
    holder.release();
    waiting.await_held();
    waiting.release();
}

#[test]
fn a_lock_whose_own_name_ends_in_a_number_is_found() {
    let connect = shared();
    let holder = Client::start(&connect, &["/locks/20261126130948"]);
    holder.await_held();
    let (_, text) = printed(&connect, &["locks"]);
    assert!(text.contains("/locks/20261126130948") && text.contains("holds"), "{text}");
    holder.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_a_semaphore_wait_is_shown_although_no_client_has_used_it() {
    let connect = shared();
    let theirs = zookeeper(&connect).await;
    for (lock, folder, entry) in [("/queued", "locks", "foo-0000000000"), ("/used", "leases", "foo")] {
        make(&theirs, lock, CreateMode::Persistent).await;
        make(&theirs, &format!("{lock}/{folder}"), CreateMode::Persistent).await;
        make(&theirs, &format!("{lock}/{folder}/{entry}"), CreateMode::Persistent).await;
        let waits = ["lock", "--permits", "1", "--timeout", "0s", lock, "--", "true"];
        assert_eq!(printed(&connect, &waits).0, Some(75), "{lock}");
        let other = if folder == "locks" { "leases" } else { "locks" };
        // The client may have made it, or not have come that far.
        let _absent = theirs.delete(&format!("{lock}/{other}"), None).await;
        let (_, text) = printed(&connect, &["locks", lock]);
        assert!(text.contains(entry), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_too_much_the_rest_is_counted_and_named() {
    let connect = shared();
    let theirs = zookeeper(&connect).await;
    make(&theirs, "/big", CreateMode::Persistent).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for thousand in 0..20 {
        let mut writer = theirs.new_multi_writer();
        for number in 0..1_000 {
            writer.add_create(&format!("/big/n{:05}", thousand * 1_000 + number), b"", &open).unwrap();
        }
        writer.commit().await.unwrap();
    }
    let (code, text) = printed(&connect, &["locks", "/big"]);
    assert_eq!(code, Some(0), "{text}");
    // `/big` itself and its first children are visited.
    let expected = "10001 znodes not looked at, the first is `/big/n09999`; delete what does not belong to a lock, or \
        name a path further down";
    assert!(text.contains(expected) && !text.contains("no locks"), "{text}");
    let (_, text) = printed(&connect, &["locks"]);
    assert!(
        text.contains("znodes not looked at, the first is `/big/n") && text.contains("name the path of a lock"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn numbered_children_that_are_too_many_are_counted_and_named_too() {
    let connect = shared();
    let theirs = zookeeper(&connect).await;
    make(&theirs, "/dates", CreateMode::Persistent).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let mut writer = theirs.new_multi_writer();
    for number in 0..1_200 {
        writer.add_create(&format!("/dates/{number:010}"), b"", &open).unwrap();
    }
    writer.commit().await.unwrap();
    make(&theirs, "/dates/0000001100/x-lock-0000000000", CreateMode::Ephemeral).await;
    let (_, text) = printed(&connect, &["locks"]);
    assert!(text.contains("200 znodes not looked at, the first is `/dates/0000001000`"), "{text}");
    assert!(!text.contains("no locks"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_may_not_be_read_is_not_taken_for_a_free_one() {
    let connect = shared();
    let theirs = zookeeper(&connect).await;
    theirs.auth("digest", b"they:secret").await.unwrap();
    make(&theirs, "/closed", CreateMode::Persistent).await;
    let closed = CreateMode::Persistent.with_acls(Acls::creator_all());
    theirs.create("/closed/a", b"", &closed).await.unwrap();
    for line in [&["locks", "/closed/a"][..], &["locks", "/closed/a", "--json"], &["lock", "--revoke", "/closed/a"]] {
        let (code, text) = printed(&connect, line);
        assert!(code == Some(78) && text.contains("/closed/a") && text.contains("not authorized"), "{line:?}: {text}");
    }
    let (code, text) = printed(&connect, &["locks"]);
    assert_eq!(code, Some(0), "others are still listed: {text}");
}
