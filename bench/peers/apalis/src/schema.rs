//! The tables of apalis and the rows it stores.

use apalis_mysql::{MySqlPool, MySqlStorage};
use peer_program::Messages;
use sqlx::QueryBuilder;
use ulid::Ulid;

use crate::{Job, QUEUE};

/// Attempts a job has, as `push` stores them by default.
const MAX_ATTEMPTS: i32 = 5;

/// The collation apalis asks for.
const COLLATION: &str = "utf8mb4_0900_ai_ci";

/// Runs the migrations of apalis. A server that does not have their collation, such as MariaDB
/// 10.11, refuses them (error 1273); there they run with a collation that the server has.
pub(crate) async fn create(pool: &MySqlPool) -> anyhow::Result<()> {
    let known = "SELECT COUNT(*) FROM information_schema.collations WHERE collation_name = ?";
    let known: i64 = sqlx::query_scalar(known).bind(COLLATION).fetch_one(pool).await?;
    let mut migrator = MySqlStorage::migrations();
    if known == 0 {
        for migration in migrator.migrations.to_mut() {
            migration.sql = migration.sql.replace(COLLATION, "utf8mb4_general_ci").into();
        }
    }
    migrator.run(pool).await?;
    Ok(())
}

/// Stores the messages as `push_bulk` does, but in one statement.
pub(crate) async fn insert(pool: &MySqlPool, messages: &Messages) -> anyhow::Result<()> {
    let body = messages.body();
    let job = |number| serde_json::to_vec(&Job { number, body: body.clone() });
    let jobs = messages.numbers().map(job).collect::<Result<Vec<_>, _>>()?;
    let mut statement = QueryBuilder::new(
        "INSERT INTO jobs (job, id, job_type, status, attempts, max_attempts, run_at, priority, \
         metadata) ",
    );
    statement.push_values(jobs, |mut row, job| {
        row.push_bind(job).push_bind(Ulid::new().to_string()).push_bind(QUEUE);
        row.push("'Pending', 0").push_bind(MAX_ATTEMPTS).push("NOW(), 0, '{}'");
    });
    statement.build().execute(pool).await?;
    Ok(())
}
