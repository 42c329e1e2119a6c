//! `cronkeeper notify test`: sends a test message to channels, from this host and with this jobs file.

use clap::ValueEnum;
use tokio::runtime::Builder;

use super::jobs::JobsFile;
use super::{Error, Io, host};
use crate::config::Loaded;
use crate::notices;
use cronkeeper_core::job::{Channel, ChannelName};
use cronkeeper_core::suggest::nearest;
use cronkeeper_core::term::NodeName;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do
    #[arg(value_enum, value_name = "WHAT")]
    action: Action,
    /// The channels to test; default: all channels of the jobs file
    #[arg(value_name = "CHANNEL")]
    channels: Vec<String>,
    #[command(flatten)]
    jobs: JobsFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Send a test message and print what the service answers
    Test,
}

impl Args {
    /// Sends the messages, one after the other. Needs no daemon.
    ///
    /// # Errors
    /// When the jobs file is invalid, there is no such channel, or a message was not delivered.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), Error> {
        let Action::Test = self.action;
        let loaded = self.jobs.load_to_show()?;
        let chosen = self.chosen(&loaded)?;
        let node = NodeName::new(host::plain_name());
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::System { what: "the runtime cannot be started", source })?;
        let mut failed = 0;
        for (name, channel) in &chosen {
            let kind = channel.target.as_str();
            match runtime.block_on(notices::test(name, channel.target.clone(), &node)) {
                Ok(answer) => writeln!(io.out, "{name} ({kind}): delivered: {answer}")?,
                Err(why) => {
                    failed += 1;
                    writeln!(io.out, "{name} ({kind}): NOT DELIVERED: {why}")?;
                }
            }
        }
        if failed == 0 { Ok(()) } else { Err(Error::NotNotified { failed, of: chosen.len() }) }
    }

    fn chosen(&self, loaded: &Loaded) -> Result<Vec<(ChannelName, Channel)>, Error> {
        let known = &loaded.set.channels;
        if self.channels.is_empty() {
            if known.is_empty() {
                return Err(Error::NoChannels { path: loaded.path.clone() });
            }
            return Ok(known.iter().map(|(name, channel)| (name.clone(), channel.clone())).collect());
        }
        let find = |name: &String| {
            let found = known.iter().find(|(known, _)| known.as_str() == name);
            let nearest = || nearest(name, known.keys().map(ChannelName::as_str)).map(str::to_owned);
            let found = found.map(|(name, channel)| (name.clone(), channel.clone()));
            found.ok_or_else(|| Error::NoSuchChannel { name: name.clone(), nearest: nearest() })
        };
        self.channels.iter().map(find).collect()
    }
}
