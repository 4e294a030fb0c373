use diesel::QueryableByName;
use diesel::sql_types::{BigInt, TinyInt, Unsigned};

use crate::connection::Connection;
use crate::error::Result;
use crate::message::{Priority, RowId};
use crate::store::{Statement, load};
use crate::topic::TopicId;

/// What a walk from the start of a topic finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walk {
    /// The lowest ready row of each priority that has one, first priority first.
    pub ready: Vec<(Priority, RowId)>,
    /// Whether a suspect waits to be claimed alone.
    pub suspect: bool,
}

/// PRIMARY, forced, eleven dives: the lowest ready row of every priority, by plain reads that lock
/// nothing. Finds rows that committed late, below the marks (history H24).
///
/// # Errors
/// A database failure.
pub async fn walk(conn: &mut impl Connection, topic: TopicId) -> Result<Walk> {
    #[derive(QueryableByName)]
    struct Found {
        #[diesel(sql_type = Unsigned<TinyInt>)]
        priority: u8,
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
    const DIVE: &str = "(SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND worker_id = 0 ORDER BY topic_id, priority, id LIMIT 1)";
    let mut sql = format!("{DIVE} UNION ALL ").repeat(Priority::all().count());
    sql.push_str(&DIVE.replace("priority = ?", "priority >= ?"));
    let mut statement = Statement::new(sql);
    for priority in Priority::all().chain([Priority::FIRST.suspect()]) {
        statement = statement.number(topic.0).number(priority.stored());
    }
    let rows: Vec<Found> = load(conn, "walk the topic", statement).await?;
    let mut walk = Walk::default();
    for row in rows {
        match Priority::from_stored(row.priority) {
            priority if priority.is_suspect() => walk.suspect = true,
            priority => walk.ready.push((priority, RowId(row.id))),
        }
    }
    walk.ready.sort_unstable();
    Ok(walk)
}
