//! Finding out what became of a message, repeatedly, beside a backlog.

use std::time::Duration;

use anyhow::ensure;
use hdrhistogram::Histogram;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::{Session, SessionKind};
use rowmq_core::find::{Query, find};
use rowmq_core::model::MsgId;
use rowmq_core::model::found::Filter;
use rowmq_core::store::find::Bodies;
use tokio::time::Instant;

use super::{Asked, Claimer, Find};
use crate::arena::Arena;
use crate::figure::{Name, Sample, quantile};

/// How long messages can be looked up.
const KEPT: Duration = Duration::from_secs(3600);

pub(super) async fn run(arena: &Arena, load: Find) -> anyhow::Result<Sample> {
    arena.fill(Claimer::Consumer, load.backlog, load.body).await?;
    let mut conn = arena.raw().await?;
    conn.query_drop("UPDATE queue_message SET biz_id = CONCAT('order-', id) WHERE topic_id > 0")
        .await?;
    if load.searchable {
        conn.query_drop(
            "INSERT INTO queue_lookup SELECT topic_id, msg_id, id, enqueued_at, biz_id, \
             ordering_key FROM queue_message WHERE topic_id > 0",
        )
        .await?;
    }
    let some = format!(
        "SELECT msg_id, biz_id FROM queue_message WHERE topic_id > 0 ORDER BY MOD(id * 7919, 65537) LIMIT {}",
        load.asks
    );
    let some: Vec<(Vec<u8>, Vec<u8>)> = conn.query(some).await?;
    let mut topic = arena.topic.clone();
    topic.settings.searchable = load.searchable.then_some(KEPT);
    let deadline = Duration::from_secs(60);
    let mut session = Session::open(arena.url(), SessionKind::Plain, deadline).await?;
    let mut times = Histogram::new(3)?;
    for (msg_id, biz_id) in some {
        let filter = match load.asked {
            Asked::BizId => Filter { biz_id: Some(biz_id), ..Filter::default() },
            Asked::MsgId => Filter { msg_id: MsgId::from_bytes(&msg_id), ..Filter::default() },
        };
        let query = Query { filter, after: None, limit: 20, bodies: Bodies::Leave };
        let start = Instant::now();
        let answer = find(&mut session, &topic, &query).await?;
        times.record(u64::try_from(start.elapsed().as_nanos())?)?;
        ensure!(!load.searchable || answer.found.len() == 1, "a message was not found");
    }
    Ok(Sample::of([quantile(Name::P50, &times), quantile(Name::P99, &times)]))
}
