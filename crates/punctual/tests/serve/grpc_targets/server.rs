//! A gRPC server of tonic, whose only method does what its message says; and servers of HTTP/2 that
//! break the rules.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::HeaderMap;
use punctual_test_support::WAIT_MAX;
use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

pub(super) const METHOD: &str = "/shop.v1.Orders/Cancel";

/// A call as the server received it.
#[derive(Debug)]
pub(super) struct ReceivedCall {
    pub(super) metadata: HeaderMap,
    pub(super) message: Bytes,
    /// Where the connection comes from.
    pub(super) from: Option<SocketAddr>,
}

impl ReceivedCall {
    pub(super) fn text(&self, name: &str) -> &str {
        self.metadata.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn attempt(&self) -> u32 {
        self.text("punctual-attempt").parse().unwrap()
    }
}

/// A running server. It ends when it is dropped.
pub(super) struct GrpcServer {
    pub(super) url: String,
    pub(super) calls: Receiver<ReceivedCall>,
    _runtime: Runtime,
}

impl GrpcServer {
    pub(super) fn start() -> Self {
        Self::start_with(Server::builder(), "http", "127.0.0.1")
    }

    /// With a certificate for `localhost`.
    pub(super) fn start_tls(certificate: &str, key: &str) -> Self {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
        Self::start_with(Server::builder().tls_config(tls).unwrap(), "https", "localhost")
    }

    fn start_with(mut server: Server, scheme: &str, host: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let (sender, calls) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            server.add_service(Orders(sender)).serve_with_incoming(incoming).await.unwrap();
        });
        Self { url: format!("{scheme}://{host}:{port}"), calls, _runtime: runtime }
    }

    pub(super) fn next(&self) -> ReceivedCall {
        self.calls.recv_timeout(WAIT_MAX).expect("a call arrives")
    }

    /// Fails if a call arrives within this time.
    pub(super) fn stays_silent(&self, time: Duration) {
        if let Ok(call) = self.calls.recv_timeout(time) {
            panic!("unexpected call: {call:?}");
        }
    }
}

/// What a server of HTTP/2 does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallManner {
    /// Closes the connection.
    Closes,
    /// Ends the stream with this code.
    Resets(h2::Reason),
    /// Says before the answer that it takes no further calls on the connection, as servers do that
    /// limit the age of connections.
    AnswersAndLeaves,
    /// Answers without a status, or with an HTTP status that is not of gRPC.
    AnswersHttp(u16),
    /// Never stops sending.
    Endless,
}

/// Starts a server of HTTP/2 that does not follow gRPC. It sends the id of the fire of each call.
pub(super) fn misbehaving(manner: CallManner) -> (String, Receiver<String>, Runtime) {
    let runtime = Runtime::new().unwrap();
    let (sender, calls) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let id = request.headers()["webhook-id"].to_str().unwrap().to_owned();
                    if sender.send(id).is_err() || manner == CallManner::Closes {
                        return;
                    }
                    if manner == CallManner::AnswersAndLeaves {
                        connection.graceful_shutdown();
                    }
                    tokio::spawn(answer(manner, respond));
                }
            });
        }
    });
    (url, calls, runtime)
}

async fn answer(manner: CallManner, mut respond: h2::server::SendResponse<Bytes>) {
    let head = |status: u16| http::Response::builder().status(status).body(()).unwrap();
    match manner {
        CallManner::Closes => {}
        CallManner::Resets(reason) => respond.send_reset(reason),
        CallManner::AnswersHttp(status) => _ = respond.send_response(head(status), true),
        CallManner::AnswersAndLeaves => {
            let mut body = respond.send_response(head(200), false).unwrap();
            let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
            body.send_trailers(trailers).unwrap();
        }
        CallManner::Endless => {
            let mut body = respond.send_response(head(200), false).unwrap();
            loop {
                body.reserve_capacity(1 << 14);
                let room = std::future::poll_fn(|context| body.poll_capacity(context)).await;
                let Some(Ok(room)) = room else { return };
                if body.send_data(Bytes::from(vec![0; room]), false).is_err() {
                    return;
                }
            }
        }
    }
}

/// The service `shop.v1.Orders`.
#[derive(Clone)]
struct Orders(Sender<ReceivedCall>);

impl tonic::server::NamedService for Orders {
    const NAME: &'static str = "shop.v1.Orders";
}

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl tower_service::Service<http::Request<tonic::body::Body>> for Orders {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answering<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let method = CancelMethod(self.0.clone());
        Box::pin(async move {
            let known = request.uri().path() == METHOD;
            let mut grpc = tonic::server::Grpc::new(BytesCodec);
            match known {
                true => Ok(grpc.unary(method, request).await),
                false => Ok(Status::unimplemented("no such method").into_http()),
            }
        })
    }
}

#[derive(Clone)]
struct CancelMethod(Sender<ReceivedCall>);

impl tower_service::Service<Request<Bytes>> for CancelMethod {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Answering<Response<Bytes>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let from = request.extensions().get::<TcpConnectInfo>().and_then(|it| it.remote_addr());
        let metadata = request.metadata().clone().into_headers();
        let call = ReceivedCall { metadata, message: request.into_inner(), from };
        let order: Value = serde_json::from_slice(&call.message).unwrap_or_default();
        // Of an order with several wishes, each attempt gets one.
        let order = match order.as_array() {
            Some(orders) => orders[call.attempt() as usize - 1].clone(),
            None => order,
        };
        let _ = self.0.send(call);
        Box::pin(async move {
            if let Some(millis) = order["wait_ms"].as_u64() {
                let never = std::future::pending::<()>();
                let _ = tokio::time::timeout(Duration::from_millis(millis), never).await;
            }
            if let Some(bytes) = order["answer_bytes"].as_u64() {
                return Ok(Response::new(vec![b'x'; usize::try_from(bytes).unwrap()].into()));
            }
            let Some(code) = order["code"].as_i64() else {
                return Ok(Response::new(Bytes::from("cancelled")));
            };
            let text = order["text"].as_str().unwrap_or_default();
            let mut status = Status::new(Code::from_i32(i32::try_from(code).unwrap()), text);
            if let Some(pushback) = order["pushback"].as_str() {
                let pushback = pushback.parse().unwrap();
                status.metadata_mut().insert("grpc-retry-pushback-ms", pushback);
            }
            Err(status)
        })
    }
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
