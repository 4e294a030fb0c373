//! Claims by connection id, reads back what the connection owns, handles it, and deletes it.

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Integer, Unsigned};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use futures_util::future::try_join_all;
use rowmq_core::MsgId;
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::{NaiveArgs, connect};
use crate::record::{Answer, Ended, Event, Record};
use crate::tag::Tag;
use crate::task::Task;

/// The wait after a claim that found nothing.
const IDLE: Duration = Duration::from_millis(25);

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Unsigned<BigInt>)]
    id: u64,
    #[diesel(sql_type = Unsigned<Integer>)]
    tries: u32,
    #[diesel(sql_type = Binary)]
    msg_id: Vec<u8>,
    #[diesel(sql_type = Binary)]
    body: Vec<u8>,
}

pub(super) async fn run(
    args: &NaiveArgs,
    url: &ServerUrl,
    record: &Record,
    drain: &CancellationToken,
) -> anyhow::Result<()> {
    while let Some(mut conn) = connect(url, drain).await {
        while !drain.is_cancelled() {
            // After any failure it reconnects, as after any error of a driver.
            let Ok(rows) = claim(&mut conn, args.concurrency).await else { break };
            if rows.is_empty() {
                tokio::time::sleep(IDLE).await;
                continue;
            }
            try_join_all(rows.iter().map(|row| handle(row, record))).await?;
            if ack(&mut conn, &rows, record).await.is_err() {
                break;
            }
        }
    }
    Ok(())
}

async fn claim(conn: &mut AsyncMysqlConnection, limit: usize) -> diesel::QueryResult<Vec<Row>> {
    let update = format!(
        "UPDATE naive_queue SET status = 'claimed', owner = CONNECTION_ID(), \
         tries = tries + 1 \
         WHERE owner = 0 AND status = 'unsent' LIMIT {limit}"
    );
    diesel::sql_query(update).execute(conn).await?;
    diesel::sql_query(
        "SELECT id, tries, msg_id, body FROM naive_queue \
         WHERE owner = CONNECTION_ID() AND status = 'claimed'",
    )
    .load(conn)
    .await
}

async fn handle(row: &Row, record: &Record) -> anyhow::Result<()> {
    let (tag, delivery_no) = (tag(row), row.tries);
    record.note(&Event::Start { share: tag.into(), delivery_no, place: None })?;
    let task: Task = serde_json::from_slice(&row.body)?;
    tokio::time::sleep(Duration::from_millis(task.work_ms)).await;
    record.note(&Event::End { share: tag.into(), delivery_no, ended: Ended::Done })?;
    Ok(())
}

async fn ack(conn: &mut AsyncMysqlConnection, rows: &[Row], record: &Record) -> anyhow::Result<()> {
    for row in rows {
        let delete = "DELETE FROM naive_queue WHERE id = ? AND owner = CONNECTION_ID()";
        let deleted =
            diesel::sql_query(delete).bind::<Unsigned<BigInt>, _>(row.id).execute(conn).await?;
        let answer = if deleted == 1 { Answer::Settled } else { Answer::Fenced };
        record.note(&Event::Settled {
            share: tag(row).into(),
            delivery_no: row.tries,
            ack: true,
            answer,
        })?;
    }
    Ok(())
}

fn tag(row: &Row) -> Tag {
    MsgId::from_bytes(&row.msg_id).unwrap_or_default().into()
}
