//! Runs work on a thread and runtime of its own: a database is dropped while its test unwinds,
//! whose runtime may no longer run.

use std::future::Future;

use tokio::runtime::Builder;

/// Runs `work` aside and blocks the caller until it is done; returns whether it completed.
pub(crate) fn run<F>(work: impl FnOnce() -> F + Send + 'static) -> bool
where
    F: Future<Output = ()>,
{
    let block_on = move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(work());
    };
    std::thread::spawn(block_on).join().is_ok()
}
