//! Schemas of the texts that several routes use: names, ids, labels, headers, URLs and cron.
//!
//! Where a pattern has a grammar of its own, a test compares it with the check in the core.

use punctual_core::{
    ALARM_NAME_BYTES_MAX, CONNECTION_BYTES_MAX, CONTENT_TYPE_BYTES_MAX, CRON_BYTES_MAX,
    CRON_NICKNAMES, FireId, HEADERS_BYTES_MAX, HEADERS_MAX, HEADERS_RESERVED,
    HEADERS_RESERVED_PREFIXES, KEY_BYTES_MAX, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX,
    LABELS_MAX, NAMESPACE_BYTES_MAX, PARAM_NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, QUEUE_BYTES_MAX,
    SQL_PARAMS_BYTES_MAX, SQL_PARAMS_MAX, STATEMENT_BYTES_MAX, TaskId, Timestamp, URL_BYTES_MAX,
    ZONE_NAME_BYTES_MAX,
};
use serde_json::{Value, json};

use super::{documented, duration_grammar};

/// A letter of an id.
const LETTER: &str = "[0-9a-hjkmnp-tv-z]";
/// Text in one line of a header.
const HEADER_VALUE: &str = "^[\\t -~]*$";
/// The name of a header.
const HEADER_NAME: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/// `http://` or `https://`, a host, perhaps a port, a path and a query; no user, no fragment.
const URL: &str =
    "^[Hh][Tt][Tt][Pp][Ss]?://HOST(?::0*PORT)?(?:/[^REFUSED?`]*)?(?:[?][^REFUSED\"]*)?$";
/// The same with neither a path nor a query.
const SERVER_URL: &str = "^[Hh][Tt][Tt][Pp][Ss]?://HOST(?::0*PORT)?/?$";
const URL_HOST: &str = "(?:[CHARACTERS]+|\\[(?:[%CHARACTERS]*:){0,8}[%CHARACTERS]*\\])";
const URL_HOST_CHARACTERS: &str = "!$&'()*+,;=._~0-9A-Za-z-";
/// Numbers from 1 to 65535.
const URL_PORT: &str = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}\
    |655[0-2][0-9]|6553[0-5])";
/// What neither a path nor a query has.
const URL_REFUSED: &str = "\\x00-\\x20\\x7f#<>";
const BLANKS: &str = "[\\t\\n\\f\\r ]";
/// A name like `@daily`, an interval, or fields, which the core reads.
const CRON: &str = "^BLANKS*(?:NAME|AT_EVERYBLANKS+DURATION\
    |[0-9A-Za-z*?,/#-]+(?:BLANKS+[0-9A-Za-z*?,/#-]+){4,6})BLANKS*$";
/// Padded, and without bits that the last letter does not need.
const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*\
    (?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

documented!(
    /// The key of a task.
    KeyText,
    "Key",
    {
        let mut key = text(1, KEY_BYTES_MAX);
        key["description"] = "The caller's own name for a task, unique in its namespace.".into();
        key
    }
);
documented!(
    /// The name of a queue.
    QueueText,
    "QueueName",
    word(QUEUE_BYTES_MAX)
);
documented!(
    /// The name of an alarm.
    AlarmNameText,
    "AlarmName",
    word(ALARM_NAME_BYTES_MAX)
);
documented!(
    /// The name of a connection.
    ConnectionText,
    "ConnectionName",
    word(CONNECTION_BYTES_MAX)
);
documented!(
    /// The name of a statement.
    StatementText,
    "StatementName",
    word(STATEMENT_BYTES_MAX)
);
documented!(
    /// Values for parameters of a statement.
    ParamMap,
    "StatementParams",
    json!({
        "type": "object",
        "maxProperties": SQL_PARAMS_MAX,
        "x-max-bytes": SQL_PARAMS_BYTES_MAX,
        "propertyNames": {
            "type": "string",
            "maxLength": PARAM_NAME_BYTES_MAX,
            "pattern": "^[A-Za-z_][0-9A-Za-z_]*$",
        },
    })
);
documented!(
    /// The id of a task.
    TaskIdText,
    "TaskId",
    id("The id of a task.", &format!("(?:{}){LETTER}{{16}}", time_letters()))
);
documented!(
    /// The id of a fire.
    FireIdText,
    "FireId",
    id("The id of a fire: the same for all its attempts.", &fire_id_letters())
);
documented!(
    /// The cursor of a list.
    CursorText,
    "Cursor",
    {
        let letters = format!("(?:[dt]|f[0-9]{{1,15}}[.]){}", fire_id_letters());
        id("The `next` of the previous page.", &letters)
    }
);
documented!(
    /// An instant in a response.
    InstantText,
    "Instant",
    json!({
        "type": "string",
        "format": "date-time",
        "description": "A time in RFC 3339, in UTC, with milliseconds.",
        "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z$",
    })
);
documented!(
    /// The labels of a task.
    LabelMap,
    "Labels",
    json!({
        "type": "object",
        "maxProperties": LABELS_MAX,
        "propertyNames": word(LABEL_NAME_BYTES_MAX),
        "additionalProperties": text(0, LABEL_VALUE_BYTES_MAX),
    })
);
documented!(
    /// The headers of a webhook.
    HeaderMap,
    "Headers",
    json!({
        "type": "object",
        "description": "A name must not be given twice, whatever its case.",
        "maxProperties": HEADERS_MAX,
        "x-max-bytes": HEADERS_BYTES_MAX,
        "propertyNames": {
            "type": "string",
            "pattern": HEADER_NAME,
            "not": {"pattern": reserved_headers()},
        },
        "additionalProperties": {"type": "string", "pattern": HEADER_VALUE},
    })
);
documented!(
    /// The URL of a webhook.
    UrlText,
    "Url",
    json!({
        "type": "string",
        "description": "An absolute URL without user and fragment. The broker's configuration \
                        decides which addresses may be called; others are refused.",
        "maxLength": URL_BYTES_MAX,
        "pattern": url(URL),
        "x-max-bytes": URL_BYTES_MAX,
    })
);
documented!(
    /// The URL of a gRPC server.
    GrpcUrlText,
    "GrpcUrl",
    json!({
        "type": "string",
        "description": "An absolute URL without user, path, query and fragment. The broker's \
                        configuration decides which addresses may be called; others are refused.",
        "maxLength": URL_BYTES_MAX,
        "pattern": url(SERVER_URL),
        "x-max-bytes": URL_BYTES_MAX,
    })
);
documented!(
    /// A cron expression.
    CronText,
    "CronExpression",
    json!({
        "type": "string",
        "format": "cron",
        "description": "`minute hour day month weekday`, with a second before them or also a year \
                        after them, or `@daily` and the like.",
        "maxLength": CRON_BYTES_MAX,
        "pattern": cron(),
    })
);
documented!(
    /// The name of a time zone.
    ZoneText,
    "TimeZone",
    json!({
        "type": "string",
        "format": "time-zone",
        "description": "A name of the IANA time zone database, like `Europe/Berlin`.",
        "minLength": 1,
        "maxLength": ZONE_NAME_BYTES_MAX,
        "pattern": "^[A-Za-z0-9_+/-]+$",
    })
);
documented!(
    /// The content type of a payload.
    ContentTypeText,
    "ContentType",
    json!({"type": "string", "maxLength": CONTENT_TYPE_BYTES_MAX, "pattern": HEADER_VALUE})
);
documented!(
    /// A payload in base64.
    Base64Text,
    "Base64",
    json!({
        "type": "string",
        "contentEncoding": "base64",
        "maxLength": PAYLOAD_BYTES_MAX.div_ceil(3) * 4,
        "pattern": BASE64,
    })
);

/// The namespace in a path.
pub(crate) fn namespace() -> Value {
    word(NAMESPACE_BYTES_MAX)
}

fn url(form: &str) -> String {
    form.replace("HOST", &URL_HOST.replace("CHARACTERS", URL_HOST_CHARACTERS))
        .replace("PORT", URL_PORT)
        .replace("REFUSED", URL_REFUSED)
}

/// Letters, digits and few other characters.
fn word(bytes_max: usize) -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": bytes_max,
        "pattern": "^[0-9A-Za-z][0-9A-Za-z._-]*$",
    })
}

/// Text without control characters.
pub(super) fn text(bytes_min: usize, bytes_max: usize) -> Value {
    json!({
        "type": "string",
        "minLength": bytes_min,
        "maxLength": bytes_max,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
        "x-max-bytes": bytes_max,
    })
}

fn id(description: &str, letters: &str) -> Value {
    json!({"type": "string", "description": description, "pattern": format!("^{letters}$")})
}

fn fire_id_letters() -> String {
    let time = time_letters();
    format!("(?:{time}){LETTER}{{16}}-(?:{time})")
}

/// The ten letters of a time up to the latest one. An id begins with those of its due time.
fn time_letters() -> String {
    const ALL: &str = "0123456789abcdefghjkmnpqrstvwxyz";
    let latest = FireId { task: TaskId::floor(Timestamp::MAX), nominal_at: Timestamp::MAX };
    let latest = &latest.to_string()[TaskId::LETTERS + 1..];
    let smaller = latest.char_indices().filter_map(|(index, letter)| {
        let (same, left) = (&latest[..index], latest.len() - index - 1);
        let (below, _) = ALL.split_once(letter)?;
        (!below.is_empty()).then(|| format!("{same}[{below}]{LETTER}{{{left}}}"))
    });
    smaller.chain([latest.to_owned()]).collect::<Vec<_>>().join("|")
}

fn cron() -> String {
    let names: Vec<_> = CRON_NICKNAMES.iter().map(|(name, _)| any_case(name)).collect();
    CRON.replace("NAME", &names.join("|"))
        .replace("AT_EVERY", &any_case("@every"))
        .replace("DURATION", &duration_grammar())
        .replace("BLANKS", BLANKS)
}

/// How a cron expression begins that is an interval.
pub(crate) fn at_every() -> String {
    format!("^{BLANKS}*{}{BLANKS}", any_case("@every"))
}

/// A pattern of a text in upper or lower case.
pub(super) fn any_case(text: &str) -> String {
    let letter = |letter: char| match letter.to_ascii_uppercase() {
        upper if upper == letter => letter.to_string(),
        upper => format!("[{upper}{letter}]"),
    };
    text.chars().map(letter).collect()
}

/// The names of headers that callers may not set, in any case.
fn reserved_headers() -> String {
    let names: Vec<_> =
        HEADERS_RESERVED.iter().map(|name| format!("{}$", any_case(name))).collect();
    let prefixes: Vec<_> = HEADERS_RESERVED_PREFIXES.iter().map(|name| any_case(name)).collect();
    format!("^(?:{}|{})", names.join("|"), prefixes.join("|"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use punctual_core::{GrpcTarget, HttpTarget, Method, Namespace, TaskKey};
    use regex::Regex;
    use utoipa::PartialSchema;

    use super::super::tests::check_of;
    use super::*;

    fn schema<T: PartialSchema>() -> Value {
        serde_json::to_value(T::schema()).unwrap()
    }

    /// All characters of a byte.
    fn characters() -> impl Iterator<Item = char> {
        (0..256).filter_map(char::from_u32)
    }

    #[test]
    fn patterns_of_ids_accept_exactly_the_ids() {
        let latest = TaskId::floor(Timestamp::MAX);
        let fire = FireId { task: latest, nominal_at: Timestamp::MAX }.to_string();
        let [is_id, is_fire_id] =
            [schema::<TaskIdText>(), schema::<FireIdText>()].map(|schema| check_of(&schema));
        for letter in "0123456789abcdefghijklmnopqrstuvwxyzA-".chars() {
            for index in 0..fire.len() {
                let mut text: Vec<char> = fire.chars().collect();
                text[index] = letter;
                let text: String = text.into_iter().collect();
                assert_eq!(is_fire_id(&text), text.parse::<FireId>().is_ok(), "{text}");
                let id = &text[..TaskId::LETTERS];
                assert_eq!(is_id(id), id.parse::<TaskId>().is_ok(), "{id}");
            }
        }
    }

    #[test]
    fn the_pattern_of_urls_accepts_what_the_check_of_urls_accepts() {
        let is_url = check_of(&schema::<UrlText>());
        let is_server = check_of(&schema::<GrpcUrlText>());
        let mut texts: Vec<String> = Vec::new();
        for character in characters() {
            for text in ["http://aXb", "http://a/X", "http://a?X", "https://[X]/", "http://a:8X"] {
                texts.push(text.replace('X', &character.to_string()));
            }
        }
        for text in [
            "",
            "http",
            "http://",
            "http:///x",
            "HTTPS://a",
            "ftp://a/",
            "//a",
            "http://u@a/",
            "http://a:/",
            "http://a:0/",
            "http://a:00/",
            "http://a:080/",
            "http://a:65535/",
            "http://a:65536/",
            "http://a:1:2/",
            "http://[::1]:80/",
            "http://[::1/",
            "http://a]/",
            "http://[::::::::]/",
            "http://[:::::::::]/",
            "http://a%41/",
            "http://a/%",
            "http://a/b#c",
            "http://a?b?c",
            "http://a/b?c/d#",
        ] {
            texts.push(text.to_owned());
        }
        for text in &texts {
            let accepted = HttpTarget::new(text, Method::Post, vec![]).is_ok();
            assert_eq!(is_url(text), accepted, "{text:?}");
            let accepted = GrpcTarget::new(text, "/a/b").is_ok();
            assert_eq!(is_server(text), accepted, "{text:?}");
        }
    }

    #[test]
    fn patterns_of_header_names_accept_exactly_those_that_may_be_set() {
        let names = &schema::<HeaderMap>()["propertyNames"];
        let is_name = check_of(names);
        let reserved = Regex::new(names["not"]["pattern"].as_str().unwrap()).unwrap();
        let named = characters().map(|character| format!("x{character}"));
        let more = ["", "Host", "hosts", "TE", "webhook", "Webhook-Id", "punctual-x", "proxy-a"];
        for name in named.chain(more.map(str::to_owned)) {
            let headers = vec![(name.clone(), String::new())];
            let accepted = HttpTarget::new("http://a/", Method::Post, headers).is_ok();
            let documented = is_name(&name) && !reserved.is_match(&name);
            assert_eq!(documented, accepted, "{name:?}");
        }
    }

    #[test]
    fn patterns_of_names_are_the_checks_of_names() {
        let [is_word, is_key] = [namespace(), schema::<KeyText>()].map(|schema| check_of(&schema));
        for character in (0..0x250).filter_map(char::from_u32) {
            for name in [format!("{character}"), format!("a{character}"), String::new()] {
                assert_eq!(is_word(&name), Namespace::new(&name).is_ok(), "{name:?}");
                assert_eq!(is_key(&name), TaskKey::new(&name).is_ok(), "{name:?}");
            }
        }
    }

    #[test]
    fn the_pattern_of_base64_accepts_what_the_decoder_accepts() {
        let is_base64 = check_of(&schema::<Base64Text>());
        let letters = ["", "A", "Q", "B", "w", "x", "8", "9", "+", "/", "-", "="];
        for a in letters {
            for b in letters {
                for c in letters {
                    for d in letters {
                        for text in [format!("{a}{b}{c}{d}"), format!("AAAA{a}{b}{c}{d}")] {
                            let accepted = STANDARD.decode(&text).is_ok();
                            assert_eq!(is_base64(&text), accepted, "{text:?}");
                        }
                    }
                }
            }
        }
    }
}
