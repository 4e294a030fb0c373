//! Enqueue in diesel-async's own transaction, with this library: it checks a message before it
//! sends anything, and stores thousands with one statement (`enqueue_all`).
//!
//!     export ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop
//!     cargo run -p rowmq-core --example enqueue_diesel_async

#![allow(clippy::print_stdout, missing_docs, reason = "a program whose output is its result")]
#![allow(clippy::disallowed_methods, reason = "a user's transaction is diesel-async's own")]

use anyhow::{Context, bail};
use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl};
use rowmq_core::{Error, MsgId, NewMessage, TopicName, enqueue};

diesel::table! {
    orders (id) {
        id -> Integer,
        email -> Text,
    }
}

#[derive(serde::Serialize)]
struct Mail {
    order: i32,
}

/// Stores the order and enqueues its mail, in the caller's transaction; returns the message's id.
async fn place(conn: &mut AsyncMysqlConnection, topic: &str, order: i32) -> anyhow::Result<MsgId> {
    diesel::insert_into(orders::table)
        .values((orders::id.eq(order), orders::email.eq("ada@example.com")))
        .execute(conn)
        .await?;
    let message = NewMessage::json(&Mail { order })?.with_biz_id(format!("order-{order}"));
    Ok(enqueue(conn, &TopicName::new(topic)?, &message).await?.msg_id())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("ROWMQ_URL").context("ROWMQ_URL is not set")?;
    let mut conn = AsyncMysqlConnection::establish(&url).await?;

    let id = conn.transaction(async |conn| place(conn, "mail", 1).await).await?;
    println!("order 1 is stored, and its message {id}");

    let undone = conn.transaction(async |conn| {
        place(conn, "mail", 2).await?;
        Err::<(), _>(anyhow::anyhow!("the card was declined"))
    });
    match undone.await {
        Err(_) => println!("order 2 is undone, and its message with it"),
        Ok(()) => bail!("order 2 should have been undone"),
    }

    let refused = conn.transaction(async |conn| place(conn, "no-such-topic", 3).await).await;
    match refused.map_err(|error| error.downcast::<Error>()) {
        Err(Ok(refusal @ Error::UnknownTopic { .. })) => println!("order 3 is refused: {refusal}"),
        other => bail!("order 3 should have been refused: {other:?}"),
    }
    Ok(())
}
