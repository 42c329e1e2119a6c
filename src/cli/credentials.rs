//! Options for ZooKeeper credentials: identities and TLS certificates.
//!
//! All of them name files: secrets on the command line would be visible to every user of the host.

use std::path::{Path, PathBuf};

use crate::cli::Error;
use crate::option_file::OptionFile;
use crate::pem::{self, IdentityFault, PemFault};
use cronkeeper_cluster::safe_path::{self, Refusal, Wanted};
use cronkeeper_cluster::zookeeper::session::{Auth, Tls};

#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "credentials", multiple = true)]
pub struct Args {
    /// A file with one ZooKeeper identity per line, `scheme:credential`, such as `digest:user:password`. Only these
    /// identities can access the znodes that this node creates; a line `world:anyone` keeps them open to everybody
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_AUTH_FILE", requires = "zookeeper")]
    zookeeper_auth_file: Option<PathBuf>,
    /// Use TLS to ZooKeeper, and trust servers with a certificate from these authorities (PEM file)
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CA", requires = "zookeeper")]
    zookeeper_ca: Option<PathBuf>,
    /// Client certificate for ZooKeeper (PEM file)
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CERT", requires_all = ["zookeeper_key", "zookeeper_ca"])]
    zookeeper_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM file)
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_KEY", requires = "zookeeper_cert")]
    zookeeper_key: Option<PathBuf>,
    /// They are settings of an environment file.
    #[arg(skip)]
    are_settings: bool,
}

/// Why credentials for ZooKeeper cannot be used. Each message names the option, its variable if that has set it, and
/// the file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("{}: {} {fault}", file.option, file.path.display())]
    Pem { file: OptionFile, fault: PemFault },
    #[error("{}: the key in {} does not match the certificate in {}; name the two files of one pair, or replace \
             both together", key.option, key.path.display(), certificate.path.display())]
    OtherKey { key: OptionFile, certificate: OptionFile },
    /// Clap knows this rule, an environment file does not.
    #[error("`{option}` is set without `{without}`: set both or none")]
    Without { option: &'static str, without: &'static str },
}

const AUTH_FILE: &str = "--zookeeper-auth-file";
const CA: &str = "--zookeeper-ca";
const CERT: &str = "--zookeeper-cert";
const KEY: &str = "--zookeeper-key";
/// Most bytes of a certificate file: more than the authorities of a whole operating system have.
const LARGEST: u64 = 4 << 20;

impl Args {
    /// The file with the identities.
    pub(super) fn auth_file(&self) -> Option<&Path> {
        self.zookeeper_auth_file.as_deref()
    }

    /// Takes all options from the settings of an environment file. `of`: the value of a variable.
    pub(super) fn of_settings(of: impl Fn(&str) -> Option<String>) -> Self {
        let path = |option: &str| of(&format!("CRONKEEPER_ZOOKEEPER_{option}")).map(PathBuf::from);
        Self {
            zookeeper_auth_file: path("AUTH_FILE"),
            zookeeper_ca: path("CA"),
            zookeeper_cert: path("CERT"),
            zookeeper_key: path("KEY"),
            are_settings: true,
        }
    }

    fn file(&self, option: &'static str, path: &Path) -> OptionFile {
        let file = if self.are_settings { OptionFile::of_variable } else { OptionFile::given };
        file(option, path.to_owned())
    }

    /// The identities to authenticate with; none without `--zookeeper-auth-file`.
    pub(super) fn auth(&self) -> Result<Auth, Error> {
        let Some(path) = &self.zookeeper_auth_file else { return Ok(Auth::default()) };
        let file = self.file(AUTH_FILE, path);
        let bytes = read(&file, Wanted::Secret)?;
        let text = str::from_utf8(&bytes).ok();
        text.and_then(identities).ok_or(Error::AuthFile(file))
    }

    /// The TLS certificates; `None` without `--zookeeper-ca`, which means no TLS.
    ///
    /// What the client library would only refuse at each attempt to connect is refused here.
    pub(super) fn tls(&self) -> Result<Option<Tls>, Error> {
        let without = |option, without| Err(CredentialError::Without { option, without }.into());
        let identity = match (&self.zookeeper_cert, &self.zookeeper_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return without(CERT, KEY),
            (None, Some(_)) => return without(KEY, CERT),
            (None, None) => None,
        };
        let Some(ca) = &self.zookeeper_ca else {
            return if identity.is_some() { without(CERT, CA) } else { Ok(None) };
        };
        let ca = self.file(CA, ca);
        let trusted = read(&ca, Wanted::Trusted)?;
        pem::authorities(&trusted).map_err(|fault| CredentialError::Pem { file: ca, fault })?;
        let pair = |(certificate, key): (&PathBuf, &PathBuf)| pair(self.file(CERT, certificate), self.file(KEY, key));
        let identity = identity.map(pair).transpose()?;
        Ok(Some(Tls { ca: Some(text(&trusted)), identity }))
    }
}

/// Reads a certificate and its key.
fn pair(certificate: OptionFile, key: OptionFile) -> Result<(String, String), Error> {
    let bytes = (read(&certificate, Wanted::Trusted)?, read(&key, Wanted::Secret)?);
    pem::check_identity(&bytes.0, &bytes.1).map_err(|fault| match fault {
        IdentityFault::Certificate(fault) => CredentialError::Pem { file: certificate, fault },
        IdentityFault::Key(fault) => CredentialError::Pem { file: key, fault },
        IdentityFault::OtherKey => CredentialError::OtherKey { key, certificate },
    })?;
    Ok((text(&bytes.0), text(&bytes.1)))
}

/// The text of a PEM file. Only what is around its sections may be in another encoding.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The line that opens the znodes to everybody.
const WORLD: &str = "world:anyone";

/// Parses an authentication file. `None` if a line is malformed, or if no line names an identity.
fn identities(text: &str) -> Option<Auth> {
    let mut auth = Auth::default();
    for line in text.lines().map(|line| line.trim_end_matches('\r')).filter(|line| !line.trim().is_empty()) {
        if line.trim() == WORLD {
            auth.with_world = true;
            continue;
        }
        let (scheme, credential) = line.split_once(':').filter(|(scheme, _)| !scheme.is_empty())?;
        auth.identities.push((scheme.to_owned(), credential.as_bytes().to_owned()));
    }
    (!auth.identities.is_empty()).then_some(auth)
}

/// Reads a file that others cannot change nor, if it is secret, read.
fn read(file: &OptionFile, wanted: Wanted) -> Result<Vec<u8>, Error> {
    safe_path::read_bytes(&file.path, wanted, LARGEST).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => Error::UnsafeOption { option: file.option, found },
        Refusal::Io(source) => Error::CredentialFile { file: file.clone(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn read_as(text: &str) -> Option<(Vec<(String, String)>, bool)> {
        let auth = identities(text)?;
        let text = |credential: Vec<u8>| String::from_utf8(credential).expect("it was UTF-8");
        let identities = auth.identities.into_iter().map(|(scheme, credential)| (scheme, text(credential)));
        Some((identities.collect(), auth.with_world))
    }

    fn digest(credential: &str) -> (String, String) {
        ("digest".to_owned(), credential.to_owned())
    }

    #[test]
    fn each_line_is_an_identity_and_world_anyone_means_everybody() {
        assert_eq!(read_as("digest:cron:secret\n"), Some((vec![digest("cron:secret")], false)));
        assert_eq!(read_as("digest:cron:secret"), Some((vec![digest("cron:secret")], false)));
        let both = "digest:cron:new\r\n\ndigest:cron:old\nworld:anyone\n";
        assert_eq!(read_as(both), Some((vec![digest("cron:new"), digest("cron:old")], true)));
    }

    #[test]
    fn a_file_that_names_nobody_or_cannot_be_understood_is_refused() {
        for bad in ["", "\n", "secret", ":secret", "world:anyone\n", "digest:cron:secret\nrubbish\n"] {
            assert_eq!(read_as(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn fuzz_authentication_file() {
        let words = &["digest:", "world:anyone", "\n", "\r\n", ":", "user:password", " "];
        Fuzz { longest: 8 << 10, ..Fuzz::of("auth-file", words) }.run(|input| {
            let read = identities(&text(input));
            assert!(read.as_ref().is_none_or(|auth| !auth.identities.is_empty()));
            read.is_some()
        });
    }
}
