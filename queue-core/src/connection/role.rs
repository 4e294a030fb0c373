//! A server's role in its cluster: whether it takes writes.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};

/// A server's role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerRole {
    /// The reason it takes no writes, if there is one.
    pub(crate) refusal: Option<String>,
    /// Whether it is a Galera node; every Galera node takes writes.
    pub(crate) galera: bool,
    /// The connection id in the greeting, of which the protocol sends 32 bits: the server's, or
    /// that of a proxy in front of it.
    pub(crate) greeted_as: u32,
}

/// No index: asks whether the server takes writes. Every server accepts the statement: what only
/// one product knows is in comments that only that product reads. A MariaDB without Galera may not
/// know `@@wsrep_on`.
const ROLE: &str = "SELECT CAST(@@global.read_only AS CHAR) AS read_only, \
     CAST(@@global.innodb_read_only AS CHAR) AS innodb_read_only \
     /*!80000 , CAST(@@global.super_read_only AS CHAR) AS super_read_only */ \
     /*M!100600 , (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES \
     WHERE VARIABLE_NAME = 'WSREP_ON') AS wsrep_on */";

/// No index: asks whether a Galera node is in the cluster. The node answers after it has applied
/// everything that the cluster had committed before, so that this session sees what a former writer
/// acknowledged, such as a lane's row.
const NODE: &str = "SET SESSION wsrep_sync_wait = 1; \
     SELECT (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
     WHERE VARIABLE_NAME = 'WSREP_READY') AS wsrep_ready, \
     (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
     WHERE VARIABLE_NAME = 'WSREP_CLUSTER_STATUS') AS wsrep_cluster_status; \
     SET SESSION wsrep_sync_wait = DEFAULT";

/// Runs the statements that set a session up, and asks for the server's role in the same round
/// trip; a Galera node costs one more.
pub(crate) async fn set_up(conn: &mut Conn, setup: &str) -> Result<ServerRole, Error> {
    let row = answer(conn, &format!("{setup}; {ROLE}")).await?;
    let galera = row.iter().any(|(name, value)| name == "wsrep_on" && is_on(value));
    let on = row.iter().find(|(name, value)| name != "wsrep_on" && is_on(value));
    let mut refusal = on.map(|(name, value)| format!("{name} is {value}"));
    if galera && refusal.is_none() {
        refusal = cut_off(&answer(conn, NODE).await?);
    }
    Ok(ServerRole { refusal, galera, greeted_as: conn.id() })
}

/// Newer servers have values besides ON and OFF, all of which refuse writes.
fn is_on(value: &str) -> bool {
    !matches!(value, "OFF" | "0" | "NO" | "")
}

fn cut_off(row: &[(String, String)]) -> Option<String> {
    let wanted = |name: &str| if name == "wsrep_ready" { "ON" } else { "Primary" };
    let wrong = row.iter().find(|(name, value)| !value.eq_ignore_ascii_case(wanted(name)));
    wrong.map(|(name, value)| format!("{name} is {value}: this node is cut off from its cluster"))
}

/// Returns the one row of these statements' answer.
async fn answer(conn: &mut Conn, statements: &str) -> Result<Vec<(String, String)>, Error> {
    let mut results = conn.query_iter(statements).await?;
    let mut found = Vec::new();
    while !results.is_empty() {
        for row in results.collect::<Row>().await? {
            found = cells(row);
        }
    }
    Ok(found)
}

fn cells(mut row: Row) -> Vec<(String, String)> {
    let columns = row.columns();
    let value = |(at, column): (usize, &mysql_async::Column)| {
        let value: Option<String> = row.take_opt(at).and_then(std::result::Result::ok).flatten();
        (column.name_str().into_owned(), value.unwrap_or_default())
    };
    columns.iter().enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_outside_the_primary_component_is_cut_off() {
        let row = |ready: &str, status: &str| {
            let cell = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            [cell("wsrep_ready", ready), cell("wsrep_cluster_status", status)]
        };
        assert_eq!(cut_off(&row("ON", "Primary")), None);
        assert!(cut_off(&row("OFF", "Primary")).is_some_and(|why| why.contains("wsrep_ready")));
        assert!(cut_off(&row("ON", "non-Primary")).is_some_and(|why| why.contains("cut off")));
    }

    #[test]
    fn every_value_but_off_refuses_writes() {
        let on = ["ON", "1", "NO_LOCK", "NO_LOCK_NO_ADMIN"];
        assert!(on.into_iter().all(is_on) && !["OFF", "0", "", "NO"].into_iter().any(is_on));
    }
}
