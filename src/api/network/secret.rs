//! Files with secrets: reading them, the token, and their errors.

use std::fmt;
use std::io;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::proof::ProofKey;
use crate::option_file::{OptionFile, OptionName};
use crate::pem::PemFault;
use cronkeeper_cluster::safe_path::{self, Refusal, Unsafe, Wanted};

/// Most bytes of a file; more than any token or certificate chain needs.
const LARGEST: u64 = 1 << 20;
/// Fewest characters of a token, so that nobody can guess it.
const SHORTEST: usize = 16;

/// Why a file cannot be used. Each message names the option and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{}: cannot read {}", .0.option, .0.path.display())]
    Unreadable(OptionFile, #[source] io::Error),
    /// Others can read or change the file.
    #[error("{0}: {1}")]
    Unsafe(OptionName, Unsafe),
    #[error("{}: {} must hold a token: one line of {SHORTEST} to 1000 visible characters, as `openssl rand -hex 32` writes it", .0.option, .0.path.display())]
    NoToken(OptionFile),
    /// It contains no certificate or key that can be used.
    #[error("{}: {} {fault}", file.option, file.path.display())]
    Pem { file: OptionFile, fault: PemFault },
    /// The TLS library rejects a certificate, key or authority.
    #[error("{}: {} cannot be used for TLS: {why}; replace it with the right file", file.option, file.path.display())]
    Unusable {
        file: OptionFile,
        /// The TLS library's message.
        why: String,
    },
    #[error(
        "{}: the key in {} does not match the certificate of {} in {}: replace both together",
        key.option,
        key.path.display(),
        certificate.option,
        certificate.path.display()
    )]
    OtherKey { key: OptionFile, certificate: OptionFile },
}

/// Reads a file that others cannot change nor, if it is secret, read. At most [`LARGEST`] bytes.
pub(super) fn read(file: &OptionFile, wanted: Wanted) -> Result<Vec<u8>, SecretError> {
    safe_path::read_bytes(&file.path, wanted, LARGEST).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => SecretError::Unsafe(file.option, found),
        Refusal::Io(error) => SecretError::Unreadable(file.clone(), error),
    })
}

/// Reads a token, the only line of a file.
pub(in crate::api) fn read_token(file: &OptionFile) -> Result<String, SecretError> {
    let bytes = read(file, Wanted::Secret)?;
    let token = bytes.trim_ascii();
    let is_token = (SHORTEST..=1_000).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
    let token = str::from_utf8(token).ok().filter(|_| is_token);
    token.map(str::to_owned).ok_or_else(|| SecretError::NoToken(file.clone()))
}

/// A token, as far as it is kept.
#[derive(PartialEq, Eq)]
pub(super) struct Token {
    /// Digests are compared instead of tokens, so that the time of a comparison reveals nothing about the token's
    /// length.
    digest: [u8; 32],
    /// The key of other nodes' proofs.
    pub proofs: ProofKey,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token of a file.
    pub fn read(file: &OptionFile) -> Result<Self, SecretError> {
        read_token(file).map(|token| Self::of(token.as_bytes()))
    }

    fn of(token: &[u8]) -> Self {
        Self { digest: Sha256::digest(token).into(), proofs: ProofKey::of(token) }
    }

    /// Compares in constant time.
    pub fn is(&self, other: &[u8]) -> bool {
        self.digest.ct_eq(&Sha256::digest(other)).into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn named(path: std::path::PathBuf) -> OptionFile {
        OptionFile::given("--api-token-file", path)
    }

    fn file(dir: &tempfile::TempDir, text: &str, mode: u32) -> OptionFile {
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        named(path)
    }

    #[test]
    fn a_token_is_exactly_the_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::read(&file(&dir, "0123456789abcdef\n", 0o600)).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdef0", b"0123456789abcdeF", b"0123456789abcdef\n"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn an_invalid_token_or_an_exposed_file_is_refused() {
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
        assert!(matches!(open, SecretError::Unsafe(..)), "{open}");
        let gone = Token::read(&named(dir.path().join("gone"))).unwrap_err();
        assert!(matches!(gone, SecretError::Unreadable(..)));
        let directory = Token::read(&named(dir.path().to_owned())).unwrap_err();
        assert!(matches!(directory, SecretError::Unreadable(..) | SecretError::Unsafe(..)));
        for error in [open, gone, directory] {
            assert!(error.to_string().starts_with("`--api-token-file`: "), "{error}");
        }
    }
}
