//! A vLLM-shaped HTTP server over the engine.
