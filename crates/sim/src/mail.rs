//! Mail: everything that happens later, in the order of its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use punctual_cluster::MemberAction;
use punctual_core::{Epoch, PartitionId};
use punctual_engine::{Action as OwnerAction, Command, EngineError, InFlight, Reply, Report};

use crate::faults::Fault;
use crate::store::{Answer, Question};

/// What happens.
#[derive(Debug)]
pub(crate) enum What {
    /// Time has come for something.
    Wake,
    /// A question of a broker reaches the store.
    AtStore(u64, usize, Question),
    /// The store's answer to a question has come.
    Answered(u64, Answer),
    /// A question is waited for no longer.
    Unanswered(u64),
    /// A member has decided this, and it is done only now.
    MemberActs(Vec<MemberAction>, punctual_core::Timestamp),
    /// The same of an owner.
    OwnerActs(PartitionId, Epoch, Vec<OwnerAction>),
    /// A courier has come back.
    Back(PartitionId, Epoch, Report),
    /// What came of deliveries whose owner is gone is told to the owner of now, until a time.
    Stray(PartitionId, Vec<Report>, u64),
    /// Another broker passes a report on.
    PassedOn {
        from: (usize, u32),
        partition: PartitionId,
        reports: Vec<Report>,
        until: u64,
    },
    /// The owner of now has heard what was passed on to it.
    StrayHeard,
    /// A caller asks this broker.
    Called(u64),
    /// It looks again for the owner.
    AskAgain(u64),
    /// Another broker asks for an owner of this one.
    Asked {
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Box<Command>,
    },
    /// That one's answer.
    Reply(u64, Box<Result<Reply, EngineError>>),
    /// Another broker has let go of a partition for this one.
    Take {
        from: (usize, u32),
        partition: PartitionId,
        before: Epoch,
        flights: Vec<InFlight>,
    },
    /// This one has it, or not.
    Taken {
        partition: PartitionId,
        before: Epoch,
        by: usize,
        epoch: Option<Epoch>,
    },
    /// The successor is waited for no longer.
    TakenLate {
        partition: PartitionId,
        before: Epoch,
        by: usize,
    },
    /// One of the callers does something.
    CallerActs,
    /// A caller hears an answer.
    Heard(u64, Box<Result<Reply, EngineError>>),
    /// A caller tries again.
    CallAgain(u64),
    /// A caller waits no longer.
    CallOver(u64),
    Fault(Fault),
    /// All is well from here on.
    Heal,
    /// A look at whether everything has come to rest.
    Look,
}

/// To a life of a broker, or to nobody in particular.
pub(crate) type To = Option<(usize, u32)>;

#[derive(Debug)]
struct Letter {
    at: u64,
    number: u64,
    to: To,
    what: What,
}

impl PartialEq for Letter {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Letter {}

impl PartialOrd for Letter {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Letter {
    /// The first is the greatest: a heap gives out its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mail {
    letters: BinaryHeap<Letter>,
    number: u64,
}

impl Mail {
    pub(crate) fn send(&mut self, at: u64, to: To, what: What) {
        self.number += 1;
        self.letters.push(Letter { at, number: self.number, to, what });
    }

    /// The next: when, to whom, what.
    pub(crate) fn next(&mut self) -> Option<(u64, To, What)> {
        let Letter { at, to, what, .. } = self.letters.pop()?;
        Some((at, to, what))
    }
}
