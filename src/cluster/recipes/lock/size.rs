//! The size of requests. Servers close the connection over one that is too large for them, and do not say why.

use super::LockError;
use crate::tree::Op;

/// Requests with fewer bytes are never suspected: no server takes so little.
const SUSPICIOUS: usize = 32 << 10;
/// Losses of the connection, one after the other, that are no coincidence.
const CONVINCING: usize = 2;
/// Bytes of an operation besides its path and data: lengths, type, access list.
const OVERHEAD: usize = 56;

/// Watches whether large requests are answered.
#[derive(Debug, Default)]
pub(super) struct SizeWatch {
    entries: usize,
    bytes: usize,
    /// Large requests without an answer since the last one that was answered.
    unanswered: usize,
}

impl SizeWatch {
    /// Notes the request that is sent next.
    pub fn expect(&mut self, ops: &[Op]) {
        (self.entries, self.bytes) = (ops.len(), ops.iter().map(bytes).sum());
    }

    /// Notes that the request was not answered. True if its size explains that.
    pub fn is_too_large(&mut self) -> bool {
        if self.bytes >= SUSPICIOUS {
            self.unanswered += 1;
        }
        self.unanswered >= CONVINCING
    }

    /// The error for that request.
    pub fn error(&self) -> LockError {
        LockError::TooLarge { entries: self.entries, bytes: self.bytes }
    }
}

fn bytes(op: &Op) -> usize {
    OVERHEAD
        + match op {
            Op::Check { path, .. } | Op::Delete { path, .. } => path.len(),
            Op::Create { path, data, .. } | Op::Set { path, data, .. } => path.len() + data.len(),
            Op::Append { folder, prefix, data, .. } => folder.len() + prefix.len() + data.len(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::AtVersion;

    fn ops(count: usize) -> Vec<Op> {
        vec![Op::Check { path: "/locks/orders".to_owned(), at: AtVersion::Any }; count]
    }

    #[test]
    fn a_large_request_is_suspected_when_it_stays_without_an_answer() {
        let mut sizes = SizeWatch::default();
        sizes.expect(&ops(20_000));
        assert!(!sizes.is_too_large(), "connections are lost for other reasons too");
        assert!(sizes.is_too_large());
        assert!(matches!(sizes.error(), LockError::TooLarge { entries: 20_000, bytes } if bytes > 1 << 20));
    }

    #[test]
    fn a_small_request_is_never_too_large() {
        let mut sizes = SizeWatch::default();
        sizes.expect(&ops(3));
        assert!((0..10).all(|_| !sizes.is_too_large()));
    }
}
