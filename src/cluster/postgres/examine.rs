//! What is at the other end: whether it is a cluster's place, and what keeps it from being used. Makes the place if
//! there is none.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::standbys::Standbys;
use super::{SCHEMA, in_full};
use crate::tree::ConnectError;
use cronkeeper_core::election::Worth;

/// The oldest server that is tested.
const OLDEST: i32 = 120_000;
/// The comment on the schema.
const MARK: &str = "cronkeeper ";
/// Version of the tables.
const FORMAT: &str = "1";
/// Serialises the creation of the schema; any number that others hardly use.
const CREATION: i64 = 0x6372_6f6e_6b65;

/// What a server says of itself.
struct Facts {
    number: i32,
    version: String,
    encoding: String,
    isolation: String,
    fsync: String,
    user: String,
    /// What the server says of the standbys that commits wait for.
    waits_for: String,
    standbys: Standbys,
    exists: bool,
    may_make: bool,
    mark: Option<String>,
}

/// What is done if there is no schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    Make,
    /// Nothing: somebody only wants to know.
    Leave,
}

/// A server that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    pub worth: Worth,
    /// What to do if its commits may be lost, as [`Tolerance::check`](crate::store::Tolerance::check) takes it.
    pub remedy: String,
    /// The schema was there.
    pub existed: bool,
}

impl Facts {
    async fn ask(client: &Client) -> Result<Self, Error> {
        // A sender without a database sends to a standby, or to what makes or takes backups; a commit may wait for that
        // instead of a standby. The functions are those of the server: others may have made some of the same names.
        let facts = "SELECT pg_catalog.current_setting('server_version_num')::int4,
                            pg_catalog.current_setting('server_version'),
                            pg_catalog.current_setting('server_encoding'),
                            pg_catalog.current_setting('default_transaction_isolation'),
                            pg_catalog.current_setting('fsync'),
                            current_user::text,
                            pg_catalog.current_setting('synchronous_standby_names'),
                            ARRAY(SELECT sender.application_name::text
                                  FROM pg_catalog.pg_stat_replication AS copy
                                  JOIN pg_catalog.pg_stat_activity AS sender USING (pid)
                                  WHERE sender.datid IS NULL
                                        AND (sender.application_name NOT IN ('pg_basebackup', 'pg_receivewal')
                                             OR copy.sync_priority > 0)),
                            pg_catalog.to_regnamespace('cronkeeper') IS NOT NULL,
                            pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
                            pg_catalog.obj_description(pg_catalog.to_regnamespace('cronkeeper'), 'pg_namespace')";
        let row = client.query_typed_one(facts, &[]).await?;
        let waits_for: String = row.try_get(6)?;
        let standbys = Standbys::new(&waits_for, row.try_get(7)?);
        Ok(Self {
            number: row.try_get(0)?,
            version: row.try_get(1)?,
            encoding: row.try_get(2)?,
            isolation: row.try_get(3)?,
            fsync: row.try_get(4)?,
            user: row.try_get(5)?,
            waits_for,
            standbys,
            exists: row.try_get(8)?,
            may_make: row.try_get(9)?,
            mark: row.try_get(10)?,
        })
    }

    /// Why a server like this cannot be used, and what to do.
    fn objection(&self) -> Option<String> {
        let Self { version, encoding, isolation, user, .. } = self;
        if self.number < OLDEST {
            return Some(format!("the server is PostgreSQL {version}; cronkeeper needs 12 or newer"));
        }
        if encoding != "UTF8" {
            return Some(format!("the database has the encoding {encoding}; cronkeeper needs one with UTF8"));
        }
        if isolation != "read committed" {
            return Some(format!(
                "`default_transaction_isolation` is `{isolation}`, under which concurrent commits fail: \
                 ALTER ROLE \"{user}\" SET default_transaction_isolation = 'read committed'"
            ));
        }
        None
    }

    /// What makes commits safe that may be lost.
    fn remedy(&self) -> String {
        let wait_for_all = format!("set `synchronous_standby_names` to `{}`", self.standbys.setting_for_all());
        let all = [(self.fsync != "on", "set `fsync` to on"), (!self.standbys.have_all(), wait_for_all.as_str())];
        let needed: Vec<&str> = all.into_iter().filter_map(|(is_needed, remedy)| is_needed.then_some(remedy)).collect();
        if needed.is_empty() { String::new() } else { format!("{}, ", needed.join(" and ")) }
    }

    fn worth(&self) -> Worth {
        let setting = match self.waits_for.trim() {
            "" => String::new(),
            setting => format!(" (`{setting}`)"),
        };
        let standbys = format!("{}{setting}", self.standbys.words());
        let (durability, may_rewind) = match (self.fsync.as_str(), self.standbys.have_all()) {
            ("on", true) => (format!("each commit is on the server's disk; {standbys}"), false),
            ("on", false) => (format!("a failover may lose acknowledged commits: {standbys}"), true),
            _ => ("a crash of the server's host may lose acknowledged commits: `fsync` is off".to_owned(), true),
        };
        Worth { service: format!("PostgreSQL {}", self.version), durability, may_rewind }
    }
}

/// Checks that the server can be used, and that the schema is a cluster's.
///
/// # Errors
/// [`ConnectError::Refused`] if somebody must change something.
pub async fn enter(client: &Client, if_missing: IfMissing) -> Result<Entered, ConnectError> {
    let refused = |why: String| Err(ConnectError::Refused(why));
    let facts = Facts::ask(client).await.map_err(|error| not_connected(&error))?;
    if let Some(why) = facts.objection() {
        return refused(why);
    }
    let entered = Entered { worth: facts.worth(), remedy: facts.remedy(), existed: facts.exists };
    if !facts.exists {
        if !facts.may_make {
            return refused(not_made(&facts.user));
        }
        if if_missing == IfMissing::Make {
            make(client, &facts.user).await?;
        }
        return Ok(entered);
    }
    match facts.mark.as_deref().and_then(|mark| mark.strip_prefix(MARK)) {
        Some(FORMAT) => usable(client, &facts.user).await.map(|()| entered),
        Some(format) => {
            refused(format!("the schema `cronkeeper` was created by a later version of cronkeeper (format {format})"))
        }
        None => refused(
            "there is a schema `cronkeeper` that is not cronkeeper's; name another database, or rename it".to_owned(),
        ),
    }
}

fn not_made(user: &str) -> String {
    format!(
        "there is no schema `cronkeeper`, and `{user}` may not create it: grant CREATE on the database, or have its \
         owner run `cronkeeper schema postgres | psql`"
    )
}

/// Makes the schema. Another node may do the same.
async fn make(client: &Client, user: &str) -> Result<(), ConnectError> {
    // One transaction, so that there is never half a schema; without a round trip in between.
    let all = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({CREATION});
         DO $make$ BEGIN IF to_regnamespace('cronkeeper') IS NULL THEN EXECUTE $schema${SCHEMA}$schema$; END IF; END $make$;
         COMMIT"
    );
    let Err(error) = client.batch_execute(&all).await else { return Ok(()) };
    // The transaction is left open and failed.
    let _ = client.batch_execute("ROLLBACK").await;
    Err(match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => ConnectError::Refused(not_made(user)),
        _ => not_connected(&error),
    })
}

/// Checks that the user may use each part of the schema.
async fn usable(client: &Client, user: &str) -> Result<(), ConnectError> {
    let parts = "SELECT part.name, part.id IS NOT NULL,
                        coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(part.id, privilege))
                                  FROM pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege), false)
                 FROM (SELECT name, pg_catalog.to_regclass('cronkeeper.' || name) AS id
                       FROM pg_catalog.unnest(ARRAY['record', 'head', 'newest']) AS name) AS part
                 UNION ALL
                 SELECT part.name, part.id IS NOT NULL,
                        coalesce(pg_catalog.has_function_privilege(part.id, 'EXECUTE'), false)
                 FROM (SELECT name, pg_catalog.to_regproc('cronkeeper.' || name) AS id
                       FROM pg_catalog.unnest(ARRAY['apply', 'look']) AS name) AS part";
    let refused = |why: String| Err(ConnectError::Refused(why));
    let rows = match client.query_typed(parts, &[]).await {
        Ok(rows) => rows,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return refused(format!(
                "`{user}` may not use the schema `cronkeeper`: GRANT USAGE ON SCHEMA cronkeeper TO \"{user}\""
            ));
        }
        Err(error) => return Err(not_connected(&error)),
    };
    for row in rows {
        let (name, exists, is_granted): (String, bool, bool) = (row.get(0), row.get(1), row.get(2));
        match (exists, is_granted) {
            (false, _) => {
                return refused(format!(
                    "the schema `cronkeeper` lacks `{name}`: drop the schema, or restore it from a backup"
                ));
            }
            (true, false) => {
                // Everybody may call a new function, unless somebody has taken that right away.
                let right = match name.as_str() {
                    "apply" | "look" => "EXECUTE ON ALL FUNCTIONS",
                    _ => "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES",
                };
                return refused(format!(
                    "`{user}` may not use `{name}` in the schema `cronkeeper`: GRANT {right} IN SCHEMA cronkeeper TO \
                     \"{user}\""
                ));
            }
            (true, true) => {}
        }
    }
    Ok(())
}

/// Words why a server cannot be used. What only a person can fix is refused.
pub fn not_connected(error: &Error) -> ConnectError {
    let why = in_full(error);
    // What the client finds before the server does, such as that no password is set, has no code.
    let is_of_settings = ["invalid configuration", "authentication error"];
    let lasts = match error.code() {
        Some(code) => needs_somebody(code),
        None => is_of_settings.iter().any(|kind| error.to_string().starts_with(kind)),
    };
    if lasts { ConnectError::Refused(why) } else { ConnectError::Unreachable(why) }
}

/// True for what stays as it is until somebody changes a setting: a wrong password, no right, no such database.
pub fn needs_somebody(code: &SqlState) -> bool {
    let lasting = [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
    ];
    lasting.contains(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            number: 150_009,
            version: "15.9".to_owned(),
            encoding: "UTF8".to_owned(),
            isolation: "read committed".to_owned(),
            fsync: "on".to_owned(),
            user: "cron".to_owned(),
            waits_for: String::new(),
            standbys: Standbys::new("", Vec::new()),
            exists: false,
            may_make: true,
            mark: None,
        }
    }

    #[test]
    fn a_server_that_cannot_keep_the_promises_is_refused() {
        for (facts, why) in [
            (Facts { number: 110_022, version: "11.22".to_owned(), ..facts() }, "needs 12 or newer"),
            (Facts { encoding: "SQL_ASCII".to_owned(), ..facts() }, "one with UTF8"),
            (Facts { isolation: "serializable".to_owned(), ..facts() }, "ALTER ROLE \"cron\""),
        ] {
            let objection = facts.objection();
            assert!(objection.as_ref().is_some_and(|text| text.contains(why)), "{why}: {objection:?}");
        }
        assert_eq!(facts().objection(), None);
    }

    /// A server with this setting, and with as many standbys that have the name they get unless they are given one.
    fn with_standbys(fsync: &str, waits_for: &str, standbys: usize) -> Facts {
        let connected = vec!["walreceiver".to_owned(); standbys];
        let (standbys, waits_for) = (Standbys::new(waits_for, connected), waits_for.to_owned());
        Facts { fsync: fsync.to_owned(), waits_for, standbys, ..facts() }
    }

    #[test]
    fn what_a_commit_is_worth_names_what_it_waits_for() {
        for (fsync, waits_for, standbys, may_rewind, durability) in [
            ("on", "", 0, false, "each commit is on the server's disk; no standby is connected"),
            (
                "on",
                "*",
                2,
                true,
                "a failover may lose acknowledged commits: each commit waits for 1 of 2 standbys (`*`)",
            ),
            (
                "on",
                "ANY 2 (*)",
                2,
                false,
                "each commit is on the server's disk; each commit waits for 2 of 2 standbys (`ANY 2 (*)`)",
            ),
            ("off", "*", 1, true, "a crash of the server's host may lose acknowledged commits: `fsync` is off"),
        ] {
            let worth = with_standbys(fsync, waits_for, standbys).worth();
            assert_eq!((worth.may_rewind, worth.durability.as_str()), (may_rewind, durability));
        }
    }

    #[test]
    fn a_remedy_is_for_what_is_wrong() {
        let all = "set `synchronous_standby_names` to `FIRST 2 (walreceiver)`, ";
        for (fsync, waits_for, standbys, remedy) in [
            ("on", "", 0, String::new()),
            ("off", "", 0, "set `fsync` to on, ".to_owned()),
            ("on", "", 2, all.to_owned()),
            ("on", "*", 2, all.to_owned()),
            ("off", "*", 2, format!("set `fsync` to on and {all}")),
        ] {
            assert_eq!(with_standbys(fsync, waits_for, standbys).remedy(), remedy);
        }
    }
}
