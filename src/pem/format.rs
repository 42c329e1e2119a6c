//! What a file is that is not PEM, or not the PEM that it should be: as its first bytes and its sections say.

/// A format that is not PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Empty,
    /// OpenSSL's `DER`.
    Der(Content),
    /// Certificates with or without a key, as browsers and Windows export them.
    Pkcs12,
    /// Certificates only.
    Pkcs7,
    /// Java's key store.
    Jks,
    /// A public key in one line.
    OpenSshPublic,
    /// Text with two bytes for each character.
    Utf16,
    Other,
}

/// What a file in DER has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Certificate,
    Request,
    PrivateKey,
    EncryptedKey,
    PublicKey,
}

/// UTF-8's byte order mark, which editors of Windows write. The TLS library does not see the line that it is in.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// A label is a few words. What is longer is no label, and could be a key.
const LONGEST_LABEL: usize = 40;

/// The labels of the sections, each once. What is in a section never gets into one: they are displayed.
pub(super) fn sections(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes.strip_prefix(MARK).unwrap_or(bytes));
    let is_label = |label: &&str| {
        let is_of_label = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == ' ';
        label.len() <= LONGEST_LABEL && label.chars().all(is_of_label)
    };
    let label = |line: &str| {
        Some(line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----")?).filter(is_label).map(str::to_owned)
    };
    let mut found: Vec<String> = Vec::new();
    for label in text.split(['\n', '\r']).filter_map(label) {
        if !found.contains(&label) {
            found.push(label);
        }
    }
    found
}

pub(super) fn is_encrypted(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// The format of a file without sections.
pub(super) fn format(bytes: &[u8]) -> Format {
    match bytes {
        [0xfe, 0xed, 0xfe, 0xed, ..] | [0xce, 0xce, 0xce, 0xce, ..] => Format::Jks,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Format::Utf16,
        [SEQUENCE, ..] => binary(bytes).unwrap_or(Format::Other),
        text if text.strip_prefix(MARK).unwrap_or(text).iter().all(u8::is_ascii_whitespace) => Format::Empty,
        text if text.starts_with(b"ssh-") || text.starts_with(b"ecdsa-sha2-") => Format::OpenSshPublic,
        _ => Format::Other,
    }
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

fn binary(bytes: &[u8]) -> Option<Format> {
    let file = Item::first(bytes)?;
    let first = Item::first(file.content)?;
    Some(match (first.tag, first.content) {
        // The version of the format: 3 is PKCS#12's, keys have 0 or 1.
        (INTEGER, [3]) => Format::Pkcs12,
        (INTEGER, _) => Format::Der(Content::PrivateKey),
        (OBJECT, _) => Format::Pkcs7,
        (SEQUENCE, content) => Format::Der(of_sequence(Item::first(content)?, Item::first(first.behind))),
        _ => return None,
    })
}

/// What a file has that begins with two sequences. `next` is behind the inner one.
fn of_sequence(inner: Item<'_>, next: Option<Item<'_>>) -> Content {
    match (inner.tag, inner.content, next.map(|next| next.tag)) {
        (OBJECT, _, Some(OCTET_STRING)) => Content::EncryptedKey,
        (OBJECT, _, Some(BIT_STRING)) => Content::PublicKey,
        // The version of a request; that of a certificate has another tag.
        (INTEGER, [0], _) => Content::Request,
        _ => Content::Certificate,
    }
}

/// A value in DER, or the part of it that the file has.
#[derive(Clone, Copy)]
struct Item<'a> {
    tag: u8,
    content: &'a [u8],
    behind: &'a [u8],
}

impl<'a> Item<'a> {
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let [tag, length, rest @ ..] = bytes else { return None };
        let (length, rest) = match length {
            0..0x80 => (usize::from(*length), rest),
            // The other bits count the bytes of the length.
            _ => {
                let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (digits.iter().fold(0, |length: usize, digit| length.saturating_mul(256) | usize::from(*digit)), rest)
            }
        };
        let (content, behind) = rest.split_at(length.min(rest.len()));
        Some(Self { tag: *tag, content, behind })
    }
}
