//! A consumer that records what it handles and the answer to each settlement.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use diesel::sql_types::Binary;
use diesel_async::RunQueryDsl;
use rowmq_consumer::{Consumer, SettingsArgs, SettledDelivery, SettledListener, TopicOptions};
use rowmq_core::handler::{Context, HandlerError, RawHandler, TxHandler};
use rowmq_core::model::{MemberName, Settlement};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{AsyncMysqlConnection, TopicName};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::signals;

use super::Identity;
use crate::record::{Answer, Ended, Event, LogPosition, Record};
use crate::stream::{Group, Share};
use crate::task::{Ending, Task};
use crate::topics::{BURST, EFFECTS};

/// Handles messages until TERM.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RecorderArgs {
    #[command(flatten)]
    identity: Identity,
    /// The topics to handle (repeatable).
    #[arg(long = "topic", required = true)]
    topics: Vec<TopicName>,
    /// Messages of each topic handled at once.
    #[arg(long)]
    concurrency: usize,
    /// The member of the broadcast group that this consumer is, if the group is among its topics.
    #[arg(id = "broadcast_member", long = "broadcast-member")]
    member: Option<Group>,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) async fn run(args: RecorderArgs) -> anyhow::Result<ExitCode> {
    args.service.start_logs();
    let mut options = args.settings.options();
    let record = Arc::new(Record::open(&args.identity.record)?);
    let (audit, member) = (Arc::clone(&record), args.member);
    if let Some(member) = member {
        record.note(&Event::Member { member })?;
        options.member = Some(MemberName::new(member.word())?);
    }
    let shutdown = signals::shutdown_on_signals()?;
    endpoint::serve(args.service.metrics, Health::new(), shutdown.drain.clone()).await?;
    let mut builder = Consumer::builder(args.server.url()?).options(options).on_settled(
        SettledListener::new(move |settled| {
            // A full disk shows as missing lines, which the checks report.
            drop(audit.note(&event(&settled, member)));
        }),
    );
    for topic in args.topics {
        let concurrency = match topic.as_str() {
            BURST => BURST_CONCURRENCY,
            EFFECTS => EFFECTS_CONCURRENCY,
            name if name == Group::Booked.topic() => EFFECTS_CONCURRENCY,
            _ => args.concurrency,
        };
        let options = TopicOptions { concurrency, ..Default::default() };
        let record = Arc::clone(&record);
        let books = topic.as_str() == EFFECTS || topic.as_str() == Group::Booked.topic();
        builder = if books {
            builder.tx_handler(topic, options, Booker { record, begun: Mutex::default() })
        } else {
            builder.raw_handler(topic, options, Recorder { record, member })
        };
    }
    builder.build()?.run(shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn event(settled: &SettledDelivery<'_>, member: Option<Group>) -> Event {
    Event::Settled {
        share: Share::of(settled.msg_id.into(), settled.topic.as_str()).with(member),
        delivery_no: settled.delivery_no.0,
        ack: *settled.settlement == Settlement::Ack,
        answer: match settled.outcome {
            Ok(SettleOutcome::Settled) => Answer::Settled,
            Ok(SettleOutcome::Fenced) | Err(rowmq_core::Error::WorkerDead { .. }) => Answer::Fenced,
            Ok(SettleOutcome::Unknown | SettleOutcome::Deferred) | Err(_) => Answer::Unknown,
        },
    }
}

/// A burst's messages need no work; the run measures how fast they are stored.
const BURST_CONCURRENCY: usize = 500;

/// How long a message is put off.
const SNOOZE: Duration = Duration::from_millis(300);

/// Each handler has its own connection.
const EFFECTS_CONCURRENCY: usize = 4;

/// Returns the reader's share and the delivery number.
fn token(context: &Context) -> (Share, u32) {
    let delivery = &context.delivery;
    (Share::of(delivery.msg_id.into(), context.topic.as_str()), delivery.delivery_no.0)
}

fn start(context: &Context, (share, delivery_no): (Share, u32)) -> Event {
    let claim_no = context.delivery.claim_no.0;
    let place = context.delivery.position.map(|at| LogPosition {
        partition: at.partition.0,
        offset: at.offset.0,
        claim_no,
    });
    Event::Start { share, delivery_no, place }
}

struct Recorder {
    record: Arc<Record>,
    member: Option<Group>,
}

impl RawHandler for Recorder {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let (share, delivery_no) = token(context);
        let (share, record) = (share.with(self.member), &self.record);
        record.note(&start(context, (share, delivery_no)))?;
        let task = context.delivery.json()?;
        let ending = work(record, context, task, (share, delivery_no)).await?;
        record.note(&Event::End { share, delivery_no, ended: Ended::Done })?;
        // A broadcast member counts no crashes: the message would crash it again and again.
        if !share.group.is_some_and(Group::is_member) {
            abort_if_asked(ending, context);
        }
        Ok(())
    }
}

/// The latest deliveries that have begun: a run that is rolled back may be run again in the same
/// delivery. It is bounded, because a soak measures the memory of its process.
#[derive(Default)]
struct Begun {
    latest: HashSet<(Share, u32)>,
    earlier: HashSet<(Share, u32)>,
}

impl Begun {
    /// Far more than run at once.
    const MOST: usize = 1000;

    /// Notes that it begins, and returns whether it has not begun before.
    fn begins(&mut self, token: (Share, u32)) -> bool {
        if self.latest.len() >= Self::MOST {
            self.earlier = std::mem::take(&mut self.latest);
        }
        !self.earlier.contains(&token) && self.latest.insert(token)
    }
}

/// A transactional handler.
struct Booker {
    record: Arc<Record>,
    begun: Mutex<Begun>,
}

impl Booker {
    fn begins(&self, token: (Share, u32)) -> bool {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.begins(token)
    }
}

impl TxHandler for Booker {
    type Payload = Task;

    async fn handle(
        &self,
        context: &Context,
        task: Task,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        let (share, delivery_no) = token(context);
        if self.begins((share, delivery_no)) {
            self.record.note(&start(context, (share, delivery_no)))?;
        }
        diesel::sql_query("INSERT INTO chaos_effect (msg_id) VALUES (?)")
            .bind::<Binary, _>(context.delivery.msg_id.as_bytes().to_vec())
            .execute(tx)
            .await?;
        let ending = work(&self.record, context, task, (share, delivery_no)).await?;
        self.record.note(&Event::Effect { share, delivery_no })?;
        abort_if_asked(ending, context);
        Ok(())
    }
}

/// Does what the task asks for, up to its successful end.
async fn work(
    record: &Record,
    context: &Context,
    task: Task,
    (share, delivery_no): (Share, u32),
) -> Result<Ending, HandlerError> {
    let end = |ended| record.note(&Event::End { share, delivery_no, ended });
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
        Ending::RetryOnce if is_first(context) => {
            end(Ended::Retry)?;
            Err(HandlerError::retry("it is asked to fail once"))
        }
        Ending::SnoozeOnce if is_first(context) => {
            end(Ended::Retry)?;
            Err(HandlerError::Snooze(SNOOZE))
        }
        Ending::ReleaseOnce if is_first(context) => {
            end(Ended::Release)?;
            Err(HandlerError::Release)
        }
        Ending::PanicOnce if is_first(context) => {
            end(Ended::Retry)?;
            panic!("it is asked to panic once")
        }
        ending => Ok(ending),
    }
}

/// Returns whether this is the first delivery of the message and nothing has been charged to it:
/// what happens only once has not happened yet.
fn is_first(context: &Context) -> bool {
    context.delivery.failures == 0 && context.delivery.delivery_no.0 == 1
}

fn abort_if_asked(ending: Ending, context: &Context) {
    if ending == Ending::AbortOnce && is_first(context) {
        std::process::abort();
    }
}
