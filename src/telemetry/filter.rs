//! The log filter of `--log LEVEL-OR-FILTER`.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

/// Selects which lines are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Why a text is not a log filter.
#[derive(Debug, thiserror::Error)]
pub enum BadFilter {
    /// A bare word that is not a level. `EnvFilter` would take it for a module, so a mistyped level would silence the
    /// log.
    #[error(
        "`{0}` is not a log level: use error, warn, info, debug, trace or off, or `{0}=LEVEL` if it names a module"
    )]
    NoLevel(String),
    /// `EnvFilter` cuts its text at bytes, and panics where that is inside of a character.
    #[error("`{0}` is not a log filter: it must consist of ASCII characters")]
    NotAscii(String),
    #[error("`{0}` is not a log filter: use a level, or a list like `cronkeeper=debug,warn`")]
    NoFilter(String, #[source] ParseError),
}

impl Default for LogFilter {
    /// Our own lines from `info` up. They say in our words what the libraries' lines are about.
    fn default() -> Self {
        Self("cronkeeper=info,off".into())
    }
}

impl FromStr for LogFilter {
    type Err = BadFilter;

    /// A level alone applies to our own lines. Who asks for reasons with `debug` or `trace` gets those of libraries too,
    /// from `warn` up.
    fn from_str(text: &str) -> Result<Self, BadFilter> {
        let text = text.trim();
        if let Ok(level) = LevelFilter::from_str(text) {
            let of_libraries = if level > LevelFilter::INFO { LevelFilter::WARN } else { LevelFilter::OFF };
            return Ok(Self(format!("cronkeeper={level},{of_libraries}")));
        }
        if !text.is_ascii() {
            return Err(BadFilter::NotAscii(text.to_owned()));
        }
        if let Some(word) = text.split(',').map(str::trim).find(|part| is_bare(part)) {
            return Err(BadFilter::NoLevel(word.to_owned()));
        }
        EnvFilter::builder().parse(text).map_err(|why| BadFilter::NoFilter(text.to_owned(), why))?;
        Ok(Self(text.to_owned()))
    }
}

impl LogFilter {
    pub(super) fn to_env_filter(&self) -> EnvFilter {
        // `from_str` has validated the text, so nothing is lost.
        EnvFilter::builder().parse_lossy(&self.0)
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_bare(part: &str) -> bool {
    !part.contains(['=', '[']) && LevelFilter::from_str(part).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn read(text: &str) -> Result<String, String> {
        LogFilter::from_str(text).map(|filter| filter.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_filter_that_would_panic_is_refused() {
        let error = read(" hyp\u{fffd}\u{fffd}er=info").unwrap_err();
        assert_eq!(error, "`hyp\u{fffd}\u{fffd}er=info` is not a log filter: it must consist of ASCII characters");
    }

    #[test]
    fn a_level_applies_to_our_own_lines() {
        assert_eq!(read("debug").unwrap(), "cronkeeper=debug,warn");
        assert_eq!(read("info").unwrap(), LogFilter::default().to_string());
        assert_eq!(read("ERROR").unwrap(), "cronkeeper=error,off");
        assert_eq!(read("off").unwrap(), "cronkeeper=off,off");
    }

    #[test]
    fn a_filter_is_used_unchanged() {
        assert_eq!(read("cronkeeper=debug,hyper=info,warn").unwrap(), "cronkeeper=debug,hyper=info,warn");
        assert_eq!(read(&LogFilter::default().to_string()).unwrap(), "cronkeeper=info,off");
    }

    #[test]
    fn a_mistyped_level_is_refused() {
        assert!(read("inof").unwrap_err().starts_with("`inof` is not a log level"));
        assert!(read("cronkeeper=info,wran").unwrap_err().starts_with("`wran` is not a log level"));
        assert!(read("cronkeeper=inof").unwrap_err().starts_with("`cronkeeper=inof` is not a log filter"));
    }

    #[test]
    fn fuzz_log_filter() {
        let words = &[
            "cronkeeper",
            "=",
            ",",
            "info",
            "warn",
            "off",
            "TRACE",
            "[",
            "]",
            "{",
            "}",
            "[span{field=\"x\"}]=debug",
            "(a*)*",
        ];
        Fuzz { longest: 512, ..Fuzz::of("log-filter", words) }.run(|input| {
            let read = LogFilter::from_str(&text(input));
            if let Ok(filter) = &read {
                assert_eq!(LogFilter::from_str(&filter.to_string()).unwrap(), *filter);
                let _ = filter.to_env_filter();
            }
            read.is_ok()
        });
    }
}
