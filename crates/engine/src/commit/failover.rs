//! A store that fails over may have lost batches that it had acknowledged. The owner sends them
//! again from memory and does not rely on what the store answered meanwhile.
//!
//! Tasks that were read for memory are used, and a cancel is answered from history, only when the
//! store has accepted a batch that was sent after the read: a store that has lost batches refuses
//! it. Without this, a task whose cancel was lost would fire.
//!
//! No command is answered as not done if a batch that was sent before may still do it. A batch in
//! doubt is refused while batches before it are missing, and could arrive right behind the last of
//! them. So every repair has a number, and the first batch of it that the store accepts fences all
//! that was sent before (`docs/adr/0029-fence-before-repair.md`). From then on the decisions in
//! doubt are certainly not written. `writer` has the batches and sends them.

use punctual_core::Timestamp;

use crate::commit::decision::{Decision, Effect};
use crate::handle::error::EngineError;
use crate::owner::Owner;

impl Owner {
    /// Undoes decisions that may rest on what the store has lost. Their callers get
    /// [`EngineError::Stopped`] and try again, unless the decision may still be written.
    pub(crate) fn begin_repair(&mut self, now: Timestamp) {
        self.loader.restart();
        self.take_all_effects(now);
        self.undo_unfounded(now);
    }

    /// The same for the decisions that are in doubt no longer.
    pub(crate) fn undo_unfounded(&mut self, now: Timestamp) {
        for decision in self.writer.take_unfounded() {
            self.drop_read(&decision);
            self.undo(decision, EngineError::Stopped, now);
        }
    }

    /// Ends the read that a decision was to confirm.
    fn drop_read(&mut self, decision: &Decision) {
        let read = decision.effects.iter().find_map(|effect| match effect {
            Effect::TakePage(_) => self.loader.take_page().map(|page| page.read),
            Effect::TakeLookup(_, read) => Some(*read),
            _ => None,
        });
        if let Some(read) = read {
            self.reads.close(read);
        }
    }

    /// The store has every batch that it had lost: whatever was read before is read again.
    pub(crate) fn end_repair(&mut self, now: Timestamp) {
        self.writer.repaired(now);
        self.reads.applied();
        self.reads.invalidate_earlier_reads();
        self.loader.restart();
        for subject in self.commands.take_under_repair() {
            self.look_up_again(&subject);
        }
    }
}
