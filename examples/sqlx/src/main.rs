//! Enqueue in a transaction of sqlx, by plain SQL.
//!
//!     cd examples/sqlx && ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop cargo run

use anyhow::{Context, bail};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Connection, MySqlConnection, MySqlTransaction};

/// Stores the order and enqueues its mail, in the caller's transaction; returns the message's id.
async fn place(
    tx: &mut MySqlTransaction<'_>,
    topic: &str,
    order: i32,
) -> Result<String, sqlx::Error> {
    sqlx::query("INSERT INTO orders (id, email) VALUES (?, ?)")
        .bind(order)
        .bind("ada@example.com")
        .execute(&mut **tx)
        .await?;
    sqlx::query("CALL queue_send(?, ?, ?)")
        .bind(topic)
        .bind(format!("{{\"order\":{order}}}"))
        .bind(format!("{{\"biz_id\":\"order-{order}\"}}"))
        .execute(&mut **tx)
        .await?;
    sqlx::query_scalar("SELECT CAST(@queue_msg_id AS CHAR)").fetch_one(&mut **tx).await
}

/// Returns the number of an error from the server.
fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("ROWMQ_URL").context("ROWMQ_URL is not set")?;
    let mut conn = MySqlConnection::connect(&url).await?;

    let mut tx = conn.begin().await?;
    let id = place(&mut tx, "mail", 1).await?;
    tx.commit().await?;
    println!("order 1 is stored, and its message {id}");

    let mut tx = conn.begin().await?;
    place(&mut tx, "mail", 2).await?;
    tx.rollback().await?;
    println!("order 2 is undone, and its message with it");

    let mut tx = conn.begin().await?;
    match place(&mut tx, "no-such-topic", 3).await {
        // SQLSTATE 45000; the numbers are in docs/sql-contract.md.
        Err(error) if number(&error) == Some(31001) => {
            tx.rollback().await?;
            println!("order 3 is refused: {error}");
        }
        other => bail!("order 3 should have been refused: {other:?}"),
    }
    conn.close().await?;
    Ok(())
}
