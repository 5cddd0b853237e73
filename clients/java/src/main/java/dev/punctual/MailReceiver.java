package dev.punctual;

import java.util.List;

/** Who gets a mail. */
public record MailReceiver(List<String> to) {}
