//! Names of signals on the command line.

use std::str::FromStr as _;

use nix::sys::signal::Signal;

use cronkeeper_core::escape::short;

/// Most characters of a rejected name to quote.
const SHOWN: usize = 40;

/// A signal by its name or number, as kill(1) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalName(Signal);

impl SignalName {
    /// Takes `TERM`, `SIGTERM`, `term` or `15`.
    ///
    /// # Errors
    /// A message that names examples.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named = || {
            let name = text.to_ascii_uppercase();
            let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
            Signal::from_str(&name).ok()
        };
        let numbered = || Signal::try_from(text.parse::<i32>().ok()?).ok();
        numbered()
            .or_else(named)
            .map(Self)
            .ok_or_else(|| format!("`{}` is not a signal: expected a name such as TERM or USR1", short(text, SHOWN)))
    }

    pub fn number(self) -> i32 {
        self.0 as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_named_as_for_kill() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(SignalName::parse(text).unwrap().number(), 15, "{text}");
        }
        assert_eq!(SignalName::parse("USR1").unwrap().number(), Signal::SIGUSR1 as i32);
        for bad in ["", "SIG", "NOPE", "0", "99", "-1"] {
            assert!(SignalName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
