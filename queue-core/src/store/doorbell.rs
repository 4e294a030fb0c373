//! The doorbells of idle workers. A worker's bell is a name lock that the sweeper holds. An idle
//! worker waits for the lock; the sweeper releases it to wake that worker, and takes it again.

use uuid::Uuid;

use super::row_set::LIST_LIMIT;
use super::{Statement, execute_surely, load};
use crate::connection::{Connection, row};
use crate::model::{Result, RowId, TopicId, WorkerId};

/// The most bells that one statement tries to ring.
pub const BELLS_AT_ONCE: usize = 16;

/// The most new rows that one look reads. What lies before them is found by [`ready`].
const ARRIVALS: u32 = 256;

/// What a worker learns from waiting for its bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// No sweeper holds the bell: it cannot ring.
    Absent,
    /// It rang.
    Ring,
    /// It has not rung for the whole time.
    Nothing,
}

/// A worker that is rung while it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Its number.
    pub worker: WorkerId,
    /// The instance in the name of its bell.
    pub instance: Uuid,
    /// A checksum of the topics that it is rung for.
    pub checksum: u64,
}

row! { Listener { worker, instance, checksum } }

/// How a topic is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The topic.
    pub topic: TopicId,
    /// The stream that it reads; 0 for a queue.
    pub stream: TopicId,
    /// Whether every worker gets every message.
    pub is_broadcast: bool,
}

row! { Kind { topic, stream, is_broadcast } }

/// What has changed since the last look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The topics with new rows, and the highest of each.
    pub rows: Vec<(TopicId, RowId)>,
    /// The streams, and how many messages each has ever had.
    pub streams: Vec<(TopicId, u64)>,
}

/// Returns the name of the worker's bell: 43 bytes of the 64 that MySQL takes.
fn bell(instance: Uuid) -> Vec<u8> {
    format!("queue:{}:bell", instance.simple()).into_bytes()
}

/// PRIMARY: records the topics that the worker is to be rung for.
pub async fn listen(
    conn: &mut impl Connection,
    worker: WorkerId,
    instance: Uuid,
    topics: &[TopicId],
) -> Result<usize> {
    let ids: Vec<_> = topics.iter().map(ToString::to_string).collect();
    let statement =
        Statement::new("UPDATE queue_worker SET topics = ? WHERE id = ? AND instance = ?")
            .bytes(ids.join(",").into_bytes())
            .number(worker.0)
            .bytes(instance.as_bytes().to_vec());
    execute_surely(conn, "listen to the doorbell", statement).await
}

/// No index: waits up to `seconds` for the worker's bell. No transaction and no read view is open
/// meanwhile. Both servers evaluate the columns in their order.
pub async fn wait(conn: &mut impl Connection, instance: Uuid, seconds: u32) -> Result<Heard> {
    let statement = Statement::new(
        "SELECT IS_USED_LOCK(?) IS NOT NULL AS held, \
         COALESCE(GET_LOCK(?, ?) AND RELEASE_LOCK(?), 0) AS rang",
    )
    .bytes(bell(instance))
    .bytes(bell(instance))
    .number(seconds)
    .bytes(bell(instance));
    let rows: Vec<(bool, bool)> = load(conn, "wait for the doorbell", statement).await?;
    Ok(match rows.first() {
        Some((true, true)) => Heard::Ring,
        Some((true, false)) => Heard::Nothing,
        // It was taken right after the first column was read.
        Some((false, false)) => Heard::Nothing,
        Some((false, true)) | None => Heard::Absent,
    })
}

/// No index: takes the bell of a worker without waiting. Returns whether this session holds it.
pub async fn take(conn: &mut impl Connection, of: Listener) -> Result<bool> {
    // Taking a lock again that this session already holds would stack it: it would not ring.
    let statement = Statement::new(
        "SELECT CASE WHEN IS_USED_LOCK(?) <=> CONNECTION_ID() THEN 1 \
         ELSE GET_LOCK(?, 0) END AS got",
    )
    .bytes(bell(of.instance))
    .bytes(bell(of.instance));
    let rows: Vec<Option<i64>> = load(conn, "take a bell", statement).await?;
    Ok(rows.first() == Some(&Some(1)))
}

/// No index: lets go of the bell of a worker that has ended.
pub async fn drop_bell(conn: &mut impl Connection, of: Listener) -> Result<()> {
    let statement = Statement::new("SELECT RELEASE_LOCK(?) AS let_go").bytes(bell(of.instance));
    let _: Vec<Option<i64>> = load(conn, "let go of a bell", statement).await?;
    Ok(())
}

/// No index: lets go of every bell that this session holds.
pub async fn drop_all(conn: &mut impl Connection) -> Result<()> {
    let statement = Statement::new("SELECT RELEASE_ALL_LOCKS() AS let_go");
    let _: Vec<Option<i64>> = load(conn, "let go of the bells", statement).await?;
    Ok(())
}

/// No index: rings the first of these bells whose worker waits, at most [`BELLS_AT_ONCE`]. Returns
/// that worker; `None`: none of them waits.
///
/// The server hands a released lock to the session that waits for it (*run* on both). So whoever
/// releases a lock and cannot take it back at once has woken a waiting worker, and no worker has to
/// record that it is idle. Rarely the worker is so quick that its bell is taken back all the same:
/// then another one is woken too.
pub async fn ring(conn: &mut impl Connection, bells: &[Listener]) -> Result<Option<WorkerId>> {
    const OPERATION: &str = "ring";
    let n = bells.len().next_power_of_two().min(BELLS_AT_ONCE);
    let one = |at| format!("IF(RELEASE_LOCK(?) = 1 AND GET_LOCK(?, 0) = 0, {at}, NULL), ");
    let each: String = (0..n).map(one).collect();
    let mut statement = Statement::new(format!("SELECT COALESCE({each}{n}) AS rung"));
    // Whoever is tried twice has the bell taken back between the tries.
    let padded: Vec<_> = bells.iter().chain(bells.last().into_iter().cycle()).take(n).collect();
    for of in &padded {
        statement = statement.bytes(bell(of.instance)).bytes(bell(of.instance));
    }
    let rows: Vec<i64> = load(conn, OPERATION, statement).await?;
    let rung = rows.first().and_then(|at| padded.get(usize::try_from(*at).ok()?));
    Ok(rung.map(|of| of.worker))
}

/// KEY (state, id): lists the workers that are rung.
pub async fn listeners(conn: &mut impl Connection) -> Result<Vec<Listener>> {
    let statement = Statement::new(
        "SELECT id, instance, CAST(CRC32(topics) AS UNSIGNED) AS checksum FROM queue_worker \
         WHERE state = 'alive' AND topics IS NOT NULL",
    );
    load(conn, "list the listeners", statement).await
}

/// PRIMARY: reads the topics that a worker is rung for. What is no number is left out.
pub async fn topics_of(conn: &mut impl Connection, worker: WorkerId) -> Result<Vec<TopicId>> {
    let statement =
        Statement::new("SELECT COALESCE(topics, '') AS topics FROM queue_worker WHERE id = ?")
            .number(worker.0);
    let rows: Vec<Vec<u8>> = load(conn, "read a listener's topics", statement).await?;
    let text = String::from_utf8_lossy(rows.first().map_or(&[][..], Vec::as_slice)).into_owned();
    Ok(text.split(',').filter_map(|id| id.parse().ok().map(TopicId)).collect())
}

/// PRIMARY, whole: reads how each topic is read.
pub async fn kinds(conn: &mut impl Connection) -> Result<Vec<Kind>> {
    let statement = Statement::new(
        "SELECT id, COALESCE(stream_id, 0) AS stream, kind = 'broadcast' AS is_broadcast \
         FROM queue_topic WHERE kind <> 'stream'",
    );
    load(conn, "read the kinds of topics", statement).await
}

/// KEY (`id`), backwards, and PRIMARY of the partitions, whole: reads the topics that have rows
/// above `after`, and where the streams end. The cost does not depend on the number of queues.
/// A row that is committed later than one above it is missed; [`ready`] finds it.
pub async fn arrivals(conn: &mut impl Connection, after: RowId) -> Result<Arrivals> {
    let statement = Statement::new(format!(
        "(SELECT 0 AS kind, topic_id, id FROM queue_message FORCE INDEX (queue_message_id) \
         WHERE id > ? ORDER BY id DESC LIMIT {ARRIVALS}) \
         UNION ALL (SELECT 1, topic_id, CAST(SUM(next_offset) AS UNSIGNED) FROM queue_partition \
         GROUP BY topic_id)"
    ))
    .number(after.0);
    let rows: Vec<(u8, TopicId, u64)> = load(conn, "look for new messages", statement).await?;
    let mut arrivals = Arrivals::default();
    for (kind, topic, n) in rows {
        match kind {
            0 if !arrivals.rows.iter().any(|(known, _)| *known == topic) => {
                arrivals.rows.push((topic, RowId(n)));
            }
            0 => {}
            _ => arrivals.streams.push((topic, n)),
        }
    }
    Ok(arrivals)
}

/// PRIMARY, some dives for each topic, which read the claimed and dead rows before the first ready
/// one: finds those of these topics, queues and groups, that have
/// something to claim. For a broadcast group it tells of its own messages and of its stream's inbox
/// only. Also finds rows that were committed late, or are ready again.
pub async fn ready(conn: &mut impl Connection, topics: &[TopicId]) -> Result<Vec<TopicId>> {
    let mut ready = Vec::new();
    for some in topics.chunks(LIST_LIMIT) {
        let n = some.len().next_power_of_two();
        let marks = vec!["?"; n].join(", ");
        let statement = Statement::new(format!(
            "SELECT t.id FROM queue_topic t WHERE t.id IN ({marks}) AND NOT t.claim_paused AND (\
             (SELECT 1 FROM queue_message m FORCE INDEX (PRIMARY) \
              WHERE m.topic_id = t.id AND m.worker_id = 0 LIMIT 1) IS NOT NULL \
             OR (t.stream_id IS NOT NULL AND (\
              (SELECT 1 FROM queue_message m FORCE INDEX (PRIMARY) \
               WHERE m.topic_id = t.stream_id LIMIT 1) IS NOT NULL \
              OR (SELECT 1 FROM queue_cursor c JOIN queue_partition p \
               ON p.topic_id = t.stream_id AND p.partition_no = c.partition_no \
               WHERE c.group_id = t.id AND p.next_offset > c.next_offset LIMIT 1) IS NOT NULL \
              OR (SELECT 1 FROM queue_range r FORCE INDEX (queue_range_place) \
               WHERE r.group_id = t.id AND r.worker_id = 0 \
               AND (r.ready_at IS NULL OR r.ready_at <= UTC_TIMESTAMP(6)) LIMIT 1) IS NOT NULL)))"
        ))
        .numbers(some.iter().chain(some.last().into_iter().cycle()).take(n).map(|id| id.0.into()));
        let rows: Vec<TopicId> = load(conn, "look for topics with messages", statement).await?;
        ready.extend(rows);
    }
    Ok(ready)
}
