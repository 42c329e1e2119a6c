//! Giving leadership to a named node, step by step: looked for while the term goes on, done once nothing of it is open.

use std::time::Duration;

use super::{Life, Role};
use crate::clock::{Clock, Uptime};
use crate::election::{self, Event, Unappointable};
use crate::term::{NodeName, TermEnd};
use crate::zookeeper::appoint::Heir;
use crate::zookeeper::client::Connect;

/// How long a leader that is to give leadership to another decides nothing for that.
const WITHIN: Duration = Duration::from_secs(5);

/// How far an appointment has come.
pub(super) enum Appointment {
    /// Nobody is to be appointed.
    None,
    /// This node is to lead; whether it can is looked up, until then.
    Wanted(NodeName, Uptime),
    /// It can: the term ends as soon as its commits are answered, if they are by then.
    Certain(Heir, Uptime),
    /// The term is over: the place is to be given up to the heir.
    Due(Heir),
}

impl Appointment {
    /// Who is to be looked for.
    pub(super) fn wanted(&self) -> Option<NodeName> {
        match self {
            Self::Wanted(to, _) => Some(to.clone()),
            Self::None | Self::Certain(..) | Self::Due(_) => None,
        }
    }

    /// Who the place is to be given up to.
    pub(super) fn heir(&self) -> Option<Heir> {
        match self {
            Self::Due(heir) => Some(heir.clone()),
            Self::None | Self::Wanted(..) | Self::Certain(..) => None,
        }
    }

    /// True when the next leader is chosen: the term ends once what was requested before it is answered.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self, Self::Certain(..))
    }

    /// When the term goes on, if nothing has come of it.
    pub(super) fn until(&self) -> Option<Uptime> {
        match self {
            Self::Wanted(_, until) | Self::Certain(_, until) => Some(*until),
            Self::None | Self::Due(_) => None,
        }
    }
}

impl<C: Connect, K: Clock> Life<'_, C, K> {
    pub(super) fn appoint(&mut self, to: NodeName) {
        if matches!(self.role, Role::Leading(_)) && matches!(self.appointment, Appointment::None) {
            self.appointment = Appointment::Wanted(to, self.now() + WITHIN);
        } else {
            self.not_appointed(to, Unappointable::NotLeading);
        }
    }

    pub(super) fn found_heir(&mut self, found: Result<Heir, Unappointable>) {
        // The term may have ended meanwhile, and the answer with it.
        let Appointment::Wanted(to, until) = std::mem::replace(&mut self.appointment, Appointment::None) else {
            return;
        };
        match found {
            Ok(heir) => self.appointment = Appointment::Certain(heir, until),
            Err(why) => self.not_appointed(to, why),
        }
    }

    /// Like resigning, it waits for the answers to what was requested before it.
    pub(super) fn appoint_when_answered(&mut self) {
        if !self.appointment.is_certain() || self.committer.has_fenced() {
            return;
        }
        let Appointment::Certain(heir, _) = std::mem::replace(&mut self.appointment, Appointment::None) else { return };
        self.node.note(election::Request::Resign);
        self.lose_term(TermEnd::Resigned);
        self.appointment = Appointment::Due(heir);
    }

    /// The leader decides nothing while it waits: not for longer than this.
    pub(super) fn end_late_appointment(&mut self, now: Uptime) {
        if self.appointment.until().is_none_or(|until| now < until) {
            return;
        }
        match std::mem::replace(&mut self.appointment, Appointment::None) {
            Appointment::Wanted(to, _) | Appointment::Certain(Heir { node: to, .. }, _) => {
                self.not_appointed(to, Unappointable::NotInTime);
            }
            Appointment::None | Appointment::Due(_) => {}
        }
    }

    pub(super) fn handed_over(&mut self, is_to_heir: bool) {
        let heir = std::mem::replace(&mut self.appointment, Appointment::None);
        if let (Appointment::Due(heir), false) = (heir, is_to_heir) {
            self.not_appointed(heir.node, Unappointable::Changed);
        }
        self.withdrawn();
    }

    /// The term ended otherwise before leadership could be given away.
    pub(super) fn forget_appointment(&mut self) {
        match std::mem::replace(&mut self.appointment, Appointment::None) {
            Appointment::Wanted(to, _) | Appointment::Certain(Heir { node: to, .. }, _) => {
                self.not_appointed(to, Unappointable::NotLeading);
            }
            Appointment::None | Appointment::Due(_) => {}
        }
    }

    fn not_appointed(&self, to: NodeName, why: Unappointable) {
        self.node.tell(Event::NotAppointed { to, why });
    }
}
