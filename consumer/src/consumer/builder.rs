use std::sync::Arc;

use rowmq_core::TopicName;
use rowmq_core::codec::Codecs;
use rowmq_core::handler::{
    BatchHandler, BatchTxHandler, Handler, RawBatchHandler, RawHandler, RawTxHandler, TxHandler,
};
use rowmq_service::health::Health;

use super::Consumer;
use crate::error::Error;
use crate::kinds::{Kinds, TxOfKind};
use crate::listener::SettledListener;
use crate::middleware::Middleware;
use crate::options::{ConsumerOptions, TopicOptions};
use crate::registration::{
    BatchTx, Batched, Raw, RawBatched, RawTx, Registration, Tx, Typed, Work,
};

/// Puts a [`Consumer`] together.
#[must_use]
pub struct ConsumerBuilder {
    pub(super) consumer: Consumer,
    /// The error of the first invalid registration.
    pub(super) refused: Option<Error>,
}

impl ConsumerBuilder {
    /// Sets the options of the consumer.
    pub fn options(mut self, options: ConsumerOptions) -> Self {
        self.consumer.options = options;
        self
    }

    /// Sets where the consumer reports its health.
    pub fn health(mut self, health: Health) -> Self {
        self.consumer.health = health;
        self
    }

    /// Calls `listener` with the settlement of each delivery.
    pub fn on_settled(mut self, listener: SettledListener) -> Self {
        self.consumer.listener = Some(listener);
        self
    }

    /// Sets the codecs that decode encoded bodies, for every topic. The default is gzip. A body
    /// that none of them decodes is dead-lettered.
    pub fn codecs(mut self, codecs: Codecs) -> Self {
        self.consumer.codecs = codecs;
        self
    }

    /// Puts middleware around the runs of all handlers, inside the middleware registered before it.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.consumer.layers.push(Arc::new(middleware));
        self
    }

    /// Handles the messages of `topic`, whose bodies are JSON.
    pub fn handler(self, topic: TopicName, options: TopicOptions, handler: impl Handler) -> Self {
        self.register(topic, options, 1, Work::Plain(Arc::new(Typed(handler))))
    }

    /// Handles the messages of `topic` as bytes.
    pub fn raw_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        handler: impl RawHandler,
    ) -> Self {
        self.register(topic, options, 1, Work::Plain(Arc::new(Raw(handler))))
    }

    /// Handles the messages of `topic` by their kind.
    pub fn kinds(mut self, topic: TopicName, options: TopicOptions, kinds: Kinds) -> Self {
        self.refused = self.refused.or(kinds.check(&topic).err());
        self.register(topic, options, 1, Work::Plain(Arc::new(kinds)))
    }

    /// Handles up to `size` messages of `topic` at once.
    pub fn batch_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        size: usize,
        handler: impl BatchHandler,
    ) -> Self {
        self.register(topic, options, size, Work::Plain(Arc::new(Batched(handler))))
    }

    /// Handles up to `size` messages of `topic` at once, as bytes.
    pub fn raw_batch_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        size: usize,
        handler: impl RawBatchHandler,
    ) -> Self {
        self.register(topic, options, size, Work::Plain(Arc::new(RawBatched(handler))))
    }

    /// Handles the messages of `topic`, whose bodies are JSON, each in a transaction that is also
    /// its ack. Each concurrent handler has its own connection.
    pub fn tx_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        handler: impl TxHandler,
    ) -> Self {
        self.register(topic, options, 1, Work::Transactional(Arc::new(Tx(handler))))
    }

    /// Handles the messages of `topic` as [`tx_handler`](Self::tx_handler) does, if they are of
    /// `kind` or of none. A message of another kind fails and is retried.
    pub fn tx_handler_of_kind(
        self,
        topic: TopicName,
        options: TopicOptions,
        kind: impl Into<String>,
        handler: impl TxHandler,
    ) -> Self {
        let handler = TxOfKind { kind: kind.into(), handler: Tx(handler) };
        self.register(topic, options, 1, Work::Transactional(Arc::new(handler)))
    }

    /// Handles the messages of `topic` as bytes, each in a transaction that is also its ack.
    pub fn raw_tx_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        handler: impl RawTxHandler,
    ) -> Self {
        self.register(topic, options, 1, Work::Transactional(Arc::new(RawTx(handler))))
    }

    /// Handles up to `size` messages of `topic` in one transaction that is also their ack.
    pub fn batch_tx_handler(
        self,
        topic: TopicName,
        options: TopicOptions,
        size: usize,
        handler: impl BatchTxHandler,
    ) -> Self {
        self.register(topic, options, size, Work::Transactional(Arc::new(BatchTx(handler))))
    }

    fn register(
        mut self,
        topic: TopicName,
        options: TopicOptions,
        run_size: usize,
        work: Work,
    ) -> Self {
        self.consumer.registrations.push(Registration { topic, options, run_size, work });
        self
    }

    /// Builds the consumer.
    ///
    /// # Errors
    /// [`Error::TwoHandlers`], [`Error::TwoHandlersOfKind`], [`Error::NoHandler`],
    /// [`Error::Setting`].
    pub fn build(self) -> Result<Consumer, Error> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let registrations = &self.consumer.registrations;
        if registrations.is_empty() {
            return Err(Error::NoHandler);
        }
        for (index, one) in registrations.iter().enumerate() {
            if registrations[..index].iter().any(|other| other.topic == one.topic) {
                return Err(Error::TwoHandlers { topic: one.topic.clone() });
            }
            if one.options.pause_for.is_zero() {
                let (value, fix) = ("0 ms".to_owned(), "use more than nothing, such as 30s");
                return Err(Error::Setting { name: "pause_for", value, fix });
            }
            let counts = [
                ("concurrency", one.options.concurrency == 0),
                ("max_batch", one.options.max_batch == 0),
                ("batch", one.run_size == 0),
            ];
            if let Some((name, _)) = counts.into_iter().find(|(_, is_zero)| *is_zero) {
                let (value, fix) = ("0".to_owned(), "use 1 or more");
                return Err(Error::Setting { name, value, fix });
            }
        }
        self.consumer.options.check()?;
        Ok(self.consumer)
    }
}
