//! The resources that one client can take: never those that others need.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddrV4, TcpStream};

use super::{caller, dial, exchange, listening, request, unused};
use crate::failover::cluster::{Place, usual};
use crate::solo::fixture::{get as get_local, leading, node};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// Incomplete requests of one client.
fn halves(from: u8, at: SocketAddrV4, count: usize) -> Vec<TcpStream> {
    let half = |_| {
        let mut stream = dial(caller(from), at).expect("it listens");
        // The node closes those over the limit at once.
        drop(stream.write_all(b"GET /healthz HTT"));
        stream
    };
    (0..count).map(half).collect()
}

/// An open stream of events, and the code of its answer.
fn stream(from: u8, at: SocketAddrV4) -> (BufReader<TcpStream>, String) {
    let mut stream = dial(caller(from), at).expect("it listens");
    stream.write_all(request("/v1/events", "").as_bytes()).expect("it is read");
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).expect("there is an answer");
    (reader, line.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn streams_that_nobody_reads_shut_nobody_out() {
    let at = unused();
    let spec = listening(node("a"), at).jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}");
    let a = leading(&spec);
    let held: Vec<_> = (0..40).map(|_| stream(1, at)).collect();
    let codes: Vec<&str> = held.iter().map(|(_, code)| code.as_str()).collect();
    assert_eq!((&codes[..32], &codes[32..]), (&["200"; 32][..], &["503"; 8][..]));
    assert_eq!(stream(2, at).1, "200", "another caller has streams of its own");
    let answer = exchange(dial(caller(1), at).unwrap(), &request("/healthz", ""));
    assert_eq!(answer.expect("streams are no connections").code, 200);
    a.await_after(a.events().len(), "run.started", LONG, |_| true);
    for (reader, _) in &held {
        // Not only closed: processes that other tests start may have inherited the sockets.
        drop(reader.get_ref().shutdown(Shutdown::Both));
    }
    until("there is room again", || stream(1, at).1 == "200");
}

#[test]
fn half_requests_of_one_caller_shut_no_other_out() {
    let at = unused();
    let spec = listening(node("a"), at).jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}");
    let a = leading(&spec);
    let held = halves(1, at, 300);
    // While they are held open, others are served, one request per connection.
    for number in 2..10 {
        let answer = exchange(dial(caller(number), at).unwrap(), &request("/healthz", ""));
        assert_eq!(answer.expect("there is an answer").code, 200);
    }
    until("the socket answers", || get_local(&spec, "/healthz").is_some_and(|(code, _)| code == 200));
    a.await_after(a.events().len(), "run.started", LONG, |_| true);
    drop(held);
    until("the caller is let in again", || {
        exchange(dial(caller(1), at).unwrap(), &request("/healthz", "")).is_some_and(|answer| answer.code == 200)
    });
}

/// Requests of people never use the session that renews the lease; their own sessions are closed again.
#[test]
fn what_people_read_goes_over_sessions_of_their_own() {
    let ensemble = Ensemble::start(1);
    let (place, at) = (Place::on(&ensemble), unused());
    let a = listening(usual(place.node("a")).jobs("jobs: {}"), at).start();
    a.await_event("takeover.done", LONG);
    // Counts connections with a session. Others, such as that of this query, come and go.
    let sessions = || ensemble.four_letter(0, "cons").matches("sid=0x").count();
    let before = sessions();
    for _ in 0..3 {
        let answer = exchange(dial(caller(1), at).unwrap(), &request("/v1/history", "")).unwrap();
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    assert_eq!(sessions(), before + 1, "one for the network, however often it is asked");
    assert_eq!(get_local(a.spec(), "/v1/history").expect("the socket answers").0, 200);
    assert_eq!(sessions(), before + 2, "and one for the socket");
    until("they are closed when nobody asks", || sessions() == before);
    assert!(a.events().named("leader.lost").is_empty());
}
