//! Files with secrets: reading them, and their errors.

use std::io;

use super::tokens::{SHORTEST_HASHED, TokenFault, Tokens};
use crate::option_file::{OptionFile, OptionName};
use crate::pem::PemFault;
use cronkeeper_cluster::safe_path::{self, Refusal, Unsafe, Wanted};

/// Most bytes of a file; more than any token or certificate chain needs.
const LARGEST: u64 = 1 << 20;
/// Fewest characters of a token, so that nobody can guess it.
pub(super) const SHORTEST: usize = 16;
/// Most characters of a token.
pub(super) const LONGEST: usize = 1_000;

/// Why a file cannot be used. Each message names the option and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{}: cannot read {}", .0.option, .0.path.display())]
    Unreadable(OptionFile, #[source] io::Error),
    /// Others can read or change the file.
    #[error("{0}: {1}")]
    Unsafe(OptionName, Unsafe),
    #[error("{}: {} must hold a token: one line of {SHORTEST} to {LONGEST} visible characters, as `openssl rand -hex 32` writes it", .0.option, .0.path.display())]
    NoToken(OptionFile),
    /// A file of tokens has a line that cannot be used, or none at all.
    #[error("{}: {}{}{}", .0.option, .0.path.display(), at_line(.1.line), .1.why)]
    Tokens(OptionFile, TokenFault),
    /// The token could be guessed from its digest.
    #[error("{}: the token in {} has fewer than {SHORTEST_HASHED} characters, so that it can be guessed from its digest: leave `--of` out to get a new one", .0.option, .0.path.display())]
    Short(OptionFile),
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

/// True for what may be a token.
pub(super) fn is_token(text: &[u8]) -> bool {
    (SHORTEST..=LONGEST).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

/// Reads a token, the only line of a file.
pub(crate) fn read_token(file: &OptionFile) -> Result<String, SecretError> {
    let bytes = read(file, Wanted::Secret)?;
    let token = str::from_utf8(bytes.trim_ascii()).ok().filter(|token| is_token(token.as_bytes()));
    token.map(str::to_owned).ok_or_else(|| SecretError::NoToken(file.clone()))
}

/// Reads the tokens that this node accepts.
pub(in crate::api) fn read_tokens(file: &OptionFile) -> Result<Tokens, SecretError> {
    Tokens::parse(&read(file, Wanted::Secret)?).map_err(|fault| SecretError::Tokens(file.clone(), fault))
}

/// What follows the path of a file: `:3: ` for a line of it.
fn at_line(line: Option<usize>) -> String {
    line.map_or_else(|| " ".to_owned(), |line| format!(":{line}: "))
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
            let file = file(&dir, text, 0o600);
            assert!(matches!(read_tokens(&file), Err(SecretError::Tokens(..))), "{text:?}");
            assert!(matches!(read_token(&file), Err(SecretError::NoToken(_))), "{text:?}");
        }
        let second = read_tokens(&file(&dir, "0123456789abcdef\nx\n", 0o600)).unwrap_err().to_string();
        assert!(second.contains("/token:2: only the first"), "{second}");
        let open = read_tokens(&file(&dir, "0123456789abcdef\n", 0o644)).unwrap_err();
        assert!(matches!(open, SecretError::Unsafe(..)), "{open}");
        let gone = read_tokens(&named(dir.path().join("gone"))).unwrap_err();
        assert!(matches!(gone, SecretError::Unreadable(..)));
        let directory = read_tokens(&named(dir.path().to_owned())).unwrap_err();
        assert!(matches!(directory, SecretError::Unreadable(..) | SecretError::Unsafe(..)));
        for error in [open, gone, directory] {
            assert!(error.to_string().starts_with("`--api-token-file`: "), "{error}");
        }
    }
}
