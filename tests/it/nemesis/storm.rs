//! A plan carried out: every stroke at its time, every cure at its own, and then peace.
//!
//! Strokes overlap freely; one whose victim is down already is left out, and the transcript says so. What cannot be done
//! at its time, as the deletion of an entry while no server answers, is tried until it can.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::{Timestamp, ToSpan};
use rustix::process::Signal;

use super::crew::{Crew, send};
use super::hand::{Hand, Target};
use super::history::Span;
use super::lab::{Lab, SERVERS};
use super::net::Trouble;
use super::plan::{Blow, Kind, Part, Plan, Stroke};
use super::work::Work;
use crate::support::LONG;
use crate::support::scratch::fill;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// What is to be done at a time.
enum Action {
    Strike(Stroke),
    Cure(Cure),
}

/// What undoes a stroke.
enum Cure {
    /// What the stroke of this number did to the network.
    Network(usize),
    Continue(Vec<OwnedFd>, Option<usize>),
    Revive(usize),
    Server(usize, Health),
    MakeRoom(PathBuf),
    /// No cure: a deed that is to be done yet.
    Delete(Target),
}

/// To be tried again.
struct NotYet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Serves,
    Killed,
    Paused,
}

pub struct Storm<'a> {
    lab: &'a mut Lab,
    crew: &'a mut Crew,
    hand: &'a Hand,
    servers: [Health; SERVERS],
    agenda: BTreeMap<(Instant, usize), Action>,
    /// Of what was put on the agenda.
    count: usize,
    began: Instant,
    pub transcript: Vec<String>,
    /// When wardens stood still: what they should have killed then they could not.
    pub wardens_stood_still: Vec<Span>,
}

impl<'a> Storm<'a> {
    pub fn new(lab: &'a mut Lab, crew: &'a mut Crew, hand: &'a Hand) -> Self {
        Self {
            lab,
            crew,
            hand,
            servers: [Health::Serves; SERVERS],
            agenda: BTreeMap::new(),
            count: 0,
            began: Instant::now(),
            transcript: Vec::new(),
            wardens_stood_still: Vec::new(),
        }
    }

    /// Carries the plan out; returns when all is cured that can be.
    pub fn rage(&mut self, plan: &Plan) {
        self.began = Instant::now();
        for stroke in &plan.strokes {
            self.put(self.began + stroke.at, Action::Strike(stroke.clone()));
        }
        while let Some(((at, _), action)) = self.agenda.pop_first() {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            match action {
                Action::Strike(stroke) => self.strike(&stroke),
                Action::Cure(cure) => self.cure(cure),
            }
        }
    }

    /// Waits until one leads, two follow, and all that was due before now is settled. Says what is not, in time.
    pub fn await_peace(&mut self, work: &Work) -> Result<Timestamp, Vec<String>> {
        // Only what is part of the ensemble has a log that can be judged.
        self.lab.ensemble.await_serving();
        let horizon = Timestamp::now() + 2.seconds();
        let end = Instant::now() + 2 * LONG;
        let mut missing;
        loop {
            let ends = self.crew.unexplained_ends();
            if !ends.is_empty() {
                return Err(ends);
            }
            missing = self.hand.unsettled(work, horizon, &self.crew.names());
            if missing.as_ref().is_some_and(Vec::is_empty) && Timestamp::now() > horizon {
                self.note("peace");
                return Ok(horizon);
            }
            if Instant::now() > end {
                return Err(missing.unwrap_or_else(|| vec!["no server answers".into()]));
            }
            thread::sleep(AGAIN);
        }
    }

    fn strike(&mut self, stroke: &Stroke) {
        let i = self.crew.pick(stroke.node);
        let cures = self.blow(stroke, i);
        let left_out = if cures.is_empty() { " (left out: it is down already)" } else { "" };
        self.note(&format!("{:?} {}, server {:?}{left_out}", stroke.kind, self.crew.name(i), stroke.server));
        for cure in cures {
            let at = if matches!(cure, Cure::Delete(_)) { Instant::now() } else { Instant::now() + stroke.lasts };
            self.put(at, Action::Cure(cure));
        }
    }

    fn blow(&mut self, stroke: &Stroke, i: usize) -> Vec<Cure> {
        match stroke.kind {
            Kind::Signal(blow, part) => self.signal(i, blow, part),
            Kind::Suspended => self.stand_still(i, true, Crew::suspend),
            Kind::CutOff => self.upon(i, Trouble::Parted(self.servers_and_middle(None))),
            Kind::Deaf => self.upon(i, Trouble::Deaf(self.servers_and_middle(None))),
            Kind::Mute => self.upon(i, Trouble::Mute(self.servers_and_middle(None))),
            Kind::Lossy => self.upon(i, Trouble::Lossy),
            Kind::Slow => self.upon(i, Trouble::Slow),
            Kind::CutOffWithItsServer => self.part_with(i, self.server_of(i)),
            Kind::CutOffWithTheEnsemblesLeader => self.part_with(i, self.leading_server()),
            Kind::ServerKilled | Kind::RollingRestart => self.hurt(&[self.server(stroke)], Health::Killed),
            Kind::ServerPaused => self.hurt(&[self.server(stroke)], Health::Paused),
            Kind::NoQuorum => {
                let spared = self.server(stroke);
                let others: Vec<usize> = (0..SERVERS).filter(|&server| server != spared).collect();
                self.hurt(&others, if spared == 0 { Health::Paused } else { Health::Killed })
            }
            Kind::Blackout => self.hurt(&[0, 1, 2], Health::Killed),
            Kind::DiskFull => vec![Cure::MakeRoom(fill(&self.crew.in_state_dir(i, "filler")))],
            Kind::CandidateDeleted => vec![Cure::Delete(Target::Candidate(self.crew.name(i).to_owned()))],
            Kind::MemberDeleted => vec![Cure::Delete(Target::Member(self.crew.name(i).to_owned()))],
            Kind::QueueDeleted => vec![Cure::Delete(Target::Queue)],
        }
    }

    fn signal(&mut self, i: usize, blow: Blow, part: Part) -> Vec<Cure> {
        if blow == Blow::Stop {
            return self.stand_still(i, part != Part::Daemon, |crew, i| crew.strike(i, blow, part));
        }
        let hit = self.crew.strike(i, blow, part);
        hit.map(|_| Cure::Revive(i)).into_iter().collect()
    }

    fn stand_still(
        &mut self,
        i: usize,
        with_warden: bool,
        stop: impl FnOnce(&mut Crew, usize) -> Option<Vec<OwnedFd>>,
    ) -> Vec<Cure> {
        let Some(stopped) = stop(self.crew, i) else { return Vec::new() };
        let span = with_warden.then_some(self.wardens_stood_still.len());
        if with_warden {
            self.wardens_stood_still.push(Span { from: Timestamp::now(), to: Timestamp::MAX });
        }
        vec![Cure::Continue(stopped, span)]
    }

    fn upon(&mut self, i: usize, trouble: Trouble) -> Vec<Cure> {
        self.count += 1;
        self.lab.network.suffer(self.count, &self.lab.nodes[i], trouble);
        vec![Cure::Network(self.count)]
    }

    /// A node and a server on one side, all others on the other. The middle sees that server, but brings nobody to it.
    fn part_with(&mut self, i: usize, server: usize) -> Vec<Cure> {
        let cures = self.upon(i, Trouble::Parted(self.servers_and_middle(Some(server))));
        let is_other =
            |host: &&Arc<_>| !Arc::ptr_eq(host, &self.lab.nodes[i]) && !Arc::ptr_eq(host, &self.lab.servers[server]);
        let others =
            self.lab.servers.iter().chain(&self.lab.nodes).filter(is_other).map(|host| host.address()).collect();
        self.lab.network.suffer(self.count, &self.lab.servers[server], Trouble::Parted(others));
        cures
    }

    /// All ways to servers, but for one's own.
    fn servers_and_middle(&self, but: Option<usize>) -> Vec<Ipv4Addr> {
        let servers = self.lab.servers.iter().enumerate().filter(|(i, _)| Some(*i) != but);
        servers.map(|(_, host)| host.address()).chain([self.lab.middle.address()]).collect()
    }

    fn server(&self, stroke: &Stroke) -> usize {
        stroke.server.unwrap_or_else(|| self.leading_server())
    }

    fn leading_server(&self) -> usize {
        (0..SERVERS).find(|&i| self.lab.ensemble.mode(i).as_deref() == Some("leader")).unwrap_or(0)
    }

    /// The server that a node is connected to.
    fn server_of(&self, i: usize) -> usize {
        let connected = format!("/{}:", self.lab.nodes[i].address());
        (0..SERVERS).find(|&server| self.lab.ensemble.four_letter(server, "cons").contains(&connected)).unwrap_or(0)
    }

    fn hurt(&mut self, servers: &[usize], how: Health) -> Vec<Cure> {
        let mut cures = Vec::new();
        for &i in servers.iter().filter(|&&i| self.servers[i] == Health::Serves).collect::<Vec<_>>() {
            match how {
                Health::Killed => self.lab.ensemble.kill(i),
                Health::Paused => self.lab.ensemble.pause(i),
                Health::Serves => {}
            }
            self.servers[i] = how;
            cures.push(Cure::Server(i, how));
        }
        cures
    }

    fn cure(&mut self, cure: Cure) {
        match self.try_cure(&cure) {
            Ok(what) => self.note(&what),
            Err(NotYet) => self.put(Instant::now() + AGAIN, Action::Cure(cure)),
        }
    }

    fn try_cure(&mut self, cure: &Cure) -> Result<String, NotYet> {
        match cure {
            Cure::Network(stroke) => {
                self.lab.network.heal(*stroke);
                Ok("the network is sound again".into())
            }
            Cure::Continue(stopped, span) => {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
                if let Some(span) = *span {
                    self.wardens_stood_still[span].to = Timestamp::now();
                }
                Ok("what stood still goes on".into())
            }
            // Another stroke's cure was quicker, or the signal was one that ends nothing.
            Cure::Revive(i) if !self.crew.may_end(*i) => Ok(format!("{} lives", self.crew.name(*i))),
            Cure::Revive(i) if !self.crew.revive(*i) => Err(NotYet),
            Cure::Revive(i) => Ok(format!("{} is started again", self.crew.name(*i))),
            Cure::Server(i, how) => {
                match how {
                    Health::Paused => self.lab.ensemble.cont(*i),
                    _ => self.lab.ensemble.restart(*i),
                }
                self.servers[*i] = Health::Serves;
                Ok(format!("server {i} goes on"))
            }
            Cure::MakeRoom(filler) => {
                std::fs::remove_file(filler).expect("it was made by the stroke");
                Ok("there is room again".into())
            }
            Cure::Delete(target) => match self.hand.delete(target) {
                true => Ok(format!("{target:?} is deleted")),
                false => Err(NotYet),
            },
        }
    }

    fn put(&mut self, at: Instant, action: Action) {
        self.count += 1;
        self.agenda.insert((at, self.count), action);
    }

    fn note(&mut self, what: &str) {
        self.transcript.push(format!("  {} {:6.2} s  {what}", Timestamp::now(), self.began.elapsed().as_secs_f64()));
    }
}
