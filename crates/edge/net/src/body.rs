//! Request bodies with limits, and the body of an answer.

use crate::budget::Held;
use crate::client::UpstreamBody;
use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes reserved at once for a declared length: enough for a long prompt without growing, little enough that
/// declaring a large body costs nothing.
const RESERVE: u64 = 4 << 20;

/// How large a body may be and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectLimits {
    /// The largest body in bytes.
    pub max_bytes: u64,
    /// The time for a body of no size.
    pub timeout: Duration,
    /// Bytes that earn another second, at least 1.
    pub min_bytes_per_second: u64,
}

impl Default for CollectLimits {
    fn default() -> CollectLimits {
        CollectLimits {
            max_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            min_bytes_per_second: 64 << 10,
        }
    }
}

/// Why a body could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// It is larger than allowed (status 413). Close the connection: the rest of it is unread.
    #[error("the body exceeds {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
        /// The declared length, when that alone was too large and nothing was read.
        declared: Option<u64>,
    },
    /// It came too slowly (status 408).
    #[error("the body was not complete after {waited:?}")]
    Timeout {
        /// The time allowed for the bytes that came.
        waited: Duration,
    },
    /// All bodies together would take more memory than they may (status 503). Close the connection.
    #[error("the router holds as many bytes of requests and answers as it may")]
    NoRoom,
    /// It broke off or is malformed.
    #[error("the body could not be read: {0}")]
    Broken(#[source] BoxError),
}

/// Reads a body to its end. A declared length beyond the limit fails before anything is read, and so before hyper
/// answers `expect: 100-continue`. A body that arrives in one piece is not copied.
pub async fn collect<B>(body: B, limits: CollectLimits) -> Result<Bytes, CollectError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    collect_held(body, limits, &mut Held::unbounded()).await
}

/// As [`collect`], with every byte taken from a [`Budget`] before it is kept. Received bytes count, not declared
/// ones: declaring a large body takes nothing from others.
pub async fn collect_held<B>(
    mut body: B,
    limits: CollectLimits,
    held: &mut Held,
) -> Result<Bytes, CollectError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let limit = limits.max_bytes;
    let hint = body.size_hint();
    if hint.lower() > limit {
        return Err(CollectError::TooLarge { limit, declared: Some(hint.lower()) });
    }
    let start = Instant::now();
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    loop {
        let received = (first.len() + whole.len()) as u64;
        let allowed = limits.timeout + Duration::from_secs(received / limits.min_bytes_per_second.max(1));
        let next = timeout_at(start + allowed, body.frame())
            .await
            .map_err(|_| CollectError::Timeout { waited: allowed })?;
        let Some(frame) = next else {
            break;
        };
        // Trailers are not forwarded.
        let Ok(data) = frame.map_err(|e| CollectError::Broken(e.into()))?.into_data() else {
            continue;
        };
        if received + data.len() as u64 > limit {
            return Err(CollectError::TooLarge { limit, declared: None });
        }
        if !held.take(data.len() as u64) {
            return Err(CollectError::NoRoom);
        }
        if received == 0 {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.reserve(hint.lower().clamp(2 * received, RESERVE.max(2 * received)) as usize);
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

type PollFn = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> + Send;

/// The body of an answer.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// These bytes.
    Full(Bytes),
    /// The bytes of an upstream's answer, as they come.
    Upstream(Box<UpstreamBody>),
    /// Bytes that a function yields: see [`Body::from_poll`].
    Poll(Box<PollFn>),
    /// Any other body.
    Boxed(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>),
}

impl Body {
    /// A body from a function that is polled for the next bytes. There is no channel and no task: it is polled when
    /// the client can take more, and dropped when the client leaves. `None` ends the body, an error cuts it off so
    /// that the client sees it is incomplete.
    pub fn from_poll(
        poll: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> + Send + 'static,
    ) -> Body {
        Body::Poll(Box::new(poll))
    }

    /// Any other body.
    pub fn boxed<B>(body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body::Boxed(Box::pin(body.map_err(Into::into)))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Body::Empty => f.write_str("Empty"),
            Body::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Body::Upstream(_) => f.write_str("Upstream"),
            Body::Poll(_) => f.write_str("Poll"),
            Body::Boxed(_) => f.write_str("Boxed"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        if bytes.is_empty() { Body::Empty } else { Body::Full(bytes) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<UpstreamBody> for Body {
    fn from(body: UpstreamBody) -> Body {
        Body::Upstream(Box::new(body))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Body::Empty => Poll::Ready(None),
            Body::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Body::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Upstream(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Body::Poll(poll) => poll(cx).map(|next| next.map(|bytes| bytes.map(Frame::data))),
            Body::Boxed(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Full(_) | Body::Poll(_) => false,
            Body::Upstream(body) => body.is_end_stream(),
            Body::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty => SizeHint::with_exact(0),
            Body::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Poll(_) => SizeHint::default(),
            Body::Upstream(body) => body.size_hint(),
            Body::Boxed(body) => body.size_hint(),
        }
    }
}
