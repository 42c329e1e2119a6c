//! TLS on the address of `--listen`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::access::refused;
use super::{Answer, caller, closed, dial, exchange, listening, opened, request, text, unused};
use crate::solo::fixture::{leading, node};
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::until;

/// A client that trusts the CA of one set of certificates and presents an identity from another.
fn client(trusted: &Certificates, shown: Option<&Certificates>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusted.ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    match shown {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (certificate, key) = &own.renewed;
            let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn dial_tls(at: SocketAddrV4, config: ClientConfig) -> Tls {
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(connection, dial(caller(1), at).expect("it listens"))
}

fn ask(at: SocketAddrV4, config: ClientConfig) -> Option<Answer> {
    exchange(dial_tls(at, config), &request("/healthz", ""))
}

/// The certificate that the server presents.
fn shown(at: SocketAddrV4, trusted: &Certificates) -> Option<Vec<u8>> {
    let mut stream = dial_tls(at, client(trusted, Some(trusted)));
    stream.write_all(request("/healthz", "").as_bytes()).ok()?;
    drop(stream.read(&mut [0]));
    Some(stream.conn.peer_certificates()?.first()?.to_vec())
}

/// A node with the identity of these certificates, which requires client certificates of the same CA.
fn with_tls(spec: Spec, own: &Certificates) -> Spec {
    closed(&own.client_key);
    let spec = spec.option("--listen-cert", text(&own.client_cert)).option("--listen-key", text(&own.client_key));
    spec.option("--listen-client-ca", text(&own.ca))
}

#[test]
fn only_a_certificate_of_the_right_authority_is_let_in() {
    let (own, foreign, at) = (Certificates::new(), Certificates::new(), unused());
    let _a = leading(&with_tls(listening(node("a"), at), &own));
    assert_eq!(ask(at, client(&own, Some(&own))).expect("it is let in").code, 200);
    assert!(ask(at, client(&own, None)).is_none(), "without a certificate");
    assert!(ask(at, client(&own, Some(&foreign))).is_none(), "with that of another authority");
    assert!(ask(at, client(&foreign, Some(&own))).is_none(), "the client trusts another");
    let plain = exchange(dial(caller(1), at).unwrap(), &request("/healthz", ""));
    assert!(plain.is_none(), "without TLS: {plain:?}");
    // The same access rules apply behind it.
    let answer =
        exchange(dial_tls(at, client(&own, Some(&own))), "GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(answer.expect("it is let in").code, 421);
}

#[test]
fn who_does_not_begin_tls_is_cut_off() {
    let (own, at) = (Certificates::new(), unused());
    let _a = leading(&with_tls(listening(node("a"), at), &own));
    let mut silent = dial(caller(1), at).unwrap();
    // Bounded by the timeout of the test itself, which is far longer.
    assert_eq!(silent.read(&mut [0]).expect("it is closed before that"), 0);
}

#[test]
fn a_renewed_certificate_is_shown_after_a_reload_and_a_bad_one_is_not() {
    let (own, at, dir) = (Certificates::new(), unused(), Scratch::new("renewed"));
    let spec = with_tls(listening(node("a"), at), &own);
    let a = leading(&spec);
    let first = shown(at, &own).expect("it shows one");
    let put = |from: &Path, to: &Path| {
        let aside = dir.write("aside", &std::fs::read_to_string(from).unwrap());
        closed(&aside);
        std::fs::rename(aside, to).unwrap();
    };
    // Replaces the certificate, but not its key.
    let (certificate, key) = &own.renewed;
    put(certificate, &own.client_cert);
    a.signal(Signal::HUP);
    until("it says that they do not fit", || a.events().tail().contains("replace both together"));
    assert_eq!(shown(at, &own).as_ref(), Some(&first));
    put(key, &own.client_key);
    a.signal(Signal::HUP);
    until("the new one is shown", || shown(at, &own).is_some_and(|now| now != first));
}

#[test]
fn certificates_that_cannot_be_used_end_the_start_with_78_and_what_to_do() {
    let (own, other, dir) = (Certificates::new(), Certificates::new(), Scratch::new("bad"));
    closed(&own.client_key);
    closed(&other.client_key);
    let empty = dir.write("empty.pem", "");
    closed(&empty);
    let open = dir.write("open.pem", &std::fs::read_to_string(&own.client_key).unwrap());
    opened(&open);
    for (certificate, key, words) in [
        (&empty, &own.client_key, [text(&empty), "it must be PEM, with a certificate"]),
        (&own.client_cert, &empty, [text(&empty), "it must be PEM, with a private key"]),
        (&own.client_cert, &open, [text(&open), "chmod 600"]),
        (&own.client_cert, &other.client_key, [text(&other.client_key), "replace both together"]),
    ] {
        let spec = listening(node("a"), unused()).option("--listen-cert", text(certificate));
        refused(&spec.option("--listen-key", text(key)).start(), &words);
    }
}
