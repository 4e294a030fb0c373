use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::AsyncMysqlConnection;
use rowmq_core::handler::{
    BatchHandler, BatchTxHandler, Context, Handler, RawBatchHandler, RawHandler, RawTxHandler,
    RunOutcome, TxHandler,
};
use rowmq_core::model::TopicSettings;
use rowmq_core::worker::{Effects, Ending, Perform};
use rowmq_core::{Topic, TopicName};
use tokio_util::sync::CancellationToken;

use crate::options::TopicOptions;

/// A handler of any kind, as the consumer runs it: contexts in, as many outcomes out.
pub(crate) trait Run: Send + Sync + 'static {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>>;
}

/// A transactional handler of any kind, as the consumer runs it: it settles what it commits.
pub(crate) trait TxRun: Send + Sync + 'static {
    fn run(
        self: Arc<Self>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
        give_up: CancellationToken,
    ) -> BoxFuture<'static, Vec<Ending>>;
}

/// What handles a topic's messages.
#[derive(Clone)]
pub(crate) enum Work {
    Plain(Arc<dyn Run>),
    Transactional(Arc<dyn TxRun>),
}

/// A topic and what handles it.
#[derive(Clone)]
pub(crate) struct Registration {
    pub(crate) topic: TopicName,
    pub(crate) options: TopicOptions,
    /// How many messages a run takes.
    pub(crate) run_size: usize,
    pub(crate) work: Work,
}

impl Registration {
    /// Refuses a handler that this topic cannot have.
    pub(crate) fn check(&self, topic: &Topic) -> rowmq_core::Result<()> {
        match (&self.work, topic.broadcast()) {
            (Work::Transactional(_), Some(_)) => Err(rowmq_core::Error::OfBroadcast {
                topic: topic.name.clone(),
                reason: "its messages are not acked in transactions; use a handler without one, \
                         or a group made without --broadcast",
            }),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Typed<H>(pub(crate) H);

impl<H: Handler> Run for Typed<H> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        tracing::trace!(step = "run");
        async move {
            let mut outcomes = Vec::with_capacity(contexts.len());
            for context in &contexts {
                outcomes.push(match context.delivery.json::<H::Payload>() {
                    Ok(payload) => RunOutcome::Returned(self.0.handle(context, payload).await),
                    Err(error) => undecodable(&error),
                });
            }
            outcomes
        }
        .boxed()
    }
}

pub(crate) struct Raw<H>(pub(crate) H);

impl<H: RawHandler> Run for Raw<H> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        tracing::trace!(step = "run");
        async move {
            let mut outcomes = Vec::with_capacity(contexts.len());
            for context in &contexts {
                outcomes.push(RunOutcome::Returned(self.0.handle(context).await));
            }
            outcomes
        }
        .boxed()
    }
}

pub(crate) struct Batched<H>(pub(crate) H);

impl<H: BatchHandler> Run for Batched<H> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        tracing::trace!(step = "run");
        async move {
            let mut outcomes: Vec<Option<RunOutcome>> = Vec::with_capacity(contexts.len());
            let mut batch = Vec::with_capacity(contexts.len());
            for context in contexts {
                match context.delivery.json::<H::Payload>() {
                    Ok(payload) => {
                        outcomes.push(None);
                        batch.push((context, payload));
                    }
                    Err(error) => outcomes.push(Some(undecodable(&error))),
                }
            }
            let mut verdicts =
                if batch.is_empty() { Vec::new() } else { self.0.handle(batch).await }.into_iter();
            outcomes
                .into_iter()
                .map(|outcome| match outcome {
                    Some(outcome) => outcome,
                    None => verdicts.next().map_or_else(no_verdict, RunOutcome::Returned),
                })
                .collect()
        }
        .boxed()
    }
}

pub(crate) struct RawBatched<H>(pub(crate) H);

impl<H: RawBatchHandler> Run for RawBatched<H> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        tracing::trace!(step = "run");
        async move {
            let verdicts = self.0.handle(&contexts).await.into_iter();
            let missing = std::iter::repeat_with(no_verdict).take(contexts.len());
            let missing = missing.skip(verdicts.len());
            verdicts.take(contexts.len()).map(RunOutcome::Returned).chain(missing).collect()
        }
        .boxed()
    }
}

impl<P: Perform + 'static> TxRun for P {
    fn run(
        self: Arc<Self>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
        give_up: CancellationToken,
    ) -> BoxFuture<'static, Vec<Ending>> {
        tracing::trace!(step = "run");
        async move { effects.run(&contexts, &topic, &*self, &give_up).await }.boxed()
    }
}

pub(crate) struct Tx<H>(pub(crate) H);

impl<H: TxHandler> Perform for Tx<H> {
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        for context in contexts {
            let payload = match context.delivery.json::<H::Payload>() {
                Ok(payload) => payload,
                Err(error) => return undecodable(&error),
            };
            if let Err(error) = self.0.handle(context, payload, tx).await {
                return RunOutcome::Returned(Err(error));
            }
        }
        RunOutcome::Returned(Ok(()))
    }
}

pub(crate) struct RawTx<H>(pub(crate) H);

impl<H: RawTxHandler> Perform for RawTx<H> {
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        for context in contexts {
            if let Err(error) = self.0.handle(context, tx).await {
                return RunOutcome::Returned(Err(error));
            }
        }
        RunOutcome::Returned(Ok(()))
    }
}

pub(crate) struct BatchTx<H>(pub(crate) H);

impl<H: BatchTxHandler> Perform for BatchTx<H> {
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        let mut batch = Vec::with_capacity(contexts.len());
        for context in contexts {
            match context.delivery.json::<H::Payload>() {
                Ok(payload) => batch.push((context.clone(), payload)),
                Err(error) => return undecodable(&error),
            }
        }
        RunOutcome::Returned(self.0.handle(batch, tx).await)
    }
}

fn no_verdict() -> RunOutcome {
    RunOutcome::Panicked("it gave no verdict on this message".to_owned())
}

fn undecodable(error: &serde_json::Error) -> RunOutcome {
    RunOutcome::Undecodable(format!("the body is not what the handler takes: {error}"))
}
