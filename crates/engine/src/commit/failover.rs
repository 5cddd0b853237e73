//! A store that has forgotten: what it said meanwhile is not believed, and it is sent again what it lacks.
//!
//! In: the first batch that the store lacks, which is `kept`. Out: decisions that are undone, and a writer that goes on with what is left; or an owner
//! that ends once the store has all of it.
//! Invariant: nothing is answered as not done that a sending on its way could still do. A batch that was sent before without an answer
//! (`Writer::in_doubt`) is refused only as long as others are missing before it: it may come in right behind the last of them. So
//! it stays as it was sent. If something in it may have been decided by what the store had forgotten, one without changes takes its
//! number, and the owner ends: nobody knows then which of them was made, and the next epoch fences the other.
//! Next door: `write`, which sends; `kept`, which has the batches; `look` and `load`, which begin anew.

use std::collections::VecDeque;
use std::sync::Arc;

use punctual_core::Timestamp;
use punctual_store::{BatchNo, StoreError};

use crate::commit::retained_batches::About;
use crate::commit::writer::{CONFIRM_AFTER, Decision};
use crate::handle::command::EngineError;
use crate::owner::Owner;

impl Owner {
    /// The store has forgotten batches: what it was asked meanwhile it may have answered out of the past. Whoever asked for something that
    /// rests on such an answer is told that nothing was done, and asks again, unless it may be done yet.
    pub(crate) fn begin_repair(&mut self, expected: BatchNo, now: Timestamp) {
        self.loader.begin_again();
        while self.writer.is_behind() {
            self.take_effect(now);
        }
        let on_its_way = if self.writer.in_doubt { self.writer.sent } else { 0 };
        if on_its_way > 0 && self.may_be_wrong(expected) {
            let (partition, given) = (self.partition, self.writer.next);
            self.writer.ends = Some(StoreError::Gap { partition, expected, given });
        }
        let decisions = std::mem::take(&mut self.writer.decisions);
        let sent = std::mem::take(&mut self.writer.sent);
        let (mut kept, mut undone) = (VecDeque::new(), Vec::new());
        for (index, decision) in decisions.into_iter().enumerate() {
            if index >= on_its_way && decision.rests_on_a_look() {
                undone.push(decision);
            } else {
                self.writer.sent += usize::from(index < sent);
                kept.push_back(decision);
            }
        }
        if self.writer.sent == 0 {
            // The batch that was refused is sent in the end, even if nothing is left in it.
            kept.push_front(Decision::default());
            self.writer.sent = 1;
        }
        self.writer.decisions = kept;
        for decision in undone {
            self.undo(decision, EngineError::Stopped, now);
        }
    }

    /// Whether something in the batch under way may have been decided by a store that lacked what is kept from a number on.
    fn may_be_wrong(&self, expected: BatchNo) -> bool {
        let Some(kept) = &self.writer.kept else {
            return false;
        };
        let forgotten = kept.about_since(expected);
        let mut asked = self.writer.under_way().filter(|decision| decision.rests_on_a_look());
        asked.any(|decision| decision.about().meets(&forgotten))
    }

    /// The store has all that it had forgotten: what was read before is read again.
    pub(crate) fn end_repair(&mut self, now: Timestamp) {
        // It may forget them a second time.
        self.writer.confirms_at = Some(now.after(CONFIRM_AFTER));
        self.recent.applied();
        self.recent.distrust_earlier();
        self.loader.begin_again();
        for subject in std::mem::take(&mut self.under_repair) {
            self.look_again(&subject);
        }
    }
}

impl Decision {
    /// What it rests on and what it changes.
    fn about(&self) -> About {
        let mut about: About = self.changes.iter().map(Arc::as_ref).collect();
        let subject = self.asked.as_ref().and_then(|asked| asked.subject.as_ref());
        subject.into_iter().for_each(|subject| about.add(subject));
        about
    }
}
