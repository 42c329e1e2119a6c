//! What is at the other end: whether it is a Redis that can be used, and what its commits are worth.

use std::collections::{BTreeMap, BTreeSet};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd};

use super::settings::{Servers, Settings};
use crate::paths;
use cronkeeper_core::election::Worth;

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Of `INFO`.
    info: BTreeMap<String, String>,
    /// Of `CONFIG GET`, where the user may ask.
    appendfsync: Option<String>,
    no_appendfsync_on_rewrite: Option<String>,
    /// The format of the records, if there are any: what the hash of the newest commit says.
    format: Option<Format>,
    /// The replicas that the Sentinels know of, also those that are away.
    known: usize,
}

/// What is in the place of the newest commit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Format {
    /// Of this version of cronkeeper or another.
    Known(String),
    /// There is none, and this key of somebody else is in the place of a record.
    Foreign(String),
}

/// The format of the records.
const FORMAT: &str = "1";
/// Does what a commit does, and takes it back.
const TRIAL: &str = include_str!("trial.lua");

impl Facts {
    /// Asks a server. `known`: the replicas that the Sentinels know of.
    ///
    /// # Errors
    /// If it does not answer, or the user may not ask.
    pub async fn ask(redis: &MultiplexedConnection, settings: &Settings, known: usize) -> Result<Self, RedisError> {
        let mut connection = redis.clone();
        let text: String = cmd("INFO").query_async(&mut connection).await?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let info: BTreeMap<String, String> =
            lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        let mut format = head(redis, settings).await?;
        if format.is_none()
            && let Some(key) = foreign_key(redis, &settings.tag()).await?
        {
            // Another node may have made the cluster meanwhile. The commit that does makes the hash too.
            format = head(redis, settings).await?.or(Some(Format::Foreign(key)));
        }
        let appendfsync = setting(redis, "appendfsync").await;
        let no_appendfsync_on_rewrite = setting(redis, "no-appendfsync-on-rewrite").await;
        Ok(Self { info, appendfsync, no_appendfsync_on_rewrite, format, known })
    }

    /// Makes sure that the user may do what a commit does: without a right, Redis would leave one half done.
    ///
    /// # Errors
    /// If not.
    pub async fn try_rights(redis: &MultiplexedConnection, settings: &Settings) -> Result<(), RedisError> {
        let mut script = cmd("EVAL");
        script.arg(TRIAL).arg(1).arg(format!("{}:trial", settings.tag())).arg(settings.tag());
        script.query_async(&mut redis.clone()).await
    }

    /// Why the server takes no new records now: its memory is full.
    pub fn full(&self) -> Option<String> {
        let bytes = |name| self.of(name).parse::<u64>().ok();
        let (used, most) = bytes("used_memory").zip(bytes("maxmemory"))?;
        (most > 0 && used >= most).then(|| {
            format!(
                "the server refuses writes: it uses {used} bytes of memory, and `maxmemory` is {most}; give it more"
            )
        })
    }

    pub fn is_master(&self) -> bool {
        self.of("role") == "master"
    }

    /// What keeps commits from being acknowledged now.
    pub fn lack(&self, settings: &Settings) -> Option<String> {
        let (online, wait) = (self.online_replicas(), super::wait(settings));
        (online < wait).then(|| format!("it has {online} of the {wait} replicas that must have each commit"))
    }

    fn of(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    /// The replicas that copy the server. One that has lost its connection is listed twice for a while, and who makes a
    /// backup has no port.
    fn online_replicas(&self) -> usize {
        let listed = self.info.iter().filter(|(name, _)| {
            name.strip_prefix("slave").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        let fields = listed.filter_map(|(_, said)| {
            let of = |name: &str| said.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            let is_one = of("state") == Some("online") && of("port") != Some("0");
            is_one.then(|| (of("ip"), of("port")))
        });
        fields.collect::<BTreeSet<_>>().len()
    }

    /// All replicas that may take over.
    fn replicas(&self, settings: &Settings) -> usize {
        let listed = match &settings.servers {
            Servers::Listed(servers) => servers.len().saturating_sub(1),
            Servers::Watched { .. } => 0,
        };
        self.online_replicas().max(self.known).max(listed)
    }

    /// The service and its version.
    fn service(&self) -> String {
        match self.of("valkey_version") {
            "" => format!("Redis {}", self.of("redis_version")),
            version => format!("Valkey {version}"),
        }
    }

    /// Why a server like this cannot be used, and what to do.
    pub fn objection(&self, settings: &Settings) -> Option<String> {
        let (service, wait, replicas) = (self.service(), settings.wait, self.replicas(settings));
        let major = self.of("redis_version").split('.').next().and_then(|number| number.parse::<u32>().ok());
        if major.is_none_or(|major| major < 6) {
            return Some(format!("the server is {service}; cronkeeper needs Redis 6 or newer, or Valkey"));
        }
        if self.of("redis_mode") == "cluster" {
            return Some(
                "the server is a node of Redis Cluster; cronkeeper needs a server of its own, or Sentinels".to_owned(),
            );
        }
        if self.of("maxmemory_policy").starts_with("allkeys") {
            let policy = self.of("maxmemory_policy");
            return Some(format!(
                "the server may remove any record to save memory (`maxmemory-policy {policy}`): set it to `noeviction`"
            ));
        }
        match &self.format {
            Some(Format::Foreign(key)) => {
                return Some(format!(
                    "the key `{key}` is not cronkeeper's: add `prefix=NAME` to the settings, or name another database"
                ));
            }
            Some(Format::Known(format)) if format != FORMAT => {
                return Some(format!("its records were made by a later version of cronkeeper (format {format})"));
            }
            Some(Format::Known(_)) | None => {}
        }
        let connected = self.online_replicas();
        if !settings.fails_over() && wait.is_none() && connected > 0 {
            return Some(format!(
                "the server has {connected} connected {}: add `wait=N` to the settings, the number of replicas that must \
                 have a commit before it counts; or `wait=0` if none of them ever takes over",
                plural(connected)
            ));
        }
        let least = least_wait(replicas);
        if settings.fails_over() && super::wait(settings) < least {
            let reset = match &settings.servers {
                Servers::Watched { name, .. } => {
                    format!(" (if some are gone for good: `SENTINEL RESET {name}` on each Sentinel)")
                }
                Servers::Listed(_) => String::new(),
            };
            return Some(format!(
                "{replicas} {} may take over, and the old master could continue to accept commits: add `wait={least}` \
                 to the \
                 settings{reset}",
                plural(replicas)
            ));
        }
        None
    }

    /// What a commit is worth.
    pub fn worth(&self, settings: &Settings) -> Worth {
        let (wait, replicas) = (super::wait(settings), self.replicas(settings));
        let on_disk = match (
            self.of("aof_enabled"),
            self.appendfsync.as_deref(),
            self.no_appendfsync_on_rewrite.as_deref(),
        ) {
            ("1", Some("always"), Some("no")) => None,
            ("1", Some("always"), _) => Some(
                "a crash while the server rewrites its file may lose acknowledged commits: set `no-appendfsync-on-rewrite no`",
            ),
            ("1", Some(_), _) => {
                Some("a crash of the server's host may lose acknowledged commits: set `appendfsync always`")
            }
            ("1", None, _) => Some(
                "it is not known whether a crash loses acknowledged commits: the user may not see `appendfsync`; \
                 grant `+config|get`",
            ),
            _ => Some(
                "a restart of the server may lose acknowledged commits: set `appendonly yes` and `appendfsync always`",
            ),
        };
        let may_take_over = if settings.fails_over() { replicas } else { wait };
        let (durability, may_rewind) = match (on_disk, wait) {
            (Some(why), _) => (why.to_owned(), true),
            (None, 0) => ("each commit is on the server's disk".to_owned(), false),
            (None, wait) if wait >= may_take_over => (
                format!("each commit is on the server's disk, and {wait} of {may_take_over} replicas have received it"),
                false,
            ),
            (None, wait) => (
                format!(
                    "a failover may lose acknowledged commits, and what they have begun may begin twice: each waits for \
                     {wait} of {may_take_over} replicas; set `wait={may_take_over}`"
                ),
                true,
            ),
        };
        Worth { service: self.service(), durability, may_rewind }
    }
}

/// What is in the place of the newest commit; `None` if nothing is.
async fn head(redis: &MultiplexedConnection, settings: &Settings) -> Result<Option<Format>, RedisError> {
    let (mut connection, key) = (redis.clone(), format!("{}:head", settings.tag()));
    Ok(match cmd("TYPE").arg(&key).query_async::<String>(&mut connection).await?.as_str() {
        "none" => None,
        "hash" => match cmd("HGET").arg(&key).arg("format").query_async(&mut connection).await? {
            Some(format) => Some(Format::Known(format)),
            None => Some(Format::Foreign(key)),
        },
        _ => Some(Format::Foreign(key)),
    })
}

/// A key of somebody else in the place of what the first commits write; `None` if there is none, or if there are
/// records, with which a cluster continues even if somebody has removed the hash of its newest commit.
///
/// Any other key with the prefix does no harm, and to search for it would take as long as there are keys in the
/// database.
async fn foreign_key(redis: &MultiplexedConnection, tag: &str) -> Result<Option<String>, RedisError> {
    let folder = |path: &str| format!("{tag}:folder:{path}");
    let record = |path: &str| format!("{tag}:record:{path}");
    let folders = paths::PARENTS.into_iter().chain([""]).map(folder);
    let records = paths::PARENTS.into_iter().chain([paths::CLUSTER]).map(record);
    let keys: Vec<String> = folders.chain(records).chain([format!("{tag}:nonces")]).collect();
    let mut types = redis::pipe();
    for key in &keys {
        types.cmd("TYPE").arg(key);
    }
    let types: Vec<String> = types.query_async(&mut redis.clone()).await?;
    let used: Vec<(&String, &String)> = keys.iter().zip(&types).filter(|(_, is)| *is != "none").collect();
    let root = folder("");
    if used.iter().any(|(key, is)| **key == root && *is == "hash") {
        let name = paths::ROOT.trim_start_matches('/');
        let known: Option<String> = cmd("HGET").arg(&root).arg(name).query_async(&mut redis.clone()).await?;
        if known.is_some_and(|known| is_meta(&known)) {
            return Ok(None);
        }
    }
    Ok(used.first().map(|(key, _)| (*key).clone()))
}

/// True for what a commit notes of a record: six numbers.
fn is_meta(text: &str) -> bool {
    text.split(' ').count() == 6 && text.split(' ').all(|word| word.parse::<u64>().is_ok())
}

/// What somebody must do about a right that the user lacks; `None` if that is not what the server says. `tag`: what
/// begins all keys and channels.
pub fn lacking(said: &str, user: Option<&str>, tag: &str) -> Option<String> {
    // Also from within a script, where Redis names the line, and only since 7.2 the command.
    let is_refusal = said.contains("NOPERM")
        || said.contains("ACL failure in script")
        || said.contains("The user executing the script can't");
    if !is_refusal {
        return None;
    }
    let user = user.unwrap_or("default");
    let command = said.split_once("the '").and_then(|(_, rest)| rest.split_once('\'')).map(|(command, _)| command);
    let command = command.or_else(|| if said.contains("run this command") { of_trial(said) } else { None });
    let is_command = |command: &&str| command.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"|-".contains(&byte));
    Some(if let Some(command) = command.filter(is_command) {
        let command = command.to_ascii_lowercase();
        format!("user `{user}` may not use the command `{command}`: `ACL SETUSER {user} +{command}`")
    } else if said.contains("channel") {
        format!("user `{user}` may not use all channels that begin with `{tag}`: `ACL SETUSER {user} &{tag}*`")
    } else if said.contains("key") {
        format!("user `{user}` may not use all keys that begin with `{tag}`: `ACL SETUSER {user} ~{tag}*`")
    } else {
        format!("user `{user}` lacks a right that a commit needs; operations.md has the line that grants all: {said}")
    })
}

/// The command in the line of the trial that an error names.
fn of_trial(said: &str) -> Option<&'static str> {
    let (_, place) = said.split_once("@user_script:")?;
    let digits = place.bytes().take_while(u8::is_ascii_digit).count();
    let number: usize = place[..digits].parse().ok()?;
    TRIAL.lines().nth(number.checked_sub(1)?)?.split('\'').nth(1)
}

/// So many replicas must have a commit that two servers cannot both have enough: a majority of all, with the master.
fn least_wait(replicas: usize) -> usize {
    replicas.div_ceil(2)
}

fn plural(replicas: usize) -> &'static str {
    if replicas == 1 { "replica" } else { "replicas" }
}

/// A setting of the server; `None` if the user may not see it.
async fn setting(redis: &MultiplexedConnection, name: &str) -> Option<String> {
    let mut command = cmd("CONFIG");
    command.arg("GET").arg(name);
    let answer: Vec<Value> = command.query_async(&mut redis.clone()).await.ok()?;
    match answer.get(1) {
        Some(Value::BulkString(value)) => Some(String::from_utf8_lossy(value).into_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that keeps all promises, with these facts changed.
    fn facts(changed: &[(&str, &str)]) -> Facts {
        let usual = [
            ("redis_version", "7.0.15"),
            ("redis_mode", "standalone"),
            ("role", "master"),
            ("aof_enabled", "1"),
            ("maxmemory_policy", "noeviction"),
        ];
        let info = usual.iter().chain(changed).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (appendfsync, no_appendfsync_on_rewrite) = (Some("always".to_owned()), Some("no".to_owned()));
        Facts { info, appendfsync, no_appendfsync_on_rewrite, format: None, known: 0 }
    }

    fn settings(text: &str) -> Settings {
        text.parse().expect("they are correct")
    }

    const REPLICA: (&str, &str) = ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0");

    const ONE: &str = "redis://r1";
    const WATCHED: &str = "redis://s1?sentinel=m";

    #[test]
    fn a_server_whose_memory_is_full_takes_no_records() {
        let of = |used, most| facts(&[("used_memory", used), ("maxmemory", most)]).full().is_some();
        assert_eq!([of("5", "0"), of("5", "6"), of("6", "6"), of("7", "6")], [false, false, true, true]);
        assert_eq!(facts(&[]).full(), None);
    }

    #[test]
    fn a_server_that_cannot_keep_the_promises_is_refused() {
        let foreign = Facts { format: Some(Format::Foreign("{cronkeeper}:head".to_owned())), ..facts(&[]) };
        let later = Facts { format: Some(Format::Known("2".to_owned())), ..facts(&[]) };
        for (facts, text, replicas, why) in [
            (facts(&[("redis_version", "5.0.14")]), ONE, 0, "needs Redis 6"),
            (facts(&[("redis_mode", "cluster")]), ONE, 0, "a server of its own"),
            (facts(&[("maxmemory_policy", "allkeys-lru")]), ONE, 0, "set it to `noeviction`"),
            (foreign, ONE, 0, "the key `{cronkeeper}:head` is not cronkeeper's"),
            (later, ONE, 0, "a later version of cronkeeper (format 2)"),
            (facts(&[REPLICA]), ONE, 1, "1 connected replica: add `wait=N`"),
            (facts(&[]), WATCHED, 3, "add `wait=2`"),
            (facts(&[]), "redis://s1?sentinel=m&wait=0", 1, "SENTINEL RESET m"),
            (facts(&[]), "redis://r1,redis://r2?wait=0", 1, "add `wait=1`"),
        ] {
            let objection = Facts { known: replicas, ..facts }.objection(&settings(text));
            assert!(objection.as_ref().is_some_and(|text| text.contains(why)), "{why}: {objection:?}");
        }
        for (facts, text, replicas) in [
            (facts(&[]), ONE, 0),
            (facts(&[REPLICA]), "redis://r1?wait=0", 1),
            (facts(&[]), WATCHED, 2),
            (facts(&[]), "redis://s1?sentinel=m&wait=2", 4),
        ] {
            assert_eq!(Facts { known: replicas, ..facts }.objection(&settings(text)), None, "{text}");
        }
    }

    /// The texts are those of Redis 6.0, 6.2 and 7.0.
    #[test]
    fn a_right_that_is_lacking_is_named_with_the_rule_that_grants_it() {
        for (said, expected) in [
            ("NOPERM User cron has no permissions to run the 'hset' command", "`ACL SETUSER cron +hset`"),
            (
                "NOPERM this user has no permissions to run the 'config|get' command or its subcommand",
                "`ACL SETUSER cron +config|get`",
            ),
            (
                "ERR ACL failure in script: User cron has no permissions to run the 'hincrby' command script: 5f, on \
                 @user_script:12.",
                "`ACL SETUSER cron +hincrby`",
            ),
            ("NOPERM No permissions to access a key", "`ACL SETUSER cron ~{ops}*`"),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                "`ACL SETUSER cron ~{ops}*`",
            ),
            ("NOPERM No permissions to access a channel", "`ACL SETUSER cron &{ops}*`"),
            (
                "ERR The user executing the script can't run this command or subcommand script: 15e7, on @user_script:11.",
                "`ACL SETUSER cron +hincrby`",
            ),
            (
                "ERR Error running script (call to f_15e7): @user_script:18: The user executing the script can't run this \
                 command or subcommand",
                "`ACL SETUSER cron +publish`",
            ),
            (
                "ERR Error running script: The user executing the script can't run this command or subcommand",
                "operations.md has the line",
            ),
            (
                "ERR Error running script: The user executing the script can't access at least one of the keys \
                 mentioned in the command arguments",
                "`ACL SETUSER cron ~{ops}*`",
            ),
        ] {
            let words = lacking(said, Some("cron"), "{ops}").expect(said);
            assert!(words.contains(expected) && words.starts_with("user `cron`"), "{said}: {words}");
        }
        assert_eq!(lacking("WRONGPASS invalid username-password pair", None, "{ops}"), None);
        let words = lacking("NOPERM User default has no permissions to run the 'eval' command", None, "{ops}");
        assert!(words.is_some_and(|words| words.contains("ACL SETUSER default +eval")));
    }

    #[test]
    fn what_a_commit_notes_of_a_record_is_told_from_what_others_write() {
        assert!(is_meta("0 17 17 1700000000000000 1700000000000000 36"));
        for foreign in ["", "x", "1 2 3 4 5", "1 2 3 4 5 6 7", "1 2 3 4 5 x"] {
            assert!(!is_meta(foreign), "{foreign}");
        }
    }

    #[test]
    fn what_a_commit_is_worth_depends_on_disk_and_replicas() {
        let without = |appendfsync: Option<&str>, on_rewrite: &str| Facts {
            appendfsync: appendfsync.map(str::to_owned),
            no_appendfsync_on_rewrite: Some(on_rewrite.to_owned()),
            ..facts(&[])
        };
        for (facts, text, replicas, may_rewind, says) in [
            (facts(&[]), ONE, 0, false, "each commit is on the server's disk"),
            (facts(&[("aof_enabled", "0")]), ONE, 0, true, "set `appendonly yes`"),
            (without(Some("everysec"), "no"), ONE, 0, true, "set `appendfsync always`"),
            (without(Some("always"), "yes"), ONE, 0, true, "set `no-appendfsync-on-rewrite no`"),
            (without(None, "no"), ONE, 0, true, "grant `+config|get`"),
            (facts(&[]), WATCHED, 1, false, "1 of 1 replicas have received it"),
            (facts(&[]), WATCHED, 2, true, "set `wait=2`"),
            (facts(&[]), "redis://s1?sentinel=m&wait=2", 2, false, "2 of 2 replicas have received it"),
            (facts(&[]), "redis://r1?wait=0", 1, false, "each commit is on the server's disk"),
            (facts(&[]), "redis://r1?wait=1", 1, false, "1 of 1 replicas have received it"),
        ] {
            let worth = Facts { known: replicas, ..facts }.worth(&settings(text));
            assert_eq!(worth.may_rewind, may_rewind, "{text}: {worth:?}");
            assert!(worth.durability.contains(says), "{worth:?}");
        }
        assert_eq!(facts(&[("valkey_version", "8.1.0")]).worth(&settings(ONE)).service, "Valkey 8.1.0");
    }

    #[test]
    fn a_server_with_too_few_replicas_is_left_alone() {
        let lack = |changed: &[(&str, &str)], text: &str| facts(changed).lack(&settings(text));
        assert_eq!(lack(&[], ONE), None);
        assert_eq!(lack(&[REPLICA], WATCHED), None);
        let why = lack(&[REPLICA], "redis://s1?sentinel=m&wait=2");
        assert_eq!(why.as_deref(), Some("it has 1 of the 2 replicas that must have each commit"));
        // The same after it has lost its connection, one that has not copied all yet, and who makes a backup.
        let others = [
            ("slave1", "ip=10.0.0.2,port=6379,state=online,offset=0,lag=30"),
            ("slave2", "ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0"),
            ("slave3", "ip=10.0.0.4,port=0,state=online,offset=0,lag=0"),
        ];
        let changed: Vec<(&str, &str)> = [REPLICA].into_iter().chain(others).collect();
        assert!(lack(&changed, "redis://s1?sentinel=m&wait=2").is_some());
    }
}
