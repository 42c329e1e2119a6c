//! What must never be, one file each.
