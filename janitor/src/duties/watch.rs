use std::time::Duration;

use rowmq_core::Result;
use rowmq_core::connection::Link;
use rowmq_core::doctor::{TABLES, server_state};
use rowmq_core::store::server::table_sizes;
use serde::Serialize;

use crate::duty::{Duty, Sweep};
use crate::gauges::Gauges;

/// Reads the server's state and the size of the tables, for the metrics endpoint.
#[derive(Debug, Default)]
pub struct Watch {
    gauges: Gauges,
}

/// What a run of [`Watch`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct WatchReport {
    /// Bytes that the tables take on disk.
    pub table_bytes: u64,
    /// Transactions whose old row versions are not purged, if the server shows it.
    pub history: Option<u64>,
    /// Whether every commit reaches the disk before it is acknowledged.
    pub durable: bool,
}

impl Duty for Watch {
    const NAME: &'static str = "watch";
    type Report = WatchReport;

    fn interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn is_notable(_: &WatchReport) -> bool {
        false
    }

    fn rest(&mut self) {
        self.gauges.forget();
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<WatchReport> {
        let ask = async |conn: &mut Link| server_state(conn).await;
        let state = sweep.session.call("ask how the server fares", ask).await?;
        let sizes = async |conn: &mut Link| table_sizes(conn, &TABLES).await;
        let tables = sweep.session.call("read the tables' sizes", sizes).await?;
        self.gauges.server(&state);
        self.gauges.tables(&tables);
        self.gauges.look_ended();
        Ok(WatchReport {
            table_bytes: tables.iter().map(|table| table.bytes).sum(),
            history: state.history,
            durable: state.durable,
        })
    }
}
