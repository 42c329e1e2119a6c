//! What each kind of lock means.

use std::io::Write as _;
use std::process::Stdio;

use super::fixture::{Client, call, printed, run};
use crate::support::zookeeper::shared;

#[test]
fn the_command_finds_its_lock_and_its_exit_code_is_passed_on() {
    let connect = shared();
    let (code, text) = printed(
        &connect,
        &["lock", "/locks/orders", "--", "sh", "-c", "echo $CRONKEEPER_LOCK_PATH $CRONKEEPER_FENCING_TOKEN; exit 7"],
    );
    let token = text.strip_prefix("/locks/orders ").expect("path and token");
    assert!(code == Some(7) && token.parse::<i64>().is_ok_and(|token| token > 0), "{code:?} {text}");
}

#[test]
fn the_commands_streams_are_those_of_the_caller_byte_for_byte() {
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut command = call(&shared(), &["lock", "/locks/pipe", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let sender = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    sender.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes);
}

#[test]
fn the_next_one_waits_and_gets_a_larger_token() {
    let connect = shared();
    let first = Client::start(&connect, &["/locks/a"]);
    let token = first.await_held();
    let second = Client::start(&connect, &["/locks/a"]);
    assert!(second.waits());
    first.release();
    assert!(second.await_held() > token);
    second.release();
}

#[test]
fn readers_share_and_a_writer_waits_for_them() {
    let connect = shared();
    let readers = [0; 2].map(|_| Client::start(&connect, &["--shared", "/locks/rw"]));
    let tokens = [readers[0].await_held(), readers[1].await_held()];
    let writer = Client::start(&connect, &["--exclusive", "/locks/rw"]);
    assert!(writer.waits());
    let late = Client::start(&connect, &["--shared", "/locks/rw"]);
    assert!(late.waits(), "a reader does not overtake a writer");
    readers.iter().for_each(Client::release);
    assert!(writer.await_held() > tokens.into_iter().max().unwrap());
    assert!(late.waits());
    writer.release();
    late.await_held();
    late.release();
}

#[test]
fn a_semaphore_has_as_many_holders_as_permits() {
    let connect = shared();
    let permits = ["--permits", "3", "/locks/sem"];
    let two = Client::start(&connect, &[&["--count", "2"], &permits[..]].concat());
    let token = two.await_held();
    let one = Client::start(&connect, &permits);
    assert!(one.await_held() > token);
    let more = Client::start(&connect, &[&["--count", "2"], &permits[..]].concat());
    assert!(more.waits());
    one.release();
    assert!(more.waits(), "one permit is not enough");
    two.release();
    more.await_held();
    more.release();
    let (code, text) = printed(&connect, &["lock", "--permits", "4", "/locks/sem", "--", "true"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("has 3 permits"), "{text}");
}

#[test]
fn requests_for_several_permits_do_not_wait_for_each_other_forever() {
    let connect = shared();
    let line = ["--permits", "2", "--count", "2", "/locks/sem"];
    let clients: Vec<Client> = (0..4).map(|_| Client::start_with(&connect, &line, "echo held")).collect();
    for client in &clients {
        assert_eq!(client.await_exit(), Some(0));
    }
}

#[test]
fn several_locks_are_held_together_whatever_their_order() {
    let connect = shared();
    let blocker = Client::start(&connect, &["/locks/b"]);
    blocker.await_held();
    let both = Client::start(&connect, &["/locks/b", "/locks/a"]);
    assert!(both.waits());
    let (code, text) = printed(&connect, &["lock", "--timeout", "0s", "/locks/a", "/locks/c", "--", "echo", "ran"]);
    assert_eq!((code, text.as_str()), (Some(75), "cronkeeper: `/locks/a` was not free at once"));
    let (code, _) = printed(&connect, &["lock", "--timeout", "0s", "/locks/c", "--", "echo", "ran"]);
    assert_eq!(code, Some(0), "nothing of a request that failed is held");
    blocker.release();
    let line = both.await_line("held");
    assert!(line.starts_with("held /locks/b /locks/a "), "the order is that of the arguments: {line}");
    both.release();
}

#[test]
fn many_that_want_the_same_locks_in_different_orders_all_get_them() {
    let connect = shared();
    let orders = [
        ["/locks/a", "/locks/b", "/locks/c"],
        ["/locks/c", "/locks/a", "/locks/b"],
        ["/locks/b", "/locks/c", "/locks/a"],
    ];
    let clients: Vec<Client> =
        orders.iter().cycle().take(9).map(|order| Client::start_with(&connect, order, "echo held")).collect();
    for client in &clients {
        assert_eq!(client.await_exit(), Some(0));
    }
}

#[test]
fn a_lock_under_itself_is_held_at_once_and_the_inner_end_does_not_release_it() {
    let connect = shared();
    let script = "$CRONKEEPER lock /locks/a -- sh -c 'echo inner $CRONKEEPER_FENCING_TOKEN'; echo outer $CRONKEEPER_FENCING_TOKEN; read line";
    let script = script.replace("$CRONKEEPER ", &format!("{} ", crate::support::command::CRONKEEPER));
    let outer = Client::start_with(&connect, &["/locks/a"], &script);
    let inner = outer.await_line("inner");
    assert_eq!(inner.replace("inner", "outer"), outer.await_line("outer"), "it is the same hold");
    let next = Client::start(&connect, &["/locks/a"]);
    assert!(next.waits());
    outer.release();
    next.await_held();
    next.release();
}

#[test]
fn a_writer_may_read_inside_and_a_reader_may_not_write() {
    let connect = shared();
    let inside = |outer: &str, inner: &str| {
        let program = crate::support::command::CRONKEEPER;
        printed(&connect, &["lock", outer, "/locks/rw", "--", program, "lock", inner, "/locks/rw", "--", "echo", "in"])
    };
    assert_eq!(inside("--exclusive", "--shared"), (Some(0), "in".into()));
    assert_eq!(inside("--shared", "--shared"), (Some(0), "in".into()));
    let (code, text) = inside("--shared", "--exclusive");
    assert!(code == Some(2) && text.contains("cannot become a write lock"), "{code:?} {text}");
}

#[test]
fn a_key_of_a_lock_that_is_released_opens_nothing() {
    let connect = shared();
    let output = run(&connect, &["lock", "/locks/a", "--", "sh", "-c", "echo $CRONKEEPER_LOCK_KEYS"]);
    let keys = String::from_utf8(output.stdout).unwrap();
    let holder = Client::start(&connect, &["/locks/a"]);
    holder.await_held();
    let mut late = call(&connect, &["lock", "--timeout", "0s", "/locks/a", "--", "echo", "ran"]);
    let output = late.env("CRONKEEPER_LOCK_KEYS", keys.trim()).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    holder.release();
}

#[test]
fn waiting_ends_with_the_timeout_and_leaves_nothing_in_the_queue() {
    let connect = shared();
    let holder = Client::start(&connect, &["/locks/a"]);
    holder.await_held();
    let (code, text) = printed(&connect, &["lock", "--timeout", "300ms", "/locks/a", "--", "echo", "ran"]);
    assert_eq!((code, text.as_str()), (Some(75), "cronkeeper: `/locks/a` was not free within 300ms"));
    let (_, text) = printed(&connect, &["locks", "--json"]);
    assert_eq!(text.matches("\"role\"").count(), 1, "{text}");
    holder.release();
}

#[test]
fn the_command_is_stopped_in_time_when_it_holds_too_long() {
    let connect = shared();
    let (code, text) = printed(&connect, &["lock", "--hold", "1s", "/locks/a", "--", "sleep", "1000"]);
    assert_eq!(code, Some(124), "{text}");
    assert!(text.contains("`--hold` of 1s"), "{text}");
    let stubborn = "trap '' TERM; while :; do sleep 0.1; done";
    let (code, text) = printed(&connect, &["lock", "--hold", "1s", "/locks/a", "--", "sh", "-c", stubborn]);
    assert_eq!(code, Some(124), "{text}");
}

#[test]
fn wrong_use_is_refused_with_the_reason() {
    let connect = shared();
    let refused = |line: &[&str], code: i32, why: &str| {
        let (found, text) = printed(&connect, &[&["lock"], line].concat());
        assert!(found == Some(code) && text.contains(why), "{line:?}: {found:?} {text}");
    };
    refused(&["/leader", "--", "true"], 2, "not for locks");
    refused(&["orders", "--", "true"], 2, "a path begins with `/`");
    refused(&["/a"], 2, "COMMAND");
    refused(&["--", "true"], 2, "PATH");
    refused(&["--permits", "1", "--count", "2", "/a", "--", "true"], 2, "larger than --permits");
    refused(&["--permits", "1", "/a", "/b", "--", "true"], 2, "one path");
    refused(&["--shared", "--exclusive", "/a", "--", "true"], 2, "cannot be used with");
    refused(&["--hold", "0s", "/a", "--", "true"], 2, "longer than zero");
    refused(&["--on-revoke", "NOPE", "/a", "--", "true"], 2, "not a signal");
    refused(&["/a", "--", "no-such-program"], 127, "no-such-program");
    refused(&["/a", "--", "/etc/passwd"], 126, "Permission denied");
    let (code, text) = printed("127.0.0.1:1", &["lock", "--timeout", "1s", "/a", "--", "true"]);
    assert!(code == Some(69) && text.contains("cannot reach ZooKeeper at 127.0.0.1:1"), "{code:?} {text}");
    let (code, text) = printed(&format!("{connect}/missing"), &["lock", "/a", "--", "true"]);
    assert!(code == Some(78) && text.contains("missing"), "{code:?} {text}");
}
