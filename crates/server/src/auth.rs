//! Who may do what.
//!
//! In: the tokens of the configuration, and what a request says of itself. Out: [`Who`] asks, or that nobody knows them.
//! [`RIGHTS`] is the one table of what each route wants. Invariant: a route that is not in the table is denied, with or
//! without a token. A token is kept as its hash, and all hashes are compared in constant time.
//!
//! HTTP asks [`Tokens::admit`], for every request. gRPC names the namespace in its messages: it asks [`Tokens::who`] with the
//! metadata `authorization`, and then [`Who::may`] for each message.

use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequestParts as _, RawPathParams};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Method};
use punctual_core::Namespace;
use subtle::{Choice, ConstantTimeEq};

use crate::api::Problem;

/// What a route wants of whoever calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// Nothing: health checks have no secrets.
    Public,
    /// Any token.
    Any,
    /// A token of the namespace in the path.
    Namespace,
    /// A token for the broker as a whole.
    Admin,
}

/// What each route wants. Parameters of a path are written `{}`, whatever they are called.
const RIGHTS: &[(&str, &str, Right)] = &[
    ("GET", "/livez", Right::Public),
    ("GET", "/readyz", Right::Public),
    ("GET", "/metrics", Right::Admin),
    ("GET", "/openapi.json", Right::Any),
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
    ("POST", "/v1/{}/touch", Right::Namespace),
    ("POST", "/v1/{}/cancel", Right::Namespace),
    ("GET", "/v1/{}/dead", Right::Namespace),
    ("POST", "/v1/{}/dead/redrive", Right::Namespace),
    ("DELETE", "/v1/{}/dead/{}", Right::Namespace),
    ("GET", "/v1/{}/stats", Right::Namespace),
    ("GET", "/v1/{}/forecast", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/lease", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/ack", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/fail", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/refuse", Right::Namespace),
    ("POST", "/v1/{}/queues/{}/extend", Right::Namespace),
];

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Everything, in every namespace, and what belongs to none.
    Admin,
    /// Everything in one namespace.
    Namespace(Namespace),
}

/// A token, as far as a broker needs to know it.
#[derive(Clone)]
pub struct Token {
    hash: blake3::Hash,
    grant: Grant,
}

/// A token that cannot be sent in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be letters, digits, '-', '.', '_', '~', '+' or '/', with '=' only at the end")]
pub struct TokenError;

/// All tokens of a broker. None at all means that nobody has to say who they are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens(Arc<[Token]>);

/// Whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Who {
    /// May do everything.
    Admin,
    /// May do everything in these namespaces.
    Of(Vec<Namespace>),
}

impl Token {
    /// Takes a secret of the form that a `Bearer` header has.
    pub fn new(grant: Grant, secret: &str) -> Result<Self, TokenError> {
        let body = secret.trim_end_matches('=');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if body.is_empty() || !body.bytes().all(plain) {
            return Err(TokenError);
        }
        Ok(Self { hash: blake3::hash(secret.as_bytes()), grant })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl Tokens {
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self(tokens.into())
    }

    /// Who sends this `authorization`, from a header or from gRPC metadata. `None`: nobody that is known.
    pub(crate) fn who(&self, authorization: Option<&[u8]>) -> Option<Who> {
        if self.0.is_empty() {
            return Some(Who::Admin);
        }
        let hash = blake3::hash(bearer(authorization?)?);
        // Every token is compared, so that the time says nothing about which one came close.
        let matches: Vec<Choice> =
            self.0.iter().map(|token| token.hash.as_bytes().ct_eq(hash.as_bytes())).collect();
        let grants = self.0.iter().zip(matches);
        let grants =
            grants.filter(|(_, matches)| bool::from(*matches)).map(|(token, _)| &token.grant);
        grants.fold(None, |who, grant| Some(Who::with(who, grant)))
    }

    /// Whether a request to a route may pass.
    pub(crate) async fn admit(&self, head: &mut Parts, route: &str) -> Result<(), Problem> {
        let right = right(&head.method, route)?;
        let who = self.who_asks(&head.headers);
        if right != Right::Namespace || who == Some(Who::Admin) {
            return decide(right, who.as_ref(), None);
        }
        let params = RawPathParams::from_request_parts(head, &()).await.ok();
        let namespace = params.as_ref().and_then(|params| params.iter().next());
        let namespace = namespace.filter(|(name, _)| *name == "namespace").map(|(_, text)| text);
        decide(right, who.as_ref(), namespace)
    }

    fn who_asks(&self, headers: &HeaderMap) -> Option<Who> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let first = values.next().map(http::HeaderValue::as_bytes);
        // Of two that differ, nobody can say which one was meant.
        if values.next().is_some() { None } else { self.who(first) }
    }
}

impl Who {
    fn with(who: Option<Self>, grant: &Grant) -> Self {
        match (who, grant) {
            (Some(Self::Admin), _) | (_, Grant::Admin) => Self::Admin,
            (Some(Self::Of(mut namespaces)), Grant::Namespace(namespace)) => {
                namespaces.push(namespace.clone());
                Self::Of(namespaces)
            }
            (None, Grant::Namespace(namespace)) => Self::Of(vec![namespace.clone()]),
        }
    }

    /// Whether they may do something in a namespace.
    pub(crate) fn may(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Admin => true,
            Self::Of(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// The secret behind `Bearer`, whose case does not matter.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = authorization.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| secret.trim_ascii())
}

/// What a route wants, or the problem with it.
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
    Err(Problem::method_not_allowed_but(&methods.join(", ")))
}

/// Whether a route is for those only who say who they are, where a broker has tokens at all. One that declares no right is for nobody.
pub(crate) fn wants_token(method: &Method, pattern: &str) -> bool {
    !matches!(right(method, pattern), Ok(Right::Public))
}

fn decide(right: Right, who: Option<&Who>, namespace: Option<&str>) -> Result<(), Problem> {
    match (right, who) {
        (Right::Public, _) | (_, Some(Who::Admin)) | (Right::Any, Some(_)) => Ok(()),
        (_, None) => Err(Problem::unknown_caller()),
        (Right::Admin, Some(Who::Of(_))) => Err(Problem::not_permitted()),
        (Right::Namespace, Some(who)) => {
            let namespace = namespace.and_then(|text| Namespace::new(text).ok());
            if namespace.is_some_and(|namespace| who.may(&namespace)) {
                return Ok(());
            }
            Err(Problem::not_permitted())
        }
    }
}

/// Whether a pattern is a path of the table, whatever its parameters are called: `/v1/{namespace}/tasks` is `/v1/{}/tasks`.
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

    fn token(grant: Grant, secret: &str) -> Token {
        Token::new(grant, secret).unwrap()
    }

    #[test]
    fn a_token_says_who_asks() {
        let tokens = Tokens::new(vec![
            token(Grant::Namespace(namespace("shop")), "aaa"),
            token(Grant::Namespace(namespace("bank")), "bbb"),
            token(Grant::Namespace(namespace("shop")), "both"),
            token(Grant::Namespace(namespace("bank")), "both"),
            token(Grant::Admin, "root=="),
        ]);
        let of = |names: &[&str]| Some(Who::Of(names.iter().map(|name| namespace(name)).collect()));
        for (authorization, want) in [
            (None, None),
            (Some("Bearer aaa"), of(&["shop"])),
            (Some("bearer aaa"), of(&["shop"])),
            (Some("Bearer   bbb "), of(&["bank"])),
            (Some("Bearer both"), of(&["shop", "bank"])),
            (Some("Bearer root=="), Some(Who::Admin)),
            (Some("Bearer aa"), None),
            (Some("Bearer aaaa"), None),
            (Some("Bearer "), None),
            (Some("Bearer"), None),
            (Some("Basic aaa"), None),
            (Some("aaa"), None),
            (Some(""), None),
        ] {
            assert_eq!(tokens.who(authorization.map(str::as_bytes)), want, "{authorization:?}");
        }
        assert_eq!(Tokens::default().who(None), Some(Who::Admin), "an open broker");
    }

    #[test]
    fn two_authorizations_are_none() {
        let tokens = Tokens::new(vec![token(Grant::Admin, "root")]);
        let mut headers = HeaderMap::new();
        assert_eq!(tokens.who_asks(&headers), None);
        headers.append(AUTHORIZATION, "Bearer root".parse().unwrap());
        assert_eq!(tokens.who_asks(&headers), Some(Who::Admin));
        headers.append(AUTHORIZATION, "Bearer other".parse().unwrap());
        assert_eq!(tokens.who_asks(&headers), None);
    }

    #[test]
    fn each_right_lets_in_who_has_it() {
        let shop = Who::Of(vec![namespace("shop")]);
        for (right, who, path, want) in [
            (Right::Public, None, None, None),
            (Right::Any, None, None, Some(401)),
            (Right::Any, Some(&shop), None, None),
            (Right::Any, Some(&Who::Admin), None, None),
            (Right::Namespace, None, Some("shop"), Some(401)),
            (Right::Namespace, Some(&shop), Some("shop"), None),
            (Right::Namespace, Some(&shop), Some("bank"), Some(403)),
            (Right::Namespace, Some(&shop), Some("not a name"), Some(403)),
            (Right::Namespace, Some(&shop), None, Some(403)),
            (Right::Namespace, Some(&Who::Admin), Some("bank"), None),
            (Right::Admin, None, None, Some(401)),
            (Right::Admin, Some(&shop), None, Some(403)),
            (Right::Admin, Some(&Who::Admin), None, None),
        ] {
            let answer = decide(right, who, path);
            let status = answer.err().map(|problem| problem.into_response().status().as_u16());
            assert_eq!(status, want, "{right:?}, {who:?}, {path:?}");
        }
    }

    #[test]
    fn a_token_is_what_a_header_can_carry_and_is_never_shown() {
        for (secret, taken) in [
            ("abc-._~+/123==", true),
            ("", false),
            ("=", false),
            ("a b", false),
            ("a,b", false),
            ("ä", false),
            ("a\nb", false),
        ] {
            assert_eq!(Token::new(Grant::Admin, secret).is_ok(), taken, "{secret:?}");
        }
        assert_eq!(format!("{:?}", token(Grant::Admin, "root")), "Token { grant: Admin, .. }");
    }

    /// The router shows its routes only to debuggers; that is enough to walk them all.
    #[test]
    fn every_route_has_a_right_for_every_method() {
        let shown = format!("{:?}", crate::api::routes().0);
        let (shown, _) = shown.split_once("fallback_router: ").expect("the routes, then the rest");
        let mut walked = 0;
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
                walked += 1;
            }
        }
        assert_eq!(shown.matches("RouteId(").count(), 2 * shown.matches(" MethodRouter(").count());
        assert!(walked >= 7, "{walked}: {shown}");
    }
}
