//! A stream of Redis.

use punctual_test_support::redis::RedisServer;

use crate::system::{SecuredConnection, TestMessage, TestSystem};

const PASSWORD: &str = "hush-hush";
/// Adds entries: for each the count of its words, and the words.
const ADD: &str = "local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  redis.call('XADD', KEYS[1], '*', unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end";
/// Entries that the group has not confirmed: those that it has not read, and those in hand.
const UNCONFIRMED: &str = "local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
for _, found in ipairs(groups) do
  local group = {}
  for at = 1, #found, 2 do group[found[at]] = found[at + 1] end
  return group.pending + #redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+')
end";

pub(crate) struct RedisSystem {
    server: RedisServer,
    stream: String,
}

impl TestSystem for RedisSystem {
    const PAGE: &'static str = include_str!("../../../../docs/connectors/redis-streams.md");
    const PAGE_HOST: &'static str = "redis.internal";
    const PAGE_PLACE: &'static str = "timers";

    fn start() -> Self {
        let server = RedisServer::start_secured();
        let password = format!(">{PASSWORD}");
        server.cli(&["ACL", "SETUSER", "punctual", "on", &password, "~*", "+@all"]);
        Self { server, stream: "commands".to_owned() }
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn use_place(&mut self, place: &str) {
        self.stream = place.to_owned();
    }

    fn connection(&self, port: u16) -> String {
        format!("kind = \"redis\"\nurl = \"redis://127.0.0.1:{port}\"")
    }

    fn secured(&self) -> SecuredConnection {
        let port = self.server.tls_port;
        SecuredConnection {
            lines: format!("kind = \"redis\"\nurl = \"rediss://punctual@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: PASSWORD,
        }
    }

    fn source(&self) -> String {
        format!("from = \"{}\"", self.stream)
    }

    fn send(&self, messages: &[TestMessage]) {
        for messages in messages.chunks(500) {
            let mut words = vec!["EVAL".to_owned(), ADD.to_owned(), "1".to_owned()];
            words.push(self.stream.clone());
            for message in messages {
                words.push((message.headers.len() * 2 + 2).to_string());
                for (name, value) in &message.headers {
                    words.extend([name.clone(), value.clone()]);
                }
                words.extend(["payload".to_owned(), message.body.clone()]);
            }
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let answer = self.server.cli(&words);
            assert_eq!(answer.trim(), "");
        }
    }

    fn unconfirmed(&self, _: &[&str]) -> usize {
        let answer = self.server.cli(&["EVAL", UNCONFIRMED, "1", "commands"]);
        answer.trim().parse().unwrap_or(usize::MAX)
    }

    fn rejected(&self) -> Vec<(String, String)> {
        // Lines of an entry: its id, and the names and values of its fields.
        let answer = self.server.cli(&["--raw", "XRANGE", "commands:rejected", "-", "+"]);
        let lines: Vec<_> = answer.lines().collect();
        let of = |name: &str| -> Vec<String> {
            let found = lines.windows(2).filter(|two| two[0] == name);
            found.map(|two| two[1].to_owned()).collect()
        };
        of("punctual-problem").into_iter().zip(of("payload")).collect()
    }

    fn restart(&mut self) {
        self.server.kill();
        self.server.start_again();
    }
}
