//! A worker: jobs, their handlers, and the process around them.

mod environment;

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;

use anyhow::anyhow;
use rowmq_consumer::{Consumer, ConsumerBuilder, ConsumerOptions, Kinds, Shutdown, TopicOptions};
use rowmq_core::TopicName;
use rowmq_core::connection::ServerUrl;
use rowmq_core::handler::{Context, Handler, HandlerError, TxHandler};
use rowmq_service::health::Health;
use rowmq_service::logging;
use rowmq_service::signals::shutdown_on_signals;

use self::environment::Process;
use crate::failure::{Failure, Outcome};
use crate::job::Job;

/// Handles jobs until the process is asked to stop.
///
/// ```no_run
/// # use rowmq::{HandlerError, Job, Run, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize, Job)]
/// # #[job(topic = "mail")]
/// # struct Mail { to: String }
/// #[derive(Clone)]
/// struct Shop { name: &'static str }
///
/// async fn send(mail: Mail, run: Run<Shop>) -> Result<(), HandlerError> {
///     println!("{} to {}, delivery {}", run.state.name, mail.to, run.delivery.delivery_no);
///     Ok(())
/// }
///
/// # async fn start() -> rowmq::Outcome {
/// Worker::from_env()?.state(Shop { name: "flowers" }).job(send).run().await
/// # }
/// ```
#[must_use = "a worker handles nothing until it runs"]
pub struct Worker<S = ()> {
    builder: ConsumerBuilder,
    health: Health,
    process: Process,
    state: S,
    topics: BTreeMap<String, Topic>,
}

/// What is registered for a topic.
#[derive(Default)]
struct Topic {
    options: TopicOptions,
    /// The handlers of jobs that are handled by functions.
    kinds: Option<Kinds>,
    /// Registers the handler of a job that is handled in a transaction.
    transactional: Option<Register>,
}

type Register = Box<dyn FnOnce(ConsumerBuilder, TopicName, TopicOptions) -> ConsumerBuilder + Send>;

/// One delivery of a job, and the worker's state.
#[derive(Debug, Clone)]
pub struct Run<S = ()> {
    /// A clone of the value given to [`Worker::state`].
    pub state: S,
    context: Context,
}

impl<S> Deref for Run<S> {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Worker {
    /// Makes a worker of the server that the environment names, and reads everything else from
    /// there too.
    ///
    /// | variable | |
    /// |---|---|
    /// | `ROWMQ_URL` | the server |
    /// | `ROWMQ_URL_FILE` | a file that holds its URL, as the systemd credential `rowmq-url` does |
    /// | `RUST_LOG`, `ROWMQ_LOG_FORMAT` | what is logged (`info`), and how: `text` or `json` |
    /// | `ROWMQ_METRICS` | where metrics and probes are served, with the feature `endpoint` |
    /// | `ROWMQ_CONSUMER_DRAIN` and others | a field of [`ConsumerOptions`]: `25s` |
    ///
    /// It refuses a variable with the prefix `ROWMQ_CONSUMER_` that is no such field. It starts the
    /// process's logs, unless the program has done so.
    ///
    /// # Errors
    /// One sentence that names the variable.
    pub fn from_env() -> Result<Self, Failure> {
        let (url, options, process) = environment::read().map_err(Failure::new)?;
        process.start_logs();
        let mut worker = Self::new(url).options(options);
        worker.process = process;
        Ok(worker)
    }

    /// Makes a worker of the queue in the database of `url`, with default options.
    pub fn new(url: ServerUrl) -> Self {
        let health = Health::new();
        let builder = Consumer::builder(url).health(health.clone());
        let process = Process::default();
        Self { builder, health, process, state: (), topics: BTreeMap::new() }
    }
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    /// Sets what handlers registered from here on share: a pool, a client, settings. Each run gets
    /// a clone.
    pub fn state<T>(self, state: T) -> Worker<T> {
        let Self { builder, health, process, topics, .. } = self;
        Worker { builder, health, process, state, topics }
    }

    /// Sets how the worker works.
    pub fn options(self, options: ConsumerOptions) -> Self {
        self.consumer(|builder| builder.options(options))
    }

    /// Sets how the jobs of a topic are handled: how many at once, how long. The topic is
    /// `Mail::TOPIC`, or the name that [`job_of`](Self::job_of) was given.
    pub fn topic(mut self, topic: impl Into<String>, options: TopicOptions) -> Self {
        self.topics.entry(topic.into()).or_default().options = options;
        self
    }

    /// Handles a job: `Ok` acks it, an error by `?` retries it. The handler is a function or a
    /// closure of the job and its [`Run`]. Jobs that share a topic are distinguished by their kind;
    /// a worker in which one kind has two handlers does not start.
    pub fn job<J, H, F>(self, handler: H) -> Self
    where
        J: Job,
        H: Fn(J, Run<S>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.job_of(J::TOPIC, handler)
    }

    /// Handles a job from a topic other than its own: from a group of the stream that it is sent
    /// to, as in `orders@billing`.
    pub fn job_of<J, H, F>(mut self, topic: impl Into<String>, handler: H) -> Self
    where
        J: Job,
        H: Fn(J, Run<S>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let handler = Function { handler, state: self.state.clone(), job: PhantomData };
        let topic = self.topics.entry(topic.into()).or_default();
        topic.kinds = Some(topic.kinds.take().unwrap_or_default().on(J::KIND, handler));
        self
    }

    /// Handles a job in a transaction that is also its ack: what the handler writes, and the jobs
    /// that it enqueues, commit with it or not at all. It is the only handler of its topic.
    pub fn job_in_transaction<H>(mut self, handler: H) -> Self
    where
        H: TxHandler,
        H::Payload: Job,
    {
        let register: Register = Box::new(|builder: ConsumerBuilder, topic, options| {
            builder.tx_handler_of_kind(topic, options, H::Payload::KIND, handler)
        });
        self.topics.entry(H::Payload::TOPIC.to_owned()).or_default().transactional = Some(register);
        self
    }

    /// Changes what has no method of its own here: middleware, codecs, handlers of bytes and of
    /// batches.
    pub fn consumer(mut self, change: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Self {
        self.builder = change(self.builder);
        self
    }

    /// Runs until TERM or INT, then finishes the running jobs and gives back the rest; a second
    /// signal gives all of it back. The process should end afterwards: spans that come later are
    /// not sent.
    ///
    /// # Errors
    /// If it cannot start: an unknown topic, an address that is taken. It waits for a server that
    /// is away; it logs later failures and tries again.
    pub async fn run(self) -> Outcome {
        let shutdown = shutdown_on_signals().map_err(Failure::new)?;
        let ended = self.run_until(shutdown).await;
        // It blocks until the collector has the last spans.
        tokio::task::spawn_blocking(logging::stop).await?;
        ended
    }

    /// Does the same until `shutdown`, for a program that handles signals itself.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_until(self, shutdown: Shutdown) -> Outcome {
        let serving = self.process.serve(self.health.clone(), shutdown.drain.clone());
        serving.await.map_err(Failure::new)?;
        Ok(self.build()?.run(shutdown).await?)
    }

    fn build(self) -> Result<Consumer, Failure> {
        let mut builder = self.builder;
        for (name, topic) in self.topics {
            let name = TopicName::new(name)?;
            if topic.kinds.is_none() && topic.transactional.is_none() {
                return Err(Failure::new(anyhow!(
                    "The topic '{name}' has options but no job: register one, or leave them out"
                )));
            }
            if let Some(kinds) = topic.kinds {
                builder = builder.kinds(name.clone(), topic.options.clone(), kinds);
            }
            if let Some(register) = topic.transactional {
                builder = register(builder, name, topic.options);
            }
        }
        Ok(builder.build()?)
    }
}

/// Runs a function as a handler.
struct Function<J, S, H> {
    handler: H,
    state: S,
    job: PhantomData<fn(J)>,
}

impl<J, S, H, F> Handler for Function<J, S, H>
where
    J: Job,
    S: Clone + Send + Sync + 'static,
    H: Fn(J, Run<S>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    type Payload = J;

    async fn handle(&self, context: &Context, job: J) -> Result<(), HandlerError> {
        let run = Run { state: self.state.clone(), context: context.clone() };
        (self.handler)(job, run).await
    }
}
