//! The emulator over loopback, with a small HTTP client.

// Clippy sees tests by their attribute; the helpers here are tests as well.
#![allow(clippy::unwrap_used)]

mod client;
mod faults;
mod inference;
mod metrics;

use forebay_base::Span;
use forebay_emulate::{Emulator, Options};
use forebay_engine::EngineSpec;
use std::time::Duration;

/// The tiny model with steps of about 0.2 ms, so that a test of a few hundred tokens is quick.
fn spec() -> EngineSpec {
    let mut spec = EngineSpec::named("tiny", "h100").unwrap();
    spec.hardware.factors.step = Span::micros(200);
    spec.hardware.factors.mixed = Span::ZERO;
    spec
}

/// The same with steps of 10 ms, where a test needs a request that does not end while it looks on: the
/// longest takes twenty seconds.
fn slow() -> EngineSpec {
    let mut spec = spec();
    spec.hardware.factors.step = Span::millis(10);
    spec
}

async fn start(spec: &EngineSpec, change: impl FnOnce(&mut Options)) -> Emulator {
    let mut options = Options::new(&spec.model);
    change(&mut options);
    Emulator::start(spec, options).await.unwrap()
}

/// Runs a test that must not hang.
fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs");
    });
}

/// Waits until the engine's published counters satisfy `when`.
async fn until(emulator: &Emulator, when: impl Fn(&forebay_engine::Published) -> bool) {
    while !when(&emulator.published()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
