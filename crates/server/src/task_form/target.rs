//! The target of a task in JSON: a webhook or a queue, parsing and writing.

use punctual_core::{HttpTarget, Invalid, Method, Queue, Target};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer_rules::{RefusalBody, SuccessBody, into_rules, of_rules};
use super::pairs::{Pairs, check_headers};
use crate::schema::{HeaderMap, QueueText, UrlText, documented, one_field, one_of, reference};

/// Where deliveries go: a webhook, or a queue that workers subscribe to.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TargetBody {
    /// A webhook.
    Http(HttpBody),
    /// The name of a queue.
    Queue(String),
}

/// A webhook.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = HttpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url`")]
pub(super) struct HttpBody {
    /// Where the request is sent.
    #[schema(value_type = UrlText)]
    url: String,
    /// The method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MethodName>)]
    method: Option<String>,
    /// Headers to send.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = HeaderMap)]
    headers: Pairs,
    /// Which answers are a success. Default: every status from 200 to 299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    success: Option<SuccessBody>,
    /// Which answers are a refusal: no further attempt is made. 410 is one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refuse: Option<RefusalBody>,
}

documented!(
    impl TargetBody,
    "Target",
    {
        let (http, queue) = (reference::<HttpBody>(), reference::<QueueText>());
        let mut target = one_field(&[("http", http), ("queue", queue)]);
        target["description"] =
            "Where deliveries go: a webhook, or a queue that workers subscribe to.".into();
        target
    },
    uses HttpBody
);
documented!(
    /// The method of a webhook.
    MethodName,
    "Method",
    {
        let mut method = one_of(Method::ALL.map(Method::as_str));
        method["default"] = Method::default().as_str().into();
        method
    }
);

impl TargetBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let http = match self {
            Self::Http(http) => http,
            Self::Queue(queue) => return queue_target(field, &queue),
        };
        let method = http.method.as_deref().map(Method::parse).transpose();
        let target = method.and_then(|method| {
            let headers = http.headers.by_name("headers")?;
            check_headers(&headers)?;
            let headers = headers.into_iter().collect();
            let target = HttpTarget::new(&http.url, method.unwrap_or_default(), headers)?;
            Ok(target.with_rules(into_rules(http.success, http.refuse)?))
        });
        Ok(Target::Http(target.map_err(|invalid| invalid.within(&format!("{field}.http")))?))
    }

    pub(super) fn of(target: &Target) -> Self {
        match target {
            Target::Queue(queue) => Self::Queue(queue.as_str().to_owned()),
            Target::Http(http) => {
                let (success, refuse) = http.rules().map_or((None, None), of_rules);
                Self::Http(HttpBody {
                    url: http.url().to_owned(),
                    method: Some(http.method().as_str().to_owned()),
                    headers: http.headers().iter().cloned().collect(),
                    success,
                    refuse,
                })
            }
        }
    }
}

/// A queue as the target `field` of a task.
pub(crate) fn queue_target(field: &str, name: &str) -> Result<Target, Invalid> {
    let named = |invalid: Invalid| Invalid::new(format!("{field}.queue"), invalid.problem);
    Ok(Target::Queue(Queue::new(name).map_err(named)?))
}
