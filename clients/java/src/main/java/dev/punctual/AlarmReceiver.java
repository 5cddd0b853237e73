package dev.punctual;

import java.util.List;

/** Where the notices of an alarm go: one of these, the others are null. */
public record AlarmReceiver(HttpTarget http, ChatRobot chat, MailReceiver mail) {
    public static AlarmReceiver http(HttpTarget http) {
        return new AlarmReceiver(http, null, null);
    }

    public static AlarmReceiver chat(ChatKind kind, String url, String secret) {
        return new AlarmReceiver(null, new ChatRobot(kind, url, secret), null);
    }

    public static AlarmReceiver mail(List<String> to) {
        return new AlarmReceiver(null, null, new MailReceiver(to));
    }
}
