//! Faults: what goes wrong in a run, and when. All faults end before the run does.

use crate::random::SimRandom;

/// A fault, or its end. Brokers are given by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SimFault {
    Start(usize),
    Kill(usize),
    /// The broker leaves gracefully.
    Leave(usize),
    Pause(usize),
    /// The broker is paused for this long as soon as it has decided something, before the decision
    /// is carried out.
    Freeze(usize, u64),
    Wake(usize),
    /// Requests, answers, or both are lost between a broker and the store.
    CutStore(usize, CutDirection),
    MendStore(usize),
    CutPeers(usize, usize),
    MendPeers(usize, usize),
    StoreUnavailable,
    StoreAvailable,
    /// This many of a thousand messages are lost.
    Loss(u64),
    /// Messages take up to this many milliseconds.
    Slow(u64),
    /// The store fails over and loses the batches of the last milliseconds.
    FailOver(u64),
    /// A clock is set forward by this many milliseconds.
    SetForward(usize, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutDirection {
    Both,
    Requests,
    Answers,
}

/// What a seed decides before the run starts.
#[derive(Debug, Clone)]
pub(crate) struct FaultPlan {
    pub(crate) brokers: usize,
    /// How many of them run from the start.
    pub(crate) initially_running: usize,
    pub(crate) partitions: u16,
    pub(crate) lease_ms: u64,
    /// Brokers only join and leave gracefully: nothing is lost and no broker crashes.
    pub(crate) peaceful: bool,
    /// The number of calls, and the time within which they are made.
    pub(crate) calls: u64,
    pub(crate) calls_ms: u64,
    /// When all faults end, from the start of the run.
    pub(crate) heals_ms: u64,
    /// The faults with their times.
    pub(crate) faults: Vec<(u64, SimFault)>,
}

impl FaultPlan {
    pub(crate) fn new(random: &mut SimRandom) -> Self {
        let brokers = usize::try_from(random.between(2, 6)).unwrap_or(2);
        let peaceful = random.below(4) == 0;
        let heals_ms = random.between(15_000, 45_000);
        let mut plan = Self {
            brokers,
            initially_running: 1 + usize::try_from(random.below(brokers as u64)).unwrap_or(0),
            partitions: u16::try_from(random.between(1, 9)).unwrap_or(1),
            lease_ms: [1_000, 2_000, 5_000][usize::try_from(random.below(3)).unwrap_or(0)],
            peaceful,
            calls: random.between(30, 120),
            calls_ms: heals_ms + random.below(5_000),
            heals_ms,
            faults: Vec::new(),
        };
        for broker in plan.initially_running..brokers {
            let at = random.between(1_000, heals_ms);
            plan.faults.push((at, SimFault::Start(broker)));
        }
        let count = random.between(2, 9);
        for _ in 0..count {
            plan.add(random);
        }
        plan
    }

    fn add(&mut self, random: &mut SimRandom) {
        let broker = usize::try_from(random.below(self.brokers as u64)).unwrap_or(0);
        let other =
            (broker + 1 + usize::try_from(random.below(self.brokers as u64 - 1)).unwrap_or(0))
                % self.brokers;
        let from = random.between(2_000, self.heals_ms);
        // Some end before any broker notices, and some outlast every lease.
        let length = match random.below(3) {
            0 => random.between(10, 400),
            1 => random.between(400, self.lease_ms * 2),
            _ => random.between(self.lease_ms, self.lease_ms * 4),
        };
        let until = (from + length).min(self.heals_ms);
        if self.peaceful || random.below(5) == 0 {
            return match random.below(4) {
                0 => self.rolling_restart(random, from),
                _ => self.add_pair(
                    from,
                    SimFault::Leave(broker),
                    from + random.between(3_000, 12_000),
                    SimFault::Start(broker),
                ),
            };
        }
        let direction = [CutDirection::Both, CutDirection::Requests, CutDirection::Answers]
            [usize::try_from(random.below(3)).unwrap_or(0)];
        match random.below(14) {
            0..3 => {
                let up = from + random.between(100, 10_000);
                self.add_pair(from, SimFault::Kill(broker), up, SimFault::Start(broker));
            }
            3 => self.add_pair(from, SimFault::Pause(broker), until, SimFault::Wake(broker)),
            4..6 => self.faults.push((from, SimFault::Freeze(broker, length))),
            6..8 => self.add_pair(
                from,
                SimFault::CutStore(broker, direction),
                until,
                SimFault::MendStore(broker),
            ),
            8 => self.add_pair(
                from,
                SimFault::CutPeers(broker, other),
                until,
                SimFault::MendPeers(broker, other),
            ),
            9 => self.add_pair(from, SimFault::StoreUnavailable, until, SimFault::StoreAvailable),
            10 => self.add_pair(
                from,
                SimFault::Loss(random.between(10, 300)),
                until,
                SimFault::Loss(0),
            ),
            11 => self.add_pair(
                from,
                SimFault::Slow(random.between(20, 600)),
                until,
                SimFault::Slow(0),
            ),
            12 => self.faults.push((from, SimFault::FailOver(random.between(1, 2_000)))),
            _ => self.faults.push((from, SimFault::SetForward(broker, random.between(20, 5_000)))),
        }
    }

    /// Adds a failover.
    pub(crate) fn fail_over(&mut self, random: &mut SimRandom) {
        let at = random.between(2_000, self.heals_ms);
        self.faults.push((at, SimFault::FailOver(random.between(1, 2_000))));
    }

    /// Adds a restart of one broker after the other.
    fn rolling_restart(&mut self, random: &mut SimRandom, from: u64) {
        let mut at = from;
        for broker in 0..self.brokers {
            let back = at + random.between(1_000, 6_000);
            self.add_pair(at, SimFault::Leave(broker), back, SimFault::Start(broker));
            at = back + random.between(0, 3_000);
        }
    }

    fn add_pair(&mut self, from: u64, fault: SimFault, until: u64, end: SimFault) {
        self.faults.push((from, fault));
        self.faults.push((until, end));
    }
}
