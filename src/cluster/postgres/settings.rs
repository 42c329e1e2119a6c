//! Where a cluster's PostgreSQL is, and how to log in: libpq's keywords and URLs.
//!
//! The client library takes most of them. Here is what it leaves out: verified TLS, and passwords from files.

use std::env;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use super::tls::Tls;
use crate::safe_path::{self, Refusal, Wanted};
use crate::tls::{self, Identity, TlsError, Trust};

/// Where Debian's and most other servers have their socket, for settings that name no host.
const SOCKETS: &str = "/var/run/postgresql";
/// Where a server listens if the settings name no port.
const PORT: u16 = 5432;
/// Time for one address to accept a connection, if the settings name none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long data may be on its way before the connection counts as lost, if the settings do not say it.
const VANISHED: Duration = Duration::from_secs(10);
/// Most bytes of a file with passwords or certificates.
const MOST_BYTES: u64 = 4 << 20;

/// How to reach PostgreSQL. What it names is not read yet.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    config: Box<Config>,
    mode: Mode,
    files: Files,
}

/// `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    passwords: Option<PathBuf>,
}

/// What is needed to connect.
pub(super) struct Login {
    config: Box<Config>,
    /// If the settings have none.
    passwords: Option<Passwords>,
    pub tls: Tls,
}

impl Login {
    /// Says why there is no password for a server that asks for one.
    pub(super) fn no_password(&self, server: &Server) -> String {
        match &self.passwords {
            Some(Passwords::OfFile { path, user, database, .. }) => format!(
                "the server asks for a password, and no line of `{}` is for {}:{}:{database}:{user}: add \
                 `{}:{}:{database}:{user}:PASSWORD`",
                path.display(),
                server.name(),
                server.port,
                server.name(),
                server.port,
            ),
            Some(Passwords::One(_)) | None => {
                "the server asks for a password, and there is none: add `passfile=FILE`, a file that only its owner may \
                 read, with the line `HOST:PORT:DATABASE:USER:PASSWORD`, in which `*` matches everything"
                    .to_owned()
            }
        }
    }

    /// How to connect to each server, in their order.
    pub(super) fn servers(&self) -> Vec<Server> {
        let config = &self.config;
        let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
        let one = |place: usize| {
            let port = config.get_ports().get(place).or(config.get_ports().first()).copied().unwrap_or(PORT);
            Server { host: hosts.get(place).cloned(), address: addresses.get(place).copied(), port }
        };
        (0..hosts.len().max(addresses.len())).map(one).collect()
    }

    /// The same for one server at this address; `None`: at its socket.
    pub(super) fn to(&self, server: &Server, address: Option<IpAddr>) -> Config {
        let from = &self.config;
        let mut config = Config::new();
        from.get_user().map(|user| config.user(user));
        from.get_password().map(|password| config.password(password));
        from.get_dbname().map(|database| config.dbname(database));
        from.get_options().map(|options| config.options(options));
        from.get_application_name().map(|name| config.application_name(name));
        from.get_connect_timeout().map(|timeout| config.connect_timeout(*timeout));
        from.get_tcp_user_timeout().map(|timeout| config.tcp_user_timeout(*timeout));
        from.get_keepalives_interval().map(|interval| config.keepalives_interval(interval));
        from.get_keepalives_retries().map(|retries| config.keepalives_retries(retries));
        config.keepalives(from.get_keepalives()).keepalives_idle(from.get_keepalives_idle());
        config.ssl_mode(from.get_ssl_mode()).ssl_negotiation(from.get_ssl_negotiation());
        config.channel_binding(from.get_channel_binding());
        config.target_session_attrs(from.get_target_session_attrs());
        match &server.host {
            Some(Host::Tcp(name)) => _ = config.host(name),
            Some(Host::Unix(folder)) => _ = config.host_path(folder),
            // For the name in the certificate.
            None => _ = server.address.map(|address| config.host(address.to_string())),
        }
        if from.get_password().is_none()
            && let Some(password) = self.passwords.as_ref().and_then(|passwords| passwords.of(server))
        {
            config.password(password);
        }
        address.map(|address| config.hostaddr(address));
        config.port(server.port);
        config
    }
}

/// What logs in where the settings have no password.
enum Passwords {
    One(String),
    /// Of a file with a line for each server, user and database.
    OfFile {
        path: PathBuf,
        text: String,
        user: String,
        database: String,
    },
}

impl Passwords {
    /// The password of the first line that fits.
    fn of(&self, server: &Server) -> Option<String> {
        let (text, user, database) = match self {
            Self::One(password) => return Some(password.clone()),
            Self::OfFile { text, user, database, .. } => (text, user, database),
        };
        let (host, port) = (server.name(), server.port.to_string());
        text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let fields = <[String; 5]>::try_from(fields(line)).ok()?;
            let wanted = [&host, &port, database, user];
            let fits = fields.iter().zip(wanted).all(|(pattern, value)| pattern == "*" || pattern == value);
            let [.., password] = fields;
            fits.then_some(password)
        })
    }
}

/// A server as the settings name it.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub host: Option<Host>,
    pub address: Option<IpAddr>,
    pub port: u16,
}

impl Server {
    /// As libpq calls it in a file with passwords.
    fn name(&self) -> String {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => name.clone(),
            (None, Some(address)) => address.to_string(),
            (Some(Host::Unix(_)) | None, None) | (Some(Host::Unix(_)), Some(_)) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => write!(f, "{name}:{}", self.port),
            (Some(Host::Unix(folder)), _) => write!(f, "{}:{}", folder.display(), self.port),
            (None, Some(address)) => write!(f, "{address}:{}", self.port),
            (None, None) => write!(f, "{}", self.port),
        }
    }
}

/// Why settings cannot be used. No message has a password in it.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{0}")]
    Malformed(String),
    #[error("`{key}={value}`: {why}")]
    Value { key: &'static str, value: String, why: &'static str },
    #[error("`sslmode={mode}` needs the authorities that sign the server's certificate: add `sslrootcert=FILE`")]
    NoAuthorities { mode: &'static str },
    #[error("`sslrootcert` is set, but the certificate would not be checked: add `sslmode=verify-full`")]
    Unverified,
    #[error("`sslcert` and `sslkey` belong together: set both or none")]
    HalfIdentity,
    #[error("{}", safe_path::of_setting(key, path, refusal))]
    File { key: &'static str, path: PathBuf, refusal: Refusal },
    #[error("`{keys}`: {source}")]
    Tls { keys: &'static str, source: TlsError },
}

impl Mode {
    fn parse(value: &str) -> Result<Self, SettingsError> {
        Ok(match value {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                let why = "it is disable, prefer, require, verify-ca or verify-full";
                return Err(SettingsError::Value { key: "sslmode", value: value.to_owned(), why });
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        if text.trim().is_empty() {
            return Err(SettingsError::Malformed("it is empty; name a host and a database".to_owned()));
        }
        let (rest, own) = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            of_url(text)?
        } else {
            of_keywords(text)?
        };
        let mut settings = Self { config: Box::new(parse(&rest)?), mode: Mode::Prefer, files: Files::default() };
        for (key, value) in own {
            let file = || Some(PathBuf::from(&value));
            match key.as_str() {
                "sslmode" => settings.mode = Mode::parse(&value)?,
                "sslrootcert" => settings.files.authorities = file(),
                "sslcert" => settings.files.certificate = file(),
                "sslkey" => settings.files.key = file(),
                _ => settings.files.passwords = file(),
            }
        }
        settings.check()?;
        settings.complete();
        Ok(settings)
    }
}

/// The keywords that the client library does not know, or knows less of.
const OWN: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "passfile"];

type OwnKeywords = Vec<(String, String)>;

/// Parses what the client library knows. Its messages name the keyword, and never the value.
fn parse(text: &str) -> Result<Config, SettingsError> {
    text.parse().map_err(|error: tokio_postgres::Error| SettingsError::Malformed(super::in_full(&error)))
}

/// Splits a URL into what the client library takes, and the own parameters.
fn of_url(url: &str) -> Result<(String, OwnKeywords), SettingsError> {
    let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), Vec::new())) };
    let mut own = Vec::new();
    let mut rest = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) if OWN.contains(&key) => {
                let value = percent_decode_str(value).decode_utf8();
                let value = value.map_err(|_| SettingsError::Malformed(format!("`{key}` is not UTF-8")))?;
                own.push((key.to_owned(), value.into_owned()));
            }
            _ => rest.push(part),
        }
    }
    Ok((if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) }, own))
}

/// Splits `keyword=value` pairs into what the client library takes, and the own keywords.
fn of_keywords(text: &str) -> Result<(String, OwnKeywords), SettingsError> {
    let (mut rest, mut own) = (String::new(), Vec::new());
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|char| char.is_whitespace()).is_some() {}
        let mut key = String::new();
        while let Some(char) = chars.next_if(|&char| char != '=' && !char.is_whitespace()) {
            key.push(char);
        }
        if key.is_empty() && chars.peek().is_none() {
            return Ok((rest, own));
        }
        while chars.next_if(|char| char.is_whitespace()).is_some() {}
        if key.is_empty() || chars.next() != Some('=') {
            // What is not `keyword=value` may be a password.
            return Err(SettingsError::Malformed(
                "it is neither `keyword=value` pairs nor a URL that begins with postgres://".to_owned(),
            ));
        }
        while chars.next_if(|char| char.is_whitespace()).is_some() {}
        let is_quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if is_quoted => break,
                Some(char) if !is_quoted && char.is_whitespace() => break,
                Some(char) => value.push(char),
                None if is_quoted => {
                    return Err(SettingsError::Malformed(format!("the quote of `{key}` is not closed")));
                }
                None => break,
            }
        }
        if OWN.contains(&key.as_str()) {
            own.push((key, value));
        } else {
            let value = value.replace('\\', "\\\\").replace('\'', "\\'");
            rest.push_str(&format!("{key}='{value}' "));
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), SettingsError> {
        let value = |key, value: &str, why| Err(SettingsError::Value { key, value: value.to_owned(), why });
        let (hosts, addresses, ports) =
            (self.config.get_hosts().len(), self.config.get_hostaddrs().len(), self.config.get_ports().len());
        if self.config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            let why = "leave it out: cronkeeper finds the server that accepts writes";
            return value("target_session_attrs", "read-only", why);
        }
        if self.config.get_ssl_negotiation() == SslNegotiation::Direct {
            return value("sslnegotiation", "direct", "leave it out: it is negotiated as with older servers");
        }
        if self.config.get_channel_binding() == ChannelBinding::Require {
            return value("channel_binding", "require", "it is not supported; use `sslmode=verify-full`");
        }
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            return value("load_balance_hosts", "random", "leave it out: the servers are tried in their order");
        }
        // What is before the last `@` of a URL may be a part of the password.
        if self.config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            let why = "the host has an `@` in it; if the password of the URL has one, write `%40`";
            return Err(SettingsError::Malformed(why.to_owned()));
        }
        if hosts > 0 && addresses > 0 && hosts != addresses {
            let why = format!(
                "there are {hosts} hosts and {addresses} addresses in `hostaddr`; name one for each \
                host"
            );
            return Err(SettingsError::Malformed(why));
        }
        if ports > 1 && ports != hosts.max(addresses) {
            let why = format!("there are {ports} ports; name one, or one for each host");
            return Err(SettingsError::Malformed(why));
        }
        match (self.mode, &self.files.authorities) {
            (Mode::VerifyCa | Mode::VerifyFull, None) => {
                return Err(SettingsError::NoAuthorities { mode: self.mode.name() });
            }
            (Mode::Disable | Mode::Prefer, Some(_)) => return Err(SettingsError::Unverified),
            _ => {}
        }
        if self.files.certificate.is_some() != self.files.key.is_some() {
            return Err(SettingsError::HalfIdentity);
        }
        if self.files.authorities.as_deref() == Some(Path::new("system")) {
            let why = "the system's authorities are not supported; name their file, such as \
                       /etc/ssl/certs/ca-certificates.crt";
            return value("sslrootcert", "system", why);
        }
        Ok(())
    }

    /// Sets what has a default.
    fn complete(&mut self) {
        let config = &mut self.config;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host(SOCKETS);
        }
        // A server that has vanished must not keep what it has promised to others for hours.
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(VANISHED);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("cronkeeper");
        }
        // Whoever connects asks whether the server accepts writes, and says why not.
        config.target_session_attrs(TargetSessionAttrs::Any);
        config.ssl_mode(match self.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
    }

    /// The name of the database.
    pub fn database(&self) -> String {
        let user = || self.config.get_user().map_or_else(whoami, str::to_owned);
        self.config.get_dbname().map_or_else(user, str::to_owned)
    }

    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// If one cannot be used, or others can change it, or read a password in it.
    pub(super) fn login(&self) -> Result<Login, SettingsError> {
        let config = self.config.clone();
        let passwords = if config.get_password().is_none() { self.passwords()? } else { None };
        let authorities = self.files.authorities.as_deref();
        let authorities = authorities.map(|path| read("sslrootcert", path, Wanted::Trusted)).transpose()?;
        let trust = match (self.mode, authorities) {
            (Mode::VerifyFull, Some(pem)) => Trust::Named(pem),
            // As libpq: a file with authorities is not there for nothing.
            (Mode::VerifyCa | Mode::Require, Some(pem)) => Trust::Signed(pem),
            _ => Trust::Anybody,
        };
        let identity = match (&self.files.certificate, &self.files.key) {
            (Some(certificate), Some(key)) => {
                let certificate = read("sslcert", certificate, Wanted::Trusted)?;
                Some(Identity { certificate, key: read("sslkey", key, Wanted::Secret)? })
            }
            _ => None,
        };
        let tls = tls::client(trust, identity).map_err(|source| match source {
            TlsError::Authorities(_) => SettingsError::Tls { keys: "sslrootcert", source },
            TlsError::Identity(_) => SettingsError::Tls { keys: "sslcert, sslkey", source },
        })?;
        Ok(Login { config, passwords, tls: Tls(tls) })
    }

    /// The password of `PGPASSWORD`, or those of a file, in libpq's order.
    fn passwords(&self) -> Result<Option<Passwords>, SettingsError> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(password) = variable("PGPASSWORD") {
            return Ok(Some(Passwords::One(password)));
        }
        let of_variable = || Some(("PGPASSFILE", PathBuf::from(variable("PGPASSFILE")?)));
        let named = self.files.passwords.clone().map(|path| ("passfile", path)).or_else(of_variable);
        // The usual place, if there is one.
        let usual = || Some(("~/.pgpass", Path::new(&variable("HOME")?).join(".pgpass")));
        let found = named.or_else(|| usual().filter(|(_, path)| path.exists()));
        let Some((key, path)) = found else { return Ok(None) };
        let text = safe_path::read_text(&path, Wanted::Secret, MOST_BYTES).map_err(|refusal| SettingsError::File {
            key,
            path: path.clone(),
            refusal,
        })?;
        let user = self.config.get_user().map_or_else(whoami, str::to_owned);
        Ok(Some(Passwords::OfFile { path, text, user, database: self.database() }))
    }

    /// Each host with its port, as the settings name them.
    fn addresses(&self) -> Vec<(String, u16)> {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            // As libpq calls it in such files.
            Host::Unix(_) => "localhost".to_owned(),
        });
        let mut names: Vec<String> = hosts.collect();
        if names.is_empty() {
            names = self.config.get_hostaddrs().iter().map(ToString::to_string).collect();
        }
        let ports = self.config.get_ports();
        let port = |place: usize| ports.get(place).or(ports.first()).copied().unwrap_or(PORT);
        names.into_iter().enumerate().map(|(place, name)| (name, port(place))).collect()
    }
}

/// The user of this process, as the client library finds it.
fn whoami() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    user.map(|user| user.name).unwrap_or_default()
}

/// The fields of a line of a file with passwords.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => field.extend(chars.next()),
            ':' if fields.len() < 4 => fields.push(std::mem::take(&mut field)),
            char => field.push(char),
        }
    }
    fields.push(field);
    fields
}

fn read(key: &'static str, path: &Path, wanted: Wanted) -> Result<Vec<u8>, SettingsError> {
    safe_path::read_bytes(path, wanted, MOST_BYTES).map_err(|refusal| SettingsError::File {
        key,
        path: path.to_owned(),
        refusal,
    })
}

/// The hosts and the database, without user and password.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.config.get_hosts().iter().zip(self.addresses()).map(|(host, (name, port))| match host {
            Host::Tcp(_) => format!("{name}:{port}"),
            Host::Unix(folder) => format!("{}:{port}", folder.display()),
        });
        let mut hosts: Vec<String> = hosts.collect();
        if hosts.is_empty() {
            hosts = self.addresses().into_iter().map(|(name, port)| format!("{name}:{port}")).collect();
        }
        write!(f, "{}/{}", hosts.join(","), self.database())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        text.parse().expect("they can be read")
    }

    #[test]
    fn both_forms_name_hosts_database_and_files() {
        for text in [
            "host=db1,db2 port=5433 dbname=ops user=cron sslmode=verify-full sslrootcert='/etc/my ca.pem' passfile=/p",
            "postgres://cron@db1:5433,db2:5433/ops?sslmode=verify-full&sslrootcert=/etc/my%20ca.pem&passfile=/p",
        ] {
            let settings = settings(text);
            assert_eq!(settings.to_string(), "db1:5433,db2:5433/ops", "{text}");
            let files =
                Files { authorities: Some("/etc/my ca.pem".into()), passwords: Some("/p".into()), ..Files::default() };
            assert_eq!((settings.mode, &settings.files), (Mode::VerifyFull, &files));
            assert_eq!(settings.config.get_ssl_mode(), SslMode::Require);
        }
        assert_eq!(settings("dbname=ops").to_string(), "/var/run/postgresql:5432/ops");
    }

    #[test]
    fn a_value_may_have_quotes_and_blanks() {
        let settings = settings(r"user = 'o\'brien' password='a b\\c' host=h options='-c x=1' dbname=d");
        assert_eq!(settings.config.get_user(), Some("o'brien"));
        assert_eq!(settings.config.get_password(), Some(&br"a b\c"[..]));
        assert_eq!(settings.config.get_options(), Some("-c x=1"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_message_has_the_password() {
        for (text, why) in [
            ("", "it is empty"),
            ("secret", "it is neither `keyword=value` pairs"),
            ("host=h password='secret", "the quote of `password` is not closed"),
            ("host=h password=secret sslmode=on", "`sslmode=on`: it is disable, prefer"),
            ("host=h password=secret sslmode=verify-full", "add `sslrootcert=FILE`"),
            ("host=h password=secret target_session_attrs=read-only", "finds the server that accepts writes"),
            ("host=h password=secret sslcert=/c", "`sslcert` and `sslkey` belong together"),
            ("host=h password=secret sslrootcert=/ca", "add `sslmode=verify-full`"),
            ("host=h password=secret sslmode=verify-full sslrootcert=system", "name their file"),
            ("postgres://cron:se@secret@db1/ops", "write `%40`"),
            ("host=a = dbname=x", "it is neither `keyword=value` pairs"),
            ("host=a,b hostaddr=127.0.0.1 dbname=x", "name one for each host"),
            ("host=a,b port=1,2,3 dbname=x", "there are 3 ports"),
            ("host=a load_balance_hosts=random", "tried in their order"),
            ("host=a channel_binding=require", "`sslmode=verify-full`"),
            ("host=a sslnegotiation=direct sslmode=require", "as with older servers"),
            ("host=h password=secret tabel=x", "tabel"),
            ("host=h password=secret port=x", "port"),
        ] {
            let error = text.parse::<Settings>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
        let settings = settings("postgres://cron:secret@db1/ops");
        assert!(!format!("{settings} {settings:?}").contains("secret"));
    }

    #[test]
    fn the_first_line_that_fits_the_server_has_its_password() {
        let server = |name: &str, port| Server { host: Some(Host::Tcp(name.to_owned())), address: None, port };
        let (db1, db2) = (server("db1", 5432), server("db2", 5433));
        for (text, of_db1, of_db2) in [
            ("db2:5433:ops:cron:two\n*:*:*:*:one", Some("one"), Some("two")),
            ("# db1:5432:ops:cron:no\ndb1:5433:ops:cron:no\ndb1:*:*:cron:a\\:b:c", Some("a:b:c"), None),
            ("other:*:*:*:no\n*:*:*:other:no\nbroken\n", None, None),
        ] {
            let (user, database) = ("cron".to_owned(), "ops".to_owned());
            let passwords = Passwords::OfFile { path: "/p".into(), text: text.to_owned(), user, database };
            assert_eq!((passwords.of(&db1).as_deref(), passwords.of(&db2).as_deref()), (of_db1, of_db2), "{text}");
        }
    }
}
