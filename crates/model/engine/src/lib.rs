//! One vLLM server as a state machine: scheduler, KV blocks, latency, model and hardware catalogue.
