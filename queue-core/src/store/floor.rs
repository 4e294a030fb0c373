//! The floors: how rescue, release and promotion notify every consumer that a row below its
//! low-water mark is ready again.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Statement, execute, load};
use crate::connection::{Connection, row};
use crate::model::{Limits, Priority, Rate, Result, RowId, Sampling, TopicId};

/// The last publication for a topic and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// The topic.
    pub topic: TopicId,
    /// The priority.
    pub priority: Priority,
    /// The lowest row made ready by the last publication.
    pub row: RowId,
    /// Counts the publications: if it has risen by one since the last read, `row` covers them all.
    pub seq: u64,
}

/// PRIMARY (`topic_id`, priority): publishes that a row at `row` or above is ready again, in the
/// transaction that made it ready. The row's lock makes `seq` follow the order of commits.
pub async fn publish(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: Priority,
    row: RowId,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_floor (topic_id, priority, floor, seq) VALUES (?, ?, ?, 1) \
         ON DUPLICATE KEY UPDATE floor = ?, seq = seq + 1",
    )
    .number(topic.0)
    .number(priority.stored())
    .number(row.0)
    .number(row.0);
    execute(conn, "publish the floor", statement).await?;
    Ok(())
}

/// PRIMARY, whole, a few rows: reads the last publications.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<Floor>> {
    let statement = Statement::new("SELECT topic_id, priority, floor, seq FROM queue_floor");
    load(conn, "read the floors", statement).await
}

row! { Floor { topic, priority, row, seq } }

/// What a worker must always know of the topics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pulse {
    /// The last publications.
    pub floors: Vec<Floor>,
    /// The topics whose claims are paused, and the groups of such streams.
    pub paused: Vec<TopicId>,
    /// The topics whose messages leave a trace, with the sampling of each.
    pub traced: Vec<(TopicId, Sampling)>,
    /// The topics whose claims are limited.
    pub limited: Vec<(TopicId, Limits)>,
    /// Rows of the hot table whose cancellation is requested, in order.
    pub cancelled: Vec<RowId>,
    /// Whether the claims of every topic are paused.
    pub all_paused: bool,
    /// Whether there is no sweeper: its name lock is free.
    pub unswept: bool,
}

impl Pulse {
    /// Returns whether anything of the topic may be claimed.
    #[must_use]
    pub fn may_claim(&self, topic: TopicId) -> bool {
        !self.all_paused && !self.paused.contains(&topic)
    }

    /// Returns the limits on the topic's claims.
    #[must_use]
    pub fn limits(&self, topic: TopicId) -> Limits {
        let of_topic = self.limited.iter().find(|(limited, _)| *limited == topic);
        of_topic.map_or_else(Limits::default, |(_, limits)| *limits)
    }

    /// Returns whether cancellation of the message in this row is requested.
    #[must_use]
    pub fn is_cancelled(&self, row: RowId) -> bool {
        self.cancelled.binary_search(&row).is_ok()
    }

    /// Returns only what users set: pauses, traces and limits.
    #[must_use]
    pub fn rules(self) -> Self {
        Self { floors: Vec::new(), cancelled: Vec::new(), unswept: false, ..self }
    }

    fn limits_of(&mut self, topic: TopicId) -> &mut Limits {
        let known = self.limited.iter().position(|(limited, _)| *limited == topic);
        let at = known.unwrap_or_else(|| {
            self.limited.push((topic, Limits::default()));
            self.limited.len() - 1
        });
        &mut self.limited[at].1
    }

    /// Returns which messages of the topic leave a trace.
    #[must_use]
    pub fn sampling(&self, topic: TopicId) -> Sampling {
        let of_topic = self.traced.iter().find(|(traced, _)| *traced == topic);
        of_topic.map_or(Sampling::OFF, |(_, sampling)| *sampling)
    }
}

// What a row of the pulse is about.
const FLOOR: u8 = 0;
/// A topic that is paused or traced.
const TOPIC: u8 = 1;
const UNSWEPT: u8 = 2;
const ALL_PAUSED: u8 = 3;
const RUNNING_LIMIT: u8 = 4;
const RATE: u8 = 5;
const CANCELLED: u8 = 6;

/// PRIMARY of the tables, each a few rows, KEY (`stream_id`) for the groups of a paused stream:
/// reads floors, pauses, traces, limits and cancellations in one round trip. It is also the probe
/// that shows at once when the session is lost.
pub async fn pulse(conn: &mut impl Connection) -> Result<Pulse> {
    let statement = Statement::new(format!(
        "SELECT {FLOOR} AS kind, topic_id, priority, floor, seq, FALSE AS flag FROM queue_floor \
         UNION ALL SELECT {TOPIC}, id, 0, trace_ppm, 0, claim_paused FROM queue_topic \
         WHERE claim_paused OR trace_ppm > 0 \
         UNION ALL SELECT {TOPIC}, g.id, 0, 0, 0, TRUE FROM queue_topic o \
         JOIN queue_topic g ON g.stream_id = o.id WHERE o.claim_paused \
         UNION ALL SELECT {RUNNING_LIMIT}, id, 0, COALESCE(max_running, 0), \
         COALESCE(max_running_per_key, 0), FALSE FROM queue_topic WHERE max_running > 0 OR max_running_per_key > 0 \
         UNION ALL SELECT {RATE}, id, 0, rate_messages, rate_period_ms, FALSE FROM queue_topic \
         WHERE rate_messages > 0 AND rate_period_ms > 0 \
         UNION ALL SELECT {ALL_PAUSED}, 0, 0, 0, 0, TRUE FROM queue_switch WHERE claim_paused \
         UNION ALL SELECT {CANCELLED}, 0, 0, row_id, 0, TRUE FROM queue_cancellation \
         WHERE requested_at > UTC_TIMESTAMP(6) - INTERVAL {} SECOND \
         UNION ALL SELECT {UNSWEPT}, 0, 0, 0, 0, COALESCE(IS_FREE_LOCK({}), TRUE)",
        super::cancel::ASKED_FOR.as_secs(),
        super::installation::Office::Sweeper.lock()
    ));
    type Row = (u8, TopicId, Priority, u64, u64, bool);
    let rows: Vec<Row> = load(conn, "probe", statement).await?;
    let some = |n: u64| u32::try_from(n).ok().and_then(NonZeroU32::new);
    let mut pulse = Pulse::default();
    for (kind, topic, priority, floor, seq, flag) in rows {
        match kind {
            FLOOR => pulse.floors.push(Floor { topic, priority, row: RowId(floor), seq }),
            TOPIC => {
                if flag {
                    pulse.paused.push(topic);
                }
                let sampling = u32::try_from(floor).map_or(Sampling::ALL, Sampling::per_million);
                if !sampling.is_off() {
                    pulse.traced.push((topic, sampling));
                }
            }
            ALL_PAUSED => pulse.all_paused = true,
            RUNNING_LIMIT => {
                let limits = pulse.limits_of(topic);
                limits.max_running = some(floor);
                limits.max_running_per_key = some(seq);
            }
            // An invalid rate, which only direct SQL can have stored, limits nothing.
            RATE => {
                let rate = |messages| Rate::new(messages, Duration::from_millis(seq)).ok();
                pulse.limits_of(topic).rate = some(floor).and_then(rate);
            }
            CANCELLED => pulse.cancelled.push(RowId(floor)),
            UNSWEPT => pulse.unswept = flag,
            _ => unreachable!("the statement has no other kinds"),
        }
    }
    pulse.cancelled.sort_unstable();
    Ok(pulse)
}
