package dev.punctual;

import java.util.function.Supplier;

/** What became of one task of a batch. */
public sealed interface ScheduleResult permits ScheduleResult.Scheduled, ScheduleResult.Rejected {
    /** The task was created or replaced. */
    final class Scheduled implements ScheduleResult {
        private final Supplier<Task> task;

        Scheduled(Supplier<Task> task) {
            this.task = task;
        }

        /** The task. It is read from the answer at each call, so a batch whose tasks are not looked at costs little. */
        public Task task() {
            return task.get();
        }

        @Override
        public String toString() {
            return "Scheduled[" + task() + "]";
        }
    }

    /** The task was not created; the others of the batch are not affected. */
    record Rejected(Problem problem) implements ScheduleResult {}
}
