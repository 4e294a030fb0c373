//! The stored procedures in the database.

use std::collections::BTreeMap;

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::{Error, Result};

/// No index: reads the name and comment of each procedure of ours that the account may see.
pub async fn installed(conn: &mut impl Connection) -> Result<BTreeMap<String, String>> {
    let statement = Statement::new(
        "SELECT ROUTINE_NAME AS name, CAST(ROUTINE_COMMENT AS CHAR) AS comment \
         FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() \
         AND ROUTINE_TYPE = 'PROCEDURE' AND ROUTINE_NAME LIKE 'queue\\_%'",
    );
    let rows: Vec<(String, String)> = load(conn, "list the queue's procedures", statement).await?;
    Ok(rows.into_iter().collect())
}

/// No index: returns whether the server can replace a procedure in one statement and keep its
/// grants. MariaDB can.
pub async fn can_replace(conn: &mut impl Connection) -> Result<bool> {
    let statement = Statement::new("SELECT VERSION() LIKE '%MariaDB%' AS is_mariadb");
    let rows: Vec<bool> = load(conn, "read the server's version", statement).await?;
    Ok(rows.first() == Some(&true))
}

/// No index: returns whether the account exists that the procedures run as. It is missing after a
/// restore on another server, and every call fails then.
pub async fn has_definer(conn: &mut impl Connection) -> Result<bool> {
    let called = conn.batch("CALL queue_contract()").await;
    match called.map_err(|error| Error::database("call a procedure", &error)) {
        // 1449.
        Err(Error::Database { message, .. }) => Ok(!message.contains("specified as a definer")),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

/// No index: limits this session's waits for the lock of a procedure to one second.
///
/// MySQL keeps the lock of each procedure that a transaction has called until the transaction ends,
/// and new calls wait behind a DROP that waits for it.
pub async fn wait_for_a_second(conn: &mut impl Connection) -> Result<()> {
    let set = conn.batch("SET SESSION lock_wait_timeout = 1").await;
    set.map_err(|error| Error::database("set the time that DDL waits", &error))
}

/// No index: creates a procedure.
pub async fn create(conn: &mut impl Connection, create: &str) -> Result<()> {
    let created = conn.batch(create).await;
    created.map_err(|error| Error::database("make a procedure", &error))
}

/// No index: replaces a procedure; only on a server that [can](can_replace).
pub async fn replace(conn: &mut impl Connection, create: &str) -> Result<()> {
    let replace = create.replacen("CREATE PROCEDURE", "CREATE OR REPLACE PROCEDURE", 1);
    let replaced = conn.batch(&replace).await;
    replaced.map_err(|error| Error::database("replace a procedure", &error))
}

/// No index: removes a procedure, if it exists.
pub async fn drop(conn: &mut impl Connection, name: &str) -> Result<()> {
    let dropped = conn.batch(&format!("DROP PROCEDURE IF EXISTS {name}")).await;
    dropped.map_err(|error| Error::database("remove a procedure", &error))
}
