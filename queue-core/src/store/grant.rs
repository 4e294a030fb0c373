//! The privileges of this session's account.

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::Result;

/// No index: reads the lines of `SHOW GRANTS`, including those of active roles.
pub async fn own(conn: &mut impl Connection) -> Result<Vec<String>> {
    load(conn, "read the account's grants", Statement::new("SHOW GRANTS")).await
}
