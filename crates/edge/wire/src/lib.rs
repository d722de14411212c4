//! Pure readers and writers of what crosses the network: OpenAI and Anthropic bodies, SSE, Prometheus text, headers.
