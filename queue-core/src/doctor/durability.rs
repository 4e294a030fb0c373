//! What a crash or a failover can lose with the server's settings.

use super::{Check, Verdict, check};
use crate::store::doctor::Variables;

/// Whether every commit reaches the disk before it is acknowledged.
pub(super) fn is_durable(variables: &Variables) -> bool {
    let flush = variables.get("innodb_flush_log_at_trx_commit").unwrap_or("1");
    let sync = variables.get("sync_binlog").unwrap_or("0");
    flush == "1" && (!variables.is_on("log_bin") || sync == "1")
}

/// Whether acknowledged commits survive a crash of the server and of its machine.
pub(super) fn durability(variables: &Variables) -> Check {
    let flush = variables.get("innodb_flush_log_at_trx_commit").unwrap_or("1");
    let sync = variables.get("sync_binlog").unwrap_or("0");
    let binlog = variables.is_on("log_bin");
    let detail = if flush != "1" {
        format!(
            "innodb_flush_log_at_trx_commit is {flush}: a crash loses acknowledged messages (0 lost 15,631 of 60,280 in our test); SET GLOBAL innodb_flush_log_at_trx_commit = 1."
        )
    } else if binlog && sync != "1" {
        // On recovery, InnoDB rolls back prepared transactions that the binary log does not have.
        format!(
            "sync_binlog is {sync} and the binary log is on: a crash of the machine can roll acknowledged messages back; SET GLOBAL sync_binlog = 1."
        )
    } else {
        let synced = if binlog { ", sync_binlog 1" } else { "" };
        format!("every commit reaches the disk (innodb_flush_log_at_trx_commit 1{synced})")
    };
    check("durability", is_durable(variables), Verdict::Warning, detail)
}

/// Whether acknowledged commits survive a failover to a replica. Reported only for a server with
/// semi-synchronous replication: otherwise this check cannot know whether it has replicas.
pub(super) fn semi_sync(variables: &Variables) -> Option<Check> {
    let either = |product: [&str; 2]| product.into_iter().find_map(|name| variables.get(name));
    let point = either(["rpl_semi_sync_master_wait_point", "rpl_semi_sync_source_wait_point"])?;
    let enabled = ["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"];
    let on = enabled.iter().any(|name| variables.is_on(name));
    let (ok, detail) = match (on, point) {
        (false, _) => (
            true,
            "semi-synchronous replication is off: a failover to a replica loses what had not reached it",
        ),
        (true, "AFTER_SYNC") => {
            (true, "semi-synchronous, AFTER_SYNC: what is acknowledged has reached a replica")
        }
        (true, _) => (
            false,
            "semi-synchronous, but AFTER_COMMIT: a consumer may handle a message that a failover then takes back; set the wait point to AFTER_SYNC.",
        ),
    };
    Some(check("replication", ok, Verdict::Warning, detail.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(check: &Check) -> (Verdict, &str) {
        (check.verdict, &check.detail)
    }

    fn with(variables: &[(&str, &str)]) -> Variables {
        variables.iter().copied().collect()
    }

    #[test]
    fn a_binary_log_that_is_not_synced_costs_as_much_as_a_log_that_is_not_flushed() {
        let on = ("log_bin", "ON");
        let flushed = ("innodb_flush_log_at_trx_commit", "1");
        let lax = durability(&with(&[("innodb_flush_log_at_trx_commit", "2")]));
        assert!(matches!(verdict(&lax), (Verdict::Warning, detail) if detail.contains("is 2")));
        let lax = durability(&with(&[flushed, on, ("sync_binlog", "0")]));
        assert!(matches!(verdict(&lax), (Verdict::Warning, detail) if detail.contains("machine")));
        assert_eq!(durability(&with(&[flushed, on, ("sync_binlog", "1")])).verdict, Verdict::Ok);
        assert_eq!(durability(&with(&[flushed, ("sync_binlog", "0")])).verdict, Verdict::Ok);
    }

    #[test]
    fn semi_sync_after_the_commit_is_warned_of() {
        let grade = |enabled, point| {
            let enabled = ("rpl_semi_sync_master_enabled", enabled);
            semi_sync(&with(&[enabled, ("rpl_semi_sync_master_wait_point", point)]))
                .map(|check| check.verdict)
        };
        assert_eq!(grade("ON", "AFTER_SYNC"), Some(Verdict::Ok));
        assert_eq!(grade("ON", "AFTER_COMMIT"), Some(Verdict::Warning));
        assert_eq!(grade("OFF", "AFTER_COMMIT"), Some(Verdict::Ok));
        assert!(semi_sync(&with(&[])).is_none());
    }
}
