//! A service that takes messages by HTTP, as the test says: it takes them, refuses them, or never answers.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::support::{LONG, poll};

/// What the service does with the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Takes,
    /// It answers this code.
    Answers(u16),
    /// It reads the request, and never answers.
    Hangs,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Got {
    /// By names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// What was done with it.
    pub mode: Mode,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }
}

/// The service. Its threads end with the test process.
pub struct Webhook {
    address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Webhook {
    pub fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (mode, got) = (Arc::new(Mutex::new(mode)), Arc::<Mutex<Vec<Got>>>::default());
        let (modes, all) = (Arc::clone(&mode), Arc::clone(&got));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (modes, all) = (Arc::clone(&modes), Arc::clone(&all));
                thread::spawn(move || serve(&stream, &modes, &all));
            }
        });
        Self { address, mode, got }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// The requests that were treated so.
    pub fn got(&self, wanted: impl Fn(Mode) -> bool) -> Vec<Got> {
        self.got.lock().unwrap().iter().filter(|got| wanted(got.mode)).cloned().collect()
    }

    pub fn taken(&self) -> Vec<Got> {
        self.got(|mode| mode == Mode::Takes)
    }

    /// Waits until so many requests were treated so.
    pub fn await_got(&self, count: usize, wanted: impl Fn(Mode) -> bool) -> Vec<Got> {
        let enough = || Some(self.got(&wanted)).filter(|got| got.len() >= count);
        poll(2 * LONG, enough).unwrap_or_else(|| panic!("the webhook has got {:?}", self.got(|_| true)))
    }
}

fn serve(stream: &TcpStream, mode: &Mutex<Mode>, all: &Mutex<Vec<Got>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut headers = BTreeMap::new();
    for (index, line) in reader.by_ref().lines().enumerate() {
        let line = line.ok()?;
        if line.is_empty() {
            break;
        }
        if let (true, Some((name, value))) = (index > 0, line.split_once(':')) {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let length = headers.get("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mode = *mode.lock().unwrap();
    all.lock().unwrap().push(Got { headers, body, mode });
    let answer = match mode {
        Mode::Takes => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".to_owned(),
        Mode::Answers(code) => format!("HTTP/1.1 {code} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        // The other side gives up, and then the connection ends.
        Mode::Hangs => return reader.read_to_end(&mut Vec::new()).ok().map(drop),
    };
    let mut stream = stream;
    stream.write_all(answer.as_bytes()).ok()
}
