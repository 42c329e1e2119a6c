//! Files with secrets: what is in them, and why one cannot be used.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::safe_path::{self, Refusal, Unsafe, Wanted};

/// Larger than any token or chain of certificates.
const LARGEST: u64 = 1 << 20;
/// Nobody guesses so many characters.
const SHORTEST: usize = 16;

/// Why a file cannot be used. The texts say what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read {}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// Others can read or change it.
    #[error(transparent)]
    Unsafe(Unsafe),
    /// What it holds cannot be a token.
    #[error("{} does not hold a token: one line of {SHORTEST} to 1000 visible characters, as `openssl rand -hex 32` writes it", .0.display())]
    NoToken(PathBuf),
    /// It has no certificates.
    #[error("{} holds no certificate: it must be PEM, with a part `BEGIN CERTIFICATE`", .0.display())]
    NoCertificate(PathBuf),
    /// It has no key.
    #[error("{} holds no private key: it must be PEM, with a part `BEGIN PRIVATE KEY` and without a password", .0.display())]
    NoKey(PathBuf),
    /// A certificate, or what belongs to it, is none that can be used.
    #[error("{} cannot be used, put the right file there: {why}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why, in the library's words.
        why: String,
    },
    /// The certificate is not the key's.
    #[error("the key in {} is not that of the certificate in {}: renew both together", key.display(), certificate.display())]
    OtherKey {
        /// Where the key is.
        key: PathBuf,
        /// Where the certificate is.
        certificate: PathBuf,
    },
}

/// The bytes of a file that others can neither change nor, where it is secret, read; not too many.
pub(super) fn read(path: &Path, wanted: Wanted) -> Result<Vec<u8>, SecretError> {
    let unreadable = |error| SecretError::Unreadable(path.to_owned(), error);
    let file = safe_path::open_file(path, wanted).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => SecretError::Unsafe(found),
        Refusal::Io(error) => unreadable(error),
    })?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST {
        return Err(unreadable(io::Error::other("it is larger than 1 MiB")));
    }
    Ok(bytes)
}

/// A token, of which only the digest is kept: two digests are compared in the same time whatever the lengths of what they are of.
pub(super) struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The only line of a file.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let bytes = read(path, Wanted::Secret)?;
        let token = bytes.trim_ascii();
        let is_token = (SHORTEST..=1_000).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        is_token.then(|| Self::of(token)).ok_or_else(|| SecretError::NoToken(path.to_owned()))
    }

    fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// True where this is it.
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(&Self::of(shown).0).into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(dir: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_token_is_the_line_of_its_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::read(&file(&dir, "0123456789abcdef\n", 0o600)).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdef0", b"0123456789abcdeF", b"0123456789abcdef\n"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn what_is_no_token_or_no_secret_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "",
            "\n",
            "short",
            "0123456789abcdef 0123456789",
            "0123456789abcdef\n0123456789abcdef\n",
            "0123456789abcdefö",
        ] {
            assert!(matches!(Token::read(&file(&dir, text, 0o600)), Err(SecretError::NoToken(_))), "{text:?}");
        }
        let open = Token::read(&file(&dir, "0123456789abcdef\n", 0o644)).unwrap_err();
        assert!(matches!(open, SecretError::Unsafe(_)), "{open}");
        let gone = Token::read(&dir.path().join("gone")).unwrap_err();
        assert!(matches!(gone, SecretError::Unreadable(..)));
        let folder = Token::read(dir.path()).unwrap_err();
        assert!(matches!(folder, SecretError::Unreadable(..) | SecretError::Unsafe(_)));
    }
}
