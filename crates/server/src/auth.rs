//! Authentication and authorization by bearer tokens.
//!
//! [`RIGHTS`] is the one table of the right that each route requires. A route that is not in the
//! table is refused, with or without a token. Only hashes of tokens are kept, and all of them are
//! compared in constant time.
//!
//! Both are checked on the head of a request, before anything of its body is read: HTTP calls
//! [`ApiTokens::check`]. gRPC has the namespace in its messages: it calls
//! [`ApiTokens::check_call`] for the head, which requires a token of any namespace, then
//! [`Identity::may_use`] for each message.

use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequestParts as _, RawPathParams};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Method};
use punctual_core::Namespace;
use subtle::{Choice, ConstantTimeEq};

use crate::problem::{Problem, ProblemType};

/// The right that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// None: health checks contain no secrets.
    Public,
    /// Any token.
    Any,
    /// A token of the namespace in the path.
    Namespace,
    /// An admin token.
    Admin,
}

/// The right that each route requires. Path parameters are written `{}`.
const RIGHTS: &[(&str, &str, Right)] = &[
    ("GET", "/livez", Right::Public),
    ("GET", "/readyz", Right::Public),
    ("GET", "/metrics", Right::Admin),
    ("GET", "/openapi.json", Right::Any),
    ("GET", "/v1/namespaces", Right::Admin),
    ("GET", "/v1/preview", Right::Any),
    ("GET", "/v1/topology", Right::Any),
    ("POST", "/v1/{}/tasks", Right::Namespace),
    ("GET", "/v1/{}/tasks", Right::Namespace),
    ("PUT", "/v1/{}/tasks/{}", Right::Namespace),
    ("GET", "/v1/{}/tasks/{}", Right::Namespace),
    ("DELETE", "/v1/{}/tasks/{}", Right::Namespace),
    ("POST", "/v1/{}/tasks/{}/touch", Right::Namespace),
    ("POST", "/v1/{}/tasks/{}/pause", Right::Namespace),
    ("POST", "/v1/{}/tasks/{}/resume", Right::Namespace),
    ("POST", "/v1/{}/tasks/{}/fire", Right::Namespace),
    ("GET", "/v1/{}/tasks/{}/fires", Right::Namespace),
    ("GET", "/v1/{}/tasks/{}/explain", Right::Namespace),
    ("GET", "/v1/{}/fires", Right::Namespace),
    ("POST", "/v1/{}/touch", Right::Namespace),
    ("POST", "/v1/{}/cancel", Right::Namespace),
    ("GET", "/v1/{}/dead", Right::Namespace),
    ("POST", "/v1/{}/dead/redrive", Right::Namespace),
    ("DELETE", "/v1/{}/dead/{}", Right::Namespace),
    ("GET", "/v1/{}/alarms", Right::Namespace),
    ("PUT", "/v1/{}/alarms/{}", Right::Namespace),
    ("GET", "/v1/{}/alarms/{}", Right::Namespace),
    ("DELETE", "/v1/{}/alarms/{}", Right::Namespace),
    ("POST", "/v1/{}/alarms/{}/test", Right::Namespace),
    ("GET", "/v1/{}/stats", Right::Namespace),
    ("GET", "/v1/{}/forecast", Right::Namespace),
    ("GET", "/v1/{}/queues", Right::Namespace),
    ("GET", "/v1/{}/workers", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/lease", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/ack", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/fail", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/refuse", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/extend", Right::Namespace),
];

/// The right that each gRPC call requires, by the beginning of its path; the first one counts.
const CALL_RIGHTS: &[(&str, Right)] = &[
    ("/punctual.v1.Tasks/Namespaces", Right::Admin),
    ("/punctual.v1.Tasks/", Right::Any),
    ("/punctual.v1.Workers/", Right::Any),
    ("/punctual.v1.Alarms/", Right::Any),
    ("/grpc.reflection.v1.ServerReflection/", Right::Any),
    ("/grpc.reflection.v1alpha.ServerReflection/", Right::Any),
    ("/grpc.health.v1.Health/", Right::Public),
];

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Every route, in every namespace.
    Admin,
    /// Every route of one namespace, and those of no namespace that need any token.
    Namespace(Namespace),
}

/// The hash of a token and what it grants.
#[derive(Clone)]
pub struct ApiToken {
    hash: blake3::Hash,
    grant: Grant,
}

/// The text is not a valid bearer token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be letters, digits, '-', '.', '_', '~', '+' or '/', with '=' only at the end")]
pub struct TokenError;

/// All tokens of a broker. Without any, every caller is an admin. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiTokens(Arc<[ApiToken]>);

/// What the token of a caller grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Everything.
    Admin,
    /// Everything in these namespaces. There are several if one secret is configured for several.
    Namespaces(Vec<Namespace>),
}

impl ApiToken {
    /// Hashes a secret; it must have the form of a bearer token (RFC 6750).
    pub fn new(grant: Grant, secret: &str) -> Result<Self, TokenError> {
        let body = secret.trim_end_matches('=');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if body.is_empty() || !body.bytes().all(plain) {
            return Err(TokenError);
        }
        Ok(Self { hash: blake3::hash(secret.as_bytes()), grant })
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiToken").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl ApiTokens {
    pub(crate) fn new(tokens: Vec<ApiToken>) -> Self {
        Self(tokens.into())
    }

    /// The caller that sends this `Authorization` header; `None` without a valid token.
    pub(crate) fn identify(&self, authorization: Option<&[u8]>) -> Option<Identity> {
        if self.0.is_empty() {
            return Some(Identity::Admin);
        }
        let hash = blake3::hash(bearer(authorization?)?);
        // Every token is compared, so that the time does not depend on which one matches.
        let matches: Vec<Choice> =
            self.0.iter().map(|token| token.hash.as_bytes().ct_eq(hash.as_bytes())).collect();
        let grants = self.0.iter().zip(matches);
        let grants =
            grants.filter(|(_, matches)| bool::from(*matches)).map(|(token, _)| &token.grant);
        grants.fold(None, |identity, grant| Some(Identity::with(identity, grant)))
    }

    /// Checks that the caller of a route has the right to it. Returns the caller, if it has shown a
    /// token.
    pub(crate) async fn check(
        &self,
        head: &mut Parts,
        route: &str,
    ) -> Result<Option<Identity>, Problem> {
        let right = right(&head.method, route)?;
        let identity = self.identify_headers(&head.headers);
        if right != Right::Namespace || identity == Some(Identity::Admin) {
            decide(right, identity.as_ref(), None)?;
            return Ok(identity);
        }
        let params = RawPathParams::from_request_parts(head, &()).await.ok();
        let namespace = params.as_ref().and_then(|params| params.iter().next());
        let namespace = namespace.filter(|(name, _)| *name == "namespace").map(|(_, text)| text);
        decide(right, identity.as_ref(), namespace)?;
        Ok(identity)
    }

    /// The same for a route whose path has a namespace that needs no decoding.
    pub(crate) fn check_in(
        &self,
        head: &Parts,
        route: &str,
        namespace: &str,
    ) -> Result<Option<Identity>, Problem> {
        let right = right(&head.method, route)?;
        let identity = self.identify_headers(&head.headers);
        decide(right, identity.as_ref(), Some(namespace))?;
        Ok(identity)
    }

    /// Checks that the caller of a gRPC call has the right to it, as far as the head of the call
    /// shows. Returns the caller, if it has shown a token.
    pub(crate) fn check_call(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Identity>, Problem> {
        let right = CALL_RIGHTS.iter().find(|(beginning, _)| path.starts_with(beginning));
        let (_, right) = right.ok_or_else(Problem::no_right_declared)?;
        let identity = self.identify_headers(headers);
        decide(*right, identity.as_ref(), None)?;
        Ok(identity)
    }

    /// The caller that sends these headers; `None` without a valid token.
    pub(crate) fn identify_headers(&self, headers: &HeaderMap) -> Option<Identity> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let first = values.next().map(http::HeaderValue::as_bytes);
        // Two headers are ambiguous.
        if values.next().is_some() { None } else { self.identify(first) }
    }
}

impl Identity {
    fn with(identity: Option<Self>, grant: &Grant) -> Self {
        match (identity, grant) {
            (Some(Self::Admin), _) | (_, Grant::Admin) => Self::Admin,
            (Some(Self::Namespaces(mut namespaces)), Grant::Namespace(namespace)) => {
                namespaces.push(namespace.clone());
                Self::Namespaces(namespaces)
            }
            (None, Grant::Namespace(namespace)) => Self::Namespaces(vec![namespace.clone()]),
        }
    }

    pub(crate) fn may_use(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Admin => true,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// The token after `Bearer`, which may have any case.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = authorization.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| secret.trim_ascii())
}

/// The right that a route requires. `pattern` is the path of the route.
fn right(method: &Method, pattern: &str) -> Result<Right, Problem> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let of_path = || RIGHTS.iter().filter(|(_, path, _)| is_path(path, pattern));
    if let Some((_, _, right)) = of_path().find(|(declared, _, _)| *declared == method) {
        return Ok(*right);
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
    match right(method, pattern) {
        Ok(Right::Public) => &[],
        Ok(Right::Any) => &[ProblemType::Unauthenticated],
        _ => &[ProblemType::Unauthenticated, ProblemType::Forbidden],
    }
}

fn decide(
    right: Right,
    identity: Option<&Identity>,
    namespace: Option<&str>,
) -> Result<(), Problem> {
    match (right, identity) {
        (Right::Public, _) | (_, Some(Identity::Admin)) | (Right::Any, Some(_)) => Ok(()),
        (_, None) => Err(Problem::unauthenticated()),
        (Right::Admin, Some(Identity::Namespaces(_))) => Err(Problem::forbidden()),
        (Right::Namespace, Some(identity)) => {
            match namespace.and_then(|text| Namespace::new(text).ok()) {
                Some(namespace) if identity.may_use(&namespace) => Ok(()),
                Some(namespace) => Err(Problem::namespace_forbidden(&namespace)),
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

    fn token(grant: Grant, secret: &str) -> ApiToken {
        ApiToken::new(grant, secret).unwrap()
    }

    #[test]
    fn a_token_identifies_its_caller() {
        let tokens = ApiTokens::new(vec![
            token(Grant::Namespace(namespace("shop")), "aaa"),
            token(Grant::Namespace(namespace("bank")), "bbb"),
            token(Grant::Namespace(namespace("shop")), "both"),
            token(Grant::Namespace(namespace("bank")), "both"),
            token(Grant::Admin, "root=="),
        ]);
        let of = |names: &[&str]| {
            Some(Identity::Namespaces(names.iter().map(|name| namespace(name)).collect()))
        };
        for (authorization, want) in [
            (None, None),
            (Some("Bearer aaa"), of(&["shop"])),
            (Some("bearer aaa"), of(&["shop"])),
            (Some("Bearer   bbb "), of(&["bank"])),
            (Some("Bearer both"), of(&["shop", "bank"])),
            (Some("Bearer root=="), Some(Identity::Admin)),
            (Some("Bearer aa"), None),
            (Some("Bearer aaaa"), None),
            (Some("Bearer "), None),
            (Some("Bearer"), None),
            (Some("Basic aaa"), None),
            (Some("aaa"), None),
            (Some(""), None),
        ] {
            assert_eq!(
                tokens.identify(authorization.map(str::as_bytes)),
                want,
                "{authorization:?}"
            );
        }
        assert_eq!(ApiTokens::default().identify(None), Some(Identity::Admin), "an open broker");
    }

    #[test]
    fn two_authorization_headers_identify_no_caller() {
        let tokens = ApiTokens::new(vec![token(Grant::Admin, "root")]);
        let mut headers = HeaderMap::new();
        assert_eq!(tokens.identify_headers(&headers), None);
        headers.append(AUTHORIZATION, "Bearer root".parse().unwrap());
        assert_eq!(tokens.identify_headers(&headers), Some(Identity::Admin));
        headers.append(AUTHORIZATION, "Bearer other".parse().unwrap());
        assert_eq!(tokens.identify_headers(&headers), None);
    }

    #[test]
    fn each_right_admits_the_callers_that_have_it() {
        let shop = Identity::Namespaces(vec![namespace("shop")]);
        for (right, identity, path, want) in [
            (Right::Public, None, None, None),
            (Right::Any, None, None, Some(401)),
            (Right::Any, Some(&shop), None, None),
            (Right::Any, Some(&Identity::Admin), None, None),
            (Right::Namespace, None, Some("shop"), Some(401)),
            (Right::Namespace, Some(&shop), Some("shop"), None),
            (Right::Namespace, Some(&shop), Some("bank"), Some(403)),
            (Right::Namespace, Some(&shop), Some("not a name"), Some(403)),
            (Right::Namespace, Some(&shop), None, Some(403)),
            (Right::Namespace, Some(&Identity::Admin), Some("bank"), None),
            (Right::Admin, None, None, Some(401)),
            (Right::Admin, Some(&shop), None, Some(403)),
            (Right::Admin, Some(&Identity::Admin), None, None),
        ] {
            let decision = decide(right, identity, path);
            let status = decision.err().map(|problem| problem.into_response().status().as_u16());
            assert_eq!(status, want, "{right:?}, {identity:?}, {path:?}");
        }
    }

    #[test]
    fn a_token_must_fit_a_header_and_is_never_shown() {
        for (secret, valid) in [
            ("abc-._~+/123==", true),
            ("", false),
            ("=", false),
            ("a b", false),
            ("a,b", false),
            ("ä", false),
            ("a\nb", false),
        ] {
            assert_eq!(ApiToken::new(Grant::Admin, secret).is_ok(), valid, "{secret:?}");
        }
        assert_eq!(format!("{:?}", token(Grant::Admin, "root")), "ApiToken { grant: Admin, .. }");
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
                assert!(right(&method, path).is_ok(), "{method} {path} has no declared right");
                checked += 1;
            }
        }
        assert_eq!(shown.matches("RouteId(").count(), 2 * shown.matches(" MethodRouter(").count());
        assert!(checked >= 7, "{checked}: {shown}");
    }
}
