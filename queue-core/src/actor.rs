//! An actor: a future on its own thread and runtime.

use std::future::Future;

use tokio::task::JoinHandle;

use crate::model::{Error, Fault, Result};

/// Runs `actor` on a thread named `name` until it ends.
///
/// # Errors
/// [`Error::Database`] if the system starts no thread.
pub fn spawn<F>(name: &str, actor: impl FnOnce() -> F + Send + 'static) -> Result<()>
where
    F: Future<Output = ()> + 'static,
{
    // A simulation is one thread, whose scheduler decides what runs next.
    #[cfg(feature = "simulation")]
    if crate::connection::simulation::is_on() {
        drop(tokio::task::spawn_local(actor()));
        return Ok(());
    }
    let failed = |error: std::io::Error| Error::Database {
        operation: "start a thread",
        fault: Fault::Other,
        message: error.to_string(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(actor()))
        .map_err(failed)?;
    Ok(())
}

/// Runs `future` beside its caller, on the same runtime; in a simulation, as part of the calling
/// process.
pub fn beside(future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    #[cfg(feature = "simulation")]
    if crate::connection::simulation::is_on() {
        return tokio::task::spawn_local(future);
    }
    tokio::spawn(future)
}
