//! What the files of live attempts take on the disk.

use std::collections::BTreeMap;

use super::layout::OutputKey;
use super::sweep::space;

/// The files of this process's live attempts.
#[derive(Debug, Default)]
pub(super) struct LiveFiles {
    /// The length of each. Bounded by the attempts in flight.
    lengths: BTreeMap<OutputKey, u64>,
    space: u64,
}

impl LiveFiles {
    /// The disk space of all of them, in bytes.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// How much more disk space a file takes once it is this much longer.
    pub fn growth(&self, key: &OutputKey, bytes: u64) -> u64 {
        match self.lengths.get(key) {
            Some(&length) => space(length + bytes) - space(length),
            None => space(bytes),
        }
    }

    pub fn grow(&mut self, key: &OutputKey, bytes: u64) {
        self.set(key, self.lengths.get(key).copied().unwrap_or_default() + bytes);
    }

    /// Sets the length of a file; 0: there is none.
    pub fn set(&mut self, key: &OutputKey, length: u64) {
        let before = if length == 0 { self.lengths.remove(key) } else { self.lengths.insert(key.clone(), length) };
        self.space = self.space.saturating_sub(before.map_or(0, space));
        if length > 0 {
            self.space += space(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sweep::BLOCK;
    use super::*;
    use cronkeeper_core::run::RunId;

    fn key(attempt: u32) -> OutputKey {
        OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt }
    }

    #[test]
    fn files_take_whole_blocks_and_nothing_once_they_are_gone() {
        let mut live = LiveFiles::default();
        assert_eq!(live.growth(&key(1), 1), BLOCK);
        live.grow(&key(1), BLOCK - 1);
        live.grow(&key(2), 2 * BLOCK + 1);
        assert_eq!([1, 2].map(|bytes| live.growth(&key(1), bytes)), [0, BLOCK]);
        live.grow(&key(1), 2);
        assert_eq!(live.space(), 5 * BLOCK);
        live.set(&key(2), 1);
        live.set(&key(1), 0);
        live.set(&key(3), 0);
        assert_eq!(live.space(), BLOCK);
        live.set(&key(2), 0);
        assert_eq!((live.space(), live.lengths.len()), (0, 0));
    }
}
