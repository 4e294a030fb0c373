//! The runs of a topic loop in flight, and what ends each of them.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rowmq_core::Delivery;
use rowmq_core::model::RowId;
use tokio_util::sync::CancellationToken;

use crate::run::Waiting;

/// A run, the rows of the hot table that it has, and the token that ends it.
struct Running<T> {
    rows: Vec<RowId>,
    token: CancellationToken,
    run: BoxFuture<'static, T>,
}

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.run.as_mut().poll(context)
    }
}

/// Runs in flight, and the result of each.
pub(crate) struct Runs<T> {
    /// Each handler is a task of its own unless it is quick; the code around it does little.
    running: FuturesUnordered<Running<T>>,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self { running: FuturesUnordered::new() }
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
        let rows = batch.iter().filter_map(|waiting| hot_row(&waiting.delivery)).collect();
        let run = run(batch, token.clone());
        self.running.push(Running { rows, token, run });
    }

    /// Returns the result of the next run that ends.
    pub(crate) async fn next(&mut self) -> Option<T> {
        self.running.next().await
    }

    /// Ends the runs that have a row for which `is_meant` is true.
    pub(crate) fn stop(&self, is_meant: impl Fn(RowId) -> bool) {
        for running in &self.running {
            if running.rows.iter().any(|row| is_meant(*row)) {
                running.token.cancel();
            }
        }
    }
}

/// Returns the delivery's row of the hot table; a message of a stream's log has none.
pub(crate) fn hot_row(delivery: &Delivery) -> Option<RowId> {
    delivery.position.is_none().then_some(delivery.row)
}
