//! Compressed files that can be read from any offset.
//!
//! A file is a sequence of gzip members, each of at most [`FRAME`] bytes of content; so `zcat` reads it. Each member's
//! header carries its compressed length and the length of its content in an extra field. A reader skips the members
//! before its offset by these lengths, without decompressing them.

use std::io::{self, Read, Seek, SeekFrom, Write};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};

/// Most bytes of content in one member.
const FRAME: u64 = 256 << 10;
/// Bytes of a member's header with its extra field: magic, flags and time (10), length of the field (2), the field.
const HEADER: usize = 10 + 2 + FIELD;
/// Bytes of the extra field: its id, the length of its data, and two lengths.
const FIELD: usize = 2 + 2 + 8;
/// How a header begins: magic, deflate, and the flag for an extra field.
const MAGIC: [u8; 4] = [0x1f, 0x8b, 8, 4];
/// The beginning of the field: its id, and the length of its data.
const ID: [u8; 4] = [b'c', b'k', 8, 0];

/// Compresses everything from `from`.
pub(super) fn compress(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    loop {
        let mut content = Vec::new();
        from.take(FRAME).read_to_end(&mut content)?;
        if content.is_empty() {
            return Ok(());
        }
        to.write_all(&member(&content)?)?;
    }
}

fn member(content: &[u8]) -> io::Result<Vec<u8>> {
    let field = [&ID[..], &[0; 8]].concat();
    let mut encoder = GzBuilder::new().extra(field).write(Vec::new(), Compression::new(4));
    encoder.write_all(content)?;
    let mut member = encoder.finish()?;
    // Both lengths are far below 2^32, because the content is at most a frame.
    let lengths = [member.len(), content.len()].map(|length| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    member[HEADER - 8..HEADER].copy_from_slice(&lengths.concat());
    Ok(member)
}

/// Reads up to `most` bytes of the content from `offset`. Fewer only at its end.
pub(super) fn read_at(file: &mut (impl Read + Seek), offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let (mut place, mut skipped) = (0, 0);
    while content.len() < most {
        file.seek(SeekFrom::Start(place))?;
        let Some((compressed, length)) = header(file)? else { break };
        if offset < skipped + length {
            file.seek(SeekFrom::Start(place))?;
            let frame = decompressed(&mut (&mut *file).take(compressed), length)?;
            let from = usize::try_from(offset.saturating_sub(skipped)).unwrap_or(usize::MAX);
            content.extend(frame.iter().skip(from).take(most - content.len()));
        }
        (place, skipped) = (place + compressed, skipped + length);
    }
    Ok(content)
}

/// Bytes of the whole content.
pub(super) fn length(file: &mut (impl Read + Seek)) -> io::Result<u64> {
    let (mut place, mut length) = (0, 0);
    loop {
        file.seek(SeekFrom::Start(place))?;
        let Some((compressed, content)) = header(file)? else { return Ok(length) };
        (place, length) = (place + compressed, length + content);
    }
}

/// The content of a member, checked against its checksum and its length.
fn decompressed(member: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    GzDecoder::new(member).take(FRAME + 1).read_to_end(&mut content)?;
    if content.len() as u64 == length { Ok(content) } else { Err(damaged()) }
}

/// The compressed length of the member that begins here, and the length of its content; `None` at the end of the file.
fn header(file: &mut impl Read) -> io::Result<Option<(u64, u64)>> {
    let mut bytes = Vec::with_capacity(HEADER);
    file.take(HEADER as u64).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let is_ours = bytes.len() == HEADER && bytes[..4] == MAGIC && bytes[12..16] == ID;
    let length = |at: usize| bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    match (is_ours, length(HEADER - 8), length(HEADER - 4)) {
        (true, Some(compressed), Some(content)) if compressed as usize > HEADER && u64::from(content) <= FRAME => {
            Ok(Some((compressed.into(), content.into())))
        }
        _ => Err(damaged()),
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is damaged")
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn compressed(content: &[u8]) -> Cursor<Vec<u8>> {
        let mut file = Vec::new();
        compress(&mut &content[..], &mut file).unwrap();
        Cursor::new(file)
    }

    fn sample() -> Vec<u8> {
        (0..3 * FRAME + 77).map(|at| ((at * at) >> 7) as u8).collect()
    }

    #[test]
    fn any_part_is_read_back() {
        let content = sample();
        let mut file = compressed(&content);
        assert!(file.get_ref().len() < content.len());
        let end = content.len();
        for (from, to) in [(0, end), (0, 1), (FRAME as usize - 1, FRAME as usize + 1), (end - 1, end), (end, end)] {
            assert_eq!(read_at(&mut file, from as u64, to - from).unwrap(), content[from..to], "{from}..{to}");
        }
        assert_eq!(read_at(&mut file, end as u64 + 5, 10).unwrap(), b"");
        assert_eq!(read_at(&mut file, end as u64 - 3, 10).unwrap().len(), 3);
    }

    #[test]
    fn other_programs_read_it_as_one_file() {
        let content = sample();
        let mut read = Vec::new();
        flate2::read::MultiGzDecoder::new(compressed(&content)).read_to_end(&mut read).unwrap();
        assert_eq!(read, content);
    }

    #[test]
    fn a_file_that_was_cut_is_an_error_and_not_an_end() {
        let file = compressed(&sample()).into_inner();
        for cut in [HEADER - 1, HEADER, HEADER + 10, file.len() - 1] {
            assert!(read_at(&mut Cursor::new(&file[..cut]), 0, usize::MAX).is_err(), "{cut}");
        }
        assert!(read_at(&mut Cursor::new(b"plain text"), 0, 10).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..crate::fuzz::proptest_config() })]
        #[test]
        fn pages_add_up_to_the_whole(length in 0usize..600_000, page in 1usize..300_000) {
            let content = &sample()[..length];
            let mut file = compressed(content);
            let mut read = Vec::new();
            loop {
                let part = read_at(&mut file, read.len() as u64, page).unwrap();
                if part.is_empty() {
                    break;
                }
                read.extend(part);
            }
            prop_assert_eq!(read, content);
            prop_assert_eq!(super::length(&mut file).unwrap(), content.len() as u64);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, offset: u64) {
            let file = [&MAGIC[..], &bytes].concat();
            let _ = super::length(&mut Cursor::new(&file));
            let _ = read_at(&mut Cursor::new(file), offset, 1 << 20);
        }
    }
}
