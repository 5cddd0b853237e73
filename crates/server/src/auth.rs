//! Authentication and authorization by bearer tokens.
//!
//! [`RIGHTS`] and [`CALL_RIGHTS`] are the tables of what each route and each gRPC call requires.
//! One that is not in its table is refused, with or without a token. `rights` has the rights of
//! tokens, `tokens` the tokens and the callers that show them.
//!
//! Both are checked on the head of a request, before anything of its body is read: HTTP calls
//! [`ApiTokens::check`]. gRPC has the namespace in its messages: it calls
//! [`ApiTokens::check_call`] for the head, which requires a token of any namespace, then
//! [`CallRight::check`] for each message.

mod rights;
mod tokens;

use axum::extract::{FromRequestParts as _, RawPathParams};
use http::request::Parts;
use http::{HeaderMap, Method};
use punctual_core::Namespace;

use crate::problem::{Problem, ProblemType};
pub use rights::{Right, Rights};
pub use tokens::{ApiToken, Grant, TokenError};
pub(crate) use tokens::{ApiTokens, Identity};

/// What a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing: health checks and the files of the console contain no secrets.
    Nothing,
    /// Any token.
    Token,
    /// A token with one of these rights in the namespace that the path or the message names.
    OneOf(Rights),
    /// An admin token.
    Admin,
}

const READ: Need = Need::OneOf(Rights::of(&[Right::Read]));
const PRODUCE: Need = Need::OneOf(Rights::of(&[Right::Produce]));
const PRODUCE_OR_OPERATE: Need = Need::OneOf(Rights::of(&[Right::Produce, Right::Operate]));
const CONSUME: Need = Need::OneOf(Rights::of(&[Right::Consume]));
const OPERATE: Need = Need::OneOf(Rights::of(&[Right::Operate]));

/// What each route requires. Path parameters are written `{}`.
const RIGHTS: &[(&str, &str, Need)] = &[
    ("GET", "/", Need::Nothing),
    ("GET", "/console/{}/{*file}", Need::Nothing),
    ("GET", "/livez", Need::Nothing),
    ("GET", "/readyz", Need::Nothing),
    ("GET", "/metrics", Need::Admin),
    ("GET", "/openapi.json", Need::Token),
    ("GET", "/v1/namespaces", Need::Admin),
    ("GET", "/v1/connections", Need::Admin),
    ("POST", "/v1/connections/{}/test", Need::Admin),
    ("GET", "/v1/live", Need::Admin),
    ("GET", "/v1/preview", Need::Token),
    // Only in `punctual dev`.
    ("GET", "/v1/clock", Need::Token),
    ("POST", "/v1/clock/advance", Need::Token),
    ("POST", "/v1/clock/run", Need::Token),
    ("POST", "/v1/clock/freeze", Need::Token),
    ("GET", "/v1/topology", Need::Token),
    ("GET", "/v1/whoami", Need::Token),
    ("POST", "/v1/{}/tasks", PRODUCE),
    ("GET", "/v1/{}/tasks", READ),
    ("PUT", "/v1/{}/tasks/{}", PRODUCE),
    ("GET", "/v1/{}/tasks/{}", READ),
    ("DELETE", "/v1/{}/tasks/{}", PRODUCE_OR_OPERATE),
    ("POST", "/v1/{}/tasks/{}/touch", PRODUCE_OR_OPERATE),
    ("POST", "/v1/{}/tasks/{}/pause", OPERATE),
    ("POST", "/v1/{}/tasks/{}/resume", OPERATE),
    ("POST", "/v1/{}/tasks/{}/fire", OPERATE),
    ("GET", "/v1/{}/tasks/{}/fires", READ),
    ("GET", "/v1/{}/tasks/{}/explain", READ),
    ("GET", "/v1/{}/fires", READ),
    // Creating the missing tasks requires the right to produce, too: the route checks it.
    ("POST", "/v1/{}/touch", PRODUCE_OR_OPERATE),
    ("POST", "/v1/{}/cancel", PRODUCE_OR_OPERATE),
    ("GET", "/v1/{}/dead", READ),
    ("GET", "/v1/{}/dead/groups", READ),
    ("POST", "/v1/{}/dead/redrive", OPERATE),
    ("POST", "/v1/{}/dead/delete", OPERATE),
    ("DELETE", "/v1/{}/dead/{}", OPERATE),
    ("POST", "/v1/{}/operations", OPERATE),
    ("GET", "/v1/{}/operations", READ),
    ("GET", "/v1/{}/operations/{}", READ),
    ("DELETE", "/v1/{}/operations/{}", OPERATE),
    ("GET", "/v1/{}/actions", READ),
    ("GET", "/v1/{}/alarms", READ),
    ("PUT", "/v1/{}/alarms/{}", OPERATE),
    ("GET", "/v1/{}/alarms/{}", READ),
    ("DELETE", "/v1/{}/alarms/{}", OPERATE),
    ("POST", "/v1/{}/alarms/{}/test", OPERATE),
    ("GET", "/v1/{}/rules", READ),
    ("PUT", "/v1/{}/rules/{}", PRODUCE),
    ("DELETE", "/v1/{}/rules/{}", PRODUCE),
    ("GET", "/v1/{}/stats", READ),
    ("GET", "/v1/{}/forecast", READ),
    ("GET", "/v1/{}/series", READ),
    ("GET", "/v1/{}/live", READ),
    ("GET", "/v1/{}/queues", READ),
    ("GET", "/v1/{}/workers", READ),
    ("GET", "/v1/{}/lanes", READ),
    ("POST", "/v1/{}/queues/{}/lease", CONSUME),
    ("POST", "/v1/{}/queues/{}/ack", CONSUME),
    ("POST", "/v1/{}/queues/{}/fail", CONSUME),
    ("POST", "/v1/{}/queues/{}/refuse", CONSUME),
    ("POST", "/v1/{}/queues/{}/extend", CONSUME),
];

/// What each gRPC call requires. A path that ends with `/` is all calls of a service.
const CALL_RIGHTS: &[(&str, Need)] = &[
    ("/punctual.v1.Tasks/Schedule", PRODUCE),
    ("/punctual.v1.Tasks/ScheduleMany", PRODUCE),
    ("/punctual.v1.Tasks/Cancel", PRODUCE_OR_OPERATE),
    // As over HTTP: creating the missing tasks requires the right to produce, too.
    ("/punctual.v1.Tasks/Touch", PRODUCE_OR_OPERATE),
    ("/punctual.v1.Tasks/Get", READ),
    ("/punctual.v1.Tasks/List", READ),
    ("/punctual.v1.Tasks/Pause", OPERATE),
    ("/punctual.v1.Tasks/Resume", OPERATE),
    ("/punctual.v1.Tasks/Fire", OPERATE),
    ("/punctual.v1.Tasks/Fires", READ),
    ("/punctual.v1.Tasks/Explain", READ),
    ("/punctual.v1.Tasks/DeadLetters", READ),
    ("/punctual.v1.Tasks/DeadGroups", READ),
    ("/punctual.v1.Tasks/Redrive", OPERATE),
    ("/punctual.v1.Tasks/DeleteDeadLetters", OPERATE),
    ("/punctual.v1.Tasks/DeleteDeadLetter", OPERATE),
    ("/punctual.v1.Tasks/Stats", READ),
    ("/punctual.v1.Tasks/Namespaces", Need::Admin),
    ("/punctual.v1.Tasks/Forecast", READ),
    ("/punctual.v1.Tasks/Preview", Need::Token),
    ("/punctual.v1.Tasks/Queues", READ),
    ("/punctual.v1.Tasks/Workers", READ),
    ("/punctual.v1.Tasks/Lanes", READ),
    ("/punctual.v1.Tasks/WhoAmI", Need::Token),
    ("/punctual.v1.Workers/Work", CONSUME),
    ("/punctual.v1.Alarms/Put", OPERATE),
    ("/punctual.v1.Alarms/Get", READ),
    ("/punctual.v1.Alarms/List", READ),
    ("/punctual.v1.Alarms/Delete", OPERATE),
    ("/punctual.v1.Alarms/Test", OPERATE),
    ("/punctual.v1.Measures/Series", READ),
    // Without a namespace it requires an admin token: the call checks it.
    ("/punctual.v1.Measures/Live", READ),
    ("/punctual.v1.Operations/Start", OPERATE),
    ("/punctual.v1.Operations/Get", READ),
    ("/punctual.v1.Operations/List", READ),
    ("/punctual.v1.Operations/Stop", OPERATE),
    ("/punctual.v1.Operations/Actions", READ),
    ("/grpc.reflection.v1.ServerReflection/", Need::Token),
    ("/grpc.reflection.v1alpha.ServerReflection/", Need::Token),
    ("/grpc.health.v1.Health/", Need::Nothing),
];

/// The caller of a gRPC call, and the rights of which it needs one in the namespaces that the
/// messages name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallRight {
    pub(crate) identity: Identity,
    one_of: Rights,
}

impl CallRight {
    /// Checks that the caller may use a namespace.
    pub(crate) fn check(&self, namespace: &Namespace) -> Result<(), Problem> {
        check_right(&self.identity, self.one_of, namespace)
    }

    /// Checks that the caller may use all namespaces.
    pub(crate) fn check_admin(&self) -> Result<(), Problem> {
        decide(Need::Admin, Some(&self.identity), None)
    }

    /// Checks that the caller may create the tasks that it wants to touch and that are missing.
    pub(crate) fn check_creates(&self, namespace: &Namespace) -> Result<(), Problem> {
        check_right(&self.identity, Rights::of(&[Right::Produce]), namespace)
    }
}

fn check_right(identity: &Identity, one_of: Rights, namespace: &Namespace) -> Result<(), Problem> {
    match identity.may(one_of, namespace) {
        true => Ok(()),
        false => Err(Problem::right_missing(one_of, namespace)),
    }
}

impl ApiTokens {
    /// Checks that the caller of a route has the right to it. Returns the caller, if it has shown a
    /// token.
    pub(crate) async fn check(
        &self,
        head: &mut Parts,
        route: &str,
    ) -> Result<Option<Identity>, Problem> {
        let need = need(&head.method, route)?;
        let identity = self.identify_headers(&head.headers);
        if !matches!(need, Need::OneOf(_)) || identity == Some(Identity::Admin) {
            decide(need, identity.as_ref(), None)?;
            return Ok(identity);
        }
        let params = RawPathParams::from_request_parts(head, &()).await.ok();
        let namespace = params.as_ref().and_then(|params| params.iter().next());
        let namespace = namespace.filter(|(name, _)| *name == "namespace").map(|(_, text)| text);
        decide(need, identity.as_ref(), namespace)?;
        Ok(identity)
    }

    /// The same for a route whose path has a namespace that needs no decoding.
    pub(crate) fn check_in(
        &self,
        head: &Parts,
        route: &str,
        namespace: &str,
    ) -> Result<Option<Identity>, Problem> {
        let need = need(&head.method, route)?;
        let identity = self.identify_headers(&head.headers);
        decide(need, identity.as_ref(), Some(namespace))?;
        Ok(identity)
    }

    /// Checks that the sender of these headers may create the tasks that it wants to touch and that
    /// are missing.
    pub(crate) fn check_creates(
        &self,
        headers: &HeaderMap,
        namespace: &Namespace,
    ) -> Result<(), Problem> {
        let identity = self.identify_headers(headers).ok_or_else(Problem::unauthenticated)?;
        check_right(&identity, Rights::of(&[Right::Produce]), namespace)
    }

    /// Checks that the caller of a gRPC call has the right to it, as far as the head of the call
    /// shows. Returns the caller, if it has shown a token, with what its messages are checked for.
    pub(crate) fn check_call(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<CallRight>, Problem> {
        let is_call = |call: &str| match call.ends_with('/') {
            true => path.starts_with(call),
            false => path == call,
        };
        let need = CALL_RIGHTS.iter().find(|(call, _)| is_call(call));
        let (_, need) = *need.ok_or_else(Problem::no_right_declared)?;
        let identity = self.identify_headers(headers);
        let (head_need, one_of) = match need {
            Need::OneOf(rights) => (Need::Token, rights),
            need => (need, Rights::NONE),
        };
        decide(head_need, identity.as_ref(), None)?;
        Ok(identity.map(|identity| CallRight { identity, one_of }))
    }
}

/// What a route requires. `pattern` is the path of the route.
fn need(method: &Method, pattern: &str) -> Result<Need, Problem> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let of_path = || RIGHTS.iter().filter(|(_, path, _)| is_path(path, pattern));
    if let Some((_, _, need)) = of_path().find(|(declared, _, _)| *declared == method) {
        return Ok(*need);
    }
    let methods: Vec<&str> = of_path().map(|(method, _, _)| *method).collect();
    if methods.is_empty() {
        return Err(Problem::no_right_declared());
    }
    Err(Problem::method_not_allowed(Some(&methods.join(", "))))
}

/// The problems that the check of a route can have on a broker that has tokens. Without any, the
/// route requires no token.
pub(crate) fn token_problems(method: &Method, pattern: &str) -> &'static [ProblemType] {
    match need(method, pattern) {
        Ok(Need::Nothing) => &[],
        Ok(Need::Token) => &[ProblemType::Unauthenticated],
        _ => &[ProblemType::Unauthenticated, ProblemType::Forbidden],
    }
}

/// Says in one sentence what a route requires, for the OpenAPI document.
pub(crate) fn describe_need(method: &Method, pattern: &str) -> Option<String> {
    match need(method, pattern).ok()? {
        Need::Nothing => None,
        Need::Token => Some("Requires any token.".to_owned()),
        Need::OneOf(rights) => {
            let rights: Vec<String> = rights.names().map(|name| format!("`{name}`")).collect();
            Some(format!("Requires the right {}.", rights.join(" or ")))
        }
        Need::Admin => Some("Requires an admin token.".to_owned()),
    }
}

fn decide(need: Need, identity: Option<&Identity>, namespace: Option<&str>) -> Result<(), Problem> {
    match (need, identity) {
        (Need::Nothing, _) | (_, Some(Identity::Admin)) | (Need::Token, Some(_)) => Ok(()),
        (_, None) => Err(Problem::unauthenticated()),
        (Need::Admin, Some(Identity::Namespaces(_))) => Err(Problem::forbidden()),
        (Need::OneOf(rights), Some(identity)) => {
            match namespace.and_then(|text| Namespace::new(text).ok()) {
                Some(namespace) => check_right(identity, rights, &namespace),
                None => Err(Problem::forbidden()),
            }
        }
    }
}

/// Whether a pattern is a path of the table: `/v1/{namespace}/tasks` matches `/v1/{}/tasks`.
fn is_path(path: &str, pattern: &str) -> bool {
    let is_parameter = |segment: &str| segment.starts_with('{') && !segment.starts_with("{*");
    let nameless = pattern.split('/').map(|it| if is_parameter(it) { "{}" } else { it });
    path.split('/').eq(nameless)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn namespace(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    #[test]
    fn each_need_admits_the_callers_that_have_it() {
        let shop = Identity::Namespaces(vec![(namespace("shop"), Rights::ALL)]);
        for (need, identity, path, want) in [
            (Need::Nothing, None, None, None),
            (Need::Token, None, None, Some(401)),
            (Need::Token, Some(&shop), None, None),
            (Need::Token, Some(&Identity::Admin), None, None),
            (READ, None, Some("shop"), Some(401)),
            (READ, Some(&shop), Some("shop"), None),
            (READ, Some(&shop), Some("bank"), Some(403)),
            (READ, Some(&shop), Some("not a name"), Some(403)),
            (READ, Some(&shop), None, Some(403)),
            (READ, Some(&Identity::Admin), Some("bank"), None),
            (Need::Admin, None, None, Some(401)),
            (Need::Admin, Some(&shop), None, Some(403)),
            (Need::Admin, Some(&Identity::Admin), None, None),
        ] {
            let decision = decide(need, identity, path);
            let status = decision.err().map(|problem| problem.into_response().status().as_u16());
            assert_eq!(status, want, "{need:?}, {identity:?}, {path:?}");
        }
    }

    #[test]
    fn a_token_with_some_rights_is_admitted_for_these_and_the_refusal_names_the_missing_one() {
        let every = [READ, PRODUCE, PRODUCE_OR_OPERATE, CONSUME, OPERATE];
        for (rights, admitted) in [
            ("read", [true, false, false, false, false]),
            ("produce", [false, true, true, false, false]),
            ("consume", [false, false, false, true, false]),
            ("operate", [false, false, true, false, true]),
            ("read+operate", [true, false, true, false, true]),
            ("read+produce+consume+operate", [true; 5]),
        ] {
            let rights = Rights::parse(rights).unwrap();
            let identity = Identity::Namespaces(vec![(namespace("shop"), rights)]);
            let admits = |need| decide(need, Some(&identity), Some("shop")).is_ok();
            assert_eq!(every.map(admits), admitted, "{rights}");
        }
        let reads = Identity::Namespaces(vec![(namespace("shop"), Rights::of(&[Right::Read]))]);
        for (need, named) in [
            (OPERATE, "the right `operate` in namespace \"shop\""),
            (PRODUCE_OR_OPERATE, "the right `produce` or `operate` in namespace \"shop\""),
        ] {
            let problem = decide(need, Some(&reads), Some("shop")).unwrap_err();
            assert!(problem.detail().contains(named), "{}", problem.detail());
        }
    }

    #[test]
    fn a_grpc_call_is_found_by_its_whole_path() {
        let tokens = ApiTokens::new(Vec::new());
        let one_of = |path: &str| {
            let right = tokens.check_call(path, &HeaderMap::new());
            right.ok().map(|right| right.expect("an admin").one_of.to_string())
        };
        for (path, want) in [
            ("/punctual.v1.Tasks/Schedule", Some("produce")),
            ("/punctual.v1.Tasks/ScheduleMany", Some("produce")),
            ("/punctual.v1.Tasks/Fire", Some("operate")),
            ("/punctual.v1.Tasks/Fires", Some("read")),
            ("/punctual.v1.Tasks/Preview", Some("")),
            ("/punctual.v1.Workers/Work", Some("consume")),
            ("/grpc.health.v1.Health/Watch", Some("")),
            ("/punctual.v1.Tasks/", None),
            ("/punctual.v1.Tasks/None", None),
        ] {
            assert_eq!(one_of(path).as_deref(), want, "{path}");
        }
    }

    /// The part of the descriptors that names calls.
    #[derive(Clone, PartialEq, prost::Message)]
    struct FileSet {
        #[prost(message, repeated, tag = "1")]
        files: Vec<ProtoFile>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct ProtoFile {
        #[prost(string, tag = "2")]
        package: String,
        #[prost(message, repeated, tag = "6")]
        services: Vec<CallList>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct CallList {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, repeated, tag = "2")]
        calls: Vec<CallName>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct CallName {
        #[prost(string, tag = "1")]
        name: String,
    }

    #[test]
    fn every_grpc_call_has_a_declared_right() {
        use prost::Message as _;
        let files = FileSet::decode(punctual_proto::DESCRIPTORS).unwrap().files;
        let mut checked = 0;
        for file in files {
            for service in &file.services {
                for call in &service.calls {
                    let path = format!("/{}.{}/{}", file.package, service.name, call.name);
                    let declared = CALL_RIGHTS.iter().any(|(call, _)| *call == path);
                    assert!(declared, "{path} has no declared right");
                    checked += 1;
                }
            }
        }
        assert!(checked >= 26, "{checked}");
    }

    /// The routes of a router are visible only in its `Debug` output.
    #[test]
    fn every_route_has_a_right_for_every_method() {
        let shown = format!("{:?}", crate::api::http::routes().0);
        let (shown, _) = shown.split_once("fallback_router: ").expect("the routes, then the rest");
        let mut checked = 0;
        for entry in shown.split("RouteId(").skip(1) {
            // `1): MethodRouter(MethodRouter { get: BoxedHandler(..), head: None, …, fallback: …`
            let Some((id, router)) = entry.split_once("): MethodRouter(MethodRouter { ") else {
                continue;
            };
            let (_, path) = shown.split_once(&format!("RouteId({id}): \"")).expect("its path");
            let (path, _) = path.split_once('"').expect("its end");
            let (methods, _) = router.split_once("fallback: ").expect("the methods");
            for method in methods.split_terminator(", ").filter(|text| !text.ends_with(": None")) {
                let (name, _) = method.split_once(": ").expect("a name");
                let method = name.to_uppercase().parse().expect("a method");
                assert!(need(&method, path).is_ok(), "{method} {path} has no declared right");
                checked += 1;
            }
        }
        assert_eq!(shown.matches("RouteId(").count(), 2 * shown.matches(" MethodRouter(").count());
        assert!(checked >= 7, "{checked}: {shown}");
    }
}
