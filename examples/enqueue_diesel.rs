//! Enqueue in diesel's own transaction, by plain SQL. `place` accepts `diesel::MysqlConnection` as
//! well as the connection without a C library that this program opens.
//!
//!     export ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop
//!     cargo run -p rowmq-core --example enqueue_diesel

#![allow(clippy::print_stdout, missing_docs, reason = "a program whose output is its result")]

use anyhow::{Context, bail};
use diesel::connection::LoadConnection;
use diesel::mysql::Mysql;
use diesel::prelude::*;
use diesel::result::Error;
use diesel::sql_types::Text;
use diesel::{QueryableByName, sql_query};
use diesel_async::AsyncMysqlConnection;
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;

diesel::table! {
    orders (id) {
        id -> Integer,
        email -> Text,
    }
}

#[derive(QueryableByName)]
struct Enqueued {
    #[diesel(sql_type = Text)]
    msg_id: String,
}

/// Stores the order and enqueues its mail, in the caller's transaction; returns the message's id.
fn place<C>(conn: &mut C, topic: &str, order: i32) -> QueryResult<String>
where
    C: Connection<Backend = Mysql> + LoadConnection,
{
    diesel::insert_into(orders::table)
        .values((orders::id.eq(order), orders::email.eq("ada@example.com")))
        .execute(conn)?;
    sql_query("CALL queue_send(?, ?, ?)")
        .bind::<Text, _>(topic)
        .bind::<Text, _>(format!("{{\"order\":{order}}}"))
        .bind::<Text, _>(format!("{{\"biz_id\":\"order-{order}\"}}"))
        .execute(conn)?;
    let id: Enqueued = sql_query("SELECT @queue_msg_id AS msg_id").get_result(conn)?;
    Ok(id.msg_id)
}

fn main() -> anyhow::Result<()> {
    let url = std::env::var("ROWMQ_URL").context("ROWMQ_URL is not set")?;
    let mut conn = AsyncConnectionWrapper::<AsyncMysqlConnection>::establish(&url)?;

    let id = conn.transaction(|conn| place(conn, "mail", 1))?;
    println!("order 1 is stored, and its message {id}");

    let undone = conn.transaction(|conn| {
        place(conn, "mail", 2)?;
        Err::<(), _>(Error::RollbackTransaction)
    });
    match undone {
        Err(Error::RollbackTransaction) => println!("order 2 is undone, and its message with it"),
        other => bail!("order 2 should have been undone: {other:?}"),
    }

    // Diesel exposes no error numbers: the text begins with `queue: `.
    match conn.transaction(|conn| place(conn, "no-such-topic", 3)) {
        Err(Error::DatabaseError(_, refusal)) if refusal.message().starts_with("queue: ") => {
            println!("order 3 is refused: {}", refusal.message());
        }
        other => bail!("order 3 should have been refused: {other:?}"),
    }
    Ok(())
}
