//! What is at the other end: whether it is an etcd that can be used, whether the keys below the prefix are a cluster's, and
//! what its commits are worth.

use std::time::Duration;

use super::gateway::{Failed, Gateway, PERMISSION_DENIED, UNAUTHENTICATED};
use super::json::{
    Anything, Base64, Compare, Delete, KeyValue, MembersResponse, Nothing, Number, Put, Range, RequestOp,
    StatusResponse, Txn, TxnResponse,
};
use super::keys;
use super::settings::Settings;
use crate::tree::ConnectError;
use cronkeeper_core::election::Worth;

/// What a user does who needs a right.
#[derive(Clone, Copy)]
enum Right {
    /// Asks for what anybody may know who has logged in.
    Ask,
    Read,
    Write,
}

/// Checks that the cluster can be used. Changes nothing.
///
/// # Errors
/// [`ConnectError::Refused`] if somebody must change something.
pub async fn look(gateway: &Gateway, settings: &Settings, patience: Duration) -> Result<Worth, ConnectError> {
    let ask = Ask { gateway, settings, patience };
    let status: StatusResponse = ask.of("/v3/maintenance/status", &Nothing {}, Right::Ask).await?;
    let members: MembersResponse = ask.of("/v3/cluster/member/list", &Nothing {}, Right::Ask).await?;
    if let Some(why) = objection(&status) {
        return Err(ConnectError::Refused(why));
    }
    if let Some(why) = ask.foreign_key().await?.map(|key| not_ours(&key)) {
        return Err(ConnectError::Refused(why));
    }
    let _: Anything = ask.of("/v3/kv/txn", &trial(&settings.prefix), Right::Write).await?;
    Ok(worth(&status, members.members.len()))
}

/// Asks in words that say what is missing.
struct Ask<'a> {
    gateway: &'a Gateway,
    settings: &'a Settings,
    patience: Duration,
}

impl Ask<'_> {
    async fn of<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl serde::Serialize + Sync),
        right: Right,
    ) -> Result<T, ConnectError> {
        let (user, prefix) = (self.settings.access.user_name(), &self.settings.prefix);
        self.gateway.ask(path, body, self.patience).await.map_err(|failed| match failed {
            Failed::Refused { code, message } => ConnectError::Refused(lacking(code, message, right, user, prefix)),
            Failed::Unanswered(why) => ConnectError::Unreachable(why),
            Failed::NotConnected(error) => error,
        })
    }

    /// A key of somebody else that keeps a cluster from being made here; `None` if there is none, or if there is a
    /// cluster, which no key of others stops.
    async fn foreign_key(&self) -> Result<Option<Base64>, ConnectError> {
        let prefix = &self.settings.prefix;
        let first = |(key, end): (Base64, Base64)| {
            RequestOp::Range(Range { key, range_end: Some(end), limit: Some(Number(1)), ..Range::default() })
        };
        let head = RequestOp::Range(Range { key: keys::head(prefix), ..Range::default() });
        // Somebody may have overwritten the key of the newest commit, and a running cluster would write it again.
        let success = vec![head, first(keys::below(prefix, "/cronkeeper")), first(keys::all(prefix))];
        let txn = Txn { compare: Vec::new(), success, failure: Vec::new() };
        let answer: TxnResponse = self.of("/v3/kv/txn", &txn, Right::Read).await?;
        let mut found = answer.responses.into_iter().map(|it| {
            let kvs = it.response_range.unwrap_or_default().kvs;
            kvs.into_iter().next()
        });
        let mut next = || found.next().flatten();
        let (head, record, any) = (next(), next(), next());
        let is_cluster = head.is_some_and(|kv| is_head(&kv)) || record.is_some_and(|kv| data(&kv).is_some());
        Ok(if is_cluster { None } else { any.map(|kv| kv.key) })
    }
}

/// The data of a value that a commit has written; `None` if it does not begin with a time, as each of those does.
fn data(kv: &KeyValue) -> Option<&[u8]> {
    let (time, data) = super::stamp_and_data(&kv.value.0)?;
    (!time.is_empty() && time.iter().all(u8::is_ascii_digit)).then_some(data)
}

/// True for the value of the newest commit: its nonce.
fn is_head(kv: &KeyValue) -> bool {
    data(kv).is_some_and(|nonce| nonce.len() == 16 && nonce.iter().all(u8::is_ascii_hexdigit))
}

fn not_ours(key: &Base64) -> String {
    format!(
        "the key `{}` is not cronkeeper's: each cluster needs its own prefix; name another one",
        String::from_utf8_lossy(&key.0)
    )
}

/// Writes nothing, because a key cannot both be there and not: etcd checks the rights to all that a transaction may do.
fn trial(prefix: &str) -> Txn {
    let head = keys::head(prefix);
    let compare = |result| Compare { key: head.clone(), target: "VERSION", result, version: Number(0) };
    let put = |key: Base64| RequestOp::Put(Put { key, value: Base64::default() });
    // Also of the keys before and behind all records: a right to some keys is not enough.
    let others = ["00", "99"].map(|depth| Base64(format!("{prefix}/{depth}/trial").into_bytes()));
    let delete = RequestOp::Delete(Delete { key: keys::record(prefix, "/trial") });
    let success = [put(head.clone()), delete].into_iter().chain(others.map(put)).collect();
    Txn { compare: vec![compare("EQUAL"), compare("GREATER")], success, failure: Vec::new() }
}

/// What somebody must do about a refusal.
fn lacking(code: i64, message: String, right: Right, user: Option<&str>, prefix: &str) -> String {
    match (code, right, user) {
        (UNAUTHENTICATED | PERMISSION_DENIED, _, None) => {
            "etcd asks for a user, and the settings name none: add `user=NAME&passfile=FILE`".to_owned()
        }
        (PERMISSION_DENIED, Right::Read | Right::Write, Some(user)) => {
            let done = if matches!(right, Right::Read) { "read" } else { "write" };
            format!(
                "user `{user}` may not {done} all keys that begin with `{prefix}/`: grant that to a role of the user, \
                 `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/`; a user without a role gets \
                 one with `etcdctl user grant-role {user} ROLE`"
            )
        }
        (PERMISSION_DENIED, Right::Ask, Some(user)) => {
            format!("user `{user}` may not look at the state of etcd: {message}")
        }
        _ => message,
    }
}

/// The first numbers of a version.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

fn objection(status: &StatusResponse) -> Option<String> {
    let version = &status.version;
    if numbers(version).is_none_or(|numbers| numbers < [3, 4, 0]) {
        return Some(format!("the server is etcd {version}; cronkeeper needs 3.4 or newer"));
    }
    let is_full = status.errors.iter().any(|error| error.contains("NOSPACE"));
    is_full.then(|| {
        "the database has reached its quota, and etcd accepts no writes: compact and defragment it, then disarm the alarm \
         (`etcdctl alarm disarm`)"
            .to_owned()
    })
}

fn worth(status: &StatusResponse, members: usize) -> Worth {
    let version = &status.version;
    // Members of these differ after a crash: etcd's own postmortem of April 2022.
    let may_rewind = numbers(version).is_some_and(|numbers| ([3, 5, 0]..=[3, 5, 2]).contains(&numbers));
    let durability = match (may_rewind, members) {
        (true, _) => format!("a member of etcd {version} that crashes may lose acknowledged commits"),
        (false, 1) => "each commit is on the disk of the one member".to_owned(),
        (false, members) => format!("each commit is on the disks of {} of {members} members", members / 2 + 1),
    };
    Worth { service: format!("etcd {version}"), durability, may_rewind }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(version: &str, errors: &[&str]) -> StatusResponse {
        let errors = errors.iter().map(|error| (*error).to_owned()).collect();
        StatusResponse { version: version.to_owned(), errors, ..StatusResponse::default() }
    }

    #[test]
    fn what_a_commit_has_written_is_not_taken_for_the_value_of_somebody_else() {
        let kv = |value: &str| KeyValue { value: Base64(value.as_bytes().to_vec()), ..KeyValue::default() };
        for (value, is_record, is_newest) in [
            ("1700000000000000\n", true, false),
            ("17\n{}", true, false),
            ("17\n0123456789abcdef", true, true),
            ("precious", false, false),
            ("\n", false, false),
            ("17", false, false),
        ] {
            assert_eq!((data(&kv(value)).is_some(), is_head(&kv(value))), (is_record, is_newest), "{value:?}");
        }
    }

    #[test]
    fn who_lacks_a_right_learns_which_command_gives_it() {
        let denied = |right, user| lacking(PERMISSION_DENIED, "permission denied".to_owned(), right, user, "/ops");
        let grant = "`etcdctl role grant-permission ROLE --prefix=true readwrite /ops/`";
        for (right, done) in [(Right::Read, "may not read"), (Right::Write, "may not write")] {
            let said = denied(right, Some("cron"));
            assert!(said.contains(done) && said.contains("`cron`") && said.contains(grant), "{said}");
        }
        assert!(denied(Right::Read, None).contains("user=NAME&passfile=FILE"));
    }

    #[test]
    fn old_and_full_servers_are_refused() {
        assert!(objection(&status("3.3.27", &[])).is_some_and(|why| why.contains("needs 3.4")));
        assert!(objection(&status("", &[])).is_some());
        assert!(objection(&status("3.5.9", &["memberID:1 alarm:NOSPACE "])).is_some_and(|why| why.contains("disarm")));
        assert_eq!(objection(&status("3.6.0-rc.1", &[])), None);
    }

    #[test]
    fn versions_whose_members_lose_data_are_known() {
        for (version, may_rewind) in
            [("3.4.23", false), ("3.5.0", true), ("3.5.2", true), ("3.5.3", false), ("3.6.0", false)]
        {
            assert_eq!(worth(&status(version, &[]), 3).may_rewind, may_rewind, "{version}");
        }
        assert_eq!(worth(&status("3.4.23", &[]), 3).durability, "each commit is on the disks of 2 of 3 members");
    }
}
