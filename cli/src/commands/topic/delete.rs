use std::time::Duration;

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, AuditNo, TOPIC_KNOWN_FOR};
use rowmq_core::store::inspect::{self, DEPTH_CAP, Depth, MessageTable};
use rowmq_core::store::stream::log::Stretch;
use rowmq_core::store::stream::partition::{self, Partition};
use rowmq_core::stream::retention::remove_some;
use rowmq_core::topic::deletion::Closed;
use rowmq_core::{Error, Topic, TopicName, store};
use serde::Serialize;

use super::{find, noun};
use crate::author::change;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;

/// How many messages one transaction deletes: few enough that no session waits long for its locks.
const CHUNK: u32 = 1000;

/// Delete a topic.
///
/// Its schedules go with it. A topic that holds messages is deleted only with --purge. Handled
/// messages that the topic keeps do not count as held; without --purge they stay until their time
/// is up.
#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    pub(crate) name: TopicName,
    #[command(flatten)]
    pub(crate) content: Content,
}

/// Whether the messages go too.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Content {
    /// Delete its messages too: waiting, claimed, scheduled, dead and kept ones.
    #[arg(long)]
    purge: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Deleted {
    topic: TopicName,
    purged: usize,
}

impl Delete {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.name).await?;
        let purged = self.delete(&mut session, &topic).await?;
        let noun = noun(&topic);
        let name = topic.name;
        let sentence = format!("The {noun} '{name}' is deleted, and {purged} messages with it.");
        invocation.output.report(&Deleted { topic: name, purged }, &sentence)
    }

    /// Deletes the topic, and writes the audit; returns how many messages went with it.
    pub(crate) async fn delete(
        &self,
        session: &mut Session,
        topic: &Topic,
    ) -> anyhow::Result<usize> {
        refuse_if_named(session, topic).await?;
        let log = log_of(session, topic).await?;
        let mut depth = depth(session, topic).await?;
        depth.unsettled += log.iter().map(|stretch| stretch.hi.0 - stretch.lo.0).sum::<u64>();
        if self.content.purge {
            if !self.content.yes && !confirmed(topic, &depth)? {
                bail!("Nothing was deleted.");
            }
        } else if held(&depth) > 0 {
            return Err(Error::TopicNotEmpty { topic: topic.name.clone() }.into());
        }
        let by = change(session, Action::DeleteTopic, &topic.name, None).await?;
        let closed = Closed::close(session, &topic.name, &by).await?;
        // After this time producers know that it is closed, and what they sent before has arrived.
        tokio::time::sleep(TOPIC_KNOWN_FOR.mul_f64(1.5)).await;
        let deleted = self.empty_and_delete(session, &closed, &depth).await;
        let refused = deleted.as_ref().err().and_then(|error| error.downcast_ref());
        if let Some(Error::TopicNotEmpty { .. } | Error::TopicInUse { .. }) = refused {
            closed.reopen(session).await?;
        }
        let purged = deleted?;
        forget_ids_and_keys(session, topic).await?;
        Ok(purged)
    }

    /// Empties and deletes the topic; returns how many messages went with it.
    async fn empty_and_delete(
        &self,
        session: &mut Session,
        closed: &Closed,
        depth: &Depth,
    ) -> anyhow::Result<usize> {
        let topic = &closed.topic;
        let mut purged = 0;
        if self.content.purge {
            let some = purge(session, topic, closed.entry, depth).await;
            purged = some.map_err(|error| closed.or_in_use(error))?;
            purged += purge_log(session, topic, closed.entry).await?;
        }
        closed.refuse_unless_empty(session).await?;
        forget_lookup(session, topic).await?;
        closed.delete(session).await?;
        Ok(purged)
    }
}

/// Refuses to delete a topic that other topics name as their dead-letter topic: their dead letters
/// would then stay in those topics, unnoticed.
async fn refuse_if_named(session: &mut Session, topic: &Topic) -> anyhow::Result<()> {
    let all = session.call("list the topics", async |conn| store::topic::all(conn).await).await?;
    let names = |other: &&Topic| other.settings.dead_letter_topic.as_ref() == Some(&topic.name);
    match all.iter().find(names) {
        None => Ok(()),
        Some(Topic { name: by, .. }) => bail!(
            "The dead letters of '{by}' go to the topic '{}': change that first with `rowmq \
             topic set {by} --dead-letter-topic none`.",
            topic.name
        ),
    }
}

/// The content of a stream's log. A stream that groups read must not be deleted.
async fn log_of(session: &mut Session, topic: &Topic) -> anyhow::Result<Vec<Stretch>> {
    let groups = async |conn: &mut Link| store::topic::groups_of(conn, topic.id).await;
    if let Some(group) = session.call("list the groups", groups).await?.first() {
        bail!(
            "The group '{0}' reads the stream '{1}': delete it first with `rowmq group delete {0}`.",
            group.name,
            topic.name
        );
    }
    let read = async |conn: &mut Link| partition::all(conn, topic.id).await;
    let partitions = session.call("read the partitions", read).await?;
    let stretch = |partition: &Partition| Stretch {
        stream: topic.id,
        partition: partition.no,
        lo: partition.first,
        hi: partition.next,
    };
    Ok(partitions.iter().map(stretch).filter(|stretch| stretch.lo < stretch.hi).collect())
}

async fn purge_log(session: &mut Session, topic: &Topic, entry: AuditNo) -> anyhow::Result<usize> {
    let mut purged = 0;
    for stretch in log_of(session, topic).await? {
        let mut left = Some(stretch);
        while let Some(stretch) = left {
            let remove = async |conn: &mut Link| {
                let left = remove_some(conn, stretch).await?;
                let lo = left.as_ref().map_or(stretch.hi, |left| left.lo);
                let n = usize::try_from(lo.0 - stretch.lo.0).unwrap_or(usize::MAX);
                store::audit::add(conn, entry, n).await?;
                Ok((left, n))
            };
            let n;
            (left, n) = session.transaction("purge the log", remove).await?;
            purged += n;
        }
    }
    Ok(purged)
}

async fn depth(session: &mut Session, topic: &Topic) -> rowmq_core::Result<Depth> {
    session.call("read the topic's depth", async |conn| inspect::depth(conn, topic.id).await).await
}

fn confirmed(topic: &Topic, depth: &Depth) -> anyhow::Result<bool> {
    let name = &topic.name;
    let more = if is_capped(depth) { "at least " } else { "" };
    is_confirmed(
        &format!("messages of '{name}'"),
        &format!(
            "Delete the topic '{name}' with {more}{} messages, and those it keeps?",
            held(depth)
        ),
    )
}

fn held(depth: &Depth) -> u64 {
    depth.unsettled + depth.scheduled + depth.dead
}

fn is_capped(depth: &Depth) -> bool {
    [depth.unsettled, depth.scheduled, depth.dead].iter().any(|n| *n >= DEPTH_CAP)
}

async fn purge(
    session: &mut Session,
    topic: &Topic,
    entry: AuditNo,
    depth: &Depth,
) -> rowmq_core::Result<usize> {
    let bar = progress(depth);
    let mut purged = 0;
    for table in MessageTable::ALL {
        loop {
            let n = session
                .transaction("purge the topic", async |conn| {
                    let n = inspect::purge_some(conn, table, topic.id, CHUNK).await?;
                    store::audit::add(conn, entry, n).await?;
                    Ok(n)
                })
                .await?;
            if n == 0 {
                break;
            }
            purged += n;
            bar.inc(n as u64);
        }
    }
    bar.finish_and_clear();
    Ok(purged)
}

/// Empties the topic's lookup, while the topic still exists, so that a retry is possible.
async fn forget_lookup(session: &mut Session, topic: &Topic) -> rowmq_core::Result<()> {
    let some = async |conn: &mut Link| store::lookup::drop_some(conn, topic.id, CHUNK).await;
    while session.transaction("drop the lookup", some).await? > 0 {}
    Ok(())
}

/// Deletes the ids and keys that messages of the topic have had, after the topic is deleted.
async fn forget_ids_and_keys(session: &mut Session, topic: &Topic) -> rowmq_core::Result<()> {
    let forget = async |conn: &mut Link| {
        let ids = store::dedupe::forget_some(conn, topic.id, CHUNK).await?;
        Ok(ids + store::unique::forget_some(conn, topic.id, CHUNK).await?)
    };
    while session.transaction("delete the topic", forget).await? > 0 {}
    Ok(())
}

/// A bar where the depth is known, else a count. Shown on a terminal only.
fn progress(depth: &Depth) -> ProgressBar {
    let (bar, template) = if is_capped(depth) {
        (ProgressBar::new_spinner(), "{spinner} {pos} messages deleted in {elapsed}")
    } else {
        (ProgressBar::new(held(depth)), "{bar:40} {pos} of {len} messages deleted, {eta} left")
    };
    bar.enable_steady_tick(Duration::from_millis(100));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
