//! `cronkeeper latch`: waits until a number of counts have arrived.

use std::time::Duration;

use clap::ValueEnum;
use uuid::Uuid;

use super::lock::number;
use super::lock::on_service::runtime;
use super::lock_failure::LockFailure;
use super::progress::announced;
use super::service::{self, Connected, Reach, Service, ServiceArgs, on_service};
use super::{Error, Exit, Io};
use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::recipes::lock::latch::{self, LatchError};
use cronkeeper_cluster::tree::Session;
use cronkeeper_core::clock::Clock as _;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::duration;
use cronkeeper_core::lock::LockPath;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The latch's path in the service, such as /latches/deploy-42
    #[arg(value_name = "PATH", value_parser = LockPath::parse)]
    path: LockPath,
    /// Counts that open the latch. All its users must name the same number
    #[arg(long, value_name = "N", value_parser = number, required_unless_present = "reset")]
    count: Option<u32>,
    /// What to do
    #[arg(value_enum, value_name = "ACTION", default_value_t)]
    action: Action,
    /// Give up after waiting this long, with exit code 75
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Remove the latch, so that the path can be used again
    #[arg(long, conflicts_with_all = ["count", "action"])]
    reset: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Count once
    Down,
    /// Wait until the latch is open. It then stays open
    #[default]
    Wait,
}

impl Args {
    /// Counts, waits, or removes the latch.
    ///
    /// # Errors
    /// When the servers cannot be reached, or the latch has another count.
    pub fn run(self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let service = self.service.required_service("latch")?;
        let opened = runtime()?.block_on(async { on_service!(&service, service => self.use_it(service).await) })?;
        if let Some(remaining) = opened {
            writeln!(io.out, "{remaining} to go")?;
        }
        Ok(Exit::Fine)
    }

    async fn use_it<C: Reach>(&self, service: &Service<C>) -> Result<Option<u32>, Error> {
        // The same for all attempts, so that this process counts only once.
        let id = Uuid::new_v4();
        let clock = SystemClock::default();
        let give_up_at = service::give_up_at(clock.now().up, self.timeout);
        let mut until = (clock.now().up + service.session_timeout).min(give_up_at);
        loop {
            let Connected { session, .. } = service.enter(&clock, until).await?;
            let left = give_up_at.since(clock.now().up);
            let done = tokio::time::timeout(left, self.act(session.clone(), &clock, id)).await;
            service.close(session).await;
            match done {
                Err(_) => return Err(Error::from(self.timed_out())),
                // While this process waits, a new session does as well.
                Ok(Err(LatchError::Session(SessionError::SessionOver))) => until = give_up_at,
                Ok(done) => return done.map_err(|error| service.failed(error)),
            }
        }
    }

    /// Returns how many counts are still missing, after a count.
    async fn act<S: Session>(&self, session: S, clock: &SystemClock, id: Uuid) -> Result<Option<u32>, LatchError> {
        let Some(count) = self.count.filter(|_| !self.reset) else {
            return latch::reset(session, clock, &self.path).await.map(|()| None);
        };
        match self.action {
            Action::Down => latch::down(session, clock, &self.path, count, id).await.map(|latch| Some(latch.remaining)),
            Action::Wait => {
                let awaited = format!("the latch {} to open", self.path);
                announced(&awaited, latch::wait(session, clock, &self.path, count)).await.map(|()| None)
            }
        }
    }

    fn timed_out(&self) -> LockFailure {
        LockFailure::NotOpen { path: self.path.clone(), waited: self.timeout.unwrap_or_default() }
    }
}
