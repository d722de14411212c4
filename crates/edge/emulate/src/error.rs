//! Error answers in vLLM's form.

use forebay_wire::error;
use http::StatusCode;

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &str, param: Option<&str>, message: &str) -> ApiError {
        ApiError { status, body: error::body(message, kind, param, status.as_u16()) }
    }

    /// A request that is well-formed but wrong.
    pub(crate) fn bad(param: Option<&str>, message: &str) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequestError", param, message)
    }

    /// A request that does not have the right shape: one line per error, as FastAPI's handler in vLLM
    /// prints them. `loc` is the place of the first.
    pub(crate) fn shape(loc: &str, lines: &[String]) -> ApiError {
        let plural = if lines.len() == 1 { "" } else { "s" };
        let message = format!("{} validation error{plural}:\n  {}", lines.len(), lines.join("\n  "));
        ApiError::new(StatusCode::BAD_REQUEST, "Bad Request", Some(loc), &message)
    }

    pub(crate) fn unknown_model(name: &str, served: &[String]) -> ApiError {
        let message = format!("The model `{name}` does not exist. Valid aliases: {}.", served.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", Some("model"), &message)
    }

    pub(crate) fn unavailable(message: &str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", None, message)
    }

    /// FastAPI's own answers.
    pub(crate) fn detail(status: StatusCode) -> ApiError {
        let text = status.canonical_reason().unwrap_or("Error");
        ApiError { status, body: format!(r#"{{"detail":"{text}"}}"#).into_bytes() }
    }

    /// The answer that `X-Return-Error` asks for; `None` for a value that is no error status.
    pub(crate) fn asked_for(code: &str) -> Option<ApiError> {
        let status = StatusCode::from_bytes(code.trim().as_bytes()).ok()?;
        if !status.is_client_error() && !status.is_server_error() {
            return None;
        }
        let (kind, message) = match status.as_u16() {
            400 => ("BadRequestError", "The request is invalid."),
            401 => ("AuthenticationError", "Incorrect API key provided."),
            404 => ("NotFoundError", "The model does not exist."),
            429 => ("RateLimitError", "Rate limit reached."),
            503 => ("ServiceUnavailableError", "The server is overloaded."),
            500..=599 => ("InternalServerError", "The server had an error."),
            _ => ("BadRequestError", "The request failed."),
        };
        Some(ApiError::new(status, kind, None, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_asks_for_errors_only() {
        assert_eq!(ApiError::asked_for("429").unwrap().status, 429);
        assert_eq!(ApiError::asked_for(" 503 ").unwrap().status, 503);
        for no in ["200", "abc", "", "99", "1000"] {
            assert_eq!(ApiError::asked_for(no), None, "{no}");
        }
    }
}
