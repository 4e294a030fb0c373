use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::connection::ServerUrl;
use crate::doorbell::Doorbell;
use crate::model::{Error, Result};

/// How ready rows become a worker's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimStrategy {
    /// `SELECT … FOR UPDATE SKIP LOCKED`, then UPDATE by key. The default: claimers never wait for
    /// each other (2.0 k/s singly on MySQL 9.7, where update-then-select makes 0.5 k/s).
    #[default]
    SkipLocked,
    /// A plain SELECT, UPDATE by key, then SELECT by fence: close to the seeds' way. Claimers wait
    /// for each other's commits: four of them drain at 0.4 to 0.65 of the default's rate.
    UpdateThenSelect,
    /// `UPDATE … LIMIT`, then SELECT by `CONNECTION_ID()` and fence: the seeds' way. Claimers wait
    /// for each other's commits (0.7 to 0.8 of the default's rate), and on MariaDB also for those
    /// of producers.
    UpdateLimit,
}

/// The parameters of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The server, account and database.
    pub url: ServerUrl,
    /// Its name for people: host, address, process. In its row, a UUID and the worker's slot in its
    /// process follow: 0 for the first one started here, 1 for the next.
    pub client_id: String,
    /// After this silence the server drops its sessions, and other workers may take its claims. At
    /// least 2 s: the server's timeouts count whole seconds.
    pub lease: Duration,
    /// How often it beats; at most a quarter of the lease.
    pub beat: Duration,
    /// How ready rows become its own.
    pub strategy: ClaimStrategy,
    /// The doorbell that wakes it: while it is active and the worker holds nothing, the worker
    /// probes less.
    pub doorbell: Option<Doorbell>,
}

impl WorkerOptions {
    /// The default lease: a frozen worker's claims are rescued right after it.
    pub const LEASE: Duration = Duration::from_secs(10);

    /// Options with the defaults.
    #[must_use]
    pub fn new(url: ServerUrl, client_id: impl Into<String>) -> Self {
        Self {
            url,
            client_id: client_id.into(),
            lease: Self::LEASE,
            beat: Self::LEASE / 4,
            strategy: ClaimStrategy::default(),
            doorbell: None,
        }
    }

    /// Refuses options that cannot work.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |name, value: Duration, fix| {
            Err(Error::Setting { name, value: format!("{} ms", value.as_millis()), fix })
        };
        if self.lease < Duration::from_secs(2) {
            return refuse("lease", self.lease, "the server counts whole seconds, use 2 s or more");
        }
        if self.beat.is_zero() || self.beat > self.lease / 4 {
            return refuse("beat", self.beat, "use at most a quarter of the lease");
        }
        Ok(())
    }

    /// The longest a call of its sessions may take: a longer call has no answer within the lease.
    pub(super) fn deadline(&self) -> Duration {
        self.lease / 2
    }
}
