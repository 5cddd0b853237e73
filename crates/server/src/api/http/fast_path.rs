//! The fast path: the most frequent requests, answered without the router and its layers.
//!
//! These are requests about one task, to create, replace, touch or cancel it, and acks of
//! deliveries. They pass the checks of `admission` and call the same functions as the routes.
//! Everything out of the ordinary is left to the router: a path with percent-encoding, a body that
//! is large or has not arrived as a whole, a request that is refused. A test compares the answers
//! of both.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{Method, Request, Uri};
use http_body::{Frame, SizeHint};
use punctual_core::Namespace;

use super::admission::check_fast;
use super::queues;
use super::request::{TasksBody, check_json, idempotency};
use super::response::ApiResult;
use super::tasks::{self, batch};
use crate::api::limits::TINY_BYTES_MAX;
use crate::broker::Broker;
use crate::listen::ConnectionTrust;

/// Answers the most frequent requests. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct FastPath(Arc<Broker>);

/// A route of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FastRoute {
    Create,
    Replace,
    Cancel,
    Touch,
    Ack,
}

impl FastRoute {
    /// The route of a request, if the fast path has it.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        Some(Self::parse(request.method(), request.uri())?.0)
    }

    /// The route, the namespace and, if the path has one, the key, id or queue.
    fn parse<'a>(method: &Method, uri: &'a Uri) -> Option<(Self, &'a str, &'a str)> {
        let path = uri.path();
        if path.contains('%') {
            return None;
        }
        let mut segments = path.strip_prefix("/v1/")?.split('/');
        let namespace = segments.next().filter(|it| !it.is_empty())?;
        let (kind, name, verb) = (segments.next()?, segments.next(), segments.next());
        if segments.next().is_some() || name == Some("") {
            return None;
        }
        let route = match (kind, name, verb) {
            ("tasks", None, None) if *method == Method::POST => Self::Create,
            ("tasks", Some(_), None) if *method == Method::PUT => Self::Replace,
            ("tasks", Some(_), None) if *method == Method::DELETE => Self::Cancel,
            ("tasks", Some(_), Some("touch")) if *method == Method::POST => Self::Touch,
            ("queues", Some(_), Some("ack")) if *method == Method::POST => Self::Ack,
            _ => return None,
        };
        Some((route, namespace, name.unwrap_or_default()))
    }

    /// The path of the route, as `auth` and the metrics name it.
    const fn pattern(self) -> &'static str {
        match self {
            Self::Create => "/v1/{namespace}/tasks",
            Self::Replace | Self::Cancel => "/v1/{namespace}/tasks/{key}",
            Self::Touch => "/v1/{namespace}/tasks/{key}/touch",
            Self::Ack => "/v1/{namespace}/queues/{queue}/ack",
        }
    }
}

impl FastPath {
    pub(crate) const fn new(broker: Arc<Broker>) -> Self {
        Self(broker)
    }

    /// Answers a request of a fast route, or returns it for the router. Nothing of it was done
    /// then.
    pub(crate) async fn answer<B>(
        &self,
        route: FastRoute,
        trust: &ConnectionTrust,
        request: Request<B>,
    ) -> Result<Response, Request<Body>>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let (head, mut body) = request.into_parts();
        let Some((_, namespace, name)) = FastRoute::parse(&head.method, &head.uri) else {
            return Err(Request::from_parts(head, Body::new(body)));
        };
        if check_fast(&self.0, &head, trust, route.pattern(), namespace).is_err() {
            return Err(Request::from_parts(head, Body::new(body)));
        }
        let bytes = match arrived(&mut body).await {
            Arrived::Whole(bytes) => bytes,
            Arrived::Part(first) => {
                return Err(Request::from_parts(head, Body::new(BegunBody { first, rest: body })));
            }
        };
        let result = self.run(route, &head, namespace, name, bytes).await;
        let response = result.unwrap_or_else(|problem| problem.into_response());
        self.0.telemetry.request(&head.method, Some(route.pattern()), response.status());
        Ok(response)
    }

    async fn run(
        &self,
        route: FastRoute,
        Parts { headers, .. }: &Parts,
        namespace: &str,
        name: &str,
        body: Bytes,
    ) -> ApiResult {
        let (broker, namespace) = (&self.0, Namespace::new(namespace)?);
        match route {
            FastRoute::Create => {
                let idempotency = idempotency(headers)?;
                let body = TasksBody::of(headers, body)?;
                batch::create_tasks(broker, namespace, headers, idempotency, body).await
            }
            FastRoute::Replace => {
                check_json(headers)?;
                tasks::replace_task(broker, &namespace, name, headers, &body).await
            }
            FastRoute::Cancel => tasks::cancel_task(broker, &namespace, name).await,
            FastRoute::Touch => {
                check_json(headers)?;
                tasks::touch_task(broker, &namespace, name, headers, &body).await
            }
            FastRoute::Ack => {
                check_json(headers)?;
                queues::ack_deliveries(broker, &namespace, name, &body).await
            }
        }
    }
}

/// What has arrived of a body.
enum Arrived {
    /// All of it, and it is tiny.
    Whole(Bytes),
    /// Its first frame, or less.
    Part(Option<FrameResult>),
}

type FrameResult = Result<Frame<Bytes>, BoxError>;

/// Reads the frame of a body that has arrived with the head, without waiting.
async fn arrived<B>(body: &mut B) -> Arrived
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    if body.is_end_stream() {
        return Arrived::Whole(Bytes::new());
    }
    let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await;
    let first = match first {
        Poll::Ready(first) => first.map(|first| first.map_err(Into::into)),
        Poll::Pending => None,
    };
    let data = first.as_ref().and_then(|first| first.as_ref().ok()?.data_ref());
    match data {
        Some(data) if data.len() <= TINY_BYTES_MAX && body.is_end_stream() => {
            Arrived::Whole(data.clone())
        }
        _ => Arrived::Part(first),
    }
}

/// A body of which the first frame was read already.
struct BegunBody<B> {
    first: Option<FrameResult>,
    rest: B,
}

impl<B> http_body::Body for BegunBody<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match this.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut this.rest).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Not known from here; the length that the head declares is checked.
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    #[test]
    fn only_plain_paths_of_requests_about_one_task_are_fast() {
        for (method, path, want) in [
            ("POST", "/v1/shop/tasks", Some((FastRoute::Create, "shop", ""))),
            ("POST", "/v1/shop/tasks?a=b", Some((FastRoute::Create, "shop", ""))),
            ("PUT", "/v1/shop/tasks/order-1", Some((FastRoute::Replace, "shop", "order-1"))),
            ("DELETE", "/v1/shop/tasks/order-1", Some((FastRoute::Cancel, "shop", "order-1"))),
            ("POST", "/v1/shop/tasks/a:b/touch", Some((FastRoute::Touch, "shop", "a:b"))),
            ("POST", "/v1/shop/queues/mail/ack", Some((FastRoute::Ack, "shop", "mail"))),
            ("POST", "/v1/shop/queues/mail/fail", None),
            ("POST", "/v1/shop/queues//ack", None),
            ("POST", "/v1/shop/queues", None),
            ("GET", "/v1/shop/tasks/order-1", None),
            ("GET", "/v1/shop/tasks", None),
            ("PUT", "/v1/shop/tasks", None),
            ("POST", "/v1/shop/tasks/", None),
            ("PUT", "/v1/shop/tasks/", None),
            ("PUT", "/v1/shop/tasks/a/b", None),
            ("PUT", "/v1/shop/tasks/a/", None),
            ("PUT", "/v1/shop/tasks/a%2Fb", None),
            ("POST", "/v1/%73hop/tasks", None),
            ("POST", "/v1//tasks", None),
            ("POST", "/v1/shop/tasks/order-1/fire", None),
            ("POST", "/v1/shop/tasks/order-1/touch/", None),
            ("POST", "/v1/shop/tasks//touch", None),
            ("POST", "/v1/shop/cancel", None),
            ("POST", "/v2/shop/tasks", None),
            ("POST", "/", None),
        ] {
            let (method, uri) = (method.parse().unwrap(), path.parse().unwrap());
            assert_eq!(FastRoute::parse(&method, &uri), want, "{method} {path}");
        }
    }

    #[test]
    fn a_fast_route_is_one_of_the_router() {
        let shown = format!("{:?}", crate::api::http::routes().0);
        use FastRoute::{Ack, Cancel, Create, Replace, Touch};
        for route in [Create, Replace, Cancel, Touch, Ack] {
            assert!(shown.contains(&format!("\"{}\"", route.pattern())), "{route:?}");
        }
    }

    fn frames(frames: Vec<&'static [u8]>) -> impl http_body::Body<Data = Bytes, Error = BoxError> {
        let frames = frames.into_iter().map(|it| Ok(Frame::data(Bytes::from_static(it))));
        StreamBody::new(tokio_stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_is_used_if_all_of_it_is_there_and_otherwise_the_router_gets_all_of_it() {
        let large = Bytes::from(vec![b' '; TINY_BYTES_MAX + 1]);
        for (body, whole) in [
            (Body::empty(), Some("")),
            (Body::new(Full::new(Bytes::from_static(b"{}"))), Some("{}")),
            (Body::new(Full::new(large.clone())), None),
            (Body::new(frames(vec![b"{", b"}"])), None),
        ] {
            let mut body = body;
            match (arrived(&mut body).await, whole) {
                (Arrived::Whole(bytes), Some(whole)) => assert_eq!(bytes, whole),
                (Arrived::Part(first), None) => {
                    let all = BegunBody { first, rest: body }.collect().await.unwrap().to_bytes();
                    assert!(all == "{}" || all == large);
                }
                _ => panic!("{whole:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_fails_fails_for_the_router_too() {
        let broken = tokio_stream::once(Err::<Frame<Bytes>, _>(BoxError::from("reset")));
        let mut body = Body::new(StreamBody::new(broken));
        let Arrived::Part(first) = arrived(&mut body).await else { panic!("it failed") };
        assert!(BegunBody { first, rest: body }.collect().await.is_err());
    }
}
