use janitor::{Driver, DriverOptions, Standby};
use queue_core::connection::ServerUrl;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The duties, by the account of this URL, until this is dropped.
pub(crate) fn sweeper(url: &ServerUrl) -> DropGuard {
    let stop = CancellationToken::new();
    let options = DriverOptions::new(url.clone(), "sweeper");
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let driver = Driver::new(options).run(stopped, Standby::Wait, |_| {});
        runtime.expect("a runtime").block_on(driver);
    });
    stop.drop_guard()
}
