//! The runs of a topic loop in flight, and what ends each of them.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rowmq_core::Delivery;
use rowmq_core::model::RowId;
use tokio_util::sync::CancellationToken;

use crate::run::Waiting;

/// Numbers the runs of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RunNo(u64);

/// The token that ends a run, and the rows of the hot table that the run has.
struct Stop {
    rows: Vec<RowId>,
    token: CancellationToken,
}

/// Runs in flight, and the result of each.
pub(crate) struct Runs<T> {
    /// Each handler is already a task of its own; the code around it does little.
    running: FuturesUnordered<BoxFuture<'static, (RunNo, T)>>,
    stops: HashMap<RunNo, Stop>,
    next: u64,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self { running: FuturesUnordered::new(), stops: HashMap::new(), next: 0 }
    }
}

impl<T: Send + 'static> Runs<T> {
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Begins a run of the batch; `token` ends it.
    pub(crate) fn begin(
        &mut self,
        batch: Vec<Waiting>,
        token: CancellationToken,
        run: impl FnOnce(Vec<Waiting>, CancellationToken) -> BoxFuture<'static, T>,
    ) {
        let no = RunNo(self.next);
        self.next += 1;
        let rows = batch.iter().filter_map(|waiting| hot_row(&waiting.delivery)).collect();
        self.stops.insert(no, Stop { rows, token: token.clone() });
        let run = run(batch, token);
        self.running.push(Box::pin(async move { (no, run.await) }));
    }

    /// Returns the result of the next run that ends.
    pub(crate) async fn next(&mut self) -> Option<T> {
        let (no, end) = self.running.next().await?;
        self.stops.remove(&no);
        Some(end)
    }

    /// Ends the runs that have a row for which `is_meant` is true.
    pub(crate) fn stop(&self, is_meant: impl Fn(RowId) -> bool) {
        for stop in self.stops.values() {
            if stop.rows.iter().any(|row| is_meant(*row)) {
                stop.token.cancel();
            }
        }
    }
}

/// Returns the delivery's row of the hot table; a message of a stream's log has none.
pub(crate) fn hot_row(delivery: &Delivery) -> Option<RowId> {
    delivery.position.is_none().then_some(delivery.row)
}
