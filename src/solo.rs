//! Solo placeholder.
