package dev.punctual;

import java.util.List;

/** The lanes of a namespace. If they are not complete, there are more, with fewer waiting tasks. */
public record Lanes(List<LaneInfo> lanes, boolean complete) {}
