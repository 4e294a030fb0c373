//! The switch for all topics at once.

use diesel::dsl::DuplicatedKeys;
use diesel::prelude::*;

use super::{select, write};
use crate::connection::Connection;
use crate::model::{Access, Result};
use crate::schema::functions::now;
use crate::schema::queue_switch::dsl;

/// The key of the row.
const ONLY_ROW: u8 = 1;

/// PRIMARY: reads the most that any topic allows.
pub async fn read(conn: &mut impl Connection) -> Result<Access> {
    let query = dsl::queue_switch.find(ONLY_ROW).select((dsl::enqueue_paused, dsl::claim_paused));
    let rows: Vec<(bool, bool)> = select(conn, "read the switch for all topics", query).await?;
    let access =
        |(enqueue_paused, claim_paused): &(bool, bool)| Access::new(!enqueue_paused, !claim_paused);
    Ok(rows.first().map_or(Access::ReadWrite, access))
}

/// PRIMARY: sets the most that any topic allows.
pub async fn set(conn: &mut impl Connection, access: Access) -> Result<()> {
    let row = (
        dsl::enqueue_paused.eq(!access.may_enqueue()),
        dsl::claim_paused.eq(!access.may_claim()),
        dsl::updated_at.eq(now()),
    );
    let statement = diesel::insert_into(dsl::queue_switch)
        .values((dsl::only_row.eq(ONLY_ROW), row.clone()))
        .on_conflict(DuplicatedKeys)
        .do_update()
        .set(row);
    write(conn, "set the switch for all topics", statement).await?;
    Ok(())
}
