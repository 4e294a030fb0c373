//! Our own consumers, with handlers that do nothing.

use std::sync::Arc;

use rowmq_consumer::exec::{ExecHandler, ExecOptions, PoolHandler};
use rowmq_consumer::{Consumer, ConsumerOptions, DoorbellMode, SettledListener, TopicOptions};
use rowmq_core::connection::ServerUrl;
use rowmq_core::handler::{Context, HandlerError, RawHandler, RawTxHandler};
use rowmq_core::model::MemberName;
use rowmq_core::worker::{ClaimStrategy, SettleOutcome};
use rowmq_core::{AsyncMysqlConnection, TopicName};
use rowmq_service::signals::Shutdown;

use super::{DrainTask, HoldTask, PickupTask, Tally, now};
use crate::claimer::{Claimer, WakeUp};

/// Does nothing.
struct Nothing(Arc<Tally>);

impl RawHandler for Nothing {
    async fn handle(&self, _context: &Context) -> Result<(), HandlerError> {
        self.0.begin();
        Ok(())
    }
}

impl RawTxHandler for Nothing {
    async fn handle(
        &self,
        _context: &Context,
        _tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        self.0.begin();
        Ok(())
    }
}

/// Passes messages to programs.
struct Programs<H>(Arc<Tally>, H);

impl<H: RawHandler> RawHandler for Programs<H> {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        self.0.begin();
        self.1.handle(context).await
    }
}

/// Reads one message.
const RUN_ONCE: &str = "import sys, json; sys.stdin.buffer.read()";

/// Reads messages and acks each.
const RUN_FOR_ALL: &str = r#"
import sys, json
def say(line):
    print(json.dumps(line), flush=True)
say({"rowmq_pool": 1})
for line in sys.stdin.buffer:
    say({"frame": json.loads(line)["frame"], "verdict": "ack"})
"#;

/// Runs a Python program as `rowmq-consumer exec` and `pool` do.
fn python(program: &str) -> ExecOptions {
    ExecOptions {
        supervisor: Some("/proc/self/exe".into()),
        ..ExecOptions::new(["python3", "-c", program])
    }
}

/// Measures the time since the body was made.
struct Stopwatch(Arc<Tally>);

impl RawHandler for Stopwatch {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        stop_watch(&self.0, &context.delivery.body);
        Ok(())
    }
}

/// Records how long ago the body was made, if it says when.
pub(super) fn stop_watch(tally: &Tally, body: &[u8]) {
    if let Some(sent @ 1..) = body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)) {
        tally.picked_up(sent);
    }
}

/// Holds the messages of one number for ever.
struct Holder(Arc<Tally>, u64);

impl RawHandler for Holder {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let number = context.delivery.body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        if number == Some(self.1) {
            self.0.picked_up(now());
            return std::future::pending().await;
        }
        self.0.begin();
        self.0.settle(1);
        Ok(())
    }
}

pub(super) async fn hold(
    task: &HoldTask,
    url: ServerUrl,
    tally: &Arc<Tally>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let member = task.member.then(|| MemberName::new("bench")).transpose()?;
    let options = ConsumerOptions { sweep: false, member, ..ConsumerOptions::default() };
    let topic_options = TopicOptions { concurrency: 4, ..TopicOptions::default() };
    let handler = Holder(Arc::clone(tally), task.holds);
    let topic = TopicName::new(&task.topic)?;
    let builder = Consumer::builder(url).options(options);
    Ok(builder.raw_handler(topic, topic_options, handler).build()?.run(shutdown).await?)
}

pub(super) async fn drain(
    task: &DrainTask,
    url: ServerUrl,
    tally: &Arc<Tally>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let claim_strategy = match task.by {
        Claimer::UpdateThenSelect => ClaimStrategy::UpdateThenSelect,
        Claimer::UpdateLimit => ClaimStrategy::UpdateLimit,
        _ => ClaimStrategy::SkipLocked,
    };
    let options = ConsumerOptions { claim_strategy, ..ConsumerOptions::default() };
    let settled = Arc::clone(tally);
    let topic_options = TopicOptions {
        concurrency: task.concurrency,
        max_batch: u32::try_from(task.batch)?,
        ..TopicOptions::default()
    };
    let builder =
        Consumer::builder(url).options(options).on_settled(SettledListener::new(move |delivery| {
            // Acks of a stream are combined, and sent a little later. A message that is released
            // is handled again.
            let is_over = delivery.settlement.is_final();
            let outcome = delivery.outcome;
            if is_over && matches!(outcome, Ok(SettleOutcome::Settled | SettleOutcome::Deferred)) {
                settled.settle(1);
            }
        }));
    let (topic, handler) = (TopicName::new(&task.topic)?, Nothing(Arc::clone(tally)));
    let tally = Arc::clone(tally);
    let builder = match task.by {
        Claimer::Transactional => builder.raw_tx_handler(topic, topic_options, handler),
        Claimer::Exec => {
            let program = ExecHandler::new(python(RUN_ONCE))?;
            builder.raw_handler(topic, topic_options, Programs(tally, program))
        }
        Claimer::Pool => {
            let program = PoolHandler::new(python(RUN_FOR_ALL))?;
            builder.raw_handler(topic, topic_options, Programs(tally, program))
        }
        _ => builder.raw_handler(topic, topic_options, handler),
    };
    Ok(builder.build()?.run(shutdown).await?)
}

pub(super) async fn pick_up(
    task: &PickupTask,
    url: ServerUrl,
    tally: &Arc<Tally>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let doorbell = match task.wake_up {
        WakeUp::Polling => DoorbellMode::Off,
        WakeUp::Doorbell | WakeUp::Call => DoorbellMode::Auto,
    };
    // The statements of sweeping belong to the janitor, and are counted with it.
    let options = ConsumerOptions { doorbell, sweep: false, ..ConsumerOptions::default() };
    let settled = Arc::clone(tally);
    let mut builder = Consumer::builder(url)
        .options(options)
        .on_settled(SettledListener::new(move |_| settled.settle(1)));
    for topic in &task.topics {
        let (topic, handler) = (TopicName::new(topic)?, Stopwatch(Arc::clone(tally)));
        builder = builder.raw_handler(topic, TopicOptions::default(), handler);
    }
    Ok(builder.build()?.run(shutdown).await?)
}
