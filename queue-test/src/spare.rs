//! Databases that tests of this process have left, for the tests after them. To make one takes two
//! cores 0.4 s on MySQL: with these, the conformance suite takes 286 s there, and 616 s without.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Nullable, Text};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::connection::ServerUrl;

use crate::patience::connected;
use crate::server;

/// How long a database rests before another test gets it. A program that the test has left behind
/// may come back to its database before it ends.
const REST: Duration = Duration::from_secs(3);

/// The most databases that rest. More are dropped.
const MOST: usize = 24;

static SPARE: Mutex<Vec<(Made, Instant)>> = Mutex::new(Vec::new());

/// A database as the migrations have made it.
#[derive(Debug)]
pub(crate) struct Made {
    url: ServerUrl,
    /// All that its tables, procedures and the rest are defined by.
    definitions: String,
    /// The checksum of each table.
    contents: Vec<Checksum>,
}

#[derive(Debug, PartialEq, Eq, QueryableByName)]
struct Checksum {
    #[diesel(sql_type = Text, column_name = "Table")]
    table: String,
    #[diesel(sql_type = Nullable<BigInt>, column_name = "Checksum")]
    checksum: Option<i64>,
}

/// Whether databases on this server are used again: on a MySQL that is removed after the tests with
/// all that is left on it, as `ops/test` says. MariaDB makes one in a quarter of the time.
pub(crate) fn are_kept(server: &ServerUrl) -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|it| it == value);
    is("ROWMQ_TEST_REUSE", "1")
        && is("ROWMQ_SERVER_KIND", "mysql")
        && is("ROWMQ_URL", server.expose())
}

impl Made {
    /// Reads what a database is like that has just been migrated.
    pub(crate) async fn read(url: &ServerUrl) -> Self {
        let mut conn = connected(url).await;
        let definitions = definitions(&mut conn).await.expect("the definitions are read");
        let contents = contents(&mut conn).await.expect("the contents are read");
        Self { url: url.clone(), definitions, contents }
    }

    pub(crate) fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Leaves the database to the next tests, or drops it.
    pub(crate) async fn leave(self, outside: &mut AsyncMysqlConnection) -> diesel::QueryResult<()> {
        let database = self.url.database().to_owned();
        server::end_use(outside, &database).await?;
        let is_spare = {
            let mut spare = SPARE.lock().expect("no test panics with it");
            let has_room = spare.len() < MOST;
            if has_room {
                spare.push((self, Instant::now()));
            }
            has_room
        };
        if is_spare { Ok(()) } else { server::drop_database(outside, &database).await }
    }

    /// Whether no session uses the database.
    async fn is_free(&self) -> diesel::QueryResult<bool> {
        let outside = self.url.with_database("information_schema").expect("a name for a URL");
        let mut conn = connected(&outside).await;
        Ok(server::sessions(&mut conn, self.url.database()).await?.is_empty())
    }

    /// Empties what a test has written to. Returns false if the database is not as it was made.
    async fn renew(&self) -> diesel::QueryResult<bool> {
        let mut conn = connected(&self.url).await;
        if definitions(&mut conn).await? != self.definitions {
            return Ok(false);
        }
        for table in written(&mut conn).await?.iter().filter(|it| !self.has_rows_of_migrations(it))
        {
            conn.batch_execute(&format!("TRUNCATE TABLE {table}")).await?;
        }
        Ok(contents(&mut conn).await? == self.contents)
    }

    fn has_rows_of_migrations(&self, table: &str) -> bool {
        let of_table = format!("{}.{table}", self.url.database());
        self.contents.iter().any(|it| it.table == of_table && it.checksum != Some(0))
    }
}

/// Returns a database as the migrations have made it, if one is spare.
pub(crate) async fn take() -> Option<Made> {
    let spare = {
        let mut spare = SPARE.lock().expect("no test panics with it");
        let rested = spare.iter().position(|(_, since)| since.elapsed() >= REST);
        rested.map(|at| spare.remove(at).0)
    }?;
    let is_free = spare.is_free().await.expect("the sessions are listed");
    if is_free && spare.renew().await.is_ok_and(|renewed| renewed) {
        return Some(spare);
    }
    let outside = spare.url.with_database("information_schema").expect("a name for a URL");
    let mut conn = connected(&outside).await;
    server::drop_database(&mut conn, spare.url.database()).await.expect("it is dropped");
    None
}

#[derive(QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    line: String,
}

/// Returns the tables that were written to since they were made or truncated.
async fn written(conn: &mut AsyncMysqlConnection) -> diesel::QueryResult<Vec<String>> {
    let query = "SELECT OBJECT_NAME AS line \
         FROM performance_schema.table_io_waits_summary_by_table \
         WHERE OBJECT_SCHEMA = DATABASE() AND COUNT_WRITE > 0 ORDER BY line";
    let lines: Vec<Line> = diesel::sql_query(query).load(conn).await?;
    Ok(lines.into_iter().map(|line| line.line).collect())
}

async fn contents(conn: &mut AsyncMysqlConnection) -> diesel::QueryResult<Vec<Checksum>> {
    let query = "SELECT TABLE_NAME AS line FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE' ORDER BY line";
    let tables: Vec<Line> = diesel::sql_query(query).load(conn).await?;
    let tables: Vec<String> = tables.into_iter().map(|table| table.line).collect();
    diesel::sql_query(format!("CHECKSUM TABLE {}", tables.join(", "))).load(conn).await
}

async fn definitions(conn: &mut AsyncMysqlConnection) -> diesel::QueryResult<String> {
    const DEFINITIONS: &str = "\
        SELECT SHA2(GROUP_CONCAT(line ORDER BY line SEPARATOR '\\n'), 256) AS line FROM ( \
        SELECT CONCAT_WS('|', TABLE_NAME, ENGINE, TABLE_TYPE, TABLE_COLLATION, CREATE_OPTIONS) AS line \
        FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', TABLE_NAME, ORDINAL_POSITION, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, \
          QUOTE(COLUMN_DEFAULT), EXTRA, COLLATION_NAME, GENERATION_EXPRESSION) \
        FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, NON_UNIQUE, IS_VISIBLE) \
        FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', TABLE_NAME, CONSTRAINT_NAME, CONSTRAINT_TYPE, ENFORCED) \
        FROM information_schema.TABLE_CONSTRAINTS WHERE TABLE_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', CONSTRAINT_NAME, CHECK_CLAUSE) \
        FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', ROUTINE_NAME, ROUTINE_TYPE, ROUTINE_COMMENT, DEFINER, SECURITY_TYPE, \
          SQL_MODE, SHA2(ROUTINE_DEFINITION, 256)) \
        FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() UNION ALL \
        SELECT CONCAT_WS('|', TRIGGER_NAME, ACTION_STATEMENT) \
        FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() UNION ALL \
        SELECT EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA = DATABASE()) AS all_lines";
    conn.batch_execute("SET SESSION group_concat_max_len = 4000000").await?;
    let line: Line = diesel::sql_query(DEFINITIONS).get_result(conn).await?;
    Ok(line.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestDatabase;

    #[tokio::test]
    async fn a_database_is_renewed_unless_its_definitions_or_its_first_rows_were_changed() {
        let database = TestDatabase::new().await;
        let server = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
        if !are_kept(&ServerUrl::new(&server).expect("a URL")) {
            return;
        }
        let made = Made::read(database.url()).await;
        assert_eq!(database.topic("mail").await.id.0, 1);
        assert!(made.renew().await.expect("it is looked at"));
        assert_eq!(database.topic("other").await.id.0, 1);
        for change in [
            "UPDATE queue_schema_migration SET applied_at = applied_at - INTERVAL 1 SECOND",
            "ALTER TABLE queue_topic ALTER COLUMN max_attempts SET DEFAULT 3",
        ] {
            let made = Made::read(database.url()).await;
            database.connect().await.batch_execute(change).await.expect(change);
            assert!(!made.renew().await.expect("it is looked at"), "{change}");
        }
        let _session = database.connect().await;
        assert!(!made.is_free().await.expect("the sessions are listed"));
    }
}
