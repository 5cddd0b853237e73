//! Request bodies: how long they may take, and how much memory they may hold.
//!
//! Every body that is read passes through a [`BoundedBody`]. It fails with a problem when the body,
//! or a message of a gRPC stream, does not arrive in time. A body that is incomplete needs a permit
//! of its namespace (`limits`), for more the larger it is; while there is none, nothing more of the
//! body is read. A permit for a large body lasts until the body was used.

mod message_frames;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use http::{StatusCode, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use punctual_core::Namespace;
use tokio::time::{Sleep, timeout};

use super::limits::{ApiLimits, BodySize, admin_share};
use crate::auth::Identity;
use crate::problem::Problem;
use crate::shares::SharePermit;
use message_frames::{MessageFrames, namespace_in};

/// Timeout of a body, or of a message on a stream, from the first wait for more of it.
const BODY_MAX: Duration = Duration::from_secs(30);
/// Timeout of the first message of a stream.
const FIRST_MESSAGE_MAX: Duration = Duration::from_secs(10);
/// Timeout of each further message of a stream that is not meant to wait.
const NEXT_MESSAGE_MAX: Duration = Duration::from_secs(60);
/// How much of the body of a refused request is read and discarded, and for how long.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
const DISCARD_MAX: Duration = Duration::from_secs(1);
/// The same for a body of an authenticated caller that is too large: a client that is still sending
/// when the connection is closed never sees the response.
const DISCARDED_LARGE_BYTES_MAX: usize = 256 << 20;

/// What a body consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// Bytes that are used when all have arrived.
    Whole,
    /// One gRPC message.
    Message,
    /// gRPC messages, each soon after the other.
    ShortStream,
    /// gRPC messages, as long as the client wants. The call takes a permit for that.
    LongStream,
}

/// The namespace whose permits a body uses.
#[derive(Debug, Clone)]
pub(crate) enum BodyOwner {
    /// The one in the path.
    Path(Uri),
    Namespace(Namespace),
    /// The one that each message names, because the caller may use several.
    Message,
    /// None: the call is open to callers without a token, and its messages are tiny.
    Public,
}

impl BodyOwner {
    pub(crate) fn of_caller(identity: Option<&Identity>) -> Self {
        match identity.map(Identity::only_namespace) {
            None => Self::Public,
            Some(Some(namespace)) => Self::Namespace(namespace.clone()),
            Some(None) => Self::Message,
        }
    }
}

/// The problem with which a body failed.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.detail())]
pub(crate) struct BodyProblem(pub(crate) Problem);

/// Keeps the permit of a large body while the body is used.
#[derive(Debug, Clone, Default)]
pub(crate) struct LargePermit(Arc<Mutex<Option<SharePermit>>>);

/// The rest of a body that its route did not read. On HTTP/1 it must be discarded, or the
/// connection is lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBody(Arc<Mutex<Option<Body>>>);

impl UnreadBody {
    /// Discards what was not read, after a response with this status.
    pub(crate) async fn discard(self, version: Version, status: StatusCode) {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (bytes_max, time_max) = match status {
            StatusCode::PAYLOAD_TOO_LARGE => (DISCARDED_LARGE_BYTES_MAX, BODY_MAX),
            _ => (DISCARDED_BYTES_MAX, DISCARD_MAX),
        };
        if let Some(body) = body {
            discard(version, body, bytes_max, time_max).await;
        }
    }
}

/// Reads and discards a part of the body of a refused request.
pub(crate) async fn discard_refused(version: Version, body: Body) {
    discard(version, body, DISCARDED_BYTES_MAX, DISCARD_MAX).await;
}

/// HTTP/1 has to close a connection with unread data, and the next request on it would get no
/// response.
async fn discard(version: Version, mut body: Body, bytes_max: usize, time_max: Duration) {
    if version < Version::HTTP_2 {
        let mut body = Limited::new(&mut body, bytes_max);
        let all = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = timeout(time_max, all).await;
    }
}

/// A body with a deadline, and with permits for what it holds.
pub(crate) struct BoundedBody {
    body: Body,
    kind: BodyKind,
    owner: BodyOwner,
    limits: Arc<ApiLimits>,
    /// Turns the problem of a body into the error that its reader understands.
    to_error: fn(Problem) -> BoxError,
    /// Bytes of a [`BodyKind::Whole`] that have arrived.
    bytes: usize,
    frames: MessageFrames,
    /// The namespace of the present message, with [`BodyOwner::Message`].
    message_namespace: Option<Namespace>,
    /// Set by the first wait of a stage.
    deadline: Option<Deadline>,
    permit: Option<(BodySize, SharePermit)>,
    /// The wait for a permit, and the piece that needs it.
    wait: Option<PermitWait>,
    piece: Option<Frame<Bytes>>,
    /// Whether the body was read completely, or has failed.
    ended: bool,
    large_permit: LargePermit,
    unread: UnreadBody,
}

type PermitResult = Result<SharePermit, Problem>;

struct PermitWait {
    size: BodySize,
    permit: Pin<Box<dyn Future<Output = PermitResult> + Send>>,
}

struct Deadline {
    stage: u64,
    what: &'static str,
    time_max: Duration,
    timer: Pin<Box<Sleep>>,
}

impl BoundedBody {
    pub(crate) fn new(
        body: Body,
        kind: BodyKind,
        owner: BodyOwner,
        limits: Arc<ApiLimits>,
        to_error: fn(Problem) -> BoxError,
    ) -> Self {
        Self {
            body,
            kind,
            owner,
            limits,
            to_error,
            bytes: 0,
            frames: MessageFrames::default(),
            message_namespace: None,
            deadline: None,
            permit: None,
            wait: None,
            piece: None,
            ended: false,
            large_permit: LargePermit::default(),
            unread: UnreadBody::default(),
        }
    }

    /// Returns what keeps the permit of a large body. A permit of a stream is released when the
    /// next message is read.
    pub(crate) fn large_permit(&self) -> LargePermit {
        self.large_permit.clone()
    }

    /// Returns what has the rest of the body if the route drops it before it is complete.
    pub(crate) fn unread(&self) -> UnreadBody {
        self.unread.clone()
    }

    const fn is_stream(&self) -> bool {
        matches!(self.kind, BodyKind::ShortStream | BodyKind::LongStream)
    }

    /// Counts a piece. Returns how much memory it and what belongs to it take.
    fn add(&mut self, piece: &[u8]) -> BodySize {
        if self.kind == BodyKind::Whole {
            self.bytes += piece.len();
            return BodySize::of(self.bytes);
        }
        let content = self.frames.add(piece);
        if let (BodyOwner::Message, Some(begin)) = (&self.owner, content.begins_at) {
            self.message_namespace = namespace_in(&piece[begin..]);
        }
        BodySize::of(content.largest)
    }

    /// The namespace whose permit is needed; `None` if none is.
    fn namespace(&self) -> Option<Namespace> {
        match &self.owner {
            BodyOwner::Path(uri) => namespace_in_path(uri.path()),
            BodyOwner::Namespace(namespace) => Some(namespace.clone()),
            // Nothing has arrived of which the namespace could be known.
            BodyOwner::Message if !self.frames.is_within() => None,
            BodyOwner::Message => {
                let namespace = self.message_namespace.clone();
                namespace.or_else(|| admin_share().ok())
            }
            BodyOwner::Public => None,
        }
    }

    /// Begins to wait for a permit, if one is needed that the body does not have.
    fn want_permit(&mut self, size: BodySize) {
        if self.permit.as_ref().is_some_and(|(held, _)| *held >= size) {
            return;
        }
        let Some(namespace) = self.namespace() else { return };
        let limits = Arc::clone(&self.limits);
        let permit = Box::pin(async move { limits.body(size, &namespace).await });
        self.wait = Some(PermitWait { size, permit });
    }

    fn poll_permit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Some(wait) = &mut self.wait else { return Poll::Ready(Ok(())) };
        let permit = ready!(wait.permit.as_mut().poll(cx));
        let size = wait.size;
        self.wait = None;
        // The client could not send meanwhile.
        self.deadline = None;
        match permit {
            Ok(permit) => self.permit = Some((size, permit)),
            Err(problem) => return Poll::Ready(Err(self.fail(problem))),
        }
        Poll::Ready(Ok(()))
    }

    fn fail(&mut self, problem: Problem) -> BoxError {
        self.ended = true;
        self.permit = None;
        (self.to_error)(problem)
    }

    /// Numbers what the body waits for: the stages of a stream are its messages and the times
    /// between them. The result has also what must arrive, and in which time.
    fn stage(&self) -> Option<(u64, &'static str, Duration)> {
        let ended = self.frames.ended();
        match self.kind {
            BodyKind::Whole => Some((0, "the body", BODY_MAX)),
            BodyKind::Message => Some((0, "the message", BODY_MAX)),
            _ if self.frames.is_within() => Some((2 * ended + 1, "the message", BODY_MAX)),
            _ if ended == 0 => Some((0, "the first message", FIRST_MESSAGE_MAX)),
            BodyKind::ShortStream => Some((2 * ended, "the next message", NEXT_MESSAGE_MAX)),
            BodyKind::LongStream => None,
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        let Some((stage, what, time_max)) = self.stage() else {
            self.deadline = None;
            return Poll::Pending;
        };
        let deadline = self.deadline.take().filter(|deadline| deadline.stage == stage);
        let timer = || sleep_for(time_max);
        let deadline =
            deadline.unwrap_or_else(|| Deadline { stage, what, time_max, timer: timer() });
        ready!(self.deadline.insert(deadline).timer.as_mut().poll(cx));
        Poll::Ready(self.too_slow(what, time_max))
    }

    fn too_slow(&mut self, what: &str, time_max: Duration) -> BoxError {
        self.fail(Problem::too_slow(what, time_max))
    }

    fn poll_bounded(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        ready!(self.poll_permit(cx))?;
        if let Some(piece) = self.piece.take() {
            return Poll::Ready(Some(Ok(piece)));
        }
        self.release_used();
        let late = self.deadline.as_ref().filter(|deadline| deadline.timer.is_elapsed());
        if let Some((what, time_max)) = late.map(|late| (late.what, late.time_max)) {
            return Poll::Ready(Some(Err(self.too_slow(what, time_max))));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let size = frame.data_ref().map(|piece| self.add(piece));
                if let Some(size) = size.filter(|size| *size > BodySize::Tiny) {
                    self.want_permit(size);
                }
                self.piece = Some(frame);
                self.poll_bounded(cx)
            }
            Poll::Ready(last) => {
                self.ended = true;
                Poll::Ready(last.map(|last| last.map_err(Into::into)))
            }
            Poll::Pending => {
                if self.permit.is_none() && !self.is_idle() {
                    self.want_permit(BodySize::Tiny);
                    ready!(self.poll_permit(cx))?;
                }
                self.poll_deadline(cx).map(|error| Some(Err(error)))
            }
        }
    }

    /// Whether the body waits for a message that may never come.
    const fn is_idle(&self) -> bool {
        matches!(self.kind, BodyKind::LongStream)
            && self.frames.ended() > 0
            && !self.frames.is_within()
    }

    /// Releases the permit of the last message of a stream: it was decoded and used when more is
    /// read.
    fn release_used(&mut self) {
        let size = BodySize::of(self.frames.size());
        let is_used = self.is_stream() && self.permit.as_ref().is_some_and(|(it, _)| *it > size);
        if is_used || self.is_idle() {
            self.permit = None;
        }
    }
}

impl Drop for BoundedBody {
    fn drop(&mut self) {
        if let Some((BodySize::Large, permit)) = self.permit.take()
            && !self.is_stream()
        {
            *self.large_permit.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
        }
        if !self.ended && !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl http_body::Body for BoundedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_bounded(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.piece {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// The namespace in the path of a route, percent-decoded.
fn namespace_in_path(path: &str) -> Option<Namespace> {
    let mut text = path.strip_prefix("/v1/")?.split('/').next()?.bytes();
    let mut name = Vec::new();
    while let Some(byte) = text.next() {
        name.push(match byte {
            b'%' => {
                let digits = [text.next()?, text.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Namespace::new(std::str::from_utf8(&name).ok()?).ok()
}

#[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
fn sleep_for(time: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(time))
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio_stream::StreamExt as _;
    use tokio_stream::wrappers::ReceiverStream;

    use super::super::limits::{SMALL_BYTES_MAX, TINY_BYTES_MAX};
    use super::*;

    /// A body whose pieces a test sends.
    fn bounded(
        kind: BodyKind,
        owner: BodyOwner,
        limits: &Arc<ApiLimits>,
    ) -> (mpsc::Sender<Vec<u8>>, BoundedBody) {
        let (sender, pieces) = mpsc::channel(64);
        let pieces = ReceiverStream::new(pieces).map(|piece| Ok::<_, BoxError>(Bytes::from(piece)));
        let body = Body::from_stream(pieces);
        let to_error: fn(Problem) -> BoxError = |problem| BodyProblem(problem).into();
        (sender, BoundedBody::new(body, kind, owner, Arc::clone(limits), to_error))
    }

    fn owner(namespace: &str) -> BodyOwner {
        BodyOwner::Namespace(Namespace::new(namespace).unwrap())
    }

    fn limits() -> Arc<ApiLimits> {
        Arc::new(ApiLimits::new())
    }

    /// Reads the next piece; an error is a status and its detail.
    async fn next(body: &mut BoundedBody) -> Result<usize, (u16, String)> {
        match body.frame().await {
            None => Ok(0),
            Some(Ok(frame)) => Ok(frame.into_data().unwrap().len()),
            Some(Err(error)) => {
                let BodyProblem(problem) = *error.downcast::<BodyProblem>().unwrap();
                Err((problem.parts().1.as_u16(), problem.detail().to_owned()))
            }
        }
    }

    fn framed(size: usize, sent: usize) -> Vec<u8> {
        let mut bytes = vec![0; 5 + sent];
        bytes[1..5].copy_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
        bytes
    }

    fn slow(what: &str, time: &str) -> Result<usize, (u16, String)> {
        Err((408, format!("{what} must arrive within {time}")))
    }

    // With paused time, tokio advances to the next deadline when every task waits.

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_fails_in_time() {
        for kind in [BodyKind::Whole, BodyKind::Message] {
            let (sender, mut body) = bounded(kind, owner("a"), &limits());
            let sending = async {
                let mut every = tokio::time::interval(Duration::from_secs(1));
                for _ in 0..40 {
                    every.tick().await;
                    let _ = sender.send(framed(100, 0)[..1].to_vec()).await;
                }
            };
            let reading = async {
                let mut pieces = 0;
                loop {
                    match next(&mut body).await {
                        Ok(_) => pieces += 1,
                        Err(late) => return (pieces, late.0),
                    }
                }
            };
            let ((pieces, status), ()) = tokio::join!(reading, sending);
            assert!((29..=31).contains(&pieces) && status == 408, "{pieces} {status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_of_a_stream_has_its_time_and_a_worker_may_be_silent() {
        use BodyKind::{LongStream, ShortStream};
        for kind in [LongStream, ShortStream] {
            let (_sender, mut body) = bounded(kind, owner("a"), &limits());
            assert_eq!(next(&mut body).await, slow("the first message", "10s"));
            let (sender, mut body) = bounded(kind, owner("a"), &limits());
            sender.send(framed(2, 1)).await.unwrap();
            assert_eq!(next(&mut body).await, Ok(6));
            assert_eq!(next(&mut body).await, slow("the message", "30s"));
        }
        let (sender, mut body) = bounded(ShortStream, owner("a"), &limits());
        sender.send(framed(2, 2)).await.unwrap();
        assert_eq!(next(&mut body).await, Ok(7));
        assert_eq!(next(&mut body).await, slow("the next message", "1m"));
        let (sender, mut body) = bounded(LongStream, owner("a"), &limits());
        sender.send(framed(2, 2)).await.unwrap();
        assert_eq!(next(&mut body).await, Ok(7));
        assert!(timeout(100 * BODY_MAX, next(&mut body)).await.is_err());
        sender.send(framed(2, 1)).await.unwrap();
        assert_eq!(next(&mut body).await, Ok(6));
        assert_eq!(next(&mut body).await, slow("the message", "30s"));
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_of_one_namespace_leave_some_to_the_others() {
        let limits = limits();
        let mut used = Vec::new();
        let large = vec![0; SMALL_BYTES_MAX + 1];
        loop {
            let (sender, mut body) = bounded(BodyKind::Whole, owner("hog"), &limits);
            sender.send(large.clone()).await.unwrap();
            match next(&mut body).await {
                Ok(_) => used.push((sender, body)),
                Err((status, detail)) => {
                    assert_eq!(status, 429);
                    assert!(detail.contains("\"hog\""), "{detail}");
                    assert!(detail.contains("the 8 bodies over 512 KiB"), "{detail}");
                    break;
                }
            }
        }
        assert_eq!(used.len(), 4);
        // A message of another kind of call takes part.
        let (sender, mut body) = bounded(BodyKind::LongStream, owner("hog"), &limits);
        sender.send(framed(SMALL_BYTES_MAX + 1, 10)).await.unwrap();
        assert_eq!(next(&mut body).await.map_err(|(status, _)| status), Err(429));
        let (sender, mut body) = bounded(BodyKind::Whole, owner("shop"), &limits);
        sender.send(large.clone()).await.unwrap();
        assert_eq!(next(&mut body).await, Ok(large.len()));
        // One that is used, but no longer read, still has its permit.
        let in_use: Vec<_> = used.iter().map(|(_, body)| body.large_permit()).collect();
        drop(used);
        let (sender, mut body) = bounded(BodyKind::Whole, owner("hog"), &limits);
        sender.send(large.clone()).await.unwrap();
        let (read, ()) = tokio::join!(next(&mut body), async { drop(in_use) });
        assert_eq!(read, Ok(large.len()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_releases_a_permit_when_it_reads_the_next_message() {
        let limits = limits();
        let mut streams = Vec::new();
        for _ in 0..100 {
            let (sender, mut body) = bounded(BodyKind::LongStream, owner("a"), &limits);
            let size = SMALL_BYTES_MAX + 1;
            sender.send(framed(size, size)).await.unwrap();
            assert_eq!(next(&mut body).await, Ok(size + 5));
            assert!(timeout(BODY_MAX, next(&mut body)).await.is_err(), "no further message");
            streams.push((sender, body));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_and_tiny_bodies_in_progress_have_limits_of_their_own() {
        for (bytes, want, what) in [
            (TINY_BYTES_MAX + 1, 256, "the 512 bodies over 16 KiB"),
            (1, 8_192, "the 16384 bodies in progress"),
        ] {
            let limits = limits();
            let mut used = Vec::new();
            let detail = loop {
                let (sender, mut body) = bounded(BodyKind::Whole, owner("hog"), &limits);
                sender.send(vec![0; bytes]).await.unwrap();
                let read = async {
                    next(&mut body).await?;
                    // The rest does not come.
                    timeout(Duration::from_millis(1), next(&mut body)).await.unwrap_or(Ok(0))
                };
                match read.await {
                    Ok(_) => used.push((sender, body)),
                    Err((_, detail)) => break detail,
                }
            };
            assert!(detail.contains(what), "{detail}");
            assert_eq!(used.len(), want);
        }
    }

    #[tokio::test]
    async fn a_body_that_its_route_does_not_read_is_left_to_be_discarded() {
        let (sender, body) = bounded(BodyKind::Whole, owner("a"), &limits());
        sender.send(b"whole".to_vec()).await.unwrap();
        drop(sender);
        let unread = body.unread();
        drop(body);
        let left = unread.0.lock().unwrap().take().unwrap();
        assert_eq!(left.collect().await.unwrap().to_bytes(), "whole");
        let (sender, mut body) = bounded(BodyKind::Whole, owner("a"), &limits());
        drop(sender);
        assert_eq!(next(&mut body).await, Ok(0));
        let unread = body.unread();
        drop(body);
        assert!(unread.0.lock().unwrap().is_none());
    }

    #[test]
    fn the_namespace_in_a_path_is_decoded() {
        for (path, want) in [
            ("/v1/shop/tasks", Some("shop")),
            ("/v1/%73hop/tasks/a", Some("shop")),
            ("/v1/no%20name/tasks", None),
            ("/v1/%7", None),
            ("/v1/%zz/tasks", None),
            ("/livez", None),
        ] {
            assert_eq!(namespace_in_path(path), want.map(|it| Namespace::new(it).unwrap()));
        }
    }
}
