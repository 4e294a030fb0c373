//! Messages that come on standard input, beside those that come by HTTP.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rowmq_core::TopicName;
use rowmq_producer::Producer;
use rowmq_service::health::Health;
use rowmq_service::signals::Shutdown;

use crate::send::{Bar, Input, Intake, Pace, Sending, Summary};

/// The most messages of one transaction: some 5 ms.
const BATCH: u32 = 500;

/// Sends every line to the topic, and waits until all are stored. Returns failure if some are not,
/// or if messages of the spill journal were `set_aside`.
///
/// # Errors
/// An input that cannot be read further.
pub(super) async fn send(
    producer: Producer,
    topic: TopicName,
    shutdown: Shutdown,
    health: &Health,
    set_aside: &AtomicUsize,
) -> anyhow::Result<ExitCode> {
    let input = Input::ndjson_on_stdin();
    let place = Box::new(input.place());
    let intake = Arc::new(Intake::default());
    input.read_into(Arc::clone(&intake))?;
    let bar = Bar::hidden();
    let summary = Summary::default();
    let mut sending = Sending { producer, topic, skip_bad: true, bar, place, shutdown, summary };
    sending.all(&intake, Pace::new(None), BATCH, health).await?;
    sending.drained(health).await;
    let Sending { producer, topic, summary, .. } = sending;
    let (in_journal, set_aside) = (producer.in_journal(), set_aside.load(Ordering::Relaxed));
    tracing::info!(
        topic.name = %topic,
        input.sent = summary.sent,
        input.failed = summary.failed,
        spill.messages = in_journal,
        spill.set_aside = set_aside,
        "Standard input has ended."
    );
    let is_stored = in_journal == 0 && set_aside == 0;
    let is_whole = !summary.left && summary.failed == 0 && is_stored;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
