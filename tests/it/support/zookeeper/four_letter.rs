//! ZooKeeper's four-letter commands.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Ensemble;
use crate::support::{LONG, poll};

impl Ensemble {
    /// A server's answer to `word`; empty if it does not answer, because it is paused or starting.
    pub fn four_letter(&self, i: usize, word: &str) -> String {
        // A starting server may accept the question and never answer: ask again, with a longer timeout each time.
        let timeout = [100, 300, 1_000].map(Duration::from_millis);
        timeout.iter().find_map(|&timeout| ask(self.address_of(i), word, timeout)).unwrap_or_default()
    }

    /// `leader`, `follower`, `standalone`; `None` while it does not serve.
    pub fn mode(&self, i: usize) -> Option<String> {
        let answer = self.four_letter(i, "srvr");
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// The newest transaction that a server has carried out; `None` while it does not serve.
    pub fn zxid(&self, i: usize) -> Option<i64> {
        let answer = self.four_letter(i, "srvr");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x"))?;
        i64::from_str_radix(zxid, 16).ok()
    }

    /// A server's statistics, by name.
    pub fn figures(&self, i: usize) -> BTreeMap<String, String> {
        let answer = self.four_letter(i, "mntr");
        answer.lines().filter_map(|line| line.split_once('\t')).map(|(key, value)| (key.into(), value.into())).collect()
    }

    /// The number of watches on the server.
    pub fn watch_count(&self, i: usize) -> usize {
        self.figure(i, "zk_watch_count")
    }

    /// The number of ephemeral nodes.
    pub fn ephemerals(&self, i: usize) -> usize {
        self.figure(i, "zk_ephemerals_count")
    }

    /// The number of connections to the server, including the one for this question.
    pub fn connections(&self, i: usize) -> usize {
        self.figure(i, "zk_num_alive_connections")
    }

    /// The sessions that watch each path, through this server.
    pub fn watches(&self, i: usize) -> BTreeMap<String, Vec<String>> {
        let mut watches = BTreeMap::<String, Vec<String>>::new();
        let mut path = String::new();
        for line in self.four_letter(i, "wchp").lines() {
            match line.strip_prefix('\t') {
                Some(session) => watches.entry(path.clone()).or_default().push(session.to_owned()),
                None => path = line.to_owned(),
            }
        }
        watches
    }

    fn figure(&self, i: usize, name: &str) -> usize {
        // A busy server may close the connection without an answer.
        let figure = poll(LONG, || self.figures(i).remove(name));
        let figure = figure.unwrap_or_else(|| panic!("server {i} does not report {name}"));
        figure.parse().unwrap_or_else(|_| panic!("{name} of server {i} is {figure}"))
    }
}

fn ask(address: SocketAddr, word: &str, timeout: Duration) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(word.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}
