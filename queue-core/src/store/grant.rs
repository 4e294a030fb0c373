//! What the account of this session is granted.

use diesel::QueryableByName;
use diesel::deserialize::FromSql;
use diesel::mysql::Mysql;
use diesel::row::{Field, NamedRow, Row};
use diesel::sql_types::Text;

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::Result;

struct Line(String);

impl QueryableByName<Mysql> for Line {
    /// The column is named after the account.
    fn build<'r>(row: &impl NamedRow<'r, Mysql>) -> diesel::deserialize::Result<Self> {
        let field = Row::get(row, 0).ok_or("a line of grants has one column")?;
        let text = <String as FromSql<Text, Mysql>>::from_nullable_sql(field.value())?;
        Ok(Self(text))
    }
}

/// No index: the lines of `SHOW GRANTS`, those of active roles included.
pub async fn own(conn: &mut impl Connection) -> Result<Vec<String>> {
    let lines: Vec<Line> =
        load(conn, "read the account's grants", Statement::new("SHOW GRANTS")).await?;
    Ok(lines.into_iter().map(|line| line.0).collect())
}
