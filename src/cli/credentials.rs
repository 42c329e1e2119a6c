//! What convinces ZooKeeper: secrets and certificates, from files and never from the command line.

use std::path::{Path, PathBuf};

use crate::cli::Error;
use crate::safe_path::{self, Refusal, Wanted};
use crate::zookeeper::session::{Auth, Tls};

/// Credentials for ZooKeeper.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "credentials", multiple = true)]
pub struct Args {
    /// A file with one identity a line, `scheme:credential`, such as `digest:user:password`. What this node makes in ZooKeeper is
    /// open to these identities alone; a line `world:anyone` leaves it open to everybody meanwhile
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_AUTH_FILE", requires = "zookeeper")]
    zookeeper_auth_file: Option<PathBuf>,
    /// Certificates of the authorities to trust, PEM; switches TLS on
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CA", requires = "zookeeper")]
    zookeeper_ca: Option<PathBuf>,
    /// The certificate to show, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CERT", requires_all = ["zookeeper_key", "zookeeper_ca"])]
    zookeeper_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_KEY", requires = "zookeeper_cert")]
    zookeeper_key: Option<PathBuf>,
}

impl Args {
    /// Who this node is to ZooKeeper.
    pub(super) fn auth(&self) -> Result<Auth, Error> {
        match &self.zookeeper_auth_file {
            Some(path) => identities(&read(path, Wanted::Secret)?).ok_or_else(|| Error::AuthFile(path.clone())),
            None => Ok(Auth::default()),
        }
    }

    /// Certificates, where TLS is wanted.
    pub(super) fn tls(&self) -> Result<Option<Tls>, Error> {
        let Some(ca) = &self.zookeeper_ca else { return Ok(None) };
        let identity = match (&self.zookeeper_cert, &self.zookeeper_key) {
            (Some(certificate), Some(key)) => Some((read(certificate, Wanted::Trusted)?, read(key, Wanted::Secret)?)),
            _ => None,
        };
        Ok(Some(Tls { ca: Some(read(ca, Wanted::Trusted)?), identity }))
    }
}

/// The line that stands for everybody.
const WORLD: &str = "world:anyone";

/// What the lines of an authentication file say; absent where they cannot be understood, or name nobody.
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

/// The text of a file that others can neither change nor, where it is secret, read.
pub(super) fn read(path: &Path, wanted: Wanted) -> Result<String, Error> {
    safe_path::read_text(path, wanted).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => Error::UnsafeFile(found),
        Refusal::Io(source) => Error::CredentialFile { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn read_as(text: &str) -> Option<(Vec<(String, String)>, bool)> {
        let auth = identities(text)?;
        let text = |credential: Vec<u8>| String::from_utf8(credential).expect("it was a text");
        let identities = auth.identities.into_iter().map(|(scheme, credential)| (scheme, text(credential)));
        Some((identities.collect(), auth.with_world))
    }

    fn digest(credential: &str) -> (String, String) {
        ("digest".to_owned(), credential.to_owned())
    }

    #[test]
    fn each_line_is_an_identity_and_one_line_stands_for_everybody() {
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
