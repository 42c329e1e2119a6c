//! Finds out why no server gives a session: the client crate does not say.
//!
//! Each server is asked for a connection, all at once, and for a short time: it is a diagnosis for people, and the next
//! attempt to open a session must not wait for it.

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long a name may take to be found, and a server to accept. Less than the shortest pause between two attempts.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Most servers that are asked.
const MOST: usize = 16;
/// The port of a server that is named without one.
const PORT: u16 = 2181;

/// The servers of a connect string, as configured.
pub(super) fn servers(connect: &str) -> &str {
    connect.split('/').next().unwrap_or_default()
}

/// What each server does. `is_secure`: sessions are opened over TLS.
pub(super) async fn of_each(connect: &str, is_secure: bool) -> String {
    let named: Vec<&str> = servers(connect).split(',').map(str::trim).filter(|server| !server.is_empty()).collect();
    let asked = named.iter().take(MOST);
    let asked = asked.map(|server| async move { format!("{server}: {}", answer_of(server, is_secure).await) });
    let mut told = join_all(asked).await;
    if named.len() > MOST {
        told.push(format!("{} more", named.len() - MOST));
    }
    told.join("; ")
}

async fn answer_of(server: &str, is_secure: bool) -> String {
    let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let place = if has_port { server.to_owned() } else { format!("{server}:{PORT}") };
    let addresses: Vec<_> = match timeout(TIMEOUT, lookup_host(&place)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return format!("name not found ({error})"),
        Err(_) => return "its name is not found in time".to_owned(),
    };
    match timeout(TIMEOUT, TcpStream::connect(&*addresses)).await {
        Ok(Ok(_)) => {
            let cause =
                if is_secure { "a certificate may be refused, or it has no quorum" } else { "it may have no quorum" };
            format!("accepts connections, but gives no session: {cause}")
        }
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timed out".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn each_server_is_named_with_what_it_does() {
        let free = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = free(&TcpListener::bind("127.0.0.1:0").await.unwrap());
        let told = of_each(&format!("{},{closed},no-such-host.invalid:2181/chroot", free(&open)), false).await;
        let [open_told, closed_told, unknown] = told.split("; ").collect::<Vec<_>>()[..] else { panic!("{told}") };
        assert!(open_told.starts_with(&format!("{}: accepts connections, but", free(&open))), "{told}");
        assert_eq!(closed_told, format!("{closed}: connection refused"));
        assert!(unknown.starts_with("no-such-host.invalid:2181: ") && unknown.contains("not found"), "{told}");
    }

    #[tokio::test]
    async fn many_servers_are_not_all_asked() {
        let told = of_each(&vec!["127.0.0.1:1"; 20].join(","), false).await;
        assert_eq!((told.matches("127.0.0.1:1: ").count(), told.ends_with("; 4 more")), (16, true), "{told}");
    }
}
