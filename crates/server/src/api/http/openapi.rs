//! The OpenAPI document, made from the same routes that are served.
//!
//! In: what the routes say of themselves. Out: `/openapi.json`. What holds for all routes is added here: the names in paths,
//! problems, and whether a token is wanted, which `auth` decides.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Required, Response as Said};
use utoipa::{Modify, OpenApi as _};

use super::error::Problem;
use crate::auth;

/// What the document calls the way in which callers say who they are.
const TOKEN: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Punctual",
        description = "A timer service: tell it when, it calls you back on time.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem)),
    modifiers(&Tokens)
)]
struct Document;

/// Says how callers say who they are.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A token of the namespace, or an admin token. A broker without tokens asks for none.",
        ));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme.build()));
    }
}

/// What the document says before any route.
pub(super) fn beginning() -> OpenApi {
    Document::openapi()
}

/// The document, as it is served: made when it is first asked for.
static WHOLE: LazyLock<Bytes> = LazyLock::new(|| whole(super::routes().1));

/// Adds what holds for all routes.
fn whole(mut document: OpenApi) -> Bytes {
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            complete(path, operation);
            if auth::wants_token(&method, path) {
                let token = SecurityRequirement::new(TOKEN, [] as [&str; 0]);
                operation.security = Some(vec![token]);
            }
        }
    }
    let json = serde_json::to_vec(&document);
    json.expect("nothing in the document can fail to be written").into()
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value))
)]
pub(super) async fn show() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, kind)], WHOLE.clone()).into_response()
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let PathItem { get, put, post, delete, .. } = item;
    let all =
        [(Method::GET, get), (Method::PUT, put), (Method::POST, post), (Method::DELETE, delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn complete(path: &str, operation: &mut Operation) {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = names.map(|name| -> RefOr<_> {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let described = if name == "key" { Some("the key of the task, or its id") } else { None };
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(described)
            .schema(Some(text))
            .build()
            .into()
    });
    let given = operation.parameters.take().unwrap_or_default();
    operation.parameters = Some(parameters.chain(given).collect());
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    let mut said = Said::new("what is wrong");
    said.content.insert("application/problem+json".to_owned(), RefOr::T(problem));
    operation.responses.responses.insert("default".to_owned(), RefOr::T(said));
}
