//! The runs of a topic loop that are under way, and what ends each of them.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rowmq_core::Delivery;
use rowmq_core::model::RowId;
use tokio_util::sync::CancellationToken;

use crate::run::Waiting;

/// Counts the runs of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RunNo(u64);

/// What ends a run, and the rows of the hot table that it is about.
struct Stop {
    rows: Vec<RowId>,
    token: CancellationToken,
}

/// Runs under way, and what each comes to.
pub(crate) struct Runs<T> {
    /// Each handler is a task of its own already; what is around it is little.
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

    /// Begins a run of the batch, which `token` ends.
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

    /// The next run that ends.
    pub(crate) async fn next(&mut self) -> Option<T> {
        let (no, end) = self.running.next().await?;
        self.stops.remove(&no);
        Some(end)
    }

    /// Ends the runs that are about a row that is meant.
    pub(crate) fn stop(&self, is_meant: impl Fn(RowId) -> bool) {
        for stop in self.stops.values() {
            if stop.rows.iter().any(|row| is_meant(*row)) {
                stop.token.cancel();
            }
        }
    }
}

/// The delivery's row of the hot table; a message of a stream's log has none.
pub(crate) fn hot_row(delivery: &Delivery) -> Option<RowId> {
    delivery.position.is_none().then_some(delivery.row)
}
