//! The forms that the robots of chat services take: a text, and for some a signature.
//!
//! DingTalk, Feishu and WeCom answer 200 also if they refuse a message; the rules of the webhook
//! then make it a failed attempt. The signature has the time at which the notice was made, because
//! it is a part of the stored task, and is valid for an hour.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{
    AnswerRules, ChatKind, ChatRobot, ExpectedValue, HttpTarget, Payload, Timestamp,
};
use ring::hmac;
use serde_json::{Value, json};

/// Bytes of a text. WeCom refuses more; Feishu takes 20 KB, Slack cuts after 40,000 characters.
const TEXT_BYTES_MAX: usize = 2048;

/// A message to a robot.
#[derive(Debug)]
pub(super) struct ChatMessage {
    pub(super) webhook: HttpTarget,
    pub(super) payload: Payload,
}

impl ChatMessage {
    pub(super) fn new(robot: &ChatRobot, text: &str, now: Timestamp) -> Self {
        let text = cut(text);
        let mut body = body(robot.kind, &text);
        let mut webhook = robot.webhook.clone();
        match (robot.kind, &robot.secret) {
            (ChatKind::DingTalk, Some(secret)) => {
                webhook = sign_url(&webhook, secret, now).unwrap_or(webhook);
            }
            (ChatKind::Feishu, Some(secret)) => sign_body(&mut body, secret, now),
            (ChatKind::Slack | ChatKind::WeCom, _) | (_, None) => {}
        }
        let payload = Payload::Json(body.to_string().into());
        Self { webhook: webhook.with_rules(answer_rules(robot.kind)), payload }
    }
}

fn body(kind: ChatKind, text: &str) -> Value {
    match kind {
        ChatKind::Slack => json!({"text": escape_slack(text)}),
        ChatKind::DingTalk | ChatKind::WeCom => {
            json!({"msgtype": "text", "text": {"content": text}})
        }
        ChatKind::Feishu => json!({"msg_type": "text", "content": {"text": text}}),
    }
}

/// What a robot answers if it has taken a message.
fn answer_rules(kind: ChatKind) -> AnswerRules {
    let pointer = match kind {
        ChatKind::Slack => return AnswerRules::default(),
        ChatKind::DingTalk | ChatKind::WeCom => "/errcode",
        ChatKind::Feishu => "/code",
    };
    let taken = ExpectedValue { pointer: pointer.to_owned(), value: "0".to_owned() };
    AnswerRules::new(vec![], vec![taken], vec![]).expect("a valid pointer and a number")
}

/// In a text of Slack, `<!channel>` and the like are commands.
fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Cuts a text that is too long. Slack has no limit near it, so escaping comes later.
fn cut(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX - ELLIPSIS.len());
    format!("{}{ELLIPSIS}", &text[..end])
}

/// Adds the signature of DingTalk to a URL. Returns `None` if the URL becomes too long; DingTalk
/// then refuses the message.
fn sign_url(webhook: &HttpTarget, secret: &str, now: Timestamp) -> Option<HttpTarget> {
    let (url, timestamp) = (webhook.url(), now.as_millis());
    let sign = sign(secret, &format!("{timestamp}\n{secret}"));
    // Base64 has three characters that have a meaning in a query.
    let sign = sign.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}timestamp={timestamp}&sign={sign}");
    HttpTarget::new(&url, webhook.method(), webhook.headers().to_vec()).ok()
}

/// Adds the signature of Feishu to a body.
fn sign_body(body: &mut Value, secret: &str, now: Timestamp) {
    let timestamp = now.as_millis() / 1000;
    body["timestamp"] = json!(timestamp.to_string());
    body["sign"] = json!(sign(&format!("{timestamp}\n{secret}"), ""));
}

fn sign(key: &str, message: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    STANDARD.encode(hmac::sign(&key, message.as_bytes()))
}

#[cfg(test)]
mod tests {
    use punctual_core::Method;

    use super::super::facts::fixtures::{NOW, robot};
    use super::*;

    // Messages and answers as the services document them, looked up on 2026-11-18.

    /// Slack, "Incoming webhooks" of the Java SDK guide.
    const SLACK: &str = r#"{"text":"Hello, World!"}"#;
    /// DingTalk, "Custom robot access" (custom-robot-access).
    const DINGTALK: &str = r#"{"msgtype": "text","text": {"content":"我就是我, 是不一样的烟火"}}"#;
    /// Feishu, "Custom bot usage guide" (add-custom-bot).
    const FEISHU: &str = r#"{"msg_type":"text","content":{"text":"request example"}}"#;
    /// WeCom, "Group robot configuration" (path 91770).
    const WECOM: &str = r#"{"msgtype": "text", "text": {"content": "hello world"}}"#;

    /// DingTalk, the same document: success, and a wrong signature. The others were recorded by
    /// users, with status 200: a text without the keyword of the robot, before and since 2022.
    /// Links and addresses are left out.
    const DINGTALK_ANSWERS: [&str; 4] = [
        r#"{"errcode":0,"errmsg":"ok"}"#,
        r#"{"errcode":310000,"errmsg":"sign not match"}"#,
        r#"{"errcode":310000,"errmsg":"keywords not in content, more: [https://…]"}"#,
        r#"{"errcode":310000,"errmsg":"description:关键词不匹配;solution:请联系群管理员查看此机器人的关键词"}"#,
    ];
    /// Feishu, the same document; success, with the fields of older robots, a wrong signature, a
    /// wrong body.
    const FEISHU_ANSWERS: [&str; 3] = [
        r#"{"code":0,"msg":"success","data":{},"Extra":null,"StatusCode":0,
            "StatusMessage":"success"}"#,
        r#"{"code":19021,"data":{},
            "msg":"sign match fail or timestamp is not within one hour from current time"}"#,
        r#"{"code":9499,"msg":"Bad Request","data":{}}"#,
    ];
    /// WeCom, as users have recorded them: success, a text that is too long, a wrong key.
    const WECOM_ANSWERS: [&str; 3] = [
        r#"{"errcode":0,"errmsg":"ok"}"#,
        r#"{"errcode":40058,"errmsg":"markdown.content exceed max length 4096."}"#,
        r#"{"errcode":93000,"errmsg":"invalid webhook url"}"#,
    ];

    const URL: &str = "https://chat.example/robot?key=k";

    fn message(kind: ChatKind, secret: Option<&str>, text: &str) -> (ChatMessage, Value) {
        let message = ChatMessage::new(&robot(kind, URL, secret), text, NOW);
        let body = serde_json::from_slice(message.payload.bytes()).unwrap();
        (message, body)
    }

    #[test]
    fn each_service_gets_the_message_that_it_documents() {
        for (kind, text, documented) in [
            (ChatKind::Slack, "Hello, World!", SLACK),
            (ChatKind::DingTalk, "我就是我, 是不一样的烟火", DINGTALK),
            (ChatKind::Feishu, "request example", FEISHU),
            (ChatKind::WeCom, "hello world", WECOM),
        ] {
            let (message, body) = message(kind, None, text);
            let documented: Value = serde_json::from_str(documented).unwrap();
            assert_eq!(body, documented, "{kind:?}");
            assert_eq!(message.payload.content_type(), Some("application/json"));
            assert_eq!((message.webhook.url(), message.webhook.method()), (URL, Method::Post));
        }
    }

    #[test]
    fn an_answer_with_an_error_code_is_not_a_success() {
        for (kind, answers) in [
            (ChatKind::DingTalk, &DINGTALK_ANSWERS[..]),
            (ChatKind::Feishu, &FEISHU_ANSWERS),
            (ChatKind::WeCom, &WECOM_ANSWERS),
        ] {
            let (message, _) = message(kind, None, "text");
            let rules = message.webhook.rules().unwrap();
            let is_success = |answer: &&str| {
                let answer: Value = serde_json::from_str(answer).unwrap();
                rules.success_json().iter().all(|ExpectedValue { pointer, value }| {
                    let expected: Value = serde_json::from_str(value).unwrap();
                    answer.pointer(pointer) == Some(&expected)
                })
            };
            let first: Vec<&str> = answers.iter().copied().filter(|it| is_success(it)).collect();
            assert_eq!(first, answers[..1], "{kind:?}");
        }
        assert_eq!(message(ChatKind::Slack, None, "text").0.webhook.rules(), None);
    }

    /// The signatures were computed with the Python code of the documents, for this secret.
    #[test]
    fn a_robot_with_a_secret_gets_a_signature() {
        const SECRET: Option<&str> = Some("this is secret");
        let (dingtalk, body) = message(ChatKind::DingTalk, SECRET, "text");
        let sign = "gaEG%2Fnd0EuaM8%2B%2Fqj%2FTNhusUv5WDUock2Ye%2BUx0vbr8%3D";
        let want = format!("{URL}&timestamp=1795000000000&sign={sign}");
        assert_eq!(dingtalk.webhook.url(), want);
        assert!(dingtalk.webhook.rules().is_some());
        assert_eq!(body, json!({"msgtype": "text", "text": {"content": "text"}}));
        let (feishu, body) = message(ChatKind::Feishu, SECRET, "text");
        assert_eq!(feishu.webhook.url(), URL);
        let want = json!({
            "timestamp": "1795000000",
            "sign": "vvfi8TOW1HiV++6erORm0v5WEYrhKio1mJSPYlTCuvQ=",
            "msg_type": "text",
            "content": {"text": "text"},
        });
        assert_eq!(body, want);
    }

    #[test]
    fn a_url_without_a_query_gets_one() {
        let robot = robot(ChatKind::DingTalk, "https://chat.example/robot", Some("s"));
        let message = ChatMessage::new(&robot, "text", NOW);
        assert!(message.webhook.url().starts_with("https://chat.example/robot?timestamp=1795"));
    }

    #[test]
    fn a_text_can_carry_no_command_of_slack_and_is_cut_at_the_limit() {
        let (_, body) = message(ChatKind::Slack, None, "<!channel> a & b");
        assert_eq!(body["text"], "&lt;!channel&gt; a &amp; b");
        for (letters, want) in [(2048, "x".repeat(2048)), (2049, "x".repeat(2045) + "…")] {
            let (_, body) = message(ChatKind::WeCom, None, &"x".repeat(letters));
            assert_eq!(body["text"]["content"], want);
        }
        let (_, body) = message(ChatKind::WeCom, None, &"ü".repeat(1025));
        assert!(body["text"]["content"].as_str().unwrap().len() <= TEXT_BYTES_MAX);
    }
}
