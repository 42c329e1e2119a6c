//! Tests that the rules have exactly the intended effect: a fault without effect would make the nemesis worthless.
//!
//! A lost packet is recognised by the rule's count or by the packets that follow it, so the tests never wait for
//! something that does not come.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;

use super::super::hosts::join;
use super::*;
use crate::support::{Facility, LONG, skipped, until};

const PORT: u16 = 2181;

/// Two hosts, each with a socket, and the middle host between them.
struct Scene {
    network: Network,
    here: (Arc<Host>, UdpSocket),
    there: (Arc<Host>, UdpSocket),
    middle: Host,
}

impl Scene {
    fn or_skip() -> Option<Self> {
        let hosts = || {
            let [middle, here, there] = [254, 1, 2].map(|last| Host::new(Ipv4Addr::new(10, 77, 0, last)));
            let (middle, here, there) = (middle?, Arc::new(here?), Arc::new(there?));
            join(&middle, [&here, &there].into_iter())?;
            Ok::<_, String>((middle, here, there))
        };
        let hosts =
            hosts().inspect_err(|why| skipped(Facility::Hosts, &format!("a test of the rules between hosts: {why}")));
        let (middle, here, there) = hosts.ok()?;
        let begins = (middle.address(), PORT).into();
        let slow = vec![SlowLine { server: (there.address(), PORT).into(), begins }];
        let with_socket = |host: Arc<Host>| {
            let address = (host.address(), PORT);
            let socket = on(&host, move || UdpSocket::bind(address).unwrap());
            socket.set_read_timeout(Some(LONG)).unwrap();
            (host, socket)
        };
        Some(Self { network: Network::new(slow), here: with_socket(here), there: with_socket(there), middle })
    }

    /// Checks whether a message from here arrives there while this rule applies here, and whether one sent back arrives.
    fn assert_arrival(&mut self, rule: impl FnOnce(Vec<Ipv4Addr>) -> LinkRule, arrives: [bool; 2]) {
        let (here, there) = (&self.here, &self.there);
        let ways = [(here, there), (there, here)];
        self.network.inject(1, &here.0, rule(vec![there.0.address()]));
        ways.iter().for_each(|(from, to)| say(from, to, "during"));
        let arriving = ways.iter().zip(arrives).filter(|(_, arrives)| *arrives);
        arriving.for_each(|((_, to), _)| assert_eq!(receive(to), "during"));
        // A packet may be on its way for a while.
        let lost = arrives.iter().filter(|arrives| !**arrives).count();
        until("the others are dropped", || self.network.dropped(&here.0) == lost);
        self.network.heal(1);
        for (from, to) in ways {
            say(from, to, "after");
            assert_eq!(receive(to), "after");
        }
    }
}

/// Creates something on a host's network.
fn on<T: Send + 'static>(host: &Arc<Host>, make: impl FnOnce() -> T + Send + 'static) -> T {
    let host = Arc::clone(host);
    let made = thread::spawn(move || {
        host.connect_thread();
        make()
    });
    made.join().unwrap()
}

fn say(from: &(Arc<Host>, UdpSocket), to: &(Arc<Host>, UdpSocket), word: &str) {
    // A rule that drops it here can be reported as an error.
    let _dropped = from.1.send_to(word.as_bytes(), (to.0.address(), PORT));
}

fn receive(at: &(Arc<Host>, UdpSocket)) -> String {
    let mut buffer = [0; 16];
    let length = at.1.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn a_line_is_cut_in_both_directions_or_in_one() {
    let Some(mut scene) = Scene::or_skip() else { return };
    scene.assert_arrival(LinkRule::Cut, [false, false]);
    scene.assert_arrival(LinkRule::Mute, [false, true]);
    scene.assert_arrival(LinkRule::Deaf, [true, false]);
}

#[test]
fn a_lossy_line_loses_some() {
    let Some(mut scene) = Scene::or_skip() else { return };
    let (here, there) = (&scene.here, &scene.there);
    scene.network.inject(1, &here.0, LinkRule::Lossy);
    // Few enough to fit into any buffer, and so many that some of them are lost.
    (0..200).for_each(|_| say(here, there, "word"));
    scene.network.heal(1);
    say(here, there, "end");
    let arrived = std::iter::from_fn(|| Some(receive(there)).filter(|word| word == "word")).count();
    assert!((1..200).contains(&arrived), "{arrived} of 200");
}

#[test]
fn a_slow_line_goes_by_the_middle() {
    let Some(mut scene) = Scene::or_skip() else { return };
    scene.network.inject(1, &scene.here.0, LinkRule::Slow);
    let middle = Arc::new(scene.middle);
    let address = middle.address();
    let listener = on(&middle, move || TcpListener::bind((address, PORT)).unwrap());
    let server = (scene.there.0.address(), PORT);
    let connection = on(&scene.here.0, move || TcpStream::connect(server).unwrap());
    let (_, client) = listener.accept().unwrap();
    assert_eq!(client.port(), connection.local_addr().unwrap().port());
}
