package dev.punctual;

import java.time.Duration;

/** When an alarm is raised: one of these, the others are null. */
public record AlarmCondition(
        FailuresCondition failures,
        FailureShareCondition failureShare,
        DeadLettersCondition deadLetters,
        LagCondition lag,
        OverdueCondition overdue,
        NoWorkersCondition noWorkers) {
    public static AlarmCondition failures(long count, Duration window) {
        return new AlarmCondition(new FailuresCondition(count, window), null, null, null, null, null);
    }

    public static AlarmCondition failureShare(double over, long min, Duration window) {
        return new AlarmCondition(null, new FailureShareCondition(over, min, window), null, null, null, null);
    }

    public static AlarmCondition deadLetters(long over) {
        return new AlarmCondition(null, null, new DeadLettersCondition(over), null, null, null);
    }

    public static AlarmCondition lag(Duration p99Over, Duration window) {
        return new AlarmCondition(null, null, null, new LagCondition(p99Over, window), null, null);
    }

    public static AlarmCondition overdue(Duration over) {
        return new AlarmCondition(null, null, null, null, new OverdueCondition(over), null);
    }

    public static AlarmCondition noWorkers(String queue, Duration absence) {
        return new AlarmCondition(null, null, null, null, null, new NoWorkersCondition(queue, absence));
    }
}
