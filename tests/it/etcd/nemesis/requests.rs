//! What clients ask of etcd, as it passes on their connections: requests of HTTP with documents of its JSON gateway.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cronkeeper_cluster::store::{If, Op, Then};
use cronkeeper_core::run::Version;
use serde::{Deserialize, Deserializer};

use crate::nemesis::stores::commits::Request;
use crate::nemesis::stores::tap::{Stream, streams};
use crate::support::proxy::{Passed, Side};

/// The commits that clients have asked for on these connections. `prefix`: of all keys.
pub fn commits(passed: &[Passed], prefix: &str) -> Vec<Request> {
    let streams = streams(passed, Side::Requests);
    streams.values().flat_map(|requests| of_connection(requests, prefix)).collect()
}

fn of_connection(requests: &Stream, prefix: &str) -> Vec<Request> {
    let bodies = requests.messages(body).into_iter();
    let commits = bodies.filter_map(|(at, body)| {
        let (nonce, ops) = serde_json::from_slice::<Txn>(&body).ok()?.into_commit(prefix)?;
        Some(Request { nonce, at, ops })
    });
    commits.collect()
}

/// The body of the first request, and the length of both; `None` if it is not complete.
fn body(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    const END: &[u8] = b"\r\n\r\n";
    let begins = bytes.windows(END.len()).position(|part| part == END)? + END.len();
    let head = String::from_utf8_lossy(&bytes[..begins]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let ends = begins + length;
    Some((bytes.get(begins..ends)?.to_vec(), ends))
}

/// The number in the value of the key of the newest commit, below the time.
pub fn nonce(value: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(data(value)).ok()?, 16).ok()
}

/// A value without the time before it.
pub fn data(value: &[u8]) -> &[u8] {
    value.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default()
}

/// A key or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl Bytes {
    /// The path of a record, if this is its key: the depth is before it.
    pub fn path(&self, prefix: &str) -> Option<String> {
        let depth_and_path = std::str::from_utf8(&self.0).ok()?.strip_prefix(prefix)?.strip_prefix('/')?;
        let (depth, path) = depth_and_path.split_at_checked(2)?;
        depth.parse::<u8>().is_ok().then(|| path.to_owned())
    }
}

#[derive(Deserialize)]
struct Txn {
    compare: Vec<Compare>,
    success: Vec<Change>,
    failure: Vec<Change>,
}

#[derive(Deserialize)]
struct Compare {
    key: Bytes,
    result: String,
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Change {
    request_range: Option<Named>,
    request_put: Option<Named>,
    request_delete_range: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    key: Bytes,
    value: Bytes,
}

impl Txn {
    /// The nonce and the operations of a commit. Otherwise it is a read.
    fn into_commit(self, prefix: &str) -> Option<(u64, Vec<Op>)> {
        let (mut puts, mut deletes) = (BTreeMap::new(), Vec::new());
        for change in self.success {
            puts.extend(change.request_put.map(|put| (put.key, put.value)));
            deletes.extend(change.request_delete_range.map(|delete| delete.key));
        }
        let head = Bytes(format!("{prefix}/head").into_bytes());
        let nonce = nonce(&puts.get(&head)?.0)?;
        // A commit that is refused reads all its records, one for each operation.
        let keys = self.failure.into_iter().filter_map(|read| Some(read.request_range?.key));
        let op = |key: Bytes| {
            let compare = self.compare.iter().find(|compare| compare.key == key);
            let when = compare.map_or(Some(If::Anything), Compare::condition)?;
            let then = match puts.get(&key) {
                Some(value) => Then::Put(data(&value.0).to_vec()),
                None if deletes.contains(&key) => Then::Delete,
                None => Then::Nothing,
            };
            Some(Op { path: key.path(prefix)?, when, then })
        };
        Some((nonce, keys.map(op).collect::<Option<_>>()?))
    }
}

impl Compare {
    fn condition(&self) -> Option<If> {
        match (self.result.as_str(), self.version.parse::<i32>().ok()?) {
            ("EQUAL", 0) => Some(If::Absent),
            ("GREATER", 0) => Some(If::Exists),
            // etcd counts from 1.
            ("EQUAL", writes) => Some(If::Version(Version(writes - 1))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::nemesis::stores::tap::assert_found_in_parts;

    fn coded(text: &str) -> String {
        BASE64_STANDARD.encode(text)
    }

    fn put(key: &str, data: &str) -> Value {
        json!({ "request_put": { "key": coded(key), "value": coded(&format!("1700000000000000\n{data}")) } })
    }

    fn compare(key: &str, result: &str, version: &str) -> Value {
        json!({ "key": coded(key), "target": "VERSION", "result": result, "version": version })
    }

    fn range(key: &str) -> Value {
        json!({ "request_range": { "key": coded(key), "keys_only": true } })
    }

    fn post(document: &Value) -> Vec<u8> {
        let body = document.to_string();
        format!("POST /v3/kv/txn HTTP/1.1\r\nhost: e1\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    fn commit(nonce: &str) -> Vec<u8> {
        post(&json!({ "compare": [], "success": [put("/p/head", nonce)], "failure": [] }))
    }

    #[test]
    fn the_operations_of_a_commit_are_read() {
        let delete = json!({ "request_delete_range": { "key": coded("/p/02/a/d") } });
        let keys = ["/p/02/a/b", "/p/01/c", "/p/02/a/d", "/p/02/a/e"];
        let document = json!({
            "compare": [
                compare(keys[0], "EQUAL", "4"), compare(keys[1], "EQUAL", "0"), compare(keys[3], "GREATER", "0"),
            ],
            "success": [put(keys[0], "x\ny"), delete, put("/p/head", "ffffffffffffffff")],
            "failure": keys.map(range),
        });
        let found = of_connection(&Stream::of(&[&post(&document)]), "/p");
        let op = |path: &str, when, then| Op { path: path.to_owned(), when, then };
        let ops = vec![
            op("/a/b", If::Version(Version(3)), Then::Put(b"x\ny".to_vec())),
            op("/c", If::Absent, Then::Nothing),
            op("/a/d", If::Anything, Then::Delete),
            op("/a/e", If::Exists, Then::Nothing),
        ];
        assert_eq!(found, [Request { nonce: u64::MAX, at: Timestamp::UNIX_EPOCH, ops }]);
    }

    #[test]
    fn requests_in_parts_and_several_in_one_part_are_found() {
        let read = post(&json!({ "compare": [], "success": [range("/p/head")], "failure": [] }));
        let all = [commit("1"), read, b"POST /v3/x HTTP/1.1\r\n\r\n".to_vec(), commit("2"), commit("3")].concat();
        let nonces =
            |requests: &Stream| of_connection(requests, "/p").iter().map(|request| request.nonce).collect::<Vec<u64>>();
        assert_found_in_parts(&all, nonces);
    }

    #[test]
    fn a_key_has_the_path_of_its_record() {
        let path = |key: &str| Bytes(key.into()).path("/p");
        assert_eq!(path("/p/02/a/b").as_deref(), Some("/a/b"));
        for other in ["/p/head", "/q/02/a/b", "/p"] {
            assert_eq!(path(other), None, "{other}");
        }
    }
}
