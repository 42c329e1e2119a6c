//! `cronkeeper token`: makes a token for the API, and its line for the file of tokens.
//!
//! The file has the token's digest only, so what is printed here is the only place where the token is.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::{Error, Io, json};
use crate::api::network::tokens::{SHORTEST_HASHED, TokenDigest, TokenName, line};
use crate::api::network::{SecretError, read_token};
use crate::api::roles::Role;
use crate::option_file::OptionFile;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Whose token it is: shown as who triggered, paused, drained and killed
    #[arg(value_parser = TokenName::parse)]
    name: TokenName,
    /// What its holder may do
    #[arg(long, value_enum)]
    role: Role,
    /// Take the token in this file, of at least 32 characters, instead of a new one
    #[arg(long, value_name = "FILE")]
    of: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Made<'a> {
    v: u32,
    name: &'a str,
    role: &'static str,
    /// Absent with `--of`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    line: &'a str,
}

impl Args {
    /// # Errors
    /// When the file cannot be used, its token is too short, or the result cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let Self { name, role, of, json: is_json } = self;
        let given = of.map(|path| long(&OptionFile::given("--of", path))).transpose()?;
        let made = if given.is_none() { Some(random()?) } else { None };
        let token = given.as_ref().or(made.as_ref()).map(String::as_str).unwrap_or_default();
        let line = line(&name, role, &TokenDigest::of(token.as_bytes()));
        let made = Made { v: 1, name: name.as_str(), role: role.as_str(), token: made.as_deref(), line: &line };
        Ok(if is_json { json::line(&made, io.out) } else { made.print(io) }?)
    }
}

impl Made<'_> {
    fn print(&self, io: &mut Io<'_>) -> io::Result<()> {
        let Self { name, role, token, line, .. } = self;
        if let Some(token) = token {
            writeln!(io.out, "The token of {name}, which is shown only now:\n\n    {token}\n")?;
        }
        writeln!(
            io.out,
            "Its line ({role}) for the file of --api-token-file on each node, which `systemctl reload cronkeeper` reads:\n\n    {line}"
        )
    }
}

/// 256 random bits.
fn random() -> Result<String, Error> {
    let mut bytes = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|source| Error::System {
        what: "the system has no random numbers",
        source: io::Error::other(source),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads a token that nobody can guess from its digest.
fn long(file: &OptionFile) -> Result<String, Error> {
    let token = read_token(file)?;
    if token.len() < SHORTEST_HASHED {
        return Err(SecretError::Short(file.clone()).into());
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::super::tests::typed;
    use crate::api::network::tokens::Tokens;
    use crate::api::roles::Role;
    use crate::cli::Exit;

    fn made(line: &[&str]) -> serde_json::Value {
        let (exit, out, err) = typed(line, &[]);
        assert_eq!(exit, Exit::Fine, "{err}");
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn a_new_token_fits_its_line_and_is_another_each_time() {
        let line = ["token", "alice", "--role", "operate", "--json"];
        let (first, second) = (made(&line), made(&line));
        assert_ne!(first["token"], second["token"]);
        let tokens = Tokens::parse(first["line"].as_str().unwrap().as_bytes()).unwrap();
        let token = first["token"].as_str().unwrap();
        let found = &tokens.find(token.as_bytes()).unwrap().identity;
        assert_eq!((token.len(), &*found.name, found.role), (64, "alice", Role::Operate));
        let (_, out, _) = typed(&line[..4], &[]);
        assert!(out.contains("shown only now") && out.contains("\n    alice operate sha256:"), "{out}");
    }

    #[test]
    fn a_token_of_a_file_is_not_repeated_and_a_short_one_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let put = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        let line = ["token", "ci", "--role", "read", "--json", "--of", path.to_str().unwrap()];
        put("0123456789abcdef0123456789abcdef\n");
        let known = made(&line);
        assert!(known.get("token").is_none(), "{known}");
        let tokens = Tokens::parse(known["line"].as_str().unwrap().as_bytes()).unwrap();
        assert!(tokens.find(b"0123456789abcdef0123456789abcdef").is_some());
        put("0123456789abcdef\n");
        let (exit, out, err) = typed(&line, &[]);
        assert!(exit == Exit::Config && out.is_empty() && err.contains("fewer than 32 characters"), "{err}");
        for name in ["", "<b>", "a b", "a\nb", "token", "-x"] {
            let (exit, _, err) = typed(&["token", "--role", "read", "--", name], &[]);
            assert_eq!(exit, Exit::Usage, "{name:?}: {err}");
        }
    }
}
