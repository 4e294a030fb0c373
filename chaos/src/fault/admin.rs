//! Operators at work while the fleet runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use diesel_async::SimpleAsyncConnection;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::{NewMessage, TopicName, enqueue};
use tokio::time::{Instant, sleep};

use crate::arena::{Arena, next_actor};
use crate::record::{Enqueued, Event};
use crate::stream::{BROADCAST, Group};
use crate::tag::{Actor, Tag};
use crate::task::{Ending, Task};
use crate::topics::{CALLS, EFFECTS, TOPICS, URGENT, WORK};

/// Messages of a topic that is deleted together with them.
const DOOMED: u64 = 200;

/// How many messages are cancelled at a time.
const CANCELLED: usize = 10;

/// How long the work takes with a message that is to be cancelled while its handler runs, in
/// milliseconds.
const SLOW_MS: u64 = 2_000;

/// The number of the topic that is deleted next.
static NEXT_TOPIC: AtomicU64 = AtomicU64::new(1);

/// Runs every command that reads, and closes and opens topics again.
pub(super) async fn operate(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let ordered = Group::Ordered.topic();
    let looks: [&[&str]; 12] = [
        &["stats"],
        &["workers"],
        &["janitor"],
        &["doctor"],
        &["topic", "list"],
        &["peek", WORK],
        &["stats", "--json"],
        &["group", "list"],
        &["group", "show", &ordered],
        &["group", "blocked", &ordered],
        &["group", "members", &ordered],
        &["group", "show", BROADCAST],
    ];
    for look in looks {
        arena.rowmq(look).await?;
    }
    let mut topics = TOPICS.map(str::to_owned).to_vec();
    topics.extend(Group::ALL.map(Group::topic));
    topics.push(BROADCAST.to_owned());
    let topic = topics.choose(rng).context("there are some")?;
    let is_group = Group::of_topic(topic).is_some();
    let direction = if is_group || rng.random() { "--claim" } else { "--enqueue" };
    arena.rowmq(&["topic", "pause", topic, direction]).await?;
    sleep(Duration::from_millis(rng.random_range(200..3_000))).await;
    // The harness must not leave a topic closed.
    while !arena.rowmq(&["topic", "resume", topic]).await? {
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Deletes a separate topic with all its messages while they are handled.
pub(super) async fn purge_topic(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let topic = format!("doomed-{}", NEXT_TOPIC.fetch_add(1, Ordering::Relaxed));
    let there = format!("SELECT COUNT(*) FROM queue_topic WHERE name = '{topic}'");
    while arena.number(&there).await? == 0 {
        arena.rowmq(&["topic", "create", &topic]).await?;
    }
    let consumer = arena.fleet.add_recorder(&[&topic], 16, None).await?;
    send_doomed(arena, next_actor(), &topic, rng).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while arena.number("SELECT COUNT(*) FROM queue_claim").await? == 0 && Instant::now() < deadline
    {
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(rng.random_range(0..1_000))).await;
    while arena.number(&there).await? > 0 {
        arena.rowmq(&["topic", "delete", &topic, "--purge", "--yes"]).await?;
    }
    sleep(Duration::from_secs(2)).await;
    arena.fleet.dismiss(&[consumer]).await
}

async fn send_doomed(
    arena: &Arena,
    sender: Actor,
    topic: &str,
    rng: &mut SmallRng,
) -> anyhow::Result<()> {
    let first = Tag { sender, seq: 0 };
    arena.record.note(&Event::Invoke { first, n: DOOMED })?;
    arena.record.note(&Event::Purge { first, n: DOOMED })?;
    let name = TopicName::new(topic)?;
    let mut stored = Enqueued::Stored;
    let mut conn = arena.connect().await?;
    for seq in 0..DOOMED {
        let task = Task { work_ms: rng.random_range(0..1_500), ending: Ending::Ack };
        let message = NewMessage::json(&task)?.with_msg_id(Tag { sender, seq }.msg_id());
        if enqueue(&mut conn, &name, &message).await.is_err() {
            stored = Enqueued::InDoubt;
            break;
        }
    }
    arena.record.note(&Event::Enqueue { first, n: DOOMED, outcome: stored })?;
    Ok(())
}

/// Cancels messages that wait or are handled in transactions, by the library or by the SQL
/// contract, one after the other; some handlers have hardly any time to stop.
pub(super) async fn cancel_messages(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    for _ in 0..CANCELLED {
        sleep(Duration::from_millis(rng.random_range(0..500))).await;
        let topic = *[EFFECTS, CALLS, URGENT].choose(rng).context("there are some")?;
        let slow = topic != EFFECTS && rng.random_ratio(1, 3);
        let chosen =
            if slow { send_slow(arena, topic).await? } else { arena.last_of(topic).await? };
        let Some(tag) = chosen else { continue };
        // If the answer is lost, the outcome is unknown.
        arena.record.note(&Event::Purge { first: tag, n: 1 })?;
        let grace = if rng.random() { "1s" } else { "0s" };
        let id = tag.msg_id().to_string();
        if arena.rowmq(&["cancel", topic, &id, "--grace", grace]).await? {
            arena.record.note(&Event::Cancelled { tag })?;
        }
    }
    Ok(())
}

/// Sends a message that a session by SQL is usually still working on when it is cancelled: most of
/// their messages take no time.
async fn send_slow(arena: &Arena, topic: &str) -> anyhow::Result<Option<Tag>> {
    let tag = arena.send(topic, Task { work_ms: SLOW_MS, ending: Ending::Ack }).await?;
    let id = tag.msg_id().0.simple();
    let claimed =
        format!("SELECT COUNT(*) FROM queue_message WHERE msg_id = X'{id}' AND worker_id > 0");
    let deadline = Instant::now() + Duration::from_millis(SLOW_MS);
    while arena.number(&claimed).await? == 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
    Ok(Some(tag))
}

/// Behind an idle transaction that has read the hot table, runs `rowmq migrate`, and then changes
/// the table in a session as a migration does. That session waits for its lock, and every other
/// session waits for that session.
pub(super) async fn migrate(arena: &Arena, _: &mut SmallRng) -> anyhow::Result<()> {
    let mut idle = arena.connect().await?;
    // The session may break while a server goes down; the transaction then ends too.
    drop(idle.batch_execute("BEGIN; SELECT COUNT(*) FROM queue_message").await);
    let began = Instant::now();
    arena.rowmq(&["migrate"]).await?;
    if let Ok(mut migrator) = connect(&arena.root, SessionKind::Plain).await {
        let change = "ALTER TABLE queue_message COMMENT = 'changed under load'";
        let changed = migrator.batch_execute(change).await.is_ok();
        let took = began.elapsed();
        tracing::info!(changed, took = ?took, "A migration has stood behind an idle transaction.");
    }
    drop(idle.batch_execute("ROLLBACK").await);
    Ok(())
}
