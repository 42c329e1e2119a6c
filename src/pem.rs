//! Certificates and private keys from PEM files, and why a file cannot be used.
//!
//! The TLS library only says that it found nothing. People often have the right content in another format, or the right
//! file at the wrong option, so this says what the file is and how to convert it. Reads no file itself.

mod format;

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

pub use format::{Content, Format};
use format::{MARK, format, is_encrypted, sections};

/// What a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Certificate,
    PrivateKey,
}

/// Why a file cannot be used. The text follows the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFault {
    NotPem {
        wanted: Part,
        found: Format,
    },
    /// It begins with a byte order mark.
    Marked,
    /// The key has a password, which nobody could enter.
    Encrypted,
    /// There are sections, but not that one.
    Missing {
        wanted: Part,
        found: Vec<String>,
    },
    /// The file ends before the section does.
    Cut {
        wanted: Part,
    },
    /// The section is there and cannot be read.
    Damaged {
        wanted: Part,
        why: &'static str,
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
    must_not_be_marked(bytes)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(bytes, wanted, &pem::Error::NoItemsFound)),
        Err(error) => Err(unusable(bytes, wanted, &error)),
    }
}

/// The private key of a file.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemFault> {
    must_not_be_marked(bytes)?;
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match is_encrypted(bytes) {
        true => PemFault::Encrypted,
        false => unusable(bytes, Part::PrivateKey, &error),
    })
}

fn must_not_be_marked(bytes: &[u8]) -> Result<(), PemFault> {
    let is_marked = bytes.starts_with(MARK) && !sections(bytes).is_empty();
    if is_marked { Err(PemFault::Marked) } else { Ok(()) }
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
        Some(error) if roots.is_empty() => Err(match error {
            Error::InvalidCertificate(CertificateError::BadEncoding) => {
                PemFault::Damaged { wanted: Part::Certificate, why: "the text between its lines is not a certificate" }
            }
            error => PemFault::Rejected { why: why_refused(&error) },
        }),
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
    let rejected = |error: Error| PemFault::Rejected { why: why_refused(&error) };
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

/// Why the TLS library refuses a certificate or key.
pub fn why_refused(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    // The library has no kind of its own for it.
    match text.contains("UnsupportedCertVersion") {
        true => {
            "its certificate is of version 1 of X.509, without extensions; issue one of version 3, as `openssl x509 \
                 -req` does with `-extfile`"
                .to_owned()
        }
        false => text,
    }
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

/// Why a part is not in a file from which the TLS library could not take it.
fn unusable(bytes: &[u8], wanted: Part, error: &pem::Error) -> PemFault {
    let found = sections(bytes);
    if found.is_empty() {
        return PemFault::NotPem { wanted, found: format(bytes) };
    }
    if !found.iter().any(|label| wanted.is(label)) {
        return PemFault::Missing { wanted, found };
    }
    let why = match error {
        pem::Error::MissingSectionEnd { .. } => return PemFault::Cut { wanted },
        pem::Error::Base64Decode(_) => "the text between its lines is not base64",
        pem::Error::NoItemsFound => "its line `-----BEGIN ...-----` must begin at the left margin",
        _ => "its line `-----BEGIN ...-----` is not whole",
    };
    PemFault::Damaged { wanted, why }
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
            Self::Marked => f.write_str(
                "begins with a byte order mark, which hides its first section; remove it with `sed -i \
                 '1s/^\\xEF\\xBB\\xBF//' FILE`",
            ),
            Self::Missing { wanted, found } => {
                let section = match wanted {
                    Part::Certificate => "BEGIN CERTIFICATE",
                    Part::PrivateKey => "BEGIN PRIVATE KEY",
                };
                let shown: Vec<String> = found.iter().map(|label| format!("`BEGIN {label}`")).collect();
                let shown = shown.join(", ");
                write!(f, "has no {wanted}: it must be PEM, with a section `{section}`, and has {shown}")?;
                found.iter().find_map(|label| remedy(*wanted, label)).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
            Self::Cut { wanted } => {
                write!(f, "ends in the middle of a {wanted}: there is no line `-----END ...-----`; copy the file again")
            }
            Self::Damaged { wanted, why } => {
                write!(f, "has a {wanted} that cannot be read: {why}; copy the file again")
            }
            Self::Rejected { why } => write!(f, "cannot be used for TLS: {why}; replace it with the right file"),
        }
    }
}

/// What to do with a section in the place of another one.
fn remedy(wanted: Part, label: &str) -> Option<&'static str> {
    Some(match (wanted, label) {
        (Part::Certificate, "PKCS7") => "convert it with `openssl pkcs7 -print_certs -in FILE -out FILE.pem`",
        (Part::Certificate, "TRUSTED CERTIFICATE" | "X509 CERTIFICATE") => {
            "convert it with `openssl x509 -in FILE -out FILE.pem`"
        }
        (Part::Certificate, "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST") => {
            "a request is not a certificate yet: name the certificate that the authority made from it"
        }
        (Part::PrivateKey, "OPENSSH PRIVATE KEY") => "convert a copy of it with `ssh-keygen -p -N '' -m PKCS8 -f COPY`",
        (Part::PrivateKey, "PUBLIC KEY" | "RSA PUBLIC KEY") => {
            "a public key is the other half: name the file that the private key is in"
        }
        (Part::PrivateKey, "CERTIFICATE" | "PKCS7" | "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST") => {
            "name the file that the private key is in"
        }
        (Part::Certificate, label) if label.ends_with(" KEY") => "name the file that the certificate is in",
        _ => return None,
    })
}

fn not_pem(wanted: Part, found: Format, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let of_pkcs12 = match wanted {
        Part::Certificate => "-nokeys",
        Part::PrivateKey => "-nocerts -nodes",
    };
    let pkcs12 = format!("openssl pkcs12 -in FILE {of_pkcs12} -out FILE.pem");
    match (found, wanted) {
        (Format::Empty, _) => write!(f, "is empty: it must be PEM, with a {wanted}"),
        (Format::Der(content), _) => der(wanted, content, f),
        (Format::Pkcs12, _) => write!(f, "is PKCS#12, not PEM; convert it with `{pkcs12}`"),
        (Format::Pkcs7, Part::PrivateKey) => {
            f.write_str("is PKCS#7, which contains only certificates; name the file that the private key is in")
        }
        (Format::Pkcs7, Part::Certificate) => f.write_str(
            "is PKCS#7, not PEM; convert it with `openssl pkcs7 -inform DER -print_certs -in FILE -out FILE.pem`",
        ),
        (Format::Jks, _) => write!(
            f,
            "is a Java key store, not PEM; convert it with `keytool -importkeystore -srckeystore FILE -destkeystore \
             FILE.p12 -deststoretype PKCS12`, then with `{}`",
            pkcs12.replace("-in FILE", "-in FILE.p12")
        ),
        (Format::OpenSshPublic, _) => {
            write!(f, "is a public key of OpenSSH, not a {wanted}; name the file that the {wanted} is in")
        }
        (Format::Utf16, _) => {
            f.write_str("is text in UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 FILE > FILE.pem`")
        }
        (Format::Other, _) => write!(
            f,
            "is not PEM: it must be text with a {wanted} between lines `-----BEGIN ...-----` and `-----END ...-----`"
        ),
    }
}

fn der(wanted: Part, content: Content, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let what = match (wanted, content) {
        (Part::Certificate, Content::Certificate) => {
            return f.write_str("is DER, not PEM; convert it with `openssl x509 -inform DER -in FILE -out FILE.pem`");
        }
        (Part::PrivateKey, Content::PrivateKey) => {
            return f.write_str("is DER, not PEM; convert it with `openssl pkey -inform DER -in FILE -out FILE.pem`");
        }
        (Part::PrivateKey, Content::EncryptedKey) => {
            return f.write_str(
                "is DER with a private key that has a password, which nobody can enter; write one without it with \
                 `openssl pkcs8 -inform DER -in FILE -out FILE.pem`, for this user alone",
            );
        }
        (_, Content::Certificate) => "certificate",
        (_, Content::Request) => "certificate request",
        (_, Content::PrivateKey | Content::EncryptedKey) => "private key",
        (_, Content::PublicKey) => "public key",
    };
    write!(f, "is DER, not PEM, and has a {what}; name the file that the {wanted} is in")
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
    fn a_certificate_without_extensions_is_named_with_the_command_that_adds_them() {
        let error = Error::General("Other(OtherError(UnsupportedCertVersion))".to_owned());
        assert!(why_refused(&error).contains("of version 1 of X.509") && why_refused(&error).contains("-extfile"));
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
        assert!(matches!(authorities(no_authority), Err(PemFault::Damaged { .. })));
    }

    #[test]
    fn another_section_is_named_with_what_to_do() {
        let of = |label: &str| format!("-----BEGIN {label}-----\nMIIB\n-----END {label}-----\n").into_bytes();
        for (label, of_certificate, of_key) in [
            ("PKCS7", "`openssl pkcs7 -print_certs -in FILE", "name the file that the private key is in"),
            ("TRUSTED CERTIFICATE", "`openssl x509 -in FILE -out FILE.pem`", "`BEGIN TRUSTED CERTIFICATE`"),
            ("CERTIFICATE REQUEST", "a request is not a certificate yet", "name the file that the private key is in"),
            ("PUBLIC KEY", "name the file that the certificate is in", "a public key is the other half"),
            (
                "OPENSSH PRIVATE KEY",
                "name the file that the certificate is in",
                "`ssh-keygen -p -N '' -m PKCS8 -f COPY`",
            ),
        ] {
            let certificate = text(&certificates(&of(label)).unwrap_err());
            assert!(
                certificate.contains("has no certificate") && certificate.contains(of_certificate),
                "{certificate}"
            );
            let key = text(&private_key(&of(label)).map(drop).unwrap_err());
            assert!(key.contains("has no private key") && key.contains(of_key), "{key}");
        }
    }

    #[test]
    fn a_mark_a_cut_and_an_indentation_are_named() {
        let pair = pair();
        for (pem, wanted) in
            [(pair.cert.pem(), Part::Certificate), (pair.signing_key.serialize_pem(), Part::PrivateKey)]
        {
            let fault = |pem: &str| match wanted {
                Part::Certificate => certificates(pem.as_bytes()).map(drop).unwrap_err(),
                Part::PrivateKey => private_key(pem.as_bytes()).map(drop).unwrap_err(),
            };
            // The TLS library would accept the second of two, and not say that it skipped the first.
            assert_eq!(fault(&format!("\u{feff}{pem}{pem}")), PemFault::Marked);
            assert!(text(&PemFault::Marked).contains(r"`sed -i '1s/^\xEF\xBB\xBF//' FILE`"));
            assert_eq!(fault(&pem[..pem.len() / 2]), PemFault::Cut { wanted });
            let indented = text(&fault(&pem.replace("-----BEGIN", " -----BEGIN")));
            assert!(indented.contains("must begin at the left margin"), "{indented}");
            let with_returns = pem.replace('\n', "\r\n");
            assert!(certificates(with_returns.as_bytes()).is_ok() || private_key(with_returns.as_bytes()).is_ok());
        }
    }

    #[test]
    fn a_key_is_not_part_of_a_message() {
        // Each line ends with a carriage return, so the whole file is one line for some.
        let key = pair().signing_key.serialize_pem().replace('\n', "\r");
        let secret = key.split('\r').nth(1).unwrap_or_default();
        assert!(secret.len() > 20);
        let fault = text(&certificates(key.as_bytes()).unwrap_err());
        assert!(fault.contains("`BEGIN PRIVATE KEY`") && !fault.contains(secret), "{fault}");
        let joined = text(&certificates(key.replace('\r', "").as_bytes()).unwrap_err());
        assert!(!joined.contains(secret), "{joined}");
    }

    #[test]
    fn what_der_has_is_named() {
        let pair = pair();
        let certificate = text(&private_key(pair.cert.der()).map(drop).unwrap_err());
        assert!(certificate.contains("has a certificate; name the file that the private key is in"), "{certificate}");
        let key = text(&certificates(&pair.signing_key.serialize_der()).unwrap_err());
        assert!(key.contains("has a private key; name the file that the certificate is in"), "{key}");
        // The beginnings of real files: of a request, a public key, and a key with a password.
        let request = [0x30, 0x82, 2, 0x50, 0x30, 0x82, 1, 0x38, 2, 1, 0, 0x30, 12];
        assert!(text(&certificates(&request).unwrap_err()).contains("has a certificate request"));
        let public = [0x30, 12, 0x30, 3, OBJECT, 1, 1, 3, 3, 0, 1, 1, 1, 1];
        assert!(text(&private_key(&public).map(drop).unwrap_err()).contains("has a public key"));
        let encrypted = [0x30, 9, 0x30, 3, OBJECT, 1, 1, 4, 2, 1, 1];
        assert!(text(&private_key(&encrypted).map(drop).unwrap_err()).contains("`openssl pkcs8 -inform DER"));
        for line in ["ssh-ed25519 AAAA x", "ecdsa-sha2-nistp256 AAAA"] {
            assert!(text(&private_key(line.as_bytes()).map(drop).unwrap_err()).contains("a public key of OpenSSH"));
        }
    }

    const OBJECT: u8 = 6;

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
