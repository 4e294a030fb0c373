//! A complete consumer: records every message it handles in a file.
//!
//! `ROWMQ_URL=mysql://… recorder TOPIC LOG [--concurrency N] [--work MILLISECONDS]`
//!
//! With `--crash-on BODY` it crashes the whole process when it gets that body, as a handler with a
//! bug in native code would. With `--effects` it handles JSON in transactions, each of which also
//! inserts the message's id into the table `effect`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use clap::Parser;
use diesel::ExpressionMethods;
use diesel_async::RunQueryDsl;
use rowmq_consumer::{Consumer, SettingsArgs, TopicOptions};
use rowmq_core::handler::{Context, HandlerError, RawHandler, TxHandler};
use rowmq_core::{AsyncMysqlConnection, TopicName};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::{process, signals};
use schema::effect;

/// The caller's own table.
#[allow(missing_docs, reason = "the macro makes more than can be documented")]
mod schema {
    diesel::table! {
        effect (n) {
            n -> Integer,
            msg_id -> Binary,
        }
    }
}

#[derive(Parser)]
struct Arguments {
    /// The topic.
    topic: TopicName,
    /// Where the messages are written down: `start` and `end` lines with id, delivery number
    /// and nanoseconds since 1970.
    #[arg(id = "record", value_name = "LOG")]
    log: PathBuf,
    /// Messages handled at once.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// How long each takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    work: u64,
    /// Abort the process on a message with this body.
    #[arg(long)]
    crash_on: Option<String>,
    /// Insert into the table `effect` in the transaction that acks.
    #[arg(long)]
    effects: bool,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

struct Recorder {
    log: Mutex<File>,
    work: Duration,
    crash_on: Option<Vec<u8>>,
}

impl Recorder {
    fn note(&self, event: &str, context: &Context) -> std::io::Result<()> {
        let delivery = &context.delivery;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (id, no) = (delivery.msg_id, delivery.delivery_no);
        let line = format!("{event} {id} {no} {}\n", now.as_nanos());
        let mut log = self.log.lock().map_err(|_| std::io::ErrorKind::Other)?;
        log.write_all(line.as_bytes())
    }
}

impl Recorder {
    async fn work(&self, context: &Context) -> Result<(), HandlerError> {
        self.note("start", context)?;
        if self.crash_on.as_ref() == Some(&context.delivery.body) {
            std::process::abort();
        }
        if !self.work.is_zero() {
            let work = tokio::time::sleep(self.work);
            if context.cancelled.run_until_cancelled(work).await.is_none() {
                self.note("cancelled", context)?;
                return Err(HandlerError::Release);
            }
        }
        self.note("end", context)?;
        Ok(())
    }
}

impl RawHandler for Recorder {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        self.work(context).await
    }
}

impl TxHandler for Recorder {
    type Payload = serde_json::Value;

    async fn handle(
        &self,
        context: &Context,
        _: serde_json::Value,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        let msg_id = effect::msg_id.eq(context.delivery.msg_id.as_bytes());
        diesel::insert_into(effect::table).values(msg_id).execute(tx).await?;
        self.work(context).await
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    process::run(|| async {
        arguments.service.start_logs();
        let options = arguments.settings.options();
        let log = File::options().create(true).append(true).open(&arguments.log)?;
        let recorder = Recorder {
            log: Mutex::new(log),
            work: Duration::from_millis(arguments.work),
            crash_on: arguments.crash_on.map(String::into_bytes),
        };
        let topic = TopicOptions { concurrency: arguments.concurrency, ..Default::default() };
        let builder = Consumer::builder(arguments.server.url()?).options(options);
        let builder = if arguments.effects {
            builder.tx_handler(arguments.topic, topic, recorder)
        } else {
            builder.raw_handler(arguments.topic, topic, recorder)
        };
        let consumer = builder.build()?;
        consumer.run(signals::shutdown_on_signals()?).await?;
        Ok(ExitCode::SUCCESS)
    })
}
