package dev.punctual;

import java.time.Duration;

/** When an alarm is raised, where that is reported, and after how long it is reported again. */
public record AlarmRule(AlarmCondition when, AlarmReceiver to, Duration repeatAfter) {}
