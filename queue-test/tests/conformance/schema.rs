//! The schema and its migrations.

use std::collections::BTreeMap;
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use futures_util::future::join_all;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::model::CannotMigrate;
use rowmq_core::store::{self, installation};
use rowmq_core::{AsyncMysqlConnection, Error, Fault, migration};
use rowmq_test::TestDatabase;
use rowmq_test::proxy::FaultProxy;

use crate::scene::{Scene, number, text};

/// The schema files that Diesel reads.
const SCHEMA: [&str; 3] = [
    include_str!("../../../queue-core/src/schema.rs"),
    include_str!("../../../queue-core/src/schema/limit.rs"),
    include_str!("../../../queue-core/src/schema/stream.rs"),
];

/// Our own tables, which no program reads through Diesel.
const BOOKKEEPING: [&str; 2] = ["queue_schema_migration", "queue_installation"];

/// A table's primary key, then its columns with Diesel's types, in order.
type Table = (Vec<String>, Vec<(String, String)>);

/// Reads the `table!` blocks as text: Diesel's own types do not give their names.
fn told() -> BTreeMap<String, Table> {
    let mut tables = BTreeMap::new();
    for block in SCHEMA.iter().flat_map(|file| file.split("table! {").skip(1)) {
        let (head, rest) = block.split_once('{').unwrap();
        let (name, key) = head.trim().split_once('(').unwrap();
        let key = key.trim_end_matches(')').split(',').map(|it| it.trim().to_owned()).collect();
        let (columns, _) = rest.split_once('}').unwrap();
        let columns = columns.lines().filter_map(|line| line.trim().split_once(" -> "));
        let columns =
            columns.map(|(name, kind)| (name.to_owned(), kind.trim_end_matches(',').to_owned()));
        tables.insert(name.trim().to_owned(), (key, columns.collect()));
    }
    tables
}

/// Returns Diesel's type for a column of this type.
fn diesel_type(column_type: &str, nullable: bool) -> String {
    let bare = column_type.split(['(', ' ']).next().unwrap();
    let name = match bare {
        "tinyint" if column_type.starts_with("tinyint(1)") && !column_type.contains("unsigned") => {
            "Bool"
        }
        "tinyint" => "TinyInt",
        "int" => "Integer",
        "bigint" => "BigInt",
        "varbinary" => "Varbinary",
        "binary" => "Binary",
        "mediumblob" => "Mediumblob",
        "longblob" => "Longblob",
        "datetime" => "Datetime",
        other => panic!("no Diesel type is known for {other}"),
    };
    let unsigned = column_type.contains("unsigned");
    let name = if unsigned { format!("Unsigned<{name}>") } else { name.to_owned() };
    if nullable { format!("Nullable<{name}>") } else { name }
}

#[tokio::test]
async fn what_diesel_is_told_is_what_the_migrations_make() {
    #[derive(QueryableByName)]
    struct Column {
        #[diesel(sql_type = Text)]
        table_name: String,
        #[diesel(sql_type = Text)]
        column_name: String,
        #[diesel(sql_type = Text)]
        column_type: String,
        #[diesel(sql_type = Text)]
        nullable: String,
        #[diesel(sql_type = Text)]
        key_place: String,
    }
    let mut scene = Scene::new().await;
    let columns = diesel::sql_query(
        "SELECT CAST(c.TABLE_NAME AS CHAR) AS table_name, CAST(c.COLUMN_NAME AS CHAR) AS column_name, \
         CAST(c.COLUMN_TYPE AS CHAR) AS column_type, CAST(c.IS_NULLABLE AS CHAR) AS nullable, \
         CAST(COALESCE(k.ORDINAL_POSITION, '') AS CHAR) AS key_place \
         FROM information_schema.COLUMNS c LEFT JOIN information_schema.KEY_COLUMN_USAGE k \
         ON k.TABLE_SCHEMA = c.TABLE_SCHEMA AND k.TABLE_NAME = c.TABLE_NAME \
         AND k.COLUMN_NAME = c.COLUMN_NAME AND k.CONSTRAINT_NAME = 'PRIMARY' \
         WHERE c.TABLE_SCHEMA = DATABASE() ORDER BY c.TABLE_NAME, c.ORDINAL_POSITION",
    );
    let columns: Vec<Column> = columns.load(&mut scene.conn).await.unwrap();
    let mut made: BTreeMap<String, Table> = BTreeMap::new();
    let mut keys: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for column in columns.iter().filter(|it| !BOOKKEEPING.contains(&it.table_name.as_str())) {
        let (_, made) = made.entry(column.table_name.clone()).or_default();
        let kind = diesel_type(&column.column_type, column.nullable == "YES");
        made.push((column.column_name.clone(), kind));
        if !column.key_place.is_empty() {
            let key = keys.entry(column.table_name.clone()).or_default();
            key.insert(column.key_place.clone(), column.column_name.clone());
        }
    }
    for (name, key) in keys {
        made.get_mut(&name).unwrap().0 = key.into_values().collect();
    }
    assert_eq!(made, told());
}

/// S1: nothing relies on the implicit behaviour of TIMESTAMP columns, which differs with a server
/// variable: there are none, and no column updates itself.
#[tokio::test]
async fn no_time_is_a_timestamp_and_no_column_updates_itself() {
    let mut scene = Scene::new().await;
    let implicit = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() \
         AND (DATA_TYPE = 'timestamp' OR EXTRA LIKE '%on update%')";
    assert_eq!(scene.number(implicit).await, 0);
}

/// S15 and the collation traps: everything a user names or sends is stored as bytes.
#[tokio::test]
async fn no_column_has_a_character_set() {
    let mut scene = Scene::new().await;
    let text = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() \
         AND CHARACTER_SET_NAME IS NOT NULL";
    assert_eq!(scene.number(text).await, 0);
}

/// S9: every id has 64 bits.
#[tokio::test]
async fn every_id_of_rows_workers_claims_and_connections_has_64_bits() {
    let mut scene = Scene::new().await;
    let narrow = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() \
         AND COLUMN_NAME IN ('id', 'conn_id', 'life_conn_id', 'worker_id', 'claim_no', 'lo', 'hi', \
         'floor', 'seq') AND DATA_TYPE NOT IN ('bigint', 'binary') AND TABLE_NAME <> 'queue_topic'";
    assert_eq!(scene.number(narrow).await, 0);
}

#[tokio::test]
async fn migrating_again_does_nothing() {
    let scene = Scene::new().await;
    assert_eq!(migration::pending(scene.db.url()).await.unwrap(), []);
    assert_eq!(migration::run(scene.db.url()).await.unwrap(), []);
}

#[tokio::test]
async fn a_dry_run_tells_what_would_run_and_changes_nothing() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let pending = migration::pending(bare.url()).await.unwrap();
    assert!(!pending.is_empty());
    assert!(pending[0].sql.contains("CREATE TABLE queue_message"));
    let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()";
    assert_eq!(number(&mut bare.connect().await, tables).await, 0);
    assert_eq!(migration::run(bare.url()).await.unwrap(), pending);
    assert_eq!(migration::pending(bare.url()).await.unwrap(), []);
}

#[tokio::test]
async fn of_migrators_at_the_same_moment_one_migrates_and_all_succeed() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let migrate = async || {
        loop {
            // Those that come later wait for ten seconds.
            match migration::run(bare.url()).await {
                Err(Error::CannotMigrate(CannotMigrate::Running { .. })) => {}
                done => break done.unwrap().len(),
            }
        }
    };
    let applied = join_all((0..4).map(|_| migrate())).await;
    assert_eq!(applied.iter().filter(|n| **n > 0).count(), 1, "{applied:?}");
    assert_eq!(migration::pending(bare.url()).await.unwrap(), []);
}

#[tokio::test]
async fn the_next_migrator_need_not_wait_for_one_that_has_returned() {
    let scene = Scene::new().await;
    let mut next = scene.db.connect().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    // So long the server does not learn that the connection is closed.
    proxy.delay(Duration::from_millis(100));
    assert_eq!(migration::run(&proxy.url(scene.db.url())).await.unwrap(), []);
    assert!(store::migration::take_lock(&mut next, Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn a_migrator_that_finds_another_at_work_says_so() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let mut other = bare.connect().await;
    let wait = std::time::Duration::from_secs(1);
    installation::make_table(&mut other).await.unwrap();
    installation::keep_secret(&mut other, [1; 16]).await.unwrap();
    assert!(rowmq_core::store::migration::take_lock(&mut other, wait).await.unwrap());
    let refused = migration::run(bare.url()).await.unwrap_err();
    assert!(matches!(refused, Error::CannotMigrate(CannotMigrate::Running { .. })), "{refused}");
    // The migrator of another database has another lock.
    let neighbour = TestDatabase::empty_on(scene.db.url()).await;
    migration::run(neighbour.url()).await.unwrap();
}

#[tokio::test]
async fn an_account_that_may_not_create_tables_is_told_so() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let url = bare.account(&["SELECT, INSERT ON {}.*"]).await;
    let refused = migration::run(&url).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Denied, "{refused}");
}

/// The user's application may have its own tables and migrations in the same database.
#[tokio::test]
async fn migrating_leaves_what_else_is_in_the_database_alone() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let mut conn = bare.connect().await;
    let own = "CREATE TABLE __diesel_schema_migrations (version VARCHAR(50) PRIMARY KEY, \
         run_on TIMESTAMP NOT NULL); INSERT INTO __diesel_schema_migrations VALUES ('1', NOW()); \
         CREATE TABLE orders (id INT PRIMARY KEY)";
    conn.batch_execute(own).await.unwrap();
    migration::run(bare.url()).await.unwrap();
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM __diesel_schema_migrations").await, 1);
    let strange = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() \
         AND LEFT(TABLE_NAME, 6) <> 'queue_'";
    assert_eq!(number(&mut conn, strange).await, 2);
}

/// Drops the tables of the queue of which `is_dropped` is true.
async fn drop_tables(conn: &mut AsyncMysqlConnection, is_dropped: impl Fn(&str) -> bool) {
    let names = "SELECT GROUP_CONCAT(TABLE_NAME ORDER BY TABLE_NAME) FROM \
                 information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()";
    let names = text(conn, names).await;
    for name in names.split(',').filter(|name| is_dropped(name)) {
        conn.batch_execute(&format!("DROP TABLE {name}")).await.unwrap();
    }
}

/// The tools of some frameworks drop all tables, and leave the procedures.
#[tokio::test]
async fn a_database_whose_tables_were_dropped_is_migrated_again() {
    let mut scene = Scene::new().await;
    drop_tables(&mut scene.conn, |_| true).await;
    migration::run(scene.db.url()).await.unwrap();
    rowmq_core::doctor::require(scene.db.url()).await.unwrap();
    scene.db.topic("again").await;
    scene.sql("CALL queue_send('again', 'x', NULL)").await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 1);
}

#[tokio::test]
async fn a_first_migration_that_was_interrupted_is_made_again() {
    let mut scene = Scene::new().await;
    scene.sql("DELETE FROM queue_topic; DELETE FROM queue_schema_migration").await;
    drop_tables(&mut scene.conn, |name| name > "queue_log" && name < "queue_schedule").await;
    migration::run(scene.db.url()).await.unwrap();
    rowmq_core::doctor::require(scene.db.url()).await.unwrap();
    // Rows are never dropped.
    scene.db.topic("kept").await;
    scene.sql("DELETE FROM queue_schema_migration").await;
    let refused = migration::run(scene.db.url()).await.unwrap_err();
    let names_it = refused.to_string().contains("'queue_topic'");
    assert!(names_it && matches!(refused, Error::CannotMigrate(CannotMigrate::NotRecorded { .. })));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_topic WHERE name = 'kept'").await, 1);
}

#[tokio::test]
async fn a_table_of_the_users_own_is_left_alone() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let mut conn = connect(bare.url(), SessionKind::Plain).await.unwrap();
    conn.batch_execute("CREATE TABLE queue_topic (own INT PRIMARY KEY)").await.unwrap();
    let refused = migration::run(bare.url()).await.unwrap_err();
    assert!(refused.to_string().contains("queue_topic"), "{refused}");
    assert_eq!(number(&mut conn, "SELECT COUNT(own) FROM queue_topic").await, 0);
}

/// As after a restore on another server.
#[tokio::test]
async fn procedures_whose_definer_is_gone_are_noticed_and_made_again() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let url = bare.account(&["ALL ON {}.*"]).await;
    migration::run(&url).await.unwrap();
    let mut conn = bare.connect().await;
    let definer = "SELECT DEFINER FROM information_schema.ROUTINES \
                   WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME = 'queue_send'";
    let user = text(&mut conn, definer).await.replace('@', "'@'");
    conn.batch_execute(&format!("DROP USER '{user}'")).await.unwrap();
    let report = rowmq_core::doctor::examine(bare.url()).await.unwrap();
    let schema = report.failures().find(|check| check.name == "schema").unwrap();
    assert!(schema.detail.contains("the account that the procedures run as"), "{}", schema.detail);
    assert!(migration::run(bare.url()).await.unwrap().len() > 60);
    rowmq_core::doctor::require(bare.url()).await.unwrap();
    bare.topic("mail").await;
    conn.batch_execute("CALL queue_send('mail', 'x', NULL)").await.unwrap();
    assert_eq!(migration::run(bare.url()).await.unwrap(), []);
}

/// The queue may have a database of its own: a transaction spans the databases of a server.
#[tokio::test]
async fn calls_from_another_database_are_part_of_its_transactions() {
    let mut scene = Scene::new().await;
    let shop = TestDatabase::empty_on(scene.db.url()).await;
    let mut conn = shop.connect().await;
    let (queue, topic) = (scene.db.name().to_owned(), scene.topic.name.to_string());
    conn.batch_execute("CREATE TABLE orders (id INT PRIMARY KEY) ENGINE = InnoDB").await.unwrap();
    for end in ["ROLLBACK", "COMMIT"] {
        let order = format!(
            "START TRANSACTION; INSERT INTO orders VALUES (1); \
             CALL {queue}.queue_send('{topic}', 'x', NULL); {end}"
        );
        conn.batch_execute(&order).await.unwrap();
        let kept = i64::from(end == "COMMIT");
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, kept);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM orders").await, kept);
    }
    let row = scene.number("SELECT CAST(MAX(id) AS SIGNED) FROM queue_message").await;
    let handle = format!(
        "CALL {queue}.queue_claim('{topic}', 1, 0); START TRANSACTION; \
         DELETE FROM orders; CALL {queue}.queue_settle('1.1.{row}', 'ack', NULL, NULL); COMMIT"
    );
    conn.batch_execute(&handle).await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 0);
}
