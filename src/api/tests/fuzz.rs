//! Fuzz test: arbitrary requests on the socket.

use std::sync::OnceLock;

use tokio::runtime::Runtime;

use super::daemon::{Behaviour, Daemon};
use crate::api::control::MOST_BYTES;
use crate::fuzz::Fuzz;

const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "HEAD ",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "Host: localhost\r\n",
    "Host: \r\n",
    "Content-Length: 2\r\n",
    "Content-Length: 99999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: upgrade\r\nUpgrade: h2c\r\n",
    "Authorization: Bearer x\r\n",
    "\r\n",
    "\r\n\r\n",
    "/v1/status",
    "/v1/jobs",
    "/v1/history",
    "/v1/jobs/load/",
    "/trigger",
    "/pause",
    "/resume",
    "/history",
    "/v1/handover",
    "/v1/runs/load.20261120T023000Z",
    ".m7",
    "/kill",
    "?limit=",
    "limit=5&limit=6",
    "18446744073709551616",
    "%00",
    "%ff",
    "%2f..%2f",
    "http://localhost/",
    "{}",
    "{\"uuid\":\"00000000-0000-0000-0000-000000000000\"}",
    "{\"reason\":\"x\"}",
    "{\"force\":true}",
    "{\"to\":\"host-b\"}",
    "null",
    "\\ud800",
    "0\r\n\r\n",
];

/// Bytes appended to each input, more than a body may have, so that the daemon never waits for the rest of a request.
const REST: usize = 2 * MOST_BYTES;

#[test]
fn fuzz_requests() {
    static FIXTURE: OnceLock<(Runtime, Daemon)> = OnceLock::new();
    Fuzz { longest: 24 << 10, ..Fuzz::of("requests", WORDS) }.run(|input| {
        let (runtime, daemon) = FIXTURE.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut daemon = runtime.block_on(Daemon::start(Behaviour::Well));
            // Nobody receives handovers here; without this, each would wait for its timeout.
            daemon.handovers.close();
            (runtime, daemon)
        });
        let mut request = input.to_vec();
        request.extend(b"\r\n\r\n");
        request.resize(request.len() + REST, b'x');
        let (code, answer) = runtime.block_on(daemon.send(request));
        daemon.requests();
        // A request that is not HTTP is refused without a body.
        assert!(code != 500 && (code <= 400 || answer["error"].is_string() || answer.is_null()), "{code} {answer}");
        code == 200
    });
}
