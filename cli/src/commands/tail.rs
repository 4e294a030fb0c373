use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{ClaimNo, DeliveryNo, Offset, PartitionNo, RowId, TopicKind};
use rowmq_core::store::ready;
use rowmq_core::store::stream::log::{self, Reading, Stretch};
use rowmq_core::store::stream::partition;
use rowmq_core::{Priority, Topic, TopicName};

use super::topic::find;
use crate::invocation::Invocation;
use crate::output::Output;
use crate::record::Record;
use crate::units;

/// How many messages one statement reads.
const PAGE: u32 = 200;

/// Follow what comes into a topic, as lines of JSON; claims nothing.
///
/// Of a stream, every message is shown. Of a queue, a message that is claimed and handled between
/// two looks is missed, and so is one that commits after a later one.
#[derive(Debug, clap::Args)]
pub(crate) struct Tail {
    topic: TopicName,
    /// How often to look.
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = units::parse_time)]
    interval: Duration,
    /// End after so many messages; without it, run until interrupted.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

/// How far it has shown each part of the topic.
enum Shown {
    Queue(BTreeMap<u8, RowId>, RowId),
    Stream(BTreeMap<PartitionNo, Offset>),
}

impl Tail {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let mut shown = begin(&mut session, &topic).await?;
        let mut left = self.limit.unwrap_or(usize::MAX);
        loop {
            match &mut shown {
                Shown::Queue(rows, from) => {
                    queue(&mut session, &topic, rows, *from, &mut left).await?;
                }
                Shown::Stream(offsets) => {
                    stream(&mut session, &topic, offsets, &mut left).await?;
                }
            }
            if left == 0 {
                return Ok(());
            }
            tokio::time::sleep(self.interval).await;
        }
    }
}

/// Begins after the last message that exists now.
async fn begin(session: &mut Session, topic: &Topic) -> anyhow::Result<Shown> {
    match topic.kind {
        TopicKind::Queue => {
            let last = async |conn: &mut Link| ready::last(conn).await;
            Ok(Shown::Queue(BTreeMap::new(), session.call("read the last row", last).await?))
        }
        TopicKind::Stream { .. } => {
            let all = async |conn: &mut Link| partition::all(conn, topic.id).await;
            let partitions = session.call("read the partitions", all).await?;
            Ok(Shown::Stream(partitions.iter().map(|one| (one.no, one.next)).collect()))
        }
        _ => bail!(
            "'{0}' is a group: follow its stream, or see how far it has come with `rowmq group show {0}`.",
            topic.name
        ),
    }
}

async fn queue(
    session: &mut Session,
    topic: &Topic,
    rows: &mut BTreeMap<u8, RowId>,
    from: RowId,
    left: &mut usize,
) -> anyhow::Result<()> {
    for priority in Priority::all() {
        let after = rows.entry(priority.level()).or_insert(from);
        let read =
            async |conn: &mut Link| ready::read(conn, (topic.id, priority), *after, PAGE).await;
        for stored in session.call("read messages", read).await? {
            if *left == 0 {
                return Ok(());
            }
            Output::json_line(&Record::of_queue(&topic.name, priority, &stored))?;
            (*after, *left) = (stored.row, *left - 1);
        }
    }
    Ok(())
}

async fn stream(
    session: &mut Session,
    topic: &Topic,
    offsets: &mut BTreeMap<PartitionNo, Offset>,
    left: &mut usize,
) -> anyhow::Result<()> {
    let all = async |conn: &mut Link| partition::all(conn, topic.id).await;
    for one in session.call("read the partitions", all).await? {
        let lo = offsets.entry(one.no).or_insert(one.first);
        // Messages that retention has removed cannot be shown.
        *lo = (*lo).max(one.first);
        let hi = Offset(one.next.0.min(lo.0 + u64::from(PAGE)));
        let stretch = Stretch { stream: topic.id, partition: one.no, lo: *lo, hi };
        let reading = Reading { group: topic.id, claim_no: ClaimNo(0), delivery_no: DeliveryNo(0) };
        let read = async |conn: &mut Link| log::read(conn, stretch, reading).await;
        for delivery in session.call("read the log", read).await?.deliveries {
            if *left == 0 {
                return Ok(());
            }
            Output::json_line(&Record::of_stream(&topic.name, &delivery))?;
            *left -= 1;
        }
        *lo = hi;
    }
    Ok(())
}
