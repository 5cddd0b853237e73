//! Which requests are actions of operators, and what is noted of them.
//!
//! `admission` asks here before a route runs, and notes the action when it has succeeded. A route
//! that is about many tasks says in its response what it was asked for and how many it changed
//! ([`with_detail`]).

use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::response::Response;
use http::header::ORIGIN;
use http::request::Parts;
use http::{Method, StatusCode};
use punctual_core::Namespace;

use crate::actions::ActionDetail;
use crate::api::begun_action::BegunAction;
use crate::auth::{Identity, Right, Rights};
use crate::broker::Broker;

/// When a call is an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noted {
    /// Always: it needs the right to operate.
    Always,
    /// If it comes from the console, or from a token that may not produce. Programs make most of
    /// these calls.
    OfOperators,
}

/// The calls that change something: method, route, the name in the OpenAPI document.
const CALLS: &[(&str, &str, &str, Noted)] = &[
    ("POST", "/v1/{namespace}/tasks", "create_tasks", Noted::OfOperators),
    ("PUT", "/v1/{namespace}/tasks/{key}", "put_task", Noted::OfOperators),
    ("DELETE", "/v1/{namespace}/tasks/{key}", "cancel_task", Noted::OfOperators),
    ("POST", "/v1/{namespace}/tasks/{key}/touch", "touch_task", Noted::OfOperators),
    ("POST", "/v1/{namespace}/tasks/{key}/pause", "pause_task", Noted::Always),
    ("POST", "/v1/{namespace}/tasks/{key}/resume", "resume_task", Noted::Always),
    ("POST", "/v1/{namespace}/tasks/{key}/fire", "fire_task", Noted::Always),
    ("POST", "/v1/{namespace}/touch", "touch_tasks", Noted::OfOperators),
    ("POST", "/v1/{namespace}/cancel", "cancel_tasks", Noted::OfOperators),
    ("POST", "/v1/{namespace}/dead/redrive", "redrive_dead_letters", Noted::Always),
    ("POST", "/v1/{namespace}/dead/delete", "delete_dead_letters", Noted::Always),
    ("DELETE", "/v1/{namespace}/dead/{fire_id}", "delete_dead_letter", Noted::Always),
    ("POST", "/v1/{namespace}/operations", "start_operation", Noted::Always),
    ("DELETE", "/v1/{namespace}/operations/{id}", "stop_operation", Noted::Always),
    ("PUT", "/v1/{namespace}/alarms/{name}", "put_alarm", Noted::Always),
    ("DELETE", "/v1/{namespace}/alarms/{name}", "delete_alarm", Noted::Always),
    ("POST", "/v1/{namespace}/alarms/{name}/test", "test_alarm", Noted::Always),
    ("PUT", "/v1/{namespace}/rules/{prefix}", "put_rule", Noted::OfOperators),
    ("DELETE", "/v1/{namespace}/rules/{prefix}", "delete_rule", Noted::OfOperators),
];

/// Whether a request is an action.
pub(super) fn is_action(head: &Parts, route: &str, identity: &Identity, namespace: &str) -> bool {
    let Some((_, noted)) = call_of(&head.method, route) else { return false };
    noted == Noted::Always
        // A browser sends its origin with every request that changes something. Pages of other
        // origins were refused before.
        || head.headers.contains_key(ORIGIN)
        || Namespace::new(namespace)
            .is_ok_and(|namespace| !identity.may(Rights::of(&[Right::Produce]), &namespace))
}

fn call_of(method: &Method, route: &str) -> Option<(&'static str, Noted)> {
    if *method == Method::GET {
        return None;
    }
    let found = CALLS.iter().find(|(of, path, _, _)| *path == route && *of == method.as_str());
    found.map(|(_, _, call, noted)| (*call, *noted))
}

/// The action that a request is, if it is one.
pub(super) async fn begin(
    broker: &Broker,
    head: &mut Parts,
    route: &str,
    identity: &Identity,
) -> Option<BegunAction> {
    let (call, _) = call_of(&head.method, route)?;
    let params = RawPathParams::from_request_parts(head, &()).await.ok()?;
    let mut params = params.iter().map(|(_, text)| text);
    let namespace = params.next()?;
    if !is_action(head, route, identity, namespace) {
        return None;
    }
    let namespace = Namespace::new(namespace).ok()?;
    let name = params.next().unwrap_or_default();
    Some(BegunAction::new(broker, identity, &namespace, call, name))
}

/// Notes an action if its route has succeeded.
pub(super) fn end(action: BegunAction, response: &mut Response) {
    let did = response.extensions_mut().remove::<ActionDetail>();
    // A dry run of an operation changes nothing.
    let is_dry_run = action.call() == "start_operation" && response.status() == StatusCode::OK;
    if response.status().is_success() && !is_dry_run {
        action.end(did.unwrap_or_default());
    }
}

/// A response that says what its call was asked for and did.
pub(super) fn with_detail(mut response: Response, did: ActionDetail) -> Response {
    response.extensions_mut().insert(did);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::http::routes;

    #[test]
    fn every_call_is_named_as_in_the_document() {
        let document = serde_json::to_value(routes().1).unwrap();
        for (method, route, call, _) in CALLS {
            let operation = &document["paths"][route][method.to_lowercase()];
            assert_eq!(operation["operationId"], *call, "{method} {route}");
        }
    }

    #[test]
    fn every_call_that_needs_the_right_to_operate_is_an_action() {
        let document = serde_json::to_value(routes().1).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, _) in methods.as_object().unwrap() {
                let method: Method = method.to_uppercase().parse().unwrap();
                let need = crate::auth::describe_need(&method, path).unwrap_or_default();
                if need == "Requires the right `operate`." {
                    let noted = call_of(&method, path).map(|(_, noted)| noted);
                    assert_eq!(noted, Some(Noted::Always), "{method} {path}");
                }
            }
        }
    }
}
