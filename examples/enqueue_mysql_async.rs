//! Enqueue in a transaction of `mysql_async`, by plain SQL.
//!
//!     export ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop
//!     cargo run -p rowmq-core --example enqueue_mysql_async

#![allow(clippy::print_stdout, missing_docs, reason = "a program whose output is its result")]

use anyhow::{Context, bail};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Transaction, TxOpts};

/// Stores the order and enqueues its mail, in the caller's transaction; returns the message's id.
async fn place(tx: &mut Transaction<'_>, topic: &str, order: i32) -> Result<String, Error> {
    let insert = "INSERT INTO orders (id, email) VALUES (?, ?)";
    tx.exec_drop(insert, (order, "ada@example.com")).await?;
    let body = format!("{{\"order\":{order}}}");
    let options = format!("{{\"biz_id\":\"order-{order}\"}}");
    tx.exec_drop("CALL queue_send(?, ?, ?)", (topic, body, options)).await?;
    Ok(tx.query_first("SELECT @queue_msg_id").await?.unwrap_or_default())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("ROWMQ_URL").context("ROWMQ_URL is not set")?;
    let mut conn = Conn::from_url(url).await?;

    let mut tx = conn.start_transaction(TxOpts::default()).await?;
    let id = place(&mut tx, "mail", 1).await?;
    tx.commit().await?;
    println!("order 1 is stored, and its message {id}");

    let mut tx = conn.start_transaction(TxOpts::default()).await?;
    place(&mut tx, "mail", 2).await?;
    tx.rollback().await?;
    println!("order 2 is undone, and its message with it");

    let mut tx = conn.start_transaction(TxOpts::default()).await?;
    match place(&mut tx, "no-such-topic", 3).await {
        // SQLSTATE 45000; the numbers are in docs/sql-contract.md.
        Err(Error::Server(refusal)) if refusal.code == 31001 => {
            tx.rollback().await?;
            println!("order 3 is refused: {}", refusal.message);
        }
        other => bail!("order 3 should have been refused: {other:?}"),
    }
    conn.disconnect().await?;
    Ok(())
}
