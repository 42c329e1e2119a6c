//! The requests, carried out in order.

use tokio::time::Instant;

use super::trouble::Trouble;
use super::{Backend, GROUP, TRIM_AFTER};
use crate::coordination::Request;
use crate::ledger::{Change, Commit};
use crate::state_dir::journal;
use crate::term::TermEnd;
use crate::{election, ledger};

impl Backend {
    /// Carries out all that waits. What fails stays at the head of the line.
    pub(super) fn work(&mut self) -> Result<(), Trouble> {
        while let Some(request) = self.line.front() {
            match request.clone() {
                Request::Ledger(ledger::Request::Commit { .. }) => self.commit()?,
                Request::Ledger(request) => {
                    self.read(request)?;
                    self.line.pop_front();
                }
                Request::Election(request) => {
                    self.line.pop_front();
                    self.elect(request)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the commits at the head of the line.
    fn commit(&mut self) -> Result<(), Trouble> {
        self.check_member()?;
        let token = self.contender.token(&self.service.events);
        let waiting = self.line.iter().map_while(as_commit).take(GROUP);
        let answers = self.store.commit(token, &mut self.chains, waiting.map(|(_, change)| change))?;
        let fenced = token.is_some() && answers.contains(&Commit::Fenced);
        for answer in answers {
            if let Some(Request::Ledger(ledger::Request::Commit { id, change })) = self.line.pop_front() {
                self.note_history(&change, answer);
                // What is left for jobs that run after others is heard as the operators' requests are.
                self.wished |= answer == Commit::Accepted && !change.links().is_empty();
                self.answer(ledger::Event::Answered { id, answer });
            }
        }
        self.watch.wrote();
        self.written.send_modify(|written| *written += 1);
        if fenced {
            self.contender.give_up(TermEnd::Fenced, &self.service.events);
        }
        Ok(())
    }

    fn note_history(&mut self, change: &Change, answer: Commit) {
        let writes_history = matches!(
            change,
            Change::End { .. }
                | Change::Miss { .. }
                | Change::Advance { skip: Some(_), .. }
                | Change::DropTrigger { skip: Some(_), .. }
                | Change::DropLinks { skip: Some(_), .. }
                | Change::Resume { skip: Some(_), .. }
        );
        if writes_history && answer == Commit::Accepted {
            self.untrimmed.insert(change.job().clone());
            self.timers.trim.get_or_insert_with(|| Instant::now() + TRIM_AFTER);
        }
    }

    /// Trimming is never part of an end: it would make the end wait for it.
    pub(super) fn trim(&mut self) -> Result<(), Trouble> {
        self.store.trim(self.untrimmed.iter())?;
        self.untrimmed.clear();
        Ok(())
    }

    fn read(&mut self, request: ledger::Request) -> Result<(), Trouble> {
        match request {
            ledger::Request::Commit { .. } => {}
            ledger::Request::ReadJob(job) => {
                self.chains.read(&job);
                let entry = self.store.job(&job)?;
                // A pause that came between the two has changed the record too.
                let control = self.store.control(&job)?;
                self.answer(ledger::Event::Job(job, entry, control));
            }
            ledger::Request::ReadRun(run) => {
                let row = self.store.run(&run)?;
                self.answer(ledger::Event::Run(run, row));
            }
            ledger::Request::ReadBefore(run) => {
                let before = self.store.outcome_before(&run)?;
                self.answer(ledger::Event::Before(run, before));
            }
            ledger::Request::Watch(run) => self.watch.add(&run, &self.store, &self.errands, &self.service.events)?,
            ledger::Request::WatchOwn(run) => {
                self.watch.watch_own(&run, &self.store, &self.errands, &self.service.events)?;
            }
        }
        Ok(())
    }

    fn elect(&mut self, request: election::Request) -> Result<(), Trouble> {
        match request {
            election::Request::Campaign => self.contender.campaign(),
            election::Request::Resign => {
                self.contender.withdraw(TermEnd::Resigned, &self.service.events);
                self.tell(election::Event::Withdrawn);
            }
            election::Request::Transfer(to) => match self.contender.may_transfer(&to)? {
                Ok(()) => self.elect(election::Request::Resign)?,
                Err(why) => self.tell(election::Event::NotTransferred { to, why }),
            },
            election::Request::Define(defined) => self.forgetting.define(defined),
            election::Request::Busy(_) => {} // the lease of a living process never ends
            election::Request::Publish(published) => {
                self.member.set_published(published);
                self.errands.members.publish(&self.member)?;
                self.timers.look = Instant::now();
            }
            election::Request::Leave => self.leave(),
        }
        Ok(())
    }

    /// What the journal has open is left to whoever leads next, with the files that say so.
    fn leave(&mut self) {
        self.contender.withdraw(TermEnd::Resigned, &self.service.events);
        let (members, name) = (&self.errands.members, self.member.name());
        if journal::read(&members.journal(name)).is_ok_and(|open| open.is_empty()) {
            members.remove(name).ok(); // found by the next leader, who finds nothing to do
        }
        self.tell(election::Event::Left);
        self.ended = true;
    }
}

fn as_commit(request: &Request) -> Option<(ledger::CommitId, &Change)> {
    match request {
        Request::Ledger(ledger::Request::Commit { id, change }) => Some((*id, change)),
        _ => None,
    }
}
