//! How to log in, and what is refused: the message says what is wrong and what to do, and nothing is made in a place that is
//! not cronkeeper's.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use crate::support::LONG;
use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::node::Spec;
use crate::support::postgres::{Database, Server, shared};
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;

/// Takes only TLS, and passwords from the user `cron`.
struct Secured {
    certificates: Certificates,
    server: Server,
}

static SECURED: LazyLock<Secured> = LazyLock::new(|| {
    let certificates = Certificates::new();
    let pair = std::fs::read_to_string(&certificates.server_store).expect("it can be read");
    let access =
        "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhostssl all cron 127.0.0.1/32 scram-sha-256\n";
    let settings = ["fsync = on", "ssl = on", "ssl_cert_file = 'pair.pem'", "ssl_key_file = 'pair.pem'"];
    let server = Server::start(&settings, &[("pair.pem", &pair), ("pg_hba.conf", access)]);
    server.sql("postgres", "CREATE ROLE cron LOGIN PASSWORD 'pass word'");
    Secured { certificates, server }
});

/// What `run` prints that cannot start, without its first word. It must exit with 78.
fn refused(connect: &str) -> String {
    let dir = Scratch::new("refused");
    let jobs = dir.write("jobs.yaml", "jobs: {}\n");
    let state = dir.path().join("state");
    let line = ["run", "--postgres", connect, "--log", "off", "--jobs"];
    let rest = [jobs.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
    let (code, _, err) = texts(&run(&[&line[..], &rest].concat()));
    assert_eq!(code, Some(78), "{connect}: {err}");
    err
}

#[test]
fn an_address_without_a_name_is_enough_where_nobody_is_verified() {
    let Secured { server, .. } = &*SECURED;
    let (database, dir) = (server.database(), Scratch::new("address"));
    let passwords = dir.write("pgpass", "127.0.0.1:*:*:cron:pass word\n");
    let (port, name, file) = (server.port(), &database.name, passwords.display());
    let connect = format!("hostaddr=127.0.0.1 port={port} dbname={name} user=cron passfile={file}");
    let (code, _, err) = texts(&run(&["check", "--service", "--postgres", &connect]));
    assert!(err.contains("may not create it"), "{err}");
    assert_eq!(code, Some(78), "{err}");
}

/// Where everybody may create in `public`.
#[test]
fn functions_and_operators_of_others_are_not_called() {
    let database = shared().database();
    database.sql(
        "CREATE FUNCTION public.trap(numeric, int4) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
         CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = int4, FUNCTION = public.trap);
         CREATE FUNCTION public.obj_description(regnamespace, text) RETURNS text LANGUAGE plpgsql
            AS 'BEGIN RAISE ''trapped''; END';
         CREATE FUNCTION public.has_table_privilege(regclass, text) RETURNS bool LANGUAGE plpgsql
            AS 'BEGIN RAISE ''trapped''; END';",
    );
    for _ in 0..2 {
        let node = Spec::new(CRONKEEPER, "a").postgres(&database.connect_string()).jobs("jobs: {}\n").start();
        node.await_event("leader.elected", LONG);
    }
}

#[test]
fn a_verified_connection_with_a_password_from_a_file_works() {
    let Secured { certificates, server } = &*SECURED;
    let database = server.database();
    database.sql(&format!("GRANT CREATE ON DATABASE {} TO cron", database.name));
    let dir = Scratch::new("passwords");
    let passwords = dir.write("pgpass", "*:*:*:cron:pass word\n");
    let connect = format!(
        "host=localhost hostaddr=127.0.0.1 port={} dbname={} user=cron sslmode=verify-full sslrootcert={} passfile={}",
        server.port(),
        database.name,
        certificates.ca.display(),
        passwords.display()
    );
    let node = Spec::new(CRONKEEPER, "a").postgres(&connect).start();
    node.await_event("leader.elected", LONG);
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND usename = 'cron'";
    assert_ne!(database.sql(encrypted), "0");
}

#[test]
fn what_needs_somebody_is_refused_with_the_remedy() {
    let server = shared();
    let connect =
        |database: &str, user: &str| format!("host=127.0.0.1 port={} dbname={database} user={user}", server.port());
    server.sql("postgres", "CREATE ROLE limited LOGIN");
    let empty = server.database();
    let foreign = server.database();
    foreign.sql("CREATE SCHEMA cronkeeper; CREATE TABLE cronkeeper.record (mine int)");
    let serial = server.database();
    serial.sql(&format!("ALTER DATABASE {} SET default_transaction_isolation = serializable", serial.name));
    let latin = server.database();
    server.sql("postgres", &format!("DROP DATABASE {0}; ", latin.name));
    server.sql("postgres", &format!("CREATE DATABASE {} ENCODING LATIN1 TEMPLATE template0", latin.name));
    let half = server.database();
    half.sql("CREATE SCHEMA cronkeeper; COMMENT ON SCHEMA cronkeeper IS 'cronkeeper 1'");
    let later = server.database();
    later.sql("CREATE SCHEMA cronkeeper; COMMENT ON SCHEMA cronkeeper IS 'cronkeeper 2'");
    let of_owner = server.database();
    of_owner.sql(&texts(&run(&["schema", "postgres"])).1);
    let ungranted = server.database();
    ungranted.sql(&texts(&run(&["schema", "postgres"])).1);
    ungranted.sql("GRANT USAGE ON SCHEMA cronkeeper TO limited");
    let uncallable = server.database();
    uncallable.sql(&texts(&run(&["schema", "postgres"])).1);
    uncallable.sql(
        "GRANT USAGE ON SCHEMA cronkeeper TO limited;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA cronkeeper TO limited;
         REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA cronkeeper FROM PUBLIC",
    );
    for (connect, why) in [
        (connect("nowhere", "postgres"), "database \"nowhere\" does not exist"),
        (connect(&empty.name, "nobody_here"), "role \"nobody_here\" does not exist"),
        (connect(&empty.name, "limited"), "cronkeeper schema postgres | psql"),
        (connect(&foreign.name, "postgres"), "is not cronkeeper's"),
        (connect(&half.name, "postgres"), "lacks `record`"),
        (connect(&later.name, "postgres"), "was created by a later version of cronkeeper"),
        (connect(&of_owner.name, "limited"), "GRANT USAGE ON SCHEMA cronkeeper"),
        (
            connect(&ungranted.name, "limited"),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA cronkeeper TO \"limited\"\n",
        ),
        (connect(&uncallable.name, "limited"), "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cronkeeper"),
        (connect(&serial.name, "postgres"), "SET default_transaction_isolation = 'read committed'"),
        (connect(&latin.name, "postgres"), "the encoding LATIN1"),
    ] {
        let said = refused(&connect);
        assert!(said.contains(why), "{connect}: {said}");
    }
    assert_eq!(empty.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'cronkeeper'"), "0");
    assert_eq!(foreign.sql("SELECT count(*) FROM pg_class WHERE relnamespace = 'cronkeeper'::regnamespace"), "1");
}

#[test]
fn check_says_whether_a_node_could_use_a_database_and_makes_nothing() {
    let server = &SECURED.server;
    let (fresh, made, foreign) = (server.database(), server.database(), server.database());
    made.sql(&texts(&run(&["schema", "postgres"])).1);
    foreign.sql("CREATE SCHEMA cronkeeper");
    let check =
        |database: &Database<'_>| texts(&run(&["check", "--service", "--postgres", &database.connect_string()]));
    for (database, said) in [
        (&fresh, "a node would create the schema; each commit is on the server's disk; no standby is connected\n"),
        (&made, "the cluster's schema is there; each commit is on the server's disk; no standby is connected\n"),
    ] {
        let (code, out, err) = check(database);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.starts_with("PostgreSQL ") && out.ends_with(said), "{out}");
    }
    let (code, _, err) = check(&foreign);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("is not cronkeeper's"), "{err}");
    let (code, _, err) = texts(&run(&["check", "--service", "--postgres", "host=127.0.0.1 port=1 dbname=x user=x"]));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("Connection refused"), "{err}");
    assert_eq!(fresh.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'cronkeeper'"), "0");
}

#[test]
fn a_wrong_password_is_refused_and_not_shown() {
    let server = &SECURED.server;
    let said = refused(&format!("postgres://cron:wrong-secret@127.0.0.1:{}/postgres", server.port()));
    assert!(said.contains("password authentication failed for user \"cron\""), "{said}");
    assert!(!said.contains("wrong-secret"), "{said}");
    let said = refused(&format!("host=127.0.0.1 port={} dbname=postgres user=cron", server.port()));
    assert!(said.contains("there is none: add `passfile=FILE`"), "{said}");
    let (dir, port) = (Scratch::new("passfile"), server.port());
    let connect = |file: &std::path::Path| {
        format!("host=127.0.0.1 port={port} dbname=postgres user=cron passfile={}", file.display())
    };
    for (name, text) in [("empty", ""), ("other", "db9:*:*:*:secret-of-db9\n")] {
        let file = dir.write(name, text);
        let said = refused(&connect(&file));
        let no_line = format!("no line of `{}` is for 127.0.0.1:{port}:postgres:cron", file.display());
        assert!(said.contains(&no_line) && !said.contains("secret-of-db9"), "{said}");
        // The place is named once.
        assert_eq!(said.matches(&format!("127.0.0.1:{port}/postgres")).count(), 1, "{said}");
        assert!(!said.contains(&format!("cannot be used: 127.0.0.1:{port}: ")), "{said}");
    }
    let missing = dir.path().join("missing");
    let said = refused(&connect(&missing));
    assert!(said.contains(&format!("`passfile`: {}: No such file", missing.display())), "{said}");
    let open = dir.write("open", "*:*:*:*:secret\n");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let said = refused(&connect(&open));
    assert!(said.contains(&format!("`passfile`: `{}` holds a secret", open.display())), "{said}");
}

#[test]
fn settings_that_cannot_be_read_are_refused_without_showing_the_password() {
    for line in [&["run", "--postgres", "host=h password=secret sslmode=on"][..], &["locks", "--postgres", "secret"]] {
        let (code, _, err) = texts(&run(line));
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("`--postgres` (CRONKEEPER_POSTGRES) cannot be used") && !err.contains("secret"), "{err}");
    }
}

#[test]
fn what_may_pass_is_reported_with_its_cause_and_tried_again() {
    let Secured { certificates, server } = &*SECURED;
    let read_only = server.database();
    read_only.sql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", read_only.name));
    let port = server.port();
    let ca = certificates.ca.display();
    for (connect, why) in [
        ("host=127.0.0.1 port=1 dbname=ops user=cron".to_owned(), "Connection refused"),
        (
            format!("host=127.0.0.1 port={port} dbname={} user=postgres sslmode=disable", read_only.name),
            "`default_transaction_read_only` is on",
        ),
        (
            // The certificate is for localhost.
            format!(
                "host=other.example hostaddr=127.0.0.1 port={port} dbname=x user=cron sslmode=verify-full sslrootcert={ca}"
            ),
            "not valid for name",
        ),
    ] {
        let node = Spec::new(CRONKEEPER, "a").postgres(&connect).start();
        let event = node.await_event("coordination.unreachable", LONG);
        assert!(event.json().to_string().contains(why), "{connect}: {:?}", event.json());
        assert_eq!(node.status(), None, "it goes on trying");
    }
}
