//! Certificates for one ensemble and its clients: an authority, a server's and a client's identity, as PEM files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use zookeeper_client::TlsOptions;

use super::scratch::Scratch;

/// The server's requirement for client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// None.
    NotAsked,
    /// A certificate of the same authority.
    Needed,
}

/// The files, which exist until this is dropped.
#[derive(Debug)]
pub struct Certificates {
    dir: Scratch,
    /// The authority.
    pub ca: PathBuf,
    /// The client's certificate.
    pub client_cert: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
    /// A later certificate of the client and its key, to replace the first.
    pub renewed: (PathBuf, PathBuf),
    /// A certificate of the same authority for another subject, and its key.
    pub other: (PathBuf, PathBuf),
    /// Key and certificate of the server in one file, as ZooKeeper's PEM key stores require.
    pub server_store: PathBuf,
}

impl Certificates {
    /// Creates an authority and its identities, for 127.0.0.1.
    pub fn new() -> Self {
        let dir = Scratch::new("tls");
        let authority = authority();
        let (server_cert, server_key) = identity(&authority, "server");
        let (client_cert, client_key) = identity(&authority, "client");
        let renewed = identity(&authority, "client");
        let other = identity(&authority, "other");
        Self {
            ca: dir.write("ca.pem", &authority.pem()),
            client_cert: dir.write("client.pem", &client_cert),
            client_key: dir.write("client-key.pem", &client_key),
            renewed: (dir.write("renewed.pem", &renewed.0), dir.write("renewed-key.pem", &renewed.1)),
            other: (dir.write("other.pem", &other.0), dir.write("other-key.pem", &other.1)),
            server_store: dir.write("server.pem", &format!("{server_key}{server_cert}")),
            dir,
        }
    }

    /// TLS options of a client without a certificate.
    pub fn anonymous(&self) -> TlsOptions {
        TlsOptions::new().with_pem_ca(&read(&self.ca)).expect("the authority is PEM")
    }

    /// TLS options of a client with a certificate.
    pub fn identified(&self) -> TlsOptions {
        let (cert, key) = (read(&self.client_cert), read(&self.client_key));
        self.anonymous().with_pem_identity(&cert, &key).expect("the identity is PEM")
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = named("authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, key()).expect("an authority can sign itself")
}

fn identity(authority: &CertifiedIssuer<'_, KeyPair>, name: &str) -> (String, String) {
    let key = key();
    let cert = named(name).signed_by(&key, authority).expect("the authority signs");
    (cert.pem(), key.serialize_pem())
}

fn named(name: &str) -> CertificateParams {
    let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut params = CertificateParams::new(hosts).expect("these are host names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be had")
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).expect("the file is there")
}
