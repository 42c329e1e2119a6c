//! The resources that one client can take: never those that others need.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::{apart, caller, dial, exchange, listening, remote, request, unused};
use crate::failover::cluster::{Place, usual};
use crate::solo::fixture::{get as get_local, leading, node};
use crate::support::node::Spec;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

const JOBS: &str = "jobs: {tick: {schedule: '* * * * * *', command: 'true'}}";
/// A request whose body does not end.
const ENDLESS: &str = "POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\nt";

/// Incomplete requests of one client.
fn halves(from: Ipv4Addr, at: SocketAddrV4, text: &str, count: usize) -> Vec<TcpStream> {
    let half = |_| {
        let mut stream = dial(from, at).expect("it listens");
        // The node closes some of them to make room for others.
        drop(stream.write_all(text.as_bytes()));
        stream
    };
    (0..count).map(half).collect()
}

/// The code of a health check's answer; `None` if the connection is closed without one.
fn health(from: Ipv4Addr, at: SocketAddrV4) -> Option<u16> {
    Some(exchange(dial(from, at).ok()?, &request("/healthz", ""))?.code)
}

/// An open stream of events, and the code of its answer.
fn stream(from: Ipv4Addr, at: SocketAddrV4) -> (BufReader<TcpStream>, String) {
    let mut stream = dial(from, at).expect("it listens");
    stream.write_all(request("/v1/events", "").as_bytes()).expect("it is read");
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).expect("there is an answer");
    (reader, line.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn streams_that_nobody_reads_shut_nobody_out() {
    apart(|host, at| {
        let a = leading(&listening(node("a"), at).on(host).jobs(JOBS));
        let held: Vec<_> = (0..40).map(|_| stream(remote(1), at)).collect();
        let codes: Vec<&str> = held.iter().map(|(_, code)| code.as_str()).collect();
        assert_eq!((&codes[..32], &codes[32..]), (&["200"; 32][..], &["503"; 8][..]));
        assert_eq!(stream(remote(2), at).1, "200", "another caller has streams of its own");
        assert_eq!(health(remote(1), at), Some(200), "streams are no connections");
        a.await_after(a.events().len(), "run.started", LONG, |_| true);
        for (reader, _) in &held {
            // Not only closed: processes that other tests start may have inherited the sockets.
            drop(reader.get_ref().shutdown(Shutdown::Both));
        }
        until("there is room again", || stream(remote(1), at).1 == "200");
    });
}

/// Four addresses have as many as there are.
#[test]
fn streams_of_a_few_addresses_leave_room_for_a_further_one() {
    apart(|host, at| {
        let _a = leading(&listening(node("a"), at).on(host).jobs(JOBS));
        let mut held: Vec<_> = (1..=4).flat_map(|number| (0..32).map(move |_| stream(remote(number), at))).collect();
        assert!(held.iter().all(|(_, code)| code == "200"));
        let further: Vec<_> = (5..=20).map(|number| stream(remote(number), at)).collect();
        let codes: Vec<&str> = further.iter().map(|(_, code)| code.as_str()).collect();
        assert_eq!(codes, ["200"; 16]);
        // It ends long before its time.
        held[0].0.read_to_end(&mut Vec::new()).expect("the oldest is closed");
        assert_eq!(stream(remote(1), at).1, "503", "it has its share");
    });
}

/// The node with so many jobs that its status has some MiB.
fn large(node: &Spec) -> Spec {
    let job = |number| format!("  j{number:0>60}: {{schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}}\n");
    node.clone().jobs(&format!("jobs:\n{}", (0..9_000).map(job).collect::<String>()))
}

/// A connection whose client has asked for the status, got the first line, and reads no more.
fn unread(from: Ipv4Addr, at: SocketAddrV4) -> (BufReader<TcpStream>, String) {
    let mut stream = dial(from, at).expect("it listens");
    set_socket_recv_buffer_size(&stream, 4 << 10).expect("it may be small");
    stream.write_all(request("/v1/status", "").as_bytes()).expect("it is read");
    let (mut reader, mut line) = (BufReader::with_capacity(64, stream), String::new());
    reader.read_line(&mut line).expect("there is an answer");
    (reader, line.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// The longest answers of one address, and of all.
const OF_ONE: usize = 8 << 20;
const OF_ALL: usize = 24 << 20;

#[test]
fn answers_that_nobody_reads_shut_nobody_out() {
    apart(|host, at| {
        // Else the kernel takes up to 4 MiB of each answer itself.
        std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536").expect("this network is the test's own");
        let spec = large(&listening(node("a"), at)).on(host);
        let _a = leading(&spec);
        let status = || exchange(dial(remote(99), at).ok()?, &request("/v1/status", ""));
        let bytes = status().expect("there is an answer").body.len();
        assert!((1 << 20..OF_ONE).contains(&bytes), "{bytes}");
        let each = u16::try_from(OF_ONE / bytes).expect("it is small");
        let addresses = u16::try_from(OF_ALL / (usize::from(each) * bytes) + 1).expect("it is small");
        let first = unread(remote(1), at);
        assert_eq!(first.1, "200");
        let answered = Instant::now();
        let _others: Vec<_> = (1..addresses * each).map(|number| unread(remote(1 + number / each), at)).collect();
        until("the first has had time to be read", || answered.elapsed() > Duration::from_secs(1));
        // At once, and not only when those who hold all of it have had all their time.
        assert_eq!(status().map(|answer| (answer.code, answer.body.ends_with('}'))), Some((200, true)));
        assert_eq!(get_local(&spec, "/healthz").map(|(code, _)| code), Some(200));
    });
}

#[test]
fn half_requests_shut_nobody_out() {
    let at = unused();
    let spec = listening(node("a"), at).jobs(JOBS);
    let a = leading(&spec);
    let held = [halves(caller(1), at, "GET /healthz HTT", 300), halves(caller(1), at, ENDLESS, 20)];
    // While they are held open, others are served, and also who sends whole requests from the same address.
    for number in 1..10 {
        assert_eq!(health(caller(number), at), Some(200));
    }
    until("the socket answers", || get_local(&spec, "/healthz").is_some_and(|(code, _)| code == 200));
    a.await_after(a.events().len(), "run.started", LONG, |_| true);
    drop(held);
}

#[test]
fn half_requests_from_many_addresses_shut_nobody_out() {
    apart(|host, at| {
        let _a = leading(&listening(node("a"), at).on(host).jobs(JOBS));
        let held: Vec<_> = (1..=40)
            .flat_map(|number| {
                [halves(remote(number), at, "GET /healthz HTT", 8), halves(remote(number), at, ENDLESS, 8)]
            })
            .collect();
        for number in 100..120 {
            assert_eq!(health(remote(number), at), Some(200));
        }
        assert_eq!(health(remote(1), at), Some(200), "nor one of those");
        drop(held);
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
