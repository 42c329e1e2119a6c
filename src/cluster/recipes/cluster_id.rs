//! The id of the cluster, in a record of its own.
//!
//! Whoever may write there may put anything in its place, of any size. What is longer than an id is not read, and what
//! is no id is never taken for one: a state directory that recorded it would belong to a cluster that does not exist.

use uuid::Uuid;

use super::bounded::Records;
use super::context::SessionError;
use crate::paths;
use crate::tree::{Error, Session, Stat};
use cronkeeper_core::escape;
use cronkeeper_core::run::Version;

/// A UUID in any of its usual forms.
const ID: Records = Records { bytes: 45, count: 1, total: 45 };

/// What is on record as the id of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub enum Recorded {
    Id(String),
    /// Something that cronkeeper did not write.
    Foreign {
        why: String,
        version: Version,
    },
}

impl Recorded {
    /// The id.
    ///
    /// # Errors
    /// If there is none; a node that knows it may write it again.
    pub fn id(self) -> Result<String, SessionError> {
        match self {
            Self::Id(id) => Ok(id),
            Self::Foreign { why, .. } => Err(SessionError::Again(format!(
                "{} holds no cluster id: {why}; a node that has been in this cluster writes it again when it starts",
                paths::CLUSTER
            ))),
        }
    }

    fn of(data: &[u8], version: Version) -> Self {
        let text = String::from_utf8_lossy(data);
        let why = match ID.check(data.len()) {
            Err(error) => error.to_string(),
            Ok(()) if Uuid::parse_str(&text).is_ok() => return Self::Id(text.into_owned()),
            Ok(()) if data.is_empty() => "it is empty".to_owned(),
            Ok(()) => format!("`{}` is no UUID", escape::short(&text, ID.bytes)),
        };
        Self::Foreign { why, version }
    }
}

/// Reads what is on record.
///
/// # Errors
/// If there is nothing on record, or it cannot be read.
pub async fn read<C: Session>(client: &C) -> Result<Recorded, Error> {
    let stat = client.stat(paths::CLUSTER).await?.ok_or(Error::Missing)?;
    read_known(client, &stat).await
}

/// The same if its metadata is known.
///
/// # Errors
/// As for [`read`].
pub async fn read_known<C: Session>(client: &C, stat: &Stat) -> Result<Recorded, Error> {
    if let Err(error) = ID.check(stat.bytes) {
        return Ok(Recorded::Foreign { why: error.to_string(), version: stat.version });
    }
    let (data, stat) = client.get(paths::CLUSTER).await?;
    Ok(Recorded::of(&data, stat.version))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::recipes::tests_support::Server;

    const UUID: &str = "5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11";

    fn found(data: &str) -> (Result<String, String>, usize) {
        let server = Server::default();
        server.tree().put(paths::CLUSTER, data);
        let found = read(&server).now_or_never().unwrap().unwrap();
        let id = found.id().map_err(|error| error.to_string());
        let reads = server.tree().reads;
        (id, reads)
    }

    #[test]
    fn an_id_is_read_in_any_form() {
        for id in [UUID.to_owned(), UUID.replace('-', ""), format!("{{{UUID}}}"), format!("urn:uuid:{UUID}")] {
            assert_eq!(found(&id).0, Ok(id));
        }
    }

    #[test]
    fn what_is_no_id_is_named_in_a_few_words() {
        let long = "x".repeat(900_000);
        let twice = format!("{UUID}\n{UUID}");
        for (data, why) in [
            ("", "it is empty"),
            ("pear", "`pear` is no UUID"),
            ("\u{1b}[2J", "`\\u{1b}[2J` is no UUID"),
            (&twice, "it has 73 bytes, and no such record of cronkeeper has more than 45"),
            (&long, "it has 900000 bytes, and no such record of cronkeeper has more than 45"),
        ] {
            let error = found(data).0.unwrap_err();
            assert!(error.contains(&format!("/cronkeeper/cluster holds no cluster id: {why}; a node")), "{error}");
            assert!(error.len() < 250, "{error}");
        }
    }

    #[test]
    fn what_is_longer_than_an_id_is_not_read() {
        assert_eq!([ID.bytes, ID.bytes + 1].map(|bytes| found(&"x".repeat(bytes)).1), [1, 0]);
        let server = Server::default();
        server.tree().put(paths::CLUSTER, "x".repeat(ID.bytes + 1));
        // It has grown since its size was read.
        let stat = Stat { bytes: 36, ..Stat::default() };
        let read = read_known(&server, &stat).now_or_never().unwrap().unwrap();
        assert!(matches!(read, Recorded::Foreign { .. }), "{read:?}");
    }
}
