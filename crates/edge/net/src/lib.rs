//! HTTP over tokio: listener with limits, and an upstream connection pool that lives in the response body.
