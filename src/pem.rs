//! Certificates and private keys from PEM files, and why a file cannot be used.
//!
//! The TLS library only says that it found nothing. People often have the right content in another format, or the right
//! file at the wrong option, so this says what the file is and how to convert it. Reads no file itself.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

/// What a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Certificate,
    PrivateKey,
}

/// A format that is not PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Empty,
    /// A certificate or key as OpenSSL's `DER` has it.
    Der,
    /// Certificates with or without a key, as browsers and Windows export them.
    Pkcs12,
    /// Certificates only.
    Pkcs7,
    /// Java's key store.
    Jks,
    /// Text with two bytes for each character.
    Utf16,
    Other,
}

/// Why a file cannot be used. The text follows the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFault {
    NotPem {
        wanted: Part,
        found: Format,
    },
    /// The key has a password, which nobody could enter.
    Encrypted,
    /// There are sections, but not that one.
    Missing {
        wanted: Part,
        found: Vec<String>,
    },
    /// The section is there and cannot be read.
    Damaged {
        wanted: Part,
        why: String,
    },
    /// The TLS library refuses the content.
    Rejected {
        why: String,
    },
}

/// Why a certificate and a key cannot be used together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityFault {
    Certificate(PemFault),
    Key(PemFault),
    /// The key is that of another certificate.
    OtherKey,
}

/// The certificates of a file, at least one.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemFault> {
    let wanted = Part::Certificate;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(missing(bytes, wanted)),
        Err(error) => Err(damaged(bytes, wanted, &error)),
    }
}

/// The private key of a file.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemFault> {
    let wanted = Part::PrivateKey;
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| {
        if is_encrypted(bytes) {
            PemFault::Encrypted
        } else if sections(bytes).iter().any(|label| wanted.is(label)) {
            damaged(bytes, wanted, &error)
        } else {
            missing(bytes, wanted)
        }
    })
}

/// The authorities of a file. Certificates that cannot be an authority do not count, as long as one can.
///
/// # Errors
/// If there is no authority.
pub fn authorities(bytes: &[u8]) -> Result<RootCertStore, PemFault> {
    let mut roots = RootCertStore::empty();
    let mut refused = None;
    for certificate in certificates(bytes)? {
        refused = roots.add(certificate).err().or(refused);
    }
    match refused {
        Some(error) if roots.is_empty() => Err(PemFault::Rejected { why: error.to_string() }),
        _ => Ok(roots),
    }
}

/// Checks that a certificate and its key can be shown to a server.
///
/// # Errors
/// If one of them cannot be used, or they do not belong together.
pub fn check_identity(certificate: &[u8], key: &[u8]) -> Result<(), IdentityFault> {
    let chain = certificates(certificate).map_err(IdentityFault::Certificate)?;
    let key = private_key(key).map_err(IdentityFault::Key)?;
    let rejected = |error: Error| PemFault::Rejected { why: error.to_string() };
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| IdentityFault::Certificate(rejected(error)))?;
    let builder = builder.with_root_certificates(RootCertStore::empty());
    builder.with_client_auth_cert(chain, key).map(drop).map_err(|error| match error {
        Error::InconsistentKeys(_) => IdentityFault::OtherKey,
        Error::InvalidCertificate(_) => IdentityFault::Certificate(rejected(error)),
        error => IdentityFault::Key(rejected(error)),
    })
}

impl Part {
    /// True for the label of such a section.
    fn is(self, label: &str) -> bool {
        match self {
            Self::Certificate => label == "CERTIFICATE",
            Self::PrivateKey => matches!(label, "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY"),
        }
    }
}

fn missing(bytes: &[u8], wanted: Part) -> PemFault {
    let found = sections(bytes);
    match found.is_empty() {
        true => PemFault::NotPem { wanted, found: format(bytes) },
        false => PemFault::Missing { wanted, found },
    }
}

fn damaged(bytes: &[u8], wanted: Part, error: &dyn fmt::Display) -> PemFault {
    match format(bytes) {
        Format::Other if !sections(bytes).is_empty() => PemFault::Damaged { wanted, why: error.to_string() },
        found => PemFault::NotPem { wanted, found },
    }
}

/// The labels of the sections, each once.
fn sections(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let labels = text.lines().filter_map(|line| {
        // An editor of Windows puts a mark in front of the first line.
        line.trim_start_matches('\u{feff}').trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----")
    });
    let mut found: Vec<String> = Vec::new();
    for label in labels {
        if found.iter().all(|known| known != label) {
            found.push(label.to_owned());
        }
    }
    found
}

fn is_encrypted(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED")
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;

/// The format of a file without sections, as its first bytes tell.
fn format(bytes: &[u8]) -> Format {
    match bytes {
        [] => Format::Empty,
        [0xfe, 0xed, 0xfe, 0xed, ..] | [0xce, 0xce, 0xce, 0xce, ..] => Format::Jks,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Format::Utf16,
        [SEQUENCE, rest @ ..] => match inside(rest) {
            // The version of the format: 3 is PKCS#12's, keys have 0 or 1.
            Some([INTEGER, 1, 3, ..]) => Format::Pkcs12,
            Some([OBJECT, ..]) => Format::Pkcs7,
            Some([INTEGER | SEQUENCE, ..]) => Format::Der,
            _ => Format::Other,
        },
        blank if blank.iter().all(u8::is_ascii_whitespace) => Format::Empty,
        _ => Format::Other,
    }
}

/// What is behind the length of a value in DER.
fn inside(bytes: &[u8]) -> Option<&[u8]> {
    let (&length, rest) = bytes.split_first()?;
    // The highest bit: the other bits count the bytes of the length.
    if length < 0x80 { Some(rest) } else { rest.get(usize::from(length & 0x7f)..) }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::PrivateKey => "private key",
        })
    }
}

impl fmt::Display for PemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPem { wanted, found } => not_pem(*wanted, *found, f),
            Self::Encrypted => f.write_str(
                "has a private key with a password, which nobody can enter; write one without it with \
                 `openssl pkey -in FILE -out FILE.pem`, for this user alone",
            ),
            Self::Missing { wanted, found } => {
                let section = match wanted {
                    Part::Certificate => "BEGIN CERTIFICATE",
                    Part::PrivateKey => "BEGIN PRIVATE KEY",
                };
                let found: Vec<String> = found.iter().map(|label| format!("`BEGIN {label}`")).collect();
                write!(f, "has no {wanted}: it must be PEM, with a section `{section}`, and has {}", found.join(", "))
            }
            Self::Damaged { wanted, why } => {
                write!(f, "has a {wanted} that cannot be read ({why}); put the right file there")
            }
            Self::Rejected { why } => write!(f, "cannot be used for TLS: {why}; put the right file there"),
        }
    }
}

fn not_pem(wanted: Part, found: Format, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (of_der, of_pkcs12) = match wanted {
        Part::Certificate => ("openssl x509 -inform DER -in FILE -out FILE.pem", "-nokeys"),
        Part::PrivateKey => ("openssl pkey -inform DER -in FILE -out FILE.pem", "-nocerts -nodes"),
    };
    let pkcs12 = format!("openssl pkcs12 -in FILE {of_pkcs12} -out FILE.pem");
    match found {
        Format::Empty => write!(f, "is empty: it must be PEM, with a {wanted}"),
        Format::Der => write!(f, "is DER, not PEM; convert it with `{of_der}`"),
        Format::Pkcs12 => write!(f, "is PKCS#12, not PEM; convert it with `{pkcs12}`"),
        Format::Pkcs7 => write!(
            f,
            "is PKCS#7, not PEM; convert it with `openssl pkcs7 -inform DER -print_certs -in FILE -out FILE.pem`"
        ),
        Format::Jks => write!(
            f,
            "is a Java key store, not PEM; convert it with `keytool -importkeystore -srckeystore FILE -destkeystore \
             FILE.p12 -deststoretype PKCS12`, then with `{}`",
            pkcs12.replace("-in FILE", "-in FILE.p12")
        ),
        Format::Utf16 => write!(f, "is text in UTF-16; save it as UTF-8 or ASCII"),
        Format::Other => write!(
            f,
            "is not PEM: it must be text with a {wanted} between lines `-----BEGIN ...-----` and `-----END ...-----`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    fn pair() -> CertifiedKey<rcgen::KeyPair> {
        generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    fn text(fault: &PemFault) -> String {
        fault.to_string()
    }

    #[test]
    fn a_pair_is_accepted_and_two_halves_of_pairs_are_not() {
        let (one, other) = (pair(), pair());
        let (certificate, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        assert_eq!(check_identity(certificate.as_bytes(), key.as_bytes()), Ok(()));
        assert_eq!(authorities(certificate.as_bytes()).unwrap().len(), 1);
        let foreign = other.signing_key.serialize_pem();
        assert_eq!(check_identity(certificate.as_bytes(), foreign.as_bytes()), Err(IdentityFault::OtherKey));
        let swapped = check_identity(key.as_bytes(), certificate.as_bytes());
        let Err(IdentityFault::Certificate(fault)) = swapped else { panic!("{swapped:?}") };
        assert!(text(&fault).contains("has no certificate") && text(&fault).contains("`BEGIN PRIVATE KEY`"), "{fault}");
    }

    #[test]
    fn another_format_is_named_with_the_command_that_converts_it() {
        let pair = pair();
        let der = authorities(pair.cert.der()).unwrap_err();
        assert!(text(&der).contains("is DER, not PEM; convert it with `openssl x509 -inform DER"), "{der}");
        let key = private_key(&pair.signing_key.serialize_der()).unwrap_err();
        assert!(text(&key).contains("openssl pkey -inform DER"), "{key}");
        // The beginnings of real files.
        let pkcs12 = [0x30, 0x82, 0x09, 0xd1, 0x02, 0x01, 0x03, 0x30, 0x82];
        assert!(text(&certificates(&pkcs12).unwrap_err()).contains("openssl pkcs12 -in FILE -nokeys"));
        assert!(text(&private_key(&pkcs12).unwrap_err()).contains("-nocerts"));
        let pkcs7 = [0x30, 0x82, 0x03, 0xb2, 0x06, 0x09, 0x2a, 0x86, 0x48];
        assert!(text(&certificates(&pkcs7).unwrap_err()).contains("is PKCS#7"));
        let jks = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
        assert!(text(&certificates(&jks).unwrap_err()).contains("keytool"));
        assert!(text(&certificates(&[0xff, 0xfe, b'-', 0]).unwrap_err()).contains("UTF-16"));
        for (bytes, found) in [(&b""[..], "is empty"), (b" \n", "is empty"), (b"no colon", "is not PEM")] {
            assert!(text(&certificates(bytes).unwrap_err()).contains(found));
            assert!(text(&private_key(bytes).unwrap_err()).contains(found));
        }
    }

    #[test]
    fn a_key_with_a_password_and_a_damaged_section_are_told_apart() {
        let locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert_eq!(private_key(locked).map(drop), Err(PemFault::Encrypted));
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIB\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(private_key(old).map(drop), Err(PemFault::Encrypted));
        let garbled = b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
        assert!(matches!(certificates(garbled), Err(PemFault::Damaged { .. })));
        let no_authority = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(authorities(no_authority), Err(PemFault::Rejected { .. })));
    }

    #[test]
    fn no_bytes_panic() {
        for length in 0..6 {
            for first in [0x30, 0xfe, 0xff, b'-', 0] {
                let bytes: Vec<u8> = std::iter::once(first).chain(std::iter::repeat_n(0xff, length)).collect();
                assert!(certificates(&bytes).is_err() && private_key(&bytes).is_err());
            }
        }
    }
}
