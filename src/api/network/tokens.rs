//! The file of `--api-token-file`: whose tokens are accepted, and what each of them may do.
//!
//! ```text
//! # comment
//! alice   admin    sha256:<64 hex digits>
//! deploy  operate  sha256:<64 hex digits>   # until June
//! ```
//!
//! The first token of the file may stand there itself, alone on its line: the only kind before tokens had names. It is
//! called `token` and is an admin's. A line that cannot be read is an error, because a token that was meant to be there
//! and is not, or one with another role, is noticed too late. No message quotes the file: it may hold a token.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::proof::ProofKey;
use super::secret::{LONGEST, SHORTEST, is_token};
use crate::api::roles::Role;

/// Most tokens of a file, because a proof of another node is compared with each.
const MOST: usize = 200;
/// Most characters of a name.
const LONGEST_NAME: usize = 64;
/// The name of a token without one.
const UNNAMED: &str = "token";
/// What a digest begins with.
const SCHEME: &str = "sha256:";
/// Fewest characters of a token that is kept as a digest: those of 128 random bits. Nobody can try all of these, so the
/// digest needs no salt and no slow function.
pub const SHORTEST_HASHED: usize = 32;

/// Whose token it is, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Shown in records, log and page.
    pub name: Arc<str>,
    pub role: Role,
}

/// The digest of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// The same whatever the digest is, because files with digests are secret too.
impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest")
    }
}

impl TokenDigest {
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn parse(word: &str) -> Option<Self> {
        let digits = word.strip_prefix(SCHEME).filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self(digest))
    }

    /// Compares in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// As in a file: `sha256:0123…`.
impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The line of a token in the file.
pub fn line(name: &TokenName, role: Role, digest: &TokenDigest) -> String {
    format!("{} {role} {digest}", name.0)
}

/// The name of a token: 1 to 64 letters, digits and `._@+-`, a letter or digit first, and not `token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenName(Arc<str>);

impl TokenName {
    /// # Errors
    /// What a name must be.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
        let is_name = text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_plain);
        if !is_name || text.len() > LONGEST_NAME {
            return Err("a name has 1 to 64 letters, digits and `._@+-`, and begins with a letter or digit");
        }
        if text.eq_ignore_ascii_case(UNNAMED) {
            return Err("`token` is what a token without a name is called: choose another name");
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong in a file of tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenFault {
    /// From 1; absent if it is the file as a whole.
    pub line: Option<usize>,
    /// Quotes nothing of the file.
    pub why: String,
}

impl TokenFault {
    fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line: Some(line), why: why.into() }
    }
}

/// A token, as far as it is kept.
#[derive(Clone)]
pub struct Token {
    pub identity: Identity,
    /// Digests are compared instead of tokens, so that the time of a comparison reveals nothing about a token's length.
    pub digest: TokenDigest,
    /// The key of other nodes' proofs.
    pub(in crate::api) proofs: ProofKey,
    line: usize,
}

impl Token {
    fn unnamed(token: &[u8], line: usize) -> Self {
        let identity = Identity { name: UNNAMED.into(), role: Role::Admin };
        Self { identity, digest: TokenDigest::of(token), proofs: ProofKey::of(token), line }
    }

    fn named(words: [&str; 3], line: usize) -> Result<Self, TokenFault> {
        let [name, role, digest] = words;
        let TokenName(name) = TokenName::parse(name).map_err(|why| TokenFault::at(line, why))?;
        let role = Role::parse(role)
            .ok_or_else(|| TokenFault::at(line, "the second word is the role: `read`, `operate` or `admin`"))?;
        let no_digest = "the third word is `sha256:` and 64 hex digits, as `cronkeeper token NAME` prints them";
        let digest = TokenDigest::parse(digest).ok_or_else(|| TokenFault::at(line, no_digest))?;
        Ok(Self { identity: Identity { name, role }, digest, proofs: ProofKey::of_digest(&digest.0), line })
    }
}

/// The tokens of a file, at least one.
pub struct Tokens(Vec<Token>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|token| &token.identity)).finish()
    }
}

impl Tokens {
    /// Parses the content of a file.
    ///
    /// # Errors
    /// The first line that cannot be used.
    pub fn parse(text: &[u8]) -> Result<Self, TokenFault> {
        // A file of one word has always been a token, also if it begins with `#`.
        let only = text.trim_ascii();
        if is_token(only) {
            return Ok(Self(vec![Token::unnamed(only, 1)]));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for (place, text) in text.split(|byte| *byte == b'\n').enumerate() {
            if let Some(token) = parse_line(text, place + 1, tokens.is_empty())? {
                check_new(&tokens, &token)?;
                tokens.push(token);
            }
        }
        match tokens.is_empty() {
            true => Err(TokenFault { line: None, why: format!("holds no token: {EXPECTED}") }),
            false => Ok(Self(tokens)),
        }
    }

    /// The token that this is. All are compared, each in constant time.
    pub fn find(&self, shown: &[u8]) -> Option<&Token> {
        self.with(&TokenDigest::of(shown))
    }

    /// The token with this digest.
    pub fn with(&self, digest: &TokenDigest) -> Option<&Token> {
        self.0.iter().fold(None, |found, token| if token.digest.is(digest) { Some(token) } else { found })
    }

    /// The keys of other nodes' proofs; the first one is that of this node's own proofs.
    pub(in crate::api) fn proof_keys(&self) -> impl Iterator<Item = &ProofKey> {
        self.0.iter().map(|token| &token.proofs)
    }
}

const EXPECTED: &str = "lines of `NAME ROLE sha256:HASH`, as `cronkeeper token NAME` prints them, or one token alone, as \
                        `openssl rand -hex 32` writes it";

fn parse_line(text: &[u8], line: usize, is_first: bool) -> Result<Option<Token>, TokenFault> {
    let text = text.trim_ascii();
    if text.is_empty() || text.starts_with(b"#") {
        return Ok(None);
    }
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let words: Vec<&[u8]> = words.take_while(|word| !word.starts_with(b"#")).collect();
    match words.as_slice() {
        [token] if is_first => match is_token(token) {
            true => Ok(Some(Token::unnamed(token, line))),
            false => Err(TokenFault::at(
                line,
                format!(
                    "a token alone on its line has {SHORTEST} to {LONGEST} visible characters, as `openssl rand -hex 32` writes it"
                ),
            )),
        },
        [_] => Err(TokenFault::at(line, "only the first token of the file may be alone on its line, without a name")),
        [name, role, digest] => {
            let text = |word| str::from_utf8(word).map_err(|_| TokenFault::at(line, "a word is not text"));
            Token::named([text(name)?, text(role)?, text(digest)?], line).map(Some)
        }
        _ => Err(TokenFault::at(line, format!("expected {EXPECTED}"))),
    }
}

fn check_new(tokens: &[Token], new: &Token) -> Result<(), TokenFault> {
    let is_called = |token: &&Token| token.identity.name.eq_ignore_ascii_case(&new.identity.name);
    if let Some(known) = tokens.iter().find(is_called) {
        return Err(TokenFault::at(new.line, format!("the name is that of line {}", known.line)));
    }
    if let Some(known) = tokens.iter().find(|token| token.digest.is(&new.digest)) {
        return Err(TokenFault::at(new.line, format!("the token is that of line {}", known.line)));
    }
    match tokens.len() < MOST {
        true => Ok(()),
        false => Err(TokenFault::at(new.line, format!("a file has at most {MOST} tokens"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(token: &str) -> String {
        TokenDigest::of(token.as_bytes()).to_string()
    }

    fn fault(text: &str) -> TokenFault {
        Tokens::parse(text.as_bytes()).unwrap_err()
    }

    fn found(tokens: &Tokens, token: &str) -> Option<(String, Role)> {
        tokens.find(token.as_bytes()).map(|token| (token.identity.name.to_string(), token.identity.role))
    }

    #[test]
    fn a_file_of_one_token_is_what_it_always_was() {
        for (text, token) in [
            ("0123456789abcdef\n", "0123456789abcdef"),
            (" 0123456789abcdef\r\n\n", "0123456789abcdef"),
            ("#123456789abcdef", "#123456789abcdef"),
            ("sha256:0123456789", "sha256:0123456789"),
        ] {
            let tokens = Tokens::parse(text.as_bytes()).unwrap();
            assert_eq!(found(&tokens, token), Some(("token".into(), Role::Admin)), "{text:?}");
            assert!(tokens.proof_keys().eq([&ProofKey::of(token.as_bytes())]));
            let near = ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF", "0123456789abcdef\n"];
            assert!(near.iter().all(|near| found(&tokens, near).is_none()));
        }
    }

    #[test]
    fn each_line_is_a_token_with_its_name_and_role() {
        let text = format!(
            "# tokens\r\n\n0123456789abcdef\n\talice  admin {}\n  # bob is away\nbob@ops read {} # back in June\r\n",
            hash("of alice"),
            hash("of bob").to_uppercase().replace("SHA256", "sha256"),
        );
        let tokens = Tokens::parse(text.as_bytes()).unwrap();
        assert_eq!(found(&tokens, "of alice"), Some(("alice".into(), Role::Admin)));
        assert_eq!(found(&tokens, "of bob"), Some(("bob@ops".into(), Role::Read)));
        assert_eq!(found(&tokens, "0123456789abcdef"), Some(("token".into(), Role::Admin)));
        assert_eq!(found(&tokens, &hash("of alice")), None, "a digest is no token");
        assert!(tokens.proof_keys().next() == Some(&ProofKey::of(b"0123456789abcdef")), "the first is for other nodes");
    }

    #[test]
    fn a_line_that_cannot_be_used_is_named_and_not_quoted() {
        let (a, b) = (hash("a"), hash("b"));
        let many: String = (0..=MOST).map(|i| format!("n{i} read {}\n", hash(&i.to_string()))).collect();
        for (text, line, why) in [
            ("".to_owned(), None, "holds no token"),
            ("# 0123456789abcdef\n".to_owned(), None, "holds no token"),
            ("short".to_owned(), Some(1), "16 to 1000"),
            (format!("a read {a}\n0123456789abcdef\n"), Some(2), "only the first"),
            ("0123456789abcdef\n0123456789abcdef\n".to_owned(), Some(2), "only the first"),
            (format!("a read {a}\n\na admin {b}\n"), Some(3), "the name is that of line 1"),
            (format!("a read {a}\nA admin {b}\n"), Some(2), "the name is that of line 1"),
            (format!("a read {a}\nb admin {a}\n"), Some(2), "the token is that of line 1"),
            (format!("0123456789abcdef\na read {}", hash("0123456789abcdef")), Some(2), "the token is that of line 1"),
            (format!("a read {a}\nb Admin {b}"), Some(2), "the role"),
            (format!("a read {}", &a[..a.len() - 1]), Some(1), "64 hex digits"),
            (format!("a read {}", a.replace("sha256:", "sha1:")), Some(1), "64 hex digits"),
            (format!("a read sha256:+{}", &a["sha256:1".len()..]), Some(1), "64 hex digits"),
            ("a read plainsecret".to_owned(), Some(1), "64 hex digits"),
            (format!("a read {a} b"), Some(1), "expected lines"),
            (format!("a {a}"), Some(1), "expected lines"),
            (format!("<b>a</b> read {a}"), Some(1), "a name has"),
            (format!("a\u{202e}b read {a}"), Some(1), "a name has"),
            (format!("token read {a}"), Some(1), "another name"),
            (format!("\u{feff}a read {a}"), Some(1), "a name has"),
            (format!("{} read {a}", "a".repeat(65)), Some(1), "a name has"),
            (many, Some(MOST + 1), "at most 200"),
        ] {
            let found = fault(&text);
            assert!(found.line == line && found.why.contains(why), "{text:?}: {found:?}");
            assert!(!found.why.contains("plainsecret") && !found.why.contains(&a), "{found:?}");
        }
        assert_eq!(Tokens::parse(b"\xff read sha256:").unwrap_err().line, Some(1));
    }

    fn names() -> impl Strategy<Value = String> {
        "[a-zA-Z0-9][a-zA-Z0-9._@+-]{0,63}".prop_filter("reserved", |name| !name.eq_ignore_ascii_case(UNNAMED))
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_line_is_read_as_it_was_made(name in names(), role in prop::sample::select(&Role::ALL[..]), token in ".*") {
            let name = TokenName::parse(&name).unwrap();
            let line = line(&name, role, &TokenDigest::of(token.as_bytes()));
            let tokens = Tokens::parse(line.as_bytes()).unwrap();
            prop_assert_eq!(found(&tokens, &token), Some((name.as_str().to_owned(), role)));
        }

        #[test]
        fn any_bytes_are_tokens_or_a_fault(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    Just(b"alice read ".to_vec()),
                    Just(b"\n".to_vec()),
                    Just(TokenDigest::of(b"x").to_string().into_bytes()),
                ],
                0..12,
            ),
        ) {
            let text = parts.concat();
            match Tokens::parse(&text) {
                Ok(tokens) => prop_assert!(!tokens.0.is_empty() && tokens.0.len() <= MOST),
                Err(fault) => prop_assert!(fault.line.is_none_or(|line| line >= 1) && fault.why.is_ascii()),
            }
        }
    }
}
