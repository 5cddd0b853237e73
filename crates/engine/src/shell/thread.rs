//! The thread of an owner: takes events, lets the owner decide, and starts its actions.
//!
//! The thread only decides and waits for time; `executor` does everything that may take long. After
//! the owner has ended, the thread stays as long as a handle or a courier can reach it, to refuse
//! calls and to pass reports on. A panic ends the owner like an error of the store: pending calls
//! are answered, and the receiver of [`spawn`] yields it. Apart from pending commands
//! (`COMMANDS_MAX` of the handle), its channel only holds answers to actions that the owner has in
//! flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use punctual_core::{Clock, PartitionId};
use punctual_store::TaskStore;
use tokio::sync::oneshot;

use crate::delivery::courier::Courier;
use crate::event::{Action, Event};
use crate::handle::error::EngineError;
use crate::handle::owner_handle::OwnerHandle;
use crate::owner::{Owner, OwnerConfig};
use crate::ownership::in_flight::InFlight;
use crate::ownership::recover::Ownership;
use crate::shell::executor::ActionExecutor;
use crate::shell::failure::{OwnerFailure, catch_panic};
use crate::shell::message::{Message, OrphanReports};
use crate::shell::next_batch::NextBatch;

/// The weight of events that are taken before the timers are checked again: about a millisecond of
/// deciding, unless a call is large.
const WEIGHT_MAX: usize = 512;

/// How long the thread waits when nothing is due. Events wake it earlier.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Starts an owner on a thread of its own.
///
/// `in_flight` are deliveries that the previous owner handed over. The receiver yields the failure
/// if the owner stops by itself; it is closed without a value after a drain, a hand-over or
/// [`OwnerHandle::end`].
pub fn spawn<S, K, C>(
    ownership: Ownership,
    in_flight: Vec<InFlight>,
    store: Arc<S>,
    courier: Arc<K>,
    clock: Arc<C>,
    config: OwnerConfig,
    orphans: OrphanReports,
) -> std::io::Result<(OwnerHandle, oneshot::Receiver<OwnerFailure>)>
where
    S: TaskStore,
    K: Courier,
    C: Clock,
{
    let (messages, received) = channel();
    let (stopped, failure) = oneshot::channel();
    let next_batch = Arc::new(NextBatch::default());
    let executor = ActionExecutor::new(
        ownership,
        store,
        courier,
        config.retention,
        messages.clone(),
        Arc::clone(&next_batch),
        orphans,
    );
    thread::Builder::new().name(ownership.partition.to_string()).spawn(move || {
        let mut owner = Owner::new(ownership, config, clock.now());
        let running = || {
            owner.inherit(in_flight);
            run(&mut owner, &received, &executor, clock.as_ref())
        };
        let end = catch_panic(running).unwrap_or_else(Err);
        if matches!(end, Err(OwnerFailure::Panicked(_))) {
            abandon(&mut owner, &executor);
        }
        drop(owner);
        let (partition, orphans) = (ownership.partition, executor.orphans().clone());
        // The end is announced only after the store is released and the executor's sender is gone.
        drop((executor, clock));
        match end {
            Ok(()) => drop(stopped),
            Err(failure) => _ = stopped.send(failure),
        }
        refuse_until_unreachable(&received, &orphans, partition);
    })?;
    Ok((OwnerHandle::new(messages, next_batch), failure))
}

/// Runs the owner until a drain or a hand-over has finished, or until it cannot continue.
fn run<S: TaskStore, K: Courier, C: Clock>(
    owner: &mut Owner,
    received: &Receiver<Message>,
    executor: &ActionExecutor<S, K>,
    clock: &C,
) -> Result<(), OwnerFailure> {
    // A store may need the runtime's timers when this thread polls a write.
    let _runtime = executor.runtime().enter();
    let mut draining = false;
    let mut events = VecDeque::new();
    loop {
        let (mut end, mut batches) = (None, Vec::new());
        for action in owner.act(clock.now()) {
            match action {
                Action::Stop(error) => end = Some(Err(error.into())),
                Action::End => end = Some(Ok(())),
                Action::Apply(_) => batches.push(action),
                action => executor.perform(action, Duration::ZERO),
            }
        }
        // Last, because the store may use this thread for it.
        for batch in batches {
            executor.perform(batch, owner.spare_time(clock.now()));
        }
        if let Some(end) = end {
            return end;
        }
        if draining && owner.is_quiet() {
            return Ok(());
        }
        let wait = owner.wakes_at().map_or(IDLE_MAX, |at| clock.until(at).min(IDLE_MAX));
        match received.recv_timeout(wait) {
            Ok(message) => executor.receive(message, &mut events)?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let mut weight = 0;
        loop {
            for event in events.drain(..) {
                draining |= matches!(event, Event::Drain);
                weight += event.weight();
                owner.on(event, clock.now());
            }
            if weight >= WEIGHT_MAX {
                break;
            }
            let Ok(message) = received.try_recv() else { break };
            executor.receive(message, &mut events)?;
        }
    }
}

/// Answers the pending calls of an owner that has panicked, and recalls what it has not sent.
fn abandon<S: TaskStore, K: Courier>(owner: &mut Owner, executor: &ActionExecutor<S, K>) {
    let abandoned = catch_panic(|| {
        let actions = owner.abandon().into_iter();
        let orphans = actions.filter(|action| matches!(action, Action::OrphanReport(_)));
        orphans.for_each(|action| executor.perform(action, Duration::ZERO));
    });
    // Its state may be half changed. Callers without an answer see that the owner is dropped.
    if let Err(failure) = abandoned {
        tracing::warn!(%failure, "pending calls lost");
    }
}

/// Refuses calls and passes reports on, until the last sender is gone.
fn refuse_until_unreachable(
    received: &Receiver<Message>,
    orphans: &OrphanReports,
    partition: PartitionId,
) {
    for message in received {
        match message {
            Message::Event(Event::Call(call)) => call.refuse(&EngineError::Stopped),
            Message::Event(Event::Ended(reports)) => orphans.send(partition, reports),
            // Other callers see that the sender of their reply is dropped.
            _ => {}
        }
    }
}
