//! Requests to the store and messages between brokers: their latency, loss and timeouts.

use super::*;

/// A request in flight.
pub(super) struct PendingRequest {
    pub(super) incarnation: u32,
    /// The owner that sent it; `None` if the member did.
    pub(super) owner: Option<(PartitionId, Epoch)>,
    /// The number of its batch, if it is one.
    pub(super) batch: Option<BatchNo>,
    pub(super) missing: MissingAnswer,
}

/// The kind of answer that a request expects, to build an error if none arrives.
pub(super) enum MissingAnswer {
    Heartbeat,
    Acquired(Seat),
    Renewed(Seat),
    Released(Seat),
    Proposed,
    Deregistered,
    Applied,
    Loaded,
    LookupResult(Vec<Lookup>),
    Swept,
}

/// What happens to a message between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Open,
    /// It is not known whether it arrives.
    Lost,
    /// It is certainly not sent.
    None,
}

impl Simulation {
    /// Sends a request to the store. If the broker stays alive, exactly one answer arrives.
    pub(crate) fn ask(&mut self, broker: usize, request: StoreRequest) {
        let (missing, owner, timeout_ms) = match &request {
            StoreRequest::Member(action, _) => {
                (missing_answer_of(action), None, (self.plan.lease_ms / 3).max(50))
            }
            StoreRequest::Owner(partition, epoch, action) => {
                (missing_answer_of_owner(action), Some((*partition, *epoch)), OWNER_TIMEOUT_MS)
            }
        };
        self.request_number += 1;
        let number = self.request_number;
        let incarnation = self.brokers[broker].incarnation;
        let batch = batch_of(&request).map(|(_, batch)| batch);
        self.pending.insert(number, PendingRequest { incarnation, owner, batch, missing });
        let cut = self
            .cut_store
            .get(&broker)
            .is_some_and(|direction| *direction != CutDirection::Answers);
        let gone = self.store_unavailable || cut || self.random.permille(self.loss);
        if gone {
            // Either the connection breaks at once, or no answer arrives before the timeout.
            let breaks = self.random.below(2) == 0;
            let after = if breaks { self.random.between(1, 10) } else { timeout_ms };
            let to = Some((broker, incarnation));
            return self.events.send(self.now + after, to, SimEvent::StoreTimedOut(number));
        }
        if let Some((given_up, arrives)) = self.late(&request) {
            self.figures.late_batches += 1;
            self.given_up.insert(number);
            self.trace
                .record(self.now, || format!("the batch of b{broker} arrives late, at {arrives}"));
            self.events.send(arrives, None, SimEvent::StoreReceives(number, broker, request));
            return self.events.send(
                given_up,
                Some((broker, incarnation)),
                SimEvent::StoreTimedOut(number),
            );
        }
        let at = self.now + self.latency();
        self.events.send(at, None, SimEvent::StoreReceives(number, broker, request));
        self.events.send(
            self.now + timeout_ms,
            Some((broker, incarnation)),
            SimEvent::StoreTimedOut(number),
        );
    }

    /// If a batch is to be late, returns when its owner gives it up, and when it reaches the store:
    /// often just after the owner has written again what a failover lost.
    pub(super) fn late(&mut self, request: &StoreRequest) -> Option<(u64, u64)> {
        let StoreRequest::Owner(_, _, OwnerAction::Apply(_)) = request else { return None };
        let since = self.now - BEGIN;
        let near = |(at, fault): &(u64, SimFault)| {
            matches!(fault, SimFault::FailOver(_))
                && (at.saturating_sub(LATE_BEFORE_MS)..at + LATE_AFTER_MS).contains(&since)
        };
        let late = self.late.as_mut()?;
        if !self.plan.faults.iter().any(near) || late.below(2) == 0 {
            return None;
        }
        let given_up = self.now + late.between(1, 10);
        let after =
            if late.below(2) == 0 { late.between(90, 250) } else { late.between(250, 4_000) };
        Some((given_up, self.now + after))
    }

    /// Handles a request at the store, even if its sender has given it up.
    pub(super) fn at_store(&mut self, number: u64, broker: usize, request: StoreRequest) {
        if self.store_unavailable || self.is_answered(number, &request) {
            return;
        }
        let id = self.brokers[broker].id.clone();
        let answer = self.store.answer(&id, request, self.now);
        let cut = self
            .cut_store
            .get(&broker)
            .is_some_and(|direction| *direction != CutDirection::Requests);
        let Some(PendingRequest { incarnation, .. }) = self.pending.get(&number) else { return };
        let incarnation = *incarnation;
        if cut || self.random.permille(self.loss) {
            return;
        }
        let at = self.now + self.latency();
        self.events.send(at, Some((broker, incarnation)), SimEvent::StoreAnswered(number, answer));
    }

    /// Returns whether a late batch was already acknowledged to its owner, by another sending. It
    /// changes nothing, unless a failover has lost the batch: then it would come back without the
    /// owner's knowledge, after a lookup has missed it. That is not promised to work.
    pub(super) fn is_answered(&self, number: u64, request: &StoreRequest) -> bool {
        let answered =
            |(owner, batch)| self.answered.get(&owner).is_some_and(|last| batch <= *last);
        self.given_up.contains(&number) && batch_of(request).is_some_and(answered)
    }

    /// Returns the answer to a request that is still pending. A timeout becomes an error.
    pub(crate) fn take_answer(
        &mut self,
        number: u64,
        answer: Option<StoreAnswer>,
    ) -> Option<StoreAnswer> {
        let PendingRequest { owner, batch, missing, .. } = self.pending.remove(&number)?;
        if let (
            Some(StoreAnswer::Owner(partition, epoch, OwnerEvent::Applied(Ok(())))),
            Some(batch),
        ) = (&answer, batch)
        {
            self.answered.insert((*partition, *epoch), batch);
        }
        Some(answer.unwrap_or_else(|| match owner {
            Some((partition, epoch)) => {
                StoreAnswer::Owner(partition, epoch, unanswered_owner(missing))
            }
            None => StoreAnswer::Member(unanswered_member(missing)),
        }))
    }

    /// Returns how long a message takes.
    pub(crate) fn latency(&mut self) -> u64 {
        let most = if self.slow_ms > 0 { self.slow_ms } else { 3 };
        self.random.below(most + 1)
    }

    /// Returns what happens to a message between two brokers; without a connection, the sender
    /// knows it at once.
    pub(crate) fn link_to(&mut self, from: usize, to: usize) -> LinkState {
        if self.cut_peers.contains(&(from, to)) || !self.brokers[to].is_alive() {
            return LinkState::None;
        }
        if self.random.permille(self.loss) { LinkState::Lost } else { LinkState::Open }
    }
}

fn batch_of(request: &StoreRequest) -> Option<((PartitionId, Epoch), BatchNo)> {
    match request {
        StoreRequest::Owner(partition, epoch, OwnerAction::Apply(batch)) => {
            Some(((*partition, *epoch), batch.number))
        }
        _ => None,
    }
}

fn missing_answer_of(action: &punctual_cluster::MemberAction) -> MissingAnswer {
    use punctual_cluster::MemberAction;
    match action {
        MemberAction::Heartbeat(_) => MissingAnswer::Heartbeat,
        MemberAction::Acquire(seat) => MissingAnswer::Acquired(*seat),
        MemberAction::Renew(lease) => MissingAnswer::Renewed(lease.seat),
        MemberAction::Release(lease) => MissingAnswer::Released(lease.seat),
        MemberAction::Propose(..) => MissingAnswer::Proposed,
        MemberAction::Leave | MemberAction::Directive(_) => MissingAnswer::Deregistered,
    }
}

fn missing_answer_of_owner(action: &punctual_engine::Action) -> MissingAnswer {
    use punctual_engine::Action;
    match action {
        Action::Load { .. } => MissingAnswer::Loaded,
        Action::Lookup(lookups) => MissingAnswer::LookupResult(lookups.clone()),
        Action::Sweep(_) => MissingAnswer::Swept,
        _ => MissingAnswer::Applied,
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("no answer in time".into())
}

fn unanswered_member(missing: MissingAnswer) -> MemberEvent {
    match missing {
        MissingAnswer::Heartbeat => MemberEvent::HeartbeatAnswered(Err(unavailable())),
        MissingAnswer::Acquired(seat) => MemberEvent::Acquired(seat, Err(unavailable())),
        MissingAnswer::Renewed(seat) => MemberEvent::Renewed(seat, Err(unavailable())),
        MissingAnswer::Released(seat) => MemberEvent::Released(seat, Err(unavailable())),
        MissingAnswer::Proposed => MemberEvent::Proposed(Err(unavailable())),
        _ => MemberEvent::Deregistered(Err(unavailable())),
    }
}

fn unanswered_owner(missing: MissingAnswer) -> OwnerEvent {
    match missing {
        MissingAnswer::Loaded => OwnerEvent::Loaded(Err(unavailable())),
        MissingAnswer::LookupResult(lookups) => {
            let results =
                lookups.into_iter().map(|look| LookupResult { look, result: Err(unavailable()) });
            OwnerEvent::LookupResult(results.collect())
        }
        MissingAnswer::Swept => OwnerEvent::Swept(Err(unavailable())),
        _ => OwnerEvent::Applied(Err(unavailable())),
    }
}
