package dev.punctual;

/** The kind of a chat robot. */
public enum ChatKind {
    SLACK, DINGTALK, FEISHU, WECOM
}
