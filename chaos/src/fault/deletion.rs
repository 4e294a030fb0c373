//! An operator deletes a topic while producers send to it, and creates it again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::arena::{Arena, SenderLoad};
use crate::record::Event;

/// How often an operator tries to delete it.
const ATTEMPTS: u32 = 6;

/// Messages a second from each producer: so few that the topic is empty now and then.
const RATE: f64 = 0.5;

/// How long their transactions think: longer than a deletion waits for producers to notice it.
const THINK_MS: &str = "6000";

/// How long the consumer may take to handle the messages that are left; after this time it stays.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of the next topic of this kind.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Deletes a separate topic, without `--purge`, and creates it again under the same name,
/// repeatedly.
pub(super) async fn delete_topic(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let topic = format!("brief-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    arena.make_topic(&topic).await?;
    let consumer = arena.fleet.add_recorder(&[&topic], 16, None).await?;
    let mut producers = Vec::new();
    for how in [&["--by-sql"][..], &["--by-sql"], &[]] {
        let quiet = Duration::ZERO;
        let load = SenderLoad { topic: &topic, rate: RATE, work_ms: 20, quiet, seed: rng.random() };
        let how = [how, &["--think-ms", THINK_MS]].concat();
        producers.push(arena.fleet.add_sender(load, &how).await?);
    }
    for _ in 0..ATTEMPTS {
        sleep(Duration::from_millis(rng.random_range(500..3_000))).await;
        // A deletion must wait for what is still open when the topic looks empty.
        arena.rowmq(&["drain", &topic, "--wait", "--timeout", "5s"]).await?;
        arena.record.note(&Event::Delete { topic: topic.clone() })?;
        let deleted = arena.rowmq(&["topic", "delete", &topic, "--yes"]).await?;
        arena.make_topic(&topic).await?;
        arena.record.note(&Event::Remade { topic: topic.clone(), deleted })?;
        if deleted {
            // The consumer would keep using the deleted topic until it looks up the name again, and
            // would hide messages that enter the topic late. The next process does not know the
            // deleted topic.
            consumer.signal(Signal::TERM);
        }
    }
    arena.fleet.dismiss(&producers).await?;
    let waiting = format!(
        "SELECT COUNT(m.id) + COUNT(s.id) FROM queue_topic t \
         LEFT JOIN queue_message m ON m.topic_id = t.id \
         LEFT JOIN queue_scheduled s ON s.topic_id = t.id WHERE t.name = '{topic}'"
    );
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if arena.number(&waiting).await? == 0 {
            return arena.fleet.dismiss(&[consumer]).await;
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

impl Arena {
    /// Has an operator create a topic unless it exists, and open it: a failed deletion may have
    /// left it closed.
    async fn make_topic(&self, topic: &str) -> anyhow::Result<()> {
        let there = format!("SELECT COUNT(*) FROM queue_topic WHERE name = '{topic}'");
        loop {
            if self.number(&there).await? == 0 {
                self.rowmq(&["topic", "create", topic]).await?;
            } else if self.rowmq(&["topic", "resume", topic]).await? {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}
