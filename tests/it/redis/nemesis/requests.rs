//! What clients ask of Redis, as it passes on their connections: commands and their answers in RESP.

use cronkeeper_cluster::store::{Op, Then};
use jiff::Timestamp;

use crate::nemesis::stores::commits::{Request, condition};
use crate::nemesis::stores::tap::{Stream, streams};
use crate::support::proxy::{Passed, Side};

/// The script of a commit.
const COMMIT: &str = include_str!("../../../../src/cluster/redis/commit.lua");

/// A commit that a client has asked for, and the answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    pub request: Request,
    /// It is done, and as many replicas have it as it waits for.
    pub is_acknowledged: bool,
}

/// A value in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Bytes(Vec<u8>),
    Number(i64),
    Array(Vec<Value>),
    /// Texts and errors, and what is absent.
    Other,
}

/// The commits that clients have asked for on these connections.
pub fn commits(passed: &[Passed]) -> Vec<Asked> {
    let mut replies = streams(passed, Side::Replies);
    let each = streams(passed, Side::Requests).into_iter();
    each.flat_map(|(link, requests)| of_connection(&requests, &replies.remove(&link).unwrap_or_default())).collect()
}

/// The answers on a connection are in the order of its commands.
fn of_connection(requests: &Stream, replies: &Stream) -> Vec<Asked> {
    let commands = requests.messages(value);
    let answers: Vec<Value> = replies.messages(value).into_iter().map(|(_, answer)| answer).collect();
    let commits = commands.iter().enumerate().filter_map(|(place, (at, command))| {
        let (nonce, ops) = commit(command)?;
        let waits_for = commands.get(place + 1).and_then(|(_, next)| wait(next));
        let is_replicated = waits_for.is_none_or(
            |wanted| matches!(answers.get(place + 1), Some(Value::Number(replicas)) if *replicas >= wanted),
        );
        let is_acknowledged = answers.get(place).is_some_and(is_done) && is_replicated;
        Some(Asked { request: Request { nonce, at: *at, ops }, is_acknowledged })
    });
    commits.collect()
}

/// The nonce and the operations, if this is the command of a commit.
fn commit(command: &Value) -> Option<(u64, Vec<Op>)> {
    let Value::Array(words) = command else { return None };
    let words: Vec<&[u8]> = words.iter().map(bytes).collect::<Option<_>>()?;
    let [eval, script, _keys, _head, _tag, nonce, _kept, ops @ ..] = &words[..] else { return None };
    if (*eval, *script) != (b"EVAL", COMMIT.as_bytes()) {
        return None;
    }
    let (each, _) = ops.as_chunks::<5>();
    Some((text(nonce)?.parse().ok()?, each.iter().map(op).collect::<Option<_>>()?))
}

fn op([folder, name, when, change, data]: &[&[u8]; 5]) -> Option<Op> {
    let then = match *change {
        b"put" => Then::Put(data.to_vec()),
        b"delete" => Then::Delete,
        _ => Then::Nothing,
    };
    let path = format!("{}/{}", text(folder)?, text(name)?);
    Some(Op { path, when: condition(text(when)?.parse().ok()?), then })
}

/// For how many replicas a command waits.
fn wait(command: &Value) -> Option<i64> {
    match command {
        Value::Array(words) => match &words[..] {
            [Value::Bytes(name), Value::Bytes(wanted), _] if name == b"WAIT" => text(wanted)?.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// True if this answers that a commit is done on the server.
fn is_done(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if matches!(parts[..], [Value::Number(0), Value::Number(_), _]))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The first value, and its length; `None` if it is not complete.
fn value(bytes: &[u8]) -> Option<(Value, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, rest) = (*bytes.first()?, bytes.get(1..end)?);
    let number = || text(rest)?.parse::<i64>().ok();
    let begins = end + 2;
    match kind {
        b':' => Some((Value::Number(number()?), begins)),
        b'$' | b'*' if number()? < 0 => Some((Value::Other, begins)),
        b'$' => {
            let length = usize::try_from(number()?).ok()?;
            let data = bytes.get(begins..begins + length)?;
            // The end of the line behind it.
            (bytes.len() >= begins + length + 2).then(|| (Value::Bytes(data.to_vec()), begins + length + 2))
        }
        b'*' => {
            let (mut parts, mut at) = (Vec::new(), begins);
            for _ in 0..number()? {
                let (part, length) = value(bytes.get(at..)?)?;
                parts.push(part);
                at += length;
            }
            Some((Value::Array(parts), at))
        }
        b'+' | b'-' => Some((Value::Other, begins)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cronkeeper_cluster::store::If;
    use cronkeeper_core::run::Version;

    use super::*;
    use crate::nemesis::stores::tap::assert_found_in_parts;

    fn command(words: &[&str]) -> Vec<u8> {
        let each = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), each.collect::<String>()).into_bytes()
    }

    fn eval(nonce: &str, ops: &[&str]) -> Vec<u8> {
        command(&[&["EVAL", COMMIT, "1", "{p}:head", "{p}", nonce, "4096"], ops].concat())
    }

    #[test]
    fn the_operations_of_a_commit_are_read() {
        let ops = ["/a", "b", "3", "put", "x\r\ny", "", "c", "-1", "nothing", "", "/a", "d", "-3", "delete", ""];
        let all = [command(&["INFO"]), eval("18446744073709551615", &ops)].concat();
        let found = of_connection(&Stream::of(&[&all]), &Stream::default());
        let op = |path: &str, when, then| Op { path: path.to_owned(), when, then };
        let expected = vec![
            op("/a/b", If::Version(Version(3)), Then::Put(b"x\r\ny".to_vec())),
            op("/c", If::Absent, Then::Nothing),
            op("/a/d", If::Anything, Then::Delete),
        ];
        let request = Request { nonce: u64::MAX, at: Timestamp::UNIX_EPOCH, ops: expected };
        assert_eq!(found, [Asked { request, is_acknowledged: false }]);
    }

    #[test]
    fn commands_in_parts_and_several_in_one_part_are_found() {
        let all = [eval("1", &[]), command(&["EVAL", "another script"]), eval("2", &[]), eval("3", &[])].concat();
        let nonces = |requests: &Stream| {
            let found = of_connection(requests, &Stream::default());
            found.iter().map(|asked| asked.request.nonce).collect::<Vec<u64>>()
        };
        assert_found_in_parts(&all, nonces);
    }

    #[test]
    fn a_commit_is_acknowledged_when_as_many_replicas_have_it_as_it_waits_for() {
        let wait = command(&["WAIT", "1", "1500"]);
        let all = [eval("1", &[]), wait.clone(), eval("2", &[]), wait, eval("3", &[]), eval("4", &[])].concat();
        let replies =
            b"*3\r\n:0\r\n:7\r\n$1\r\n5\r\n:1\r\n*3\r\n:0\r\n:8\r\n$1\r\n5\r\n:0\r\n*3\r\n:0\r\n:9\r\n$1\r\n5\r\n\
                        *3\r\n:1\r\n:0\r\n:-1\r\n";
        let acknowledged = |replies: &[u8]| {
            let found = of_connection(&Stream::of(&[&all]), &Stream::of(&[replies]));
            found.iter().map(|asked| asked.is_acknowledged).collect::<Vec<_>>()
        };
        assert_eq!(acknowledged(replies), [true, false, true, false]);
        assert_eq!(acknowledged(b"*3\r\n:0\r\n:7\r\n$1\r\n5\r\n-UNBLOCKED\r\n"), [false; 4]);
        assert_eq!(acknowledged(b"-READONLY\r\n:1\r\n"), [false; 4]);
    }
}
