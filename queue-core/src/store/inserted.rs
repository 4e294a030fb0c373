//! The ids that an INSERT was given.

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::{Error, Result};

/// No index: reads the lowest id that the preceding INSERT on this connection was given.
pub(super) async fn first_inserted(
    conn: &mut impl Connection,
    operation: &'static str,
) -> Result<u64> {
    let statement = Statement::new("SELECT LAST_INSERT_ID() AS id");
    let rows: Vec<u64> = load(conn, operation, statement).await?;
    let first = rows.first().copied();
    first.ok_or(Error::Counts { operation, expected: 1, found: 0 })
}
