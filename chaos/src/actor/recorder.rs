//! A consumer that writes down what it handles and what it was told of each settlement.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use consumer::{Consumer, ConsumerOptions, SettledDelivery, SettledListener, TopicOptions};
use queue_core::TopicName;
use queue_core::handler::{Context, HandlerError, RawHandler};
use queue_core::message::Settlement;
use queue_core::worker::SettleOutcome;
use queue_service::args::{ServerArgs, ServiceArgs};
use queue_service::endpoint::{self, Health};
use queue_service::{config, logging, signals};

use super::Identity;
use crate::arena::BURST;
use crate::record::{Answer, Ended, Event, Record};
use crate::tag::Tag;
use crate::task::{Ending, Task};

/// Handles messages until TERM.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RecorderArgs {
    #[command(flatten)]
    identity: Identity,
    /// Which (repeatable).
    #[arg(long = "topic", required = true)]
    topics: Vec<TopicName>,
    /// Messages of each topic handled at once.
    #[arg(long)]
    concurrency: usize,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) async fn run(args: RecorderArgs) -> anyhow::Result<ExitCode> {
    logging::init(&args.service);
    let options: ConsumerOptions = config::load(args.server.config.as_deref(), "consumer")?;
    let record = Arc::new(Record::open(&args.identity.record)?);
    let audit = Arc::clone(&record);
    let shutdown = signals::shutdown_on_signals()?;
    endpoint::serve(args.service.metrics, Health::new(), shutdown.drain.clone()).await?;
    let mut builder = Consumer::builder(args.server.url()?).options(options).on_settled(
        SettledListener::new(move |settled| {
            // A disk that takes no more shows as missing lines, which the checks report.
            drop(audit.note(&event(&settled)));
        }),
    );
    for topic in args.topics {
        let concurrency =
            if topic.as_str() == BURST { BURST_CONCURRENCY } else { args.concurrency };
        let options = TopicOptions { concurrency, ..Default::default() };
        builder = builder.raw_handler(topic, options, Recorder(Arc::clone(&record)));
    }
    builder.build()?.run(shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn event(settled: &SettledDelivery<'_>) -> Event {
    Event::Settled {
        tag: settled.msg_id.into(),
        delivery_no: settled.delivery_no.0,
        ack: *settled.settlement == Settlement::Ack,
        answer: match settled.outcome {
            Ok(SettleOutcome::Settled) => Answer::Settled,
            Ok(SettleOutcome::Fenced) | Err(queue_core::Error::WorkerDead { .. }) => Answer::Fenced,
            Ok(SettleOutcome::Unknown | SettleOutcome::Deferred) | Err(_) => Answer::Unknown,
        },
    }
}

/// A burst's messages are no work; what is counted is how fast they are stored.
const BURST_CONCURRENCY: usize = 500;

/// For how long a message is put off.
const SNOOZE: Duration = Duration::from_millis(300);

struct Recorder(Arc<Record>);

impl RawHandler for Recorder {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let delivery = &context.delivery;
        let (tag, delivery_no) = (Tag::from(delivery.msg_id), delivery.delivery_no.0);
        let end = |ended| self.0.note(&Event::End { tag, delivery_no, ended });
        self.0.note(&Event::Start { tag, delivery_no })?;
        let task: Task = delivery.json()?;
        // Charged with nothing so far: whatever happens once has not happened yet.
        let first = delivery.failures == 0 && delivery_no == 1;
        if task.ending == Ending::Poison {
            std::process::abort();
        }
        let mut work = Duration::from_millis(task.work_ms);
        if task.ending == Ending::Hang {
            std::thread::sleep(std::mem::take(&mut work));
        }
        let work = tokio::time::sleep(work);
        if context.cancelled.run_until_cancelled(work).await.is_none() {
            end(Ended::Interrupted)?;
            return Err(HandlerError::Release);
        }
        match task.ending {
            Ending::RetryOnce if first => {
                end(Ended::Retry)?;
                Err(HandlerError::retry("it is asked to fail once"))
            }
            Ending::SnoozeOnce if first => {
                end(Ended::Retry)?;
                Err(HandlerError::Snooze(SNOOZE))
            }
            Ending::ReleaseOnce if first => {
                end(Ended::Release)?;
                Err(HandlerError::Release)
            }
            Ending::PanicOnce if first => {
                end(Ended::Retry)?;
                panic!("it is asked to panic once")
            }
            ending => {
                end(Ended::Done)?;
                if ending == Ending::AbortOnce && first {
                    std::process::abort();
                }
                Ok(())
            }
        }
    }
}
