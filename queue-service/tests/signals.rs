//! What signals request of a process.

use rowmq_service::signals::shutdown_on_signals;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

#[tokio::test]
async fn the_first_term_asks_to_drain_and_the_second_to_stop_at_once() {
    let shutdown = shutdown_on_signals().expect("signals can be had");
    assert!(!shutdown.drain.is_cancelled());
    raise(SIGTERM).expect("raised");
    shutdown.drain.cancelled().await;
    assert!(!shutdown.quit.is_cancelled());
    raise(SIGTERM).expect("raised");
    shutdown.quit.cancelled().await;
}
