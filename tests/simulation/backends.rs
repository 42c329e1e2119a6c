//! The simulated ensemble as a backend, for the promises.

pub mod simulated;

/// Makes a test of each promise on each backend of this binary.
macro_rules! on_every_backend {
    ($($promise:ident),+ $(,)?) => {
        on_backend!(simulated: $($promise),+);
    };
}
