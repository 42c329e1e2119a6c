//! Reads of records, bounded by what cronkeeper itself writes.
//!
//! Whoever may write below the parents may fill them with records of a megabyte each. A server answers a request
//! whatever its answer takes, and one of five hundred such records has ended a server for lack of memory. So the sizes
//! are read first, and of the data only what can be a record, in requests whose answers are bounded in bytes.

use serde::de::DeserializeOwned;

use super::damage;
use crate::tree::{Error, Read, Record, Session, Stat};

/// What the records of one kind take at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// Bytes of one record.
    pub bytes: usize,
    /// Records in one request.
    pub count: usize,
    /// Bytes of all records of one folder together. Of more, the smallest are read: cronkeeper's own are small.
    pub total: usize,
}

/// Records of at most half a KiB, or 6 KiB with the reason that an operator gave.
pub const SMALL: Records = Records { bytes: 16 << 10, count: 500, total: 16 << 20 };
/// Records of jobs. There may be a hundred thousand.
pub const JOBS: Records = Records { total: 64 << 20, ..SMALL };
/// Records of nodes: members, candidates, and what operators want of a node.
pub const NODES: Records = Records { total: 4 << 20, ..SMALL };
/// Records of runs, triggers and links. They are small too, but at worst have some 20 KiB each: parameters, earlier
/// attempts, and the names of the jobs that run after it.
pub const RUNS: Records = Records { bytes: 32 << 10, count: 50, total: 64 << 20 };
/// History records: at worst some 45 KiB each, those of a run and the end of its output.
pub const HISTORY: Records = Records { bytes: 64 << 10, count: 20, total: 64 << 20 };
/// Channels: at worst 30 bytes for each of the notifications that wait, of which there are some thousands.
pub const CHANNELS: Records = Records { bytes: 256 << 10, count: 1, total: 256 << 10 };
/// Records of any kind.
pub const ANY: Records = Records { count: 200, ..HISTORY };

/// Most bytes of records in one answer: the protocol's limit is 1 MiB.
const ANSWER: usize = 900 << 10;

impl Records {
    /// Refuses data that is larger than a record of this kind.
    pub fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.bytes { Ok(()) } else { Err(Error::TooLarge { bytes, most: self.bytes }) }
    }

    /// Parses a record. The error is short, whatever the data is.
    pub fn parse<T: DeserializeOwned>(&self, data: &[u8]) -> Result<T, String> {
        self.check(data.len()).map_err(|error| error.to_string())?;
        serde_json::from_slice(data).map_err(|error| damage::reason(&error))
    }
}

/// Reads records in as few requests as the bounds allow, each with its own result, in the given order.
///
/// # Errors
/// If the servers do not answer.
pub async fn get<C: Session>(client: &C, paths: Vec<String>, records: Records) -> Result<Vec<Read>, Error> {
    Sized::of(client, paths, records).await?.get(client).await
}

/// Records whose sizes are known.
#[derive(Debug)]
pub struct Sized {
    records: Records,
    /// The paths, each with the size of its data, or the reason why it cannot be read.
    found: Vec<(String, Result<usize, Error>)>,
}

impl Sized {
    /// Reads the sizes, which needs no right to read the data. All requests are handed over before the first answer.
    ///
    /// # Errors
    /// If the servers do not answer.
    pub async fn of<C: Session>(client: &C, paths: Vec<String>, records: Records) -> Result<Self, Error> {
        let requests: Vec<_> = paths.iter().map(|path| Box::pin(client.stat(path))).collect();
        let mut found = Vec::with_capacity(paths.len());
        for (path, request) in paths.into_iter().zip(requests) {
            let size = match request.await {
                Ok(stat) => stat.map(|stat| stat.bytes).ok_or(Error::Missing),
                Err(error) if error.is_of_path() => Err(error),
                Err(error) => return Err(error),
            };
            found.push((path, size));
        }
        Ok(Self { records, found })
    }

    /// Takes the sizes from metadata that was read before.
    pub fn known(found: impl Iterator<Item = (String, Stat)>, records: Records) -> Self {
        Self { records, found: found.map(|(path, stat)| (path, Ok(stat.bytes))).collect() }
    }

    /// The paths. If all of them together are too large, the largest are not read.
    fn within_total(mut self) -> Vec<(String, Result<usize, Error>)> {
        let total = self.records.total;
        let mut sizes: Vec<(usize, usize)> = Vec::new();
        for (place, (_, size)) in self.found.iter().enumerate() {
            sizes.extend(size.as_ref().ok().filter(|bytes| **bytes <= self.records.bytes).map(|bytes| (*bytes, place)));
        }
        if sizes.iter().map(|(bytes, _)| bytes).sum::<usize>() > total {
            sizes.sort_unstable();
            let mut sum = 0;
            for (bytes, place) in sizes {
                sum += bytes;
                if sum > total {
                    self.found[place].1 = Err(Error::Crowded { most: total });
                }
            }
        }
        self.found
    }

    /// Reads the data. All requests are handed over before the first answer.
    ///
    /// # Errors
    /// If the servers do not answer.
    pub async fn get<C: Session>(self, client: &C) -> Result<Vec<Read>, Error> {
        let records = self.records;
        let found = self.within_total();
        let mut reads: Vec<Read> = Vec::with_capacity(found.len());
        let (mut requests, mut next) = (Vec::new(), Request::default());
        for (path, size) in found {
            match size.and_then(|bytes| records.check(bytes).map(|()| bytes)) {
                Ok(bytes) => {
                    if !next.has_room(bytes, records.count) {
                        requests.push(std::mem::take(&mut next).send(client));
                    }
                    next.add(reads.len(), path, bytes);
                    // The answer takes this place.
                    reads.push(Err(Error::Missing));
                }
                Err(error) => reads.push(Err(error)),
            }
        }
        if !next.paths.is_empty() {
            requests.push(next.send(client));
        }
        // It may have grown since its size was read.
        let checked = |(data, stat): Record| records.check(data.len()).map(|()| (data, stat));
        for (places, answer) in requests {
            for (place, read) in places.into_iter().zip(answer.await?) {
                reads[place] = read.and_then(checked);
            }
        }
        Ok(reads)
    }
}

/// A request for some of the records.
#[derive(Debug, Default)]
struct Request {
    /// The places of their results.
    places: Vec<usize>,
    paths: Vec<String>,
    bytes: usize,
}

type Answer = std::pin::Pin<Box<dyn Future<Output = Result<Vec<Read>, Error>> + Send>>;

impl Request {
    fn has_room(&self, bytes: usize, count: usize) -> bool {
        self.paths.is_empty() || (self.paths.len() < count && self.bytes + bytes <= ANSWER)
    }

    fn add(&mut self, place: usize, path: String, bytes: usize) {
        self.places.push(place);
        self.paths.push(path);
        self.bytes += bytes;
    }

    fn send<C: Session>(self, client: &C) -> (Vec<usize>, Answer) {
        (self.places, Box::pin(client.get_many(self.paths)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::recipes::tests_support::Server;

    fn path(index: usize) -> String {
        format!("/cronkeeper/nodes/n{index:04}")
    }

    fn read(server: &Server, count: usize, records: Records) -> Vec<Read> {
        get(server, (0..count).map(path).collect(), records).now_or_never().unwrap().unwrap()
    }

    #[test]
    fn what_is_larger_than_a_record_is_not_read_and_the_others_are() {
        let server = Server::default();
        for (index, bytes) in [1, SMALL.bytes + 1, SMALL.bytes, 1 << 20].into_iter().enumerate() {
            server.tree().put(&path(index), "x".repeat(bytes));
        }
        let reads = read(&server, 5, SMALL);
        let sizes: Vec<_> = reads.iter().map(|read| read.as_ref().map(|(data, _)| data.len())).collect();
        let large = |bytes| Error::TooLarge { bytes, most: SMALL.bytes };
        let expected =
            [Ok(1), Err(&large(SMALL.bytes + 1)), Ok(SMALL.bytes), Err(&large(1 << 20)), Err(&Error::Missing)];
        assert_eq!(sizes, expected);
        let tree = server.tree();
        assert_eq!((tree.reads, tree.most_read_bytes), (2, SMALL.bytes + 1));
    }

    #[test]
    fn of_too_many_records_the_smallest_are_read() {
        let few = Records { total: 100, ..SMALL };
        let server = Server::default();
        for (index, bytes) in [50, 10, 45, 5, 30].into_iter().enumerate() {
            server.tree().put(&path(index), "x".repeat(bytes));
        }
        let reads = read(&server, 5, few);
        let sizes: Vec<_> = reads.iter().map(|read| read.as_ref().ok().map(|(data, _)| data.len())).collect();
        assert_eq!(sizes, [None, Some(10), Some(45), Some(5), Some(30)]);
        assert_eq!(reads[0].as_ref().unwrap_err(), &Error::Crowded { most: 100 });
    }

    #[test]
    fn a_record_that_cannot_be_parsed_has_a_short_error() {
        let text = format!("\"{}\"", "x".repeat(16_000));
        let error = SMALL.parse::<u32>(text.as_bytes()).unwrap_err();
        assert!(error.starts_with("invalid type: string \"xxx") && error.len() < 300, "{error}");
        assert!(RUNS.parse::<u32>(&vec![b' '; RUNS.bytes + 1]).unwrap_err().contains("32769"));
        assert_eq!(SMALL.parse::<u32>(b"7"), Ok(7));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..crate::fuzz::proptest_config() })]
        #[test]
        fn each_record_has_its_own_result_and_no_answer_is_larger_than_the_protocol_allows(
            sizes in prop::collection::vec(0usize..80_000, 0..90),
        ) {
            let server = Server::default();
            for (index, bytes) in sizes.iter().enumerate() {
                server.tree().put(&path(index), format!("{index:04}").repeat(bytes.div_ceil(4)));
            }
            let reads = read(&server, sizes.len(), HISTORY);
            for (index, (bytes, read)) in sizes.iter().zip(reads).enumerate() {
                match read {
                    Ok((data, _)) => prop_assert_eq!(data, format!("{index:04}").repeat(bytes.div_ceil(4)).into_bytes()),
                    Err(error) => prop_assert!(*bytes + 3 >= HISTORY.bytes, "{}: {}", bytes, error),
                }
            }
            let tree = server.tree();
            prop_assert!(tree.most_read_bytes <= ANSWER && tree.most_read <= HISTORY.count);
        }
    }
}
