//! The HTTP door: OpenAI-compatible proxy in front of the kernel, and the admin port.
