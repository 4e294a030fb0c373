//! The switch for all topics at once.

use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::model::{Access, Result};

/// PRIMARY: reads the most that any topic allows.
pub async fn read(conn: &mut impl Connection) -> Result<Access> {
    let statement =
        Statement::new("SELECT enqueue_paused, claim_paused FROM queue_switch WHERE only_row = 1");
    let rows: Vec<(bool, bool)> = load(conn, "read the switch for all topics", statement).await?;
    let access =
        |(enqueue_paused, claim_paused): &(bool, bool)| Access::new(!enqueue_paused, !claim_paused);
    Ok(rows.first().map_or(Access::ReadWrite, access))
}

/// PRIMARY: sets the most that any topic allows.
pub async fn set(conn: &mut impl Connection, access: Access) -> Result<()> {
    let flags = [!access.may_enqueue(), !access.may_claim()].map(u64::from);
    let statement = Statement::new(
        "INSERT INTO queue_switch (only_row, enqueue_paused, claim_paused, updated_at) \
         VALUES (1, ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE \
         enqueue_paused = ?, claim_paused = ?, updated_at = UTC_TIMESTAMP(6)",
    )
    .numbers(flags)
    .numbers(flags);
    execute(conn, "set the switch for all topics", statement).await?;
    Ok(())
}
