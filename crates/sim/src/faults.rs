//! Faults: what goes wrong in a life, and when. All of it is over when the world heals.

use crate::dice::Dice;

/// Something that goes wrong, or comes right again. Brokers by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Start(usize),
    Kill(usize),
    /// Leaves in peace.
    Leave(usize),
    Pause(usize),
    /// Paused as soon as it has decided something, before that is done; for so long.
    Freeze(usize, u64),
    Wake(usize),
    /// Questions, answers, or both are lost between a broker and the store.
    CutStore(usize, Way),
    MendStore(usize),
    CutPeers(usize, usize),
    MendPeers(usize, usize),
    StoreAway,
    StoreBack,
    /// So many of a thousand messages are lost.
    Loss(u64),
    /// Messages take up to so long.
    Slow(u64),
    /// The store fails over and lacks what it was told in the last milliseconds.
    FailOver(u64),
    /// A clock is set on by so much.
    SetOn(usize, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Both,
    Questions,
    Answers,
}

/// What a seed decides before anything happens.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) brokers: usize,
    /// How many of them run from the beginning.
    pub(crate) first: usize,
    pub(crate) partitions: u16,
    pub(crate) lease_ms: u64,
    /// Brokers only come and go: nothing is lost, nobody dies.
    pub(crate) peaceful: bool,
    /// Calls, all together, and until when they come.
    pub(crate) calls: u64,
    pub(crate) calls_ms: u64,
    /// When all is well, from the beginning.
    pub(crate) heals_ms: u64,
    /// When what goes wrong.
    pub(crate) faults: Vec<(u64, Fault)>,
}

impl Plan {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let brokers = usize::try_from(dice.between(2, 6)).unwrap_or(2);
        let peaceful = dice.roll(4) == 0;
        let heals_ms = dice.between(15_000, 45_000);
        let mut plan = Self {
            brokers,
            first: 1 + usize::try_from(dice.roll(brokers as u64)).unwrap_or(0),
            partitions: u16::try_from(dice.between(1, 9)).unwrap_or(1),
            lease_ms: [1_000, 2_000, 5_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            peaceful,
            calls: dice.between(30, 120),
            calls_ms: heals_ms + dice.roll(5_000),
            heals_ms,
            faults: Vec::new(),
        };
        for broker in plan.first..brokers {
            let at = dice.between(1_000, heals_ms);
            plan.faults.push((at, Fault::Start(broker)));
        }
        let count = dice.between(2, 9);
        for _ in 0..count {
            plan.add(dice);
        }
        plan
    }

    fn add(&mut self, dice: &mut Dice) {
        let broker = usize::try_from(dice.roll(self.brokers as u64)).unwrap_or(0);
        let other = (broker + 1 + usize::try_from(dice.roll(self.brokers as u64 - 1)).unwrap_or(0))
            % self.brokers;
        let from = dice.between(2_000, self.heals_ms);
        // Some are over before anybody notices, some outlast every lease.
        let length = match dice.roll(3) {
            0 => dice.between(10, 400),
            1 => dice.between(400, self.lease_ms * 2),
            _ => dice.between(self.lease_ms, self.lease_ms * 4),
        };
        let until = (from + length).min(self.heals_ms);
        if self.peaceful || dice.roll(5) == 0 {
            return match dice.roll(4) {
                0 => self.roll_over(dice, from),
                _ => self.both(
                    from,
                    Fault::Leave(broker),
                    from + dice.between(3_000, 12_000),
                    Fault::Start(broker),
                ),
            };
        }
        let way =
            [Way::Both, Way::Questions, Way::Answers][usize::try_from(dice.roll(3)).unwrap_or(0)];
        match dice.roll(14) {
            0..3 => {
                let up = from + dice.between(100, 10_000);
                self.both(from, Fault::Kill(broker), up, Fault::Start(broker));
            }
            3 => self.both(from, Fault::Pause(broker), until, Fault::Wake(broker)),
            4..6 => self.faults.push((from, Fault::Freeze(broker, length))),
            6..8 => self.both(from, Fault::CutStore(broker, way), until, Fault::MendStore(broker)),
            8 => self.both(
                from,
                Fault::CutPeers(broker, other),
                until,
                Fault::MendPeers(broker, other),
            ),
            9 => self.both(from, Fault::StoreAway, until, Fault::StoreBack),
            10 => self.both(from, Fault::Loss(dice.between(10, 300)), until, Fault::Loss(0)),
            11 => self.both(from, Fault::Slow(dice.between(20, 600)), until, Fault::Slow(0)),
            12 => self.faults.push((from, Fault::FailOver(dice.between(1, 2_000)))),
            _ => self.faults.push((from, Fault::SetOn(broker, dice.between(20, 5_000)))),
        }
    }

    /// One failover more.
    pub(crate) fn fail_over(&mut self, dice: &mut Dice) {
        let at = dice.between(2_000, self.heals_ms);
        self.faults.push((at, Fault::FailOver(dice.between(1, 2_000))));
    }

    /// One broker after the other leaves and comes back.
    fn roll_over(&mut self, dice: &mut Dice, from: u64) {
        let mut at = from;
        for broker in 0..self.brokers {
            let back = at + dice.between(1_000, 6_000);
            self.both(at, Fault::Leave(broker), back, Fault::Start(broker));
            at = back + dice.between(0, 3_000);
        }
    }

    fn both(&mut self, from: u64, fault: Fault, until: u64, end: Fault) {
        self.faults.push((from, fault));
        self.faults.push((until, end));
    }
}
