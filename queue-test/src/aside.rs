//! Runs work on a thread and runtime of its own, so that it depends on nothing of the test's
//! runtime. That runtime may have only one thread (migrations need a second one), or may no longer
//! run (a database is dropped while the test unwinds).

use std::future::Future;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// Runs `work` aside and waits for it without blocking the caller's runtime.
///
/// # Panics
/// If `work` panics, with its own words.
pub(crate) async fn run<F, T>(work: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T>,
    T: Send + 'static,
{
    let (done, result) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        // The receiver is gone only if the test gave up waiting.
        let _given_up = done.send(block_on(work()));
    });
    match result.await {
        Ok(value) => value,
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ends only after it has sent"),
        },
    }
}

/// Runs `work` aside and blocks the caller until it is done; returns whether it completed.
pub(crate) fn run_blocking<F>(work: impl FnOnce() -> F + Send + 'static) -> bool
where
    F: Future<Output = ()>,
{
    std::thread::spawn(move || block_on(work())).join().is_ok()
}

fn block_on<F: Future>(work: F) -> F::Output {
    // One thread would do, but diesel's migrations want to block one of several.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be built").block_on(work)
}
