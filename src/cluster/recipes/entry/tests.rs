//! Tests of what a node finds in the place of its member.

use futures_util::FutureExt as _;

use super::*;
use crate::recipes::tests_support::{ByHand, OWNER, Right, Server, member};
use crate::zookeeper::session_id;

const PATH: &str = "/cronkeeper/nodes/host-a";

fn entered(server: &Server) -> Result<Entered, SessionError> {
    let context = server.context(ByHand::default());
    let entering = enter(context, member("host-a"), Leftover::default(), false);
    entering.now_or_never().expect("answered at once")
}

/// A server on which this is in the place of the member, of another session or of none.
fn with(data: &[u8], is_of_session: bool) -> Server {
    let server = Server::default();
    server.tree().put(paths::NODES, Vec::new());
    if is_of_session {
        server.tree().put_ephemeral(PATH, OWNER + 1);
    }
    server.tree().put(PATH, data);
    server
}

fn blocked(server: &Server) -> String {
    match entered(server) {
        Ok(Entered::Blocked(damage)) => damage.to_string(),
        other => panic!("not blocked: {other:?}"),
    }
}

#[test]
fn what_belongs_to_no_session_is_replaced() {
    for data in [b"".as_slice(), b"garbage \xff", &[b'{'; 40_000], &context::json(&member("host-a"))] {
        let server = with(data, false);
        assert!(matches!(entered(&server), Err(SessionError::Again(_))));
        assert_eq!(entered(&server), Ok(Entered::Yes));
        assert!(server.tree().stat(PATH).unwrap().is_of_session());
    }
}

#[test]
fn what_cannot_be_removed_is_named_with_the_command_that_removes_it() {
    let server = with(b"garbage", false);
    server.tree().put(&format!("{PATH}/below"), b"");
    let named = blocked(&server);
    assert!(named.starts_with("/cronkeeper/nodes/host-a: it is not ephemeral"), "{named}");
    assert!(named.contains("there are records below it") && named.contains("delete it: `"), "{named}");
}

#[test]
fn what_is_no_member_does_not_hold_the_name() {
    for data in [b"".as_slice(), b"garbage \xff", br#"{"v":1}"#, &[b' '; 40_000], &context::json(&member("host-b"))] {
        let named = blocked(&with(data, true));
        assert!(named.starts_with("/cronkeeper/nodes/host-a: it is no member of a node, "), "{named}");
        assert!(named.contains(&format!("until session {}", session_id(OWNER + 1).0)), "{named}");
        assert!(named.len() < 500, "{named}");
    }
    let server = with(&context::json(&member("host-a")), true);
    server.tree().close(PATH, Right::Read);
    assert!(blocked(&server).contains("not authorized"));
}

#[test]
fn the_member_of_another_daemon_holds_the_name() {
    let held = entered(&with(&context::json(&member("host-a")), true));
    let session = session_id(OWNER + 1);
    let by = format!("process 7 on host h, session {}", session.0);
    assert_eq!(held, Ok(Entered::NameHeld { by, session, timeout: Some(Duration::from_secs(4)) }));
}

#[test]
fn the_leader_is_notified_of_what_a_node_publishes() {
    let server = Server::default();
    server.tree().put(paths::NODES, Vec::new());
    server.tree().put(paths::PLACES, Vec::new());
    server.tree().put_ephemeral(PATH, OWNER);
    let publish = || {
        let published = publish(server.context(ByHand::default()), member("host-a"));
        published.now_or_never().expect("answered at once")
    };
    let versions = || [PATH, paths::PLACES].map(|path| server.tree().stat(path).map(|stat| stat.version));
    let before = versions();
    assert_eq!(publish(), Ok(true));
    let after = versions();
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?} {after:?}");
    // The member is written also where the leader cannot be notified.
    server.tree().close(paths::PLACES, Right::Write);
    assert_eq!(publish(), Ok(true));
    assert!(versions()[0] > after[0] && versions()[1] == after[1]);
    server.tree().remove(PATH);
    assert_eq!(publish(), Ok(false));
}
