//! The state of the server, for the metrics.

use super::{durability, is_mariadb};
use crate::connection::Connection;
use crate::model::Result;
use crate::store::doctor::{self as ask, Variables};
use crate::store::server::{history_length, status};

/// The state of the server. A value that it hides from this account, or does not know, is `None`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServerState {
    /// MariaDB or MySQL.
    pub product: &'static str,
    /// Its version string.
    pub version: String,
    /// Whether its settings make every commit reach the disk before it is acknowledged.
    pub durable: bool,
    /// Whether semi-synchronous replication waits for a replica; `None` where it is off.
    pub semi_sync: Option<bool>,
    /// Transactions whose old row versions are not purged.
    pub history: Option<u64>,
    /// Open connections.
    pub connections: Option<u64>,
    /// The most connections it takes.
    pub connections_limit: Option<u64>,
}

/// Reads the state of the server: two or three statements that read no table.
pub async fn server_state(conn: &mut impl Connection) -> Result<ServerState> {
    let variables = ask::variables(conn).await?;
    let status = status(conn).await?;
    let history = match status.number("Innodb_history_list_length") {
        Some(length) => Some(length),
        None => history_length(conn).await?,
    };
    Ok(ServerState {
        product: if is_mariadb(&variables) { "MariaDB" } else { "MySQL" },
        version: variables.get("version").unwrap_or("unknown").to_owned(),
        durable: durability::is_durable(&variables),
        semi_sync: semi_sync(&variables, &status),
        history,
        connections: status.number("Threads_connected"),
        connections_limit: variables.number("max_connections"),
    })
}

fn semi_sync(variables: &Variables, status: &Variables) -> Option<bool> {
    let enabled = ["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"];
    let waits = ["Rpl_semi_sync_master_status", "Rpl_semi_sync_source_status"];
    let on = enabled.iter().any(|name| variables.is_on(name));
    on.then(|| waits.iter().any(|name| status.is_on(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semi_synchronous_replication_that_gave_up_is_not_taken_for_one_that_is_off() {
        let state = |enabled, waits| {
            let variables = [("rpl_semi_sync_source_enabled", enabled)].into_iter().collect();
            let status = [("Rpl_semi_sync_source_status", waits)].into_iter().collect();
            semi_sync(&variables, &status)
        };
        assert_eq!(state("ON", "ON"), Some(true));
        assert_eq!(state("ON", "OFF"), Some(false));
        assert_eq!(state("OFF", "OFF"), None);
        assert_eq!(semi_sync(&Variables::default(), &Variables::default()), None);
    }
}
