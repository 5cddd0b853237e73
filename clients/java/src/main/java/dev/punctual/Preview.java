package dev.punctual;

import java.util.List;

/** The next fire times of a cron expression. */
public record Preview(String cron, String timezone, String timezoneData, List<Upcoming> fires) {}
