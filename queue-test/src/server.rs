//! What the harness does on the server itself: it creates and drops databases and accounts.

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Nullable, Text, Unsigned};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use tokio::sync::OnceCell;

use crate::names::{ACCOUNT_PREFIX, PREFIX, account_stem};

/// A database of a test run that was killed is dropped once it is this old.
const LEFTOVER_SECONDS: u32 = 3600;

#[derive(QueryableByName)]
struct Name {
    #[diesel(sql_type = Text)]
    name: String,
}

/// Drops what killed test runs left behind: once in this process.
pub(crate) async fn sweep_once(conn: &mut AsyncMysqlConnection) {
    static SWEPT: OnceCell<()> = OnceCell::const_new();
    SWEPT.get_or_init(async || sweep(conn, PREFIX, LEFTOVER_SECONDS).await).await;
}

async fn sweep(conn: &mut AsyncMysqlConnection, prefix: &str, older_than_seconds: u32) {
    // A database has no creation time; a table of every test database has, by the server's clock.
    let query = format!(
        "SELECT TABLE_SCHEMA AS name FROM information_schema.TABLES \
         WHERE TABLE_NAME = 'queue_topic' AND LEFT(TABLE_SCHEMA, {}) = '{prefix}' \
         AND CREATE_TIME < NOW() - INTERVAL {older_than_seconds} SECOND",
        prefix.len()
    );
    // Another sweeper may drop them at the same time; what is left is for the next run.
    let Ok(leftovers) = diesel::sql_query(query).load::<Name>(conn).await else { return };
    for leftover in leftovers {
        let _kept = drop_database(conn, &leftover.name).await;
    }
}

/// Drops a database, the connections that use it and the accounts made for it.
pub(crate) async fn drop_database(
    conn: &mut AsyncMysqlConnection,
    database: &str,
) -> diesel::QueryResult<()> {
    end_use(conn, database).await?;
    // The connections may take a while to let go of the tables.
    conn.batch_execute("SET SESSION lock_wait_timeout = 90").await?;
    conn.batch_execute(&format!("DROP DATABASE IF EXISTS {database}")).await
}

/// Ends the connections that use a database, and drops the accounts made for it.
pub(crate) async fn end_use(
    conn: &mut AsyncMysqlConnection,
    database: &str,
) -> diesel::QueryResult<()> {
    for session in sessions(conn, database).await? {
        // It may have ended by itself in the meantime.
        let _ended = conn.batch_execute(&format!("KILL {session}")).await;
    }
    let stem = account_stem(database);
    let accounts = format!(
        "SELECT CONCAT(QUOTE(User), '@', QUOTE(Host)) AS name FROM mysql.user \
         WHERE LEFT(User, {}) = '{stem}'",
        stem.len()
    );
    debug_assert!(stem.starts_with(ACCOUNT_PREFIX));
    // Only an account that may read the list of accounts can have made some.
    let Ok(accounts) = diesel::sql_query(accounts).load::<Name>(conn).await else { return Ok(()) };
    for account in accounts {
        conn.batch_execute(&format!("DROP USER IF EXISTS {}", account.name)).await?;
    }
    Ok(())
}

/// Lists the connections that use a database. One in the middle of a transaction would make DROP
/// DATABASE wait.
pub(crate) async fn sessions(
    conn: &mut AsyncMysqlConnection,
    database: &str,
) -> diesel::QueryResult<Vec<u64>> {
    #[derive(QueryableByName)]
    struct Thread {
        #[diesel(sql_type = Unsigned<BigInt>, column_name = "Id")]
        id: u64,
        #[diesel(sql_type = Nullable<Text>, column_name = "db")]
        database: Option<String>,
    }
    // Not information_schema.PROCESSLIST: MySQL 9.7 refuses to read it (3854) while any session
    // runs a statement whose text is not UTF-8.
    let threads: Vec<Thread> = diesel::sql_query("SHOW PROCESSLIST").load(conn).await?;
    let uses = |thread: &Thread| thread.database.as_deref() == Some(database);
    Ok(threads.into_iter().filter(uses).map(|thread| thread.id).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rowmq_core::connection::{ServerUrl, SessionKind, connect};
    use uuid::Uuid;

    use super::*;

    async fn databases(conn: &mut AsyncMysqlConnection, prefix: &str) -> usize {
        let query = format!("SHOW DATABASES WHERE LEFT(`Database`, {}) = '{prefix}'", prefix.len());
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Text, column_name = "Database")]
            _name: String,
        }
        diesel::sql_query(query).load::<Row>(conn).await.expect("listed").len()
    }

    #[tokio::test]
    async fn databases_of_killed_runs_are_swept_and_young_ones_are_not() {
        let url = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
        let url = ServerUrl::new(&url).expect("a URL");
        let mut conn = connect(&url, SessionKind::Plain).await.expect("the server answers");
        // Not the real prefix: other tests are running.
        let prefix = format!("queue_sweep_{}_", Uuid::new_v4().simple());
        let make =
            format!("CREATE DATABASE {prefix}a; CREATE TABLE {prefix}a.queue_topic (id INT)");
        conn.batch_execute(&make).await.expect("made");
        sweep(&mut conn, &prefix, LEFTOVER_SECONDS).await;
        assert_eq!(databases(&mut conn, &prefix).await, 1);
        // The server keeps the time of creation in whole seconds.
        for _ in 0..300 {
            sweep(&mut conn, &prefix, 0).await;
            if databases(&mut conn, &prefix).await == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{prefix}a was not swept");
    }
}
