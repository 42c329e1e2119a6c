//! A real PostgreSQL on 127.0.0.1, and databases in it.
//!
//! Needs Debian's package `postgresql`. PostgreSQL refuses to run as root, so root's tests run it as the
//! user `postgres`. A shell keeps it: when the pipe that this process holds is closed, even because this process was
//! killed, the shell ends the server as PostgreSQL asks to be ended, and nothing of it is left.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cronkeeper_cluster::postgres::Settings;
use rustix::process::{Pid, Signal, geteuid};

use super::port::Port;
use super::process::{children_of, output};
use super::scratch::Scratch;
use super::until;

/// Runs the server until its standard input is closed. Arguments: programs, data, port.
const KEEPER: &str =
    r#"cd /; "$1/postgres" -D "$2" -p "$3" & server=$!; cat >/dev/null; kill -QUIT $server; kill -CONT $server; wait"#;

/// A server. It ends when this value is dropped.
pub struct Server {
    port: Port,
    data: PathBuf,
    keeper: Child,
    databases: AtomicU32,
    _dir: Scratch,
}

/// A database of its own, empty at first.
pub struct Database<'a> {
    server: &'a Server,
    pub name: String,
}

/// The server shared by tests that do it no harm.
pub fn shared() -> &'static Server {
    static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start(&[], &[]));
    &SHARED
}

/// Debian's newest server.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed: tests/run.sh sees to it");
    let programs = versions.flatten().map(|version| version.path().join("bin"));
    programs.filter(|bin| bin.join("postgres").exists()).max().expect("a version of PostgreSQL has a server")
}

/// Becomes the user of PostgreSQL, if this one is root.
const AS_POSTGRES: [&str; 6] = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"];

fn as_postgres<'a>() -> impl Iterator<Item = &'a str> {
    AS_POSTGRES.into_iter().filter(|_| geteuid().is_root())
}

/// A command with these arguments, as the user that PostgreSQL runs as.
fn command(program: &Path, args: &[&str]) -> Command {
    let program = program.to_str().expect("the path is text");
    let mut words = as_postgres().chain([program]);
    let mut command = Command::new(words.next().unwrap_or(program));
    command.args(words).args(args);
    command
}

impl Server {
    /// Starts a server with these settings, `name = value`, and these files beside its own. Returns when it accepts
    /// connections.
    pub fn start(settings: &[&str], files: &[(&str, &str)]) -> Self {
        let dir = Scratch::open_to_others("postgres");
        let (port, data) = (Port::hold(), dir.path().join("data"));
        if geteuid().is_root() {
            assert!(output("chown", |command| _ = command.arg("postgres").arg(dir.path())).status.success());
        }
        let shown = data.to_str().expect("the path is text");
        let init = ["-D", shown, "-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8", "--no-sync"];
        let mut init = command(&programs().join("initdb"), &init);
        let made = init.stdin(Stdio::null()).current_dir("/").output().expect("initdb can be started");
        assert!(made.status.success(), "{}", made.stderr.escape_ascii());
        let own = [
            "listen_addresses = '127.0.0.1'".to_owned(),
            "unix_socket_directories = ''".to_owned(),
            "max_connections = 500".to_owned(),
            "log_min_messages = warning".to_owned(),
            // The tests kill servers, not hosts: what is written is there. The disk has enough to do.
            "fsync = off".to_owned(),
            "min_wal_size = 32MB".to_owned(),
        ];
        let all: Vec<String> = own.into_iter().chain(settings.iter().map(|line| (*line).to_owned())).collect();
        fs::write(data.join("postgresql.auto.conf"), all.join("\n") + "\n").expect("the settings can be written");
        for (name, text) in files {
            give(&dir.write(name, text), &data.join(name));
        }
        Self::launch(port, data, dir)
    }

    /// A copy of this server that follows it, and accepts no writes until it is promoted.
    pub fn standby(&self) -> Self {
        let dir = Scratch::open_to_others("standby");
        let (port, data) = (Port::hold(), dir.path().join("data"));
        if geteuid().is_root() {
            assert!(output("chown", |command| _ = command.arg("postgres").arg(dir.path())).status.success());
        }
        let following = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        let before = self.sql("postgres", following);
        let (from, shown) = (self.port().to_string(), data.to_str().expect("the path is text"));
        let copy = ["-D", shown, "-h", "127.0.0.1", "-p", &from, "-U", "postgres", "-R", "-c", "fast", "--no-sync"];
        let mut copy = command(&programs().join("pg_basebackup"), &copy);
        let made = copy.stdin(Stdio::null()).current_dir("/").output().expect("pg_basebackup can be started");
        assert!(made.status.success(), "{}", made.stderr.escape_ascii());
        let standby = Self::launch(port, data, dir);
        until("the standby follows", || self.sql("postgres", following) != before);
        standby
    }

    /// Changes a setting.
    pub fn set(&self, name: &str, value: &str) {
        self.sql("postgres", &format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.sql("postgres", "SELECT pg_reload_conf()");
        let is_set = format!("SELECT count(*) FROM pg_settings WHERE name = '{name}' AND setting = '{value}'");
        until("the setting is in force", || self.sql("postgres", &is_set) == "1");
    }

    /// Kills all processes of the server at once.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.keeper_ended();
    }

    /// Ends the server as fast as it can end in order.
    pub fn end(&mut self) {
        let _ended = rustix::process::kill_process(self.pid(), Signal::INT);
        until("the server has ended", || !self.data.join("postmaster.pid").exists());
        self.keeper_ended();
    }

    fn keeper_ended(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }

    /// Starts a server that has ended.
    pub fn start_again(&mut self) {
        self.keeper = Self::keep(&self.data, &self.port);
        await_ready("PostgreSQL", &self.port);
    }

    /// Sends a signal to all processes of the server.
    pub fn signal(&self, signal: Signal) {
        let first = self.pid();
        let send = |pid, signal| {
            let _ended = rustix::process::kill_process(pid, signal);
        };
        if signal != Signal::CONT {
            // It would start others meanwhile.
            send(first, Signal::STOP);
        }
        let children = children_of(first.as_raw_nonzero().get().cast_unsigned());
        let children = children.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed()));
        children.chain([first]).for_each(|pid| send(pid, signal));
    }

    /// Cuts a standby off from the server that it follows.
    pub fn cut_off(&self) {
        self.set("primary_conninfo", "");
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        until("the standby does not follow any more", || self.sql("postgres", receivers) == "0");
    }

    /// Makes a standby accept writes.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "SELECT pg_promote()"), "t");
    }

    fn launch(port: Port, data: PathBuf, dir: Scratch) -> Self {
        let keeper = Self::keep(&data, &port);
        let server = Self { port, data, keeper, databases: AtomicU32::new(0), _dir: dir };
        await_ready("PostgreSQL", &server.port);
        server
    }

    fn keep(data: &Path, port: &Port) -> Child {
        let log = fs::File::options().create(true).append(true).open(data.with_file_name("log"));
        let log = log.expect("a log can be opened");
        let also = log.try_clone().expect("a descriptor can be doubled");
        let (programs, number) = (programs(), port.number().to_string());
        let mut keeper = command(Path::new("/bin/sh"), &["-c", KEEPER, "keeper"]);
        keeper.arg(programs).arg(data).arg(number);
        // A group of its own: Ctrl-C on the terminal must not reach it.
        keeper.stdin(Stdio::piped()).stdout(also).stderr(log).process_group(0);
        keeper.spawn().expect("a shell can be started")
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The first process of the server.
    pub fn pid(&self) -> Pid {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).expect("the server is running");
        let number = text.lines().next().and_then(|line| line.parse().ok());
        number.and_then(Pid::from_raw).expect("its first line is a number")
    }

    /// Makes a database.
    pub fn database(&self) -> Database<'_> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        Database { server: self, name }
    }

    /// Carries statements out as the superuser. Returns what they print.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let number = self.port.number().to_string();
        let done = output("psql", |command| {
            command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
            command.args(["-p", &number, "-d", database, "-c", sql]);
        });
        assert!(done.status.success(), "{sql}: {}", done.stderr.escape_ascii());
        String::from_utf8(done.stdout).expect("it is text").trim().to_owned()
    }
}

/// A pool of connections to a server: PgBouncer, which gives each transaction any of them. It ends when this value is
/// dropped.
pub struct Pool {
    port: Port,
    keeper: Child,
    _dir: Scratch,
}

/// Runs the pool until its standard input is closed. Argument: its settings.
const POOL_KEEPER: &str = r#"cd /; pgbouncer "$1" & pool=$!; cat >/dev/null; kill -KILL $pool; wait"#;

impl Pool {
    pub fn of(server: &Server) -> Self {
        let (dir, port) = (Scratch::open_to_others("pool"), Port::hold());
        // Everybody who logs in to the pool is one user for the server.
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 user=postgres port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n",
            server.port(),
            port.number()
        );
        let path = dir.path().join("pool.ini");
        give(&dir.write("settings", &settings), &path);
        let mut keeper = command(Path::new("/bin/sh"), &["-c", POOL_KEEPER, "keeper"]);
        keeper.arg(&path).env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let keeper = keeper.spawn().expect("a shell can be started");
        let pool = Self { port, keeper, _dir: dir };
        await_ready("PgBouncer", &pool.port);
        pool
    }

    /// The settings of a node that uses a database through the pool.
    pub fn connect_string(&self, database: &Database<'_>) -> String {
        format!("host=127.0.0.1 port={} dbname={} user=postgres", self.port.number(), database.name)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

/// Copies a file for the user that PostgreSQL runs as, who alone may read it: else it would be refused as that of a key.
fn give(from: &Path, to: &Path) {
    let given = output("install", |command| {
        command.args(["-m", "600"]).args(["-o", "postgres"].iter().filter(|_| geteuid().is_root()));
        command.arg(from).arg(to);
    });
    assert!(given.status.success(), "{}", given.stderr.escape_ascii());
}

/// Waits until something accepts connections as PostgreSQL does.
fn await_ready(what: &str, port: &Port) {
    until(&format!("{what} accepts connections"), || {
        let number = port.number().to_string();
        let ready = output("pg_isready", |command| _ = command.args(["-q", "-h", "127.0.0.1", "-p", &number]));
        ready.status.success()
    });
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

impl Drop for Database<'_> {
    /// Removes it from a server that goes on.
    fn drop(&mut self) {
        let number = self.server.port.number().to_string();
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &number, "-d", "postgres", "-c", &sql]);
        // A server that was ended takes its databases along.
        drop(psql.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}

impl Database<'_> {
    /// The settings of a node that uses it, as `--postgres` takes them.
    pub fn connect_string(&self) -> String {
        format!("host=127.0.0.1 port={} dbname={} user=postgres", self.server.port(), self.name)
    }

    pub fn settings(&self) -> Settings {
        self.connect_string().parse().expect("they are correct")
    }

    /// Carries statements out as the superuser. Returns what they print.
    pub fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.name, sql)
    }

    /// What `pg_dump` writes of the cluster's schema.
    pub fn back_up(&self) -> String {
        let number = self.server.port.number().to_string();
        let done = output("pg_dump", |command| {
            command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &number, "-n", "cronkeeper", &self.name]);
        });
        assert!(done.status.success(), "{}", done.stderr.escape_ascii());
        String::from_utf8(done.stdout).expect("it is text")
    }

    /// Replaces the cluster's schema by that of a backup, at one moment.
    pub fn restore(&self, backup: &str) {
        let (dir, number) = (Scratch::new("backup"), self.server.port.number().to_string());
        let file = dir.write("backup.sql", &format!("DROP SCHEMA cronkeeper CASCADE;\n{backup}"));
        let done = output("psql", |command| {
            command.args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
            command.args(["-p", &number, "-d", &self.name, "-f"]).arg(&file);
        });
        assert!(done.status.success(), "{}", done.stderr.escape_ascii());
    }
}
