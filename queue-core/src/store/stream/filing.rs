//! Filing messages of the log, body and all, under a group's own topic: as retries, as dead letters
//! or in the archive. The log keeps its row.

use std::time::Duration;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{
    DeadCause, DeliveryNo, Moment, Offset, OnDone, PartitionNo, RangeId, Result, TopicId, WorkerId,
};
use crate::store::moves::{self, Outcome};
use crate::store::row_set::LIST_LIMIT;
use crate::store::stream::{log, page};
use crate::store::topic::dead_letter_topic;
use crate::store::{execute_surely, ledger};

/// Messages of one range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filed {
    /// The stream whose log has them.
    pub stream: TopicId,
    /// The partition.
    pub partition: PartitionNo,
    /// Their offsets.
    pub offsets: Vec<Offset>,
    /// The group under whose topic they are filed.
    pub group: TopicId,
    /// The worker that held them.
    pub worker: WorkerId,
    /// Which delivery it was.
    pub delivery_no: DeliveryNo,
    /// What they have been through.
    pub past: Past,
}

/// The failures and crashes of messages before this delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Past {
    /// Nothing.
    Nothing,
    /// What the row of this range records of the message at its mark.
    AtMarkOf(RangeId),
    /// Failures that only the member of a broadcast group has recorded.
    Failures {
        /// How many.
        failures: u32,
        /// A line of each [failed run](crate::model::FailedRun).
        history: Vec<u8>,
    },
}

impl Past {
    /// Returns the columns that carry it.
    fn columns(&self) -> Statement<'static> {
        match self {
            Self::Nothing => Statement::new(
                "0 AS failures, 0 AS crashes, 0 AS suspicions, CAST(NULL AS BINARY) AS history, ",
            ),
            Self::AtMarkOf(range) => Statement::new(
                "(SELECT r.failures FROM queue_range r WHERE r.id = ?) AS failures, \
                 (SELECT r.crashes FROM queue_range r WHERE r.id = ?) AS crashes, \
                 0 AS suspicions, \
                 (SELECT r.history FROM queue_range r WHERE r.id = ?) AS history, ",
            )
            .numbers([range.0; 3]),
            Self::Failures { failures, history } => Statement::new(
                "CAST(? AS UNSIGNED) AS failures, 0 AS crashes, 0 AS suspicions, \
                 CAST(? AS BINARY) AS history, ",
            )
            .number(*failures)
            .bytes(history.clone()),
        }
    }
}

impl Filed {
    /// Selects the messages with the columns that a message has in the hot table.
    fn source(&self, places: &[(Offset, Offset)]) -> Statement<'static> {
        let head = Statement::new(" FROM (SELECT CAST(? AS UNSIGNED) AS topic_id, 5 AS priority, ")
            .number(self.group.0)
            .followed_by(self.past.columns());
        let columns = Statement::new(
            "CAST(? AS UNSIGNED) AS delivery_no, CAST(? AS UNSIGNED) AS worker_id, \
             CAST(NULL AS BINARY) AS unique_key, \
             o.msg_id, o.enqueued_at, o.expires_at, o.ordering_key, o.biz_id, o.headers, o.body \
             FROM (",
        );
        head.followed_by(columns.number(self.delivery_no.0).number(self.worker.0))
            .followed_by(page::messages(self.stream, self.partition, places))
            .sql(") o) m")
    }

    async fn file(
        &self,
        conn: &mut impl Connection,
        operation: &'static str,
        insert: Statement<'static>,
        tail: Option<Statement<'static>>,
    ) -> Result<usize> {
        let mut filed = 0;
        let places = log::places(conn, self.stream, self.partition, &self.offsets).await?;
        for places in places.chunks(LIST_LIMIT) {
            let statement = insert.clone().followed_by(self.source(places));
            let statement = match &tail {
                Some(tail) => statement.followed_by(tail.clone()),
                None => statement,
            };
            filed += execute_surely(conn, operation, statement).await?;
        }
        Ok(filed)
    }
}

/// PRIMARY of the log, forced: schedules a retry by the group; returns how many messages the log
/// still had.
pub async fn to_scheduled(
    conn: &mut impl Connection,
    filed: &Filed,
    due: Moment,
    failure: Option<&str>,
) -> Result<usize> {
    filed.file(conn, "settle: retry", moves::into_scheduled(due, failure), None).await
}

/// PRIMARY of the log, forced: moves messages to the group's dead letters, or to its dead-letter
/// topic if it has one; returns how many the log still had.
pub async fn to_dead(
    conn: &mut impl Connection,
    filed: &Filed,
    cause: DeadCause,
    error: &str,
) -> Result<usize> {
    const OPERATION: &str = "settle: dead-letter";
    let Some(topic) = dead_letter_topic(conn, filed.group).await? else {
        return filed.file(conn, OPERATION, moves::into_dead(cause, error), None).await;
    };
    filed.file(conn, OPERATION, moves::into_topic(&topic, cause, error), None).await
}

/// PRIMARY of the log, forced: archives messages; returns how many the log still had.
pub async fn to_archive(
    conn: &mut impl Connection,
    filed: &Filed,
    outcome: Outcome<'_>,
    on_done: OnDone,
) -> Result<usize> {
    filed.file(conn, "settle: archive", moves::into_archive(outcome, on_done), None).await
}

/// As [`to_ledger`], but each biz id must be new.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure.
pub async fn to_ledger_once(
    conn: &mut impl Connection,
    filed: &Filed,
    window: Duration,
) -> Result<usize> {
    let insert = ledger::into_ledger(window);
    filed.file(conn, "settle: enter into the ledger", insert, None).await
}

/// PRIMARY of the log, forced: enters the biz ids of handled messages into the group's ledger. Each
/// message must have one; those of a page that was damaged since it was read are not known.
pub async fn to_ledger(
    conn: &mut impl Connection,
    filed: &Filed,
    window: Duration,
) -> Result<usize> {
    let insert = ledger::into_ledger(window);
    let again = Statement::new(" WHERE m.biz_id IS NOT NULL").followed_by(ledger::again(window));
    filed.file(conn, "settle: enter into the ledger", insert, Some(again)).await
}
