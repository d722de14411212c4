//! One place that turns what went wrong into an answer.
//!
//! Status codes and the drop reason follow llm-d-router; the body is an error in OpenAI's form, with the
//! type names that vLLM uses.

use forebay_kernel::{QueueOutcome, Refusal};
use forebay_live::Refused;
use forebay_net::{Body, CollectError, SendError, Stage};
use forebay_wire::headers::{DROP_REASON, FramingError};
use forebay_wire::{PeekError, error};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

/// Why a request is not answered by an engine.
#[derive(Debug)]
pub(crate) struct Refusing {
    /// The answer's status.
    pub(crate) status: StatusCode,
    /// The drop reason header, if the router refused for its own sake.
    pub(crate) reason: Option<&'static str>,
    /// For people.
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<&'static str>,
    /// Seconds after which it is worth coming again.
    pub(crate) retry_after: Option<u64>,
    /// Whether the connection cannot be used again, because request bytes are unread.
    pub(crate) close: bool,
}

impl Refusing {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Refusing {
        Refusing {
            status,
            reason: None,
            message: message.into(),
            param: None,
            retry_after: None,
            close: false,
        }
    }

    fn because(status: StatusCode, reason: &'static str, message: &str) -> Refusing {
        Refusing { reason: Some(reason), ..Refusing::new(status, message) }
    }

    pub(crate) fn param(mut self, param: &'static str) -> Refusing {
        self.param = Some(param);
        self
    }

    /// With the time after which it is worth coming again, if it is at all.
    pub(crate) fn after(mut self, seconds: impl FnOnce() -> u64) -> Refusing {
        if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&self.status) {
            self.retry_after = Some(seconds());
        }
        self
    }

    /// The error code of llm-d-router's error counter.
    pub(crate) fn code(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "ResourceExhausted",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::NOT_FOUND => "NotFound",
            s if s.is_client_error() => "BadRequest",
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => "ModelServerError",
            _ => "Internal",
        }
    }

    pub(crate) fn response(&self) -> Response<Body> {
        let kind = kind(self.status);
        let body = error::body(&self.message, kind, self.param, self.status.as_u16());
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(reason) = self.reason {
            headers.insert(DROP_REASON, HeaderValue::from_static(reason));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The error type that vLLM's own answers would carry with this status.
fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        404 => "NotFoundError",
        405 => "MethodNotAllowedError",
        408 => "RequestTimeoutError",
        413 => "RequestEntityTooLargeError",
        429 => "TooManyRequestsError",
        400..=499 => "BadRequestError",
        502 => "BadGatewayError",
        503 => "ServiceUnavailableError",
        504 => "GatewayTimeoutError",
        _ => "InternalServerError",
    }
}

const SATURATED: &str = "rejected-saturated";
const NO_ENDPOINTS: &str = "rejected-no-endpoints";
const SHUTTING_DOWN: &str = "rejected-shutting-down";

impl From<Refused> for Refusing {
    fn from(refused: Refused) -> Refusing {
        let (busy, gone) = (StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE);
        let refusal = match refused {
            Refused::By { refusal, .. } => refusal,
            Refused::Broken => return Refusing::new(gone, "the router has failed and is restarting"),
        };
        let (status, reason, message) = match refusal {
            Refusal::Queue(o) => match o {
                QueueOutcome::RejectedCapacity => (busy, SATURATED, "the queue is full"),
                QueueOutcome::RejectedNoEndpoints => {
                    (gone, NO_ENDPOINTS, "the queue is full and the pool has no endpoints")
                }
                QueueOutcome::EvictedTtl => {
                    (busy, "rejected-ttl-expired", "the request waited too long for a free endpoint")
                }
                QueueOutcome::EvictedNoEndpoints => {
                    (gone, NO_ENDPOINTS, "the request waited too long for the pool to have endpoints")
                }
                QueueOutcome::EvictedContextCancelled => {
                    (gone, "rejected-context-cancelled", "the client left")
                }
                QueueOutcome::RejectedOther | QueueOutcome::EvictedOther | QueueOutcome::Dispatched => {
                    (gone, SHUTTING_DOWN, "the router is shutting down")
                }
            },
            Refusal::Denied => (busy, SATURATED, "the pool is busy: a sheddable request was refused"),
            Refusal::Shed => (busy, SATURATED, "the pool is saturated: a sheddable request was dropped"),
            Refusal::NoCandidates => (gone, NO_ENDPOINTS, "the pool has no endpoints"),
            Refusal::FilteredOut => (busy, SATURATED, "no endpoint passed the scheduling filters"),
        };
        Refusing::because(status, reason, message)
    }
}

impl From<CollectError> for Refusing {
    fn from(e: CollectError) -> Refusing {
        let status = match e {
            CollectError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            CollectError::Timeout { .. } => StatusCode::REQUEST_TIMEOUT,
            // Not 429: this replica is short of memory, which says nothing about the client or the pool,
            // and a balancer may try another replica.
            CollectError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            CollectError::Broken(_) => StatusCode::BAD_REQUEST,
        };
        let reason = matches!(e, CollectError::NoRoom).then_some(SATURATED);
        Refusing { close: true, reason, ..Refusing::new(status, e.to_string()) }
    }
}

impl From<PeekError> for Refusing {
    fn from(e: PeekError) -> Refusing {
        Refusing { param: e.field(), ..Refusing::new(StatusCode::BAD_REQUEST, e.to_string()) }
    }
}

impl From<FramingError> for Refusing {
    fn from(e: FramingError) -> Refusing {
        let status = match e {
            FramingError::Connect => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::BAD_REQUEST,
        };
        Refusing { close: true, ..Refusing::new(status, e.to_string()) }
    }
}

impl From<&SendError> for Refusing {
    fn from(e: &SendError) -> Refusing {
        let status = match e.stage {
            Stage::HeadersTimeout => StatusCode::GATEWAY_TIMEOUT,
            Stage::Request => StatusCode::BAD_REQUEST,
            Stage::Connect | Stage::BeforeHeaders => StatusCode::BAD_GATEWAY,
        };
        Refusing::new(status, format!("the endpoint did not answer: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Span;

    #[test]
    fn outcomes_map_as_in_llm_d_router() {
        let by = |refusal| Refusing::from(Refused::By { refusal, waited: Span::ZERO });
        let rows = [
            (Refusal::Queue(QueueOutcome::RejectedCapacity), 429, Some("rejected-saturated")),
            (Refusal::Queue(QueueOutcome::RejectedNoEndpoints), 503, Some("rejected-no-endpoints")),
            (Refusal::Queue(QueueOutcome::EvictedTtl), 429, Some("rejected-ttl-expired")),
            (Refusal::Queue(QueueOutcome::EvictedNoEndpoints), 503, Some("rejected-no-endpoints")),
            (Refusal::Queue(QueueOutcome::EvictedContextCancelled), 503, Some("rejected-context-cancelled")),
            (Refusal::Queue(QueueOutcome::RejectedOther), 503, Some("rejected-shutting-down")),
            (Refusal::Queue(QueueOutcome::EvictedOther), 503, Some("rejected-shutting-down")),
            (Refusal::FilteredOut, 429, Some("rejected-saturated")),
            (Refusal::NoCandidates, 503, Some("rejected-no-endpoints")),
            (Refusal::Shed, 429, Some("rejected-saturated")),
            (Refusal::Denied, 429, Some("rejected-saturated")),
        ];
        for (refusal, status, reason) in rows {
            let r = by(refusal);
            assert_eq!((r.status.as_u16(), r.reason), (status, reason), "{refusal:?}");
            let response = r.response();
            assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
            assert_eq!(response.headers().get(DROP_REASON).map(|v| v.to_str().unwrap()), reason);
        }
        assert_eq!(Refusing::from(Refused::Broken).status.as_u16(), 503);
    }

    #[test]
    fn only_refusals_that_pass_say_when_to_come_again() {
        for (status, wait) in [(429, Some("7")), (503, Some("7")), (400, None), (404, None), (502, None)] {
            let refusing = Refusing::new(StatusCode::from_u16(status).unwrap(), "x").after(|| 7);
            let response = refusing.response();
            assert_eq!(response.headers().get(RETRY_AFTER).map(|v| v.to_str().unwrap()), wait, "{status}");
        }
    }
}
