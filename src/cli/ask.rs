//! Common parts of the commands that query a daemon: options, errors, and the format of times.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::api::client::{AskError, Client, HostUrl, RemoteAccess, SocketSearch};
use crate::option_file::OptionFile;

/// Options to find the daemon: on this host by its socket, or on another by its address.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClientArgs {
    /// The directory of the daemon's socket [default: $RUNTIME_DIRECTORY, else /run/cronkeeper, else the state
    /// directory]
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// The daemon's state directory
    #[arg(long, value_name = "DIR", env = "CRONKEEPER_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub host: HostArgs,
}

/// Options to ask a node on another host.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HostArgs {
    /// Ask the node that listens there, http://host:port or https://host:port, instead of the one on this host
    #[arg(long, value_name = "URL", env = "CRONKEEPER_HOST", value_parser = HostUrl::parse)]
    pub host: Option<HostUrl>,
    /// With --host: a file with a token that the node's --api-token-file accepts
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// With --host: the authorities of the node's certificate
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_CACERT")]
    pub cacert: Option<PathBuf>,
    /// With --host: send the token over the network even without TLS
    #[arg(long)]
    pub token_in_clear: bool,
}

/// Why a command that queries a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum AskFailure {
    /// The daemon cannot be reached, or refuses the request.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The pause was over before it was certain that none of the jobs' runs is in flight.
    #[error("the pause of {jobs} ended {when}; pause for longer, or without `--for`")]
    PauseOver {
        jobs: String,
        /// `while 1 run was in flight`, or before what.
        when: String,
    },
    #[error("cannot write the result")]
    Output(#[from] io::Error),
}

impl ClientArgs {
    pub(super) fn client(&self) -> Result<Client, AskError> {
        match self.host.client()? {
            Some(client) => Ok(client),
            None => Client::new(SocketSearch::new(self.runtime_dir.as_deref(), self.state_dir.as_deref())),
        }
    }
}

impl HostArgs {
    /// The client of the node that is named; `None` if none is.
    pub(super) fn client(&self) -> Result<Option<Client>, AskError> {
        let Some(host) = &self.host else { return Ok(None) };
        let token = self.token_file.clone().map(|path| OptionFile::given("--token-file", path));
        let ca = self.cacert.clone().map(|path| OptionFile::given("--cacert", path));
        Client::remote(host.clone(), &RemoteAccess { token, ca, token_in_clear: self.token_in_clear }).map(Some)
    }
}

/// Formats an instant as `2026-11-20 18:40:01.250` in UTC.
pub(super) fn exact_stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S.%3f").to_string()
}

/// Formats the time between two instants in its two largest units: `3d 4h`, `7h 49m`, `12s`.
pub(super) fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second()).max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let (large, small) = match (days, hours, minutes) {
        (0, 0, 0) => return format!("{seconds}s"),
        (0, 0, _) => (format!("{minutes}m"), (seconds % 60, "s")),
        (0, ..) => (format!("{hours}h"), (minutes, "m")),
        _ => (format!("{days}d"), (hours, "h")),
    };
    match small {
        (0, _) => large,
        (count, unit) => format!("{large} {count}{unit}"),
    }
}

/// Formats a measured duration: `950ms`, `2.3s`, then as [`span`].
pub(super) fn took(ms: u64) -> String {
    let duration = Duration::from_millis(ms);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{:.1}s", duration.as_secs_f64()),
        _ => {
            let end = Timestamp::from_second(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX));
            span(Timestamp::UNIX_EPOCH, end.unwrap_or(Timestamp::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_two_units() {
        let from: Timestamp = "2026-11-20T03:00:00Z".parse().unwrap();
        let shown = [9, 60, 61, 3_600 + 49 * 60, 3 * 86_400 + 4 * 3_600 + 59]
            .map(|s| span(from, from + Duration::from_secs(s)));
        assert_eq!(shown, ["9s", "1m", "1m 1s", "1h 49m", "3d 4h"]);
        assert_eq!(span(from, from - Duration::from_secs(5)), "0s");
        assert_eq!([950, 2_340, 61_000].map(took), ["950ms", "2.3s", "1m 1s"]);
    }
}
