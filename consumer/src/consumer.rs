mod builder;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rowmq_core::checkpoint::Keeper;
use rowmq_core::codec::Codecs;
use rowmq_core::connection::{Pool, ServerUrl};
use rowmq_core::model::TopicKind;
use rowmq_core::telemetry::TopicMeter;
use rowmq_core::worker::{Effects, Life, Phase, Worker, WorkerOptions};
use rowmq_core::{Topic, TopicName, store, wake};
use rowmq_service::health::Health;
use rowmq_service::identity;
use rowmq_service::signals::Shutdown;
use rowmq_service::start::when_there;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::builder::ConsumerBuilder;
use crate::bell::Bell;
use crate::decode::Decoding;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::listener::SettledListener;
use crate::members::Members;
use crate::middleware::{Around, AroundTx, Layer};
use crate::options::ConsumerOptions;
use crate::registration::{Registration, Work};
use crate::run::{Pace, Performer, Runner};
use crate::services::{Interruption, Services};
use crate::settler::Settler;
use crate::shares::Shares;
use crate::sweep;
use crate::topic_loop::TopicLoop;

/// How often topics' settings are read again.
const REFRESH: Duration = Duration::from_secs(5);

/// Connections of the pool beside the worker's, for lookups in the ledger, checkpoints and
/// settings. Each statement takes a fraction of a millisecond, so a few connections serve many
/// handlers.
pub(crate) const CONNECTIONS: usize = 4;

/// How long a call on the pool may take.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Claims the messages of the topics that have handlers, runs the handlers, settles.
pub struct Consumer {
    url: ServerUrl,
    options: ConsumerOptions,
    registrations: Vec<Registration>,
    health: Health,
    listener: Option<SettledListener>,
    /// The outermost first.
    layers: Vec<Arc<dyn Layer>>,
    codecs: Codecs,
}

impl Consumer {
    /// A consumer of the queue in the database of `url`.
    pub fn builder(url: ServerUrl) -> ConsumerBuilder {
        ConsumerBuilder {
            consumer: Self {
                url,
                options: ConsumerOptions::default(),
                registrations: Vec::new(),
                health: Health::new(),
                listener: None,
                layers: Vec::new(),
                codecs: Codecs::default(),
            },
            refused: None,
        }
    }

    /// Consumes until `shutdown`. After its `drain`, the consumer claims nothing more, and running
    /// handlers may continue for the drain time. Then it interrupts them and releases what is left,
    /// uncharged; after its `quit` it does so at once. It replaces a worker that is declared dead.
    ///
    /// # Errors
    /// When the consumer cannot start: an unknown topic, a login that is refused. The consumer
    /// waits for a server that is away; it logs later failures and tries again.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let pool = Pool::new(self.url.clone(), CONNECTIONS, CALL_DEADLINE)?;
        let (health, drain) = (&self.health, &shutdown.drain);
        let find = || self.find_topics(&pool);
        let Some(topics) = when_there(health, drain, Error::is_transient, find).await? else {
            return Ok(());
        };
        let members = Members::new(self.options.member.clone());
        let bell = Bell::new(&self.url, &self.options);
        topics.iter().for_each(|(topic, _)| bell.listen(&topic.borrow()));
        let register = || Worker::start(self.worker_options(&bell));
        let is_away = rowmq_core::Error::is_transient;
        let Some(mut worker) = when_there(health, drain, is_away, register).await? else {
            return Ok(());
        };
        let senders = topics.iter().map(|topic| topic.0.clone()).collect();
        let refresh = tokio::spawn(refresh(pool.clone(), senders, bell.clone()));
        let topics: HashMap<TopicName, watch::Receiver<Arc<Topic>>> = topics
            .into_iter()
            .map(|(sender, receiver)| (sender.borrow().name.clone(), receiver))
            .collect();
        loop {
            tracing::info!(worker.id = %worker.id(), "Consuming.");
            let died =
                self.run_worker(&worker, &topics, (&pool, &members), &bell, &shutdown).await?;
            if !died || shutdown.drain.is_cancelled() {
                break;
            }
            // Repeats this after any error until it succeeds.
            let Some(next) = when_there(health, drain, |_| true, register).await? else { break };
            worker = next;
        }
        refresh.abort();
        Ok(())
    }

    fn worker_options(&self, bell: &Bell) -> WorkerOptions {
        WorkerOptions {
            url: self.url.clone(),
            client_id: identity::client_id(),
            lease: self.options.lease,
            beat: self.options.beat,
            strategy: self.options.claim_strategy,
            doorbell: bell.doorbell(),
        }
    }

    async fn find_topics(&self, pool: &Pool) -> Result<Vec<Refreshed>, Error> {
        let mut topics = Vec::new();
        for registration in &self.registrations {
            let name = &registration.topic;
            let auto = self.options.auto_create_topics;
            let topic = pool
                .call("find the topic", async |conn| {
                    let mut found = store::topic::find(conn, name).await?;
                    if found.is_none() && auto && name.as_group().is_none() {
                        // Another process may create the topic first, which is just as good.
                        match store::topic::create(conn, name, &Default::default()).await {
                            Ok(()) | Err(rowmq_core::Error::TopicExists { .. }) => {}
                            Err(error) => return Err(error),
                        }
                        found = store::topic::find(conn, name).await?;
                    }
                    found.ok_or_else(|| rowmq_core::Error::UnknownTopic { topic: name.clone() })
                })
                .await?;
            is_consumable(&topic)?;
            registration.check(&topic)?;
            let (sender, receiver) = watch::channel(Arc::new(topic));
            topics.push((sender, receiver));
        }
        self.options.check_member(topics.iter().map(|(topic, _)| topic.borrow().clone()))?;
        Ok(topics)
    }

    /// Runs every topic's loop on one worker; returns whether the worker died.
    async fn run_worker(
        &self,
        worker: &Worker,
        topics: &HashMap<TopicName, watch::Receiver<Arc<Topic>>>,
        (pool, members): (&Pool, &Members),
        bell: &Bell,
        shutdown: &Shutdown,
    ) -> Result<bool, Error> {
        let services = Services {
            worker: worker.clone(),
            settler: Settler::start(worker.clone(), self.listener.clone()),
            ledger: Ledger::new(pool.clone()),
            keeper: Arc::new(Keeper::new(pool.clone(), worker.id())),
            members: members.clone(),
            gate: Arc::new(RwLock::new(())),
            interruption: Interruption::default(),
        };
        let shares = self.options.concurrency.map(|slots| Shares::new(slots.get()));
        let ended = CancellationToken::new();
        sweep::start(&self.url, &self.options, worker, ended.clone());
        let mut loops = JoinSet::new();
        for registration in &self.registrations {
            let Some(topic) = topics.get(&registration.topic) else { continue };
            let (health, pulse) = (self.health.clone(), self.health.pulse());
            let (turning, life) = (pulse.clone(), worker.life());
            let runner = Runner {
                services: services.clone(),
                performer: self.performer(registration, worker)?,
                pace: Pace::default(),
                registration: registration.clone(),
                meter: TopicMeter::new(registration.topic.as_str()),
            };
            let topic_loop = TopicLoop {
                runner: Arc::new(runner),
                topic: topic.clone(),
                share: shares.as_ref().map(|it| it.join(registration.options.weight.get())),
                wakes: wake::listen(&self.url, &registration.topic),
                bell: bell.clone(),
                drain: shutdown.drain.clone(),
                ticked: Arc::new(move |result| {
                    pulse.beat();
                    health.ready(result.and_then(|()| reachable(&life)));
                }),
                turned: Arc::new(move || turning.beat()),
            };
            loops.spawn(topic_loop.run());
        }
        let guard = tokio::spawn(interrupt_when_due(
            worker.clone(),
            services.interruption.clone(),
            shutdown.clone(),
            self.options.drain,
        ));
        while loops.join_next().await.is_some() {}
        guard.abort();
        // Releases what the loops handed over, and everything else that the worker's claims still
        // hold.
        worker.begin_stop();
        services.settler.finish().await;
        let stopped = worker.stop().await;
        ended.cancel();
        Ok(match stopped {
            Ok(()) => false,
            Err(rowmq_core::Error::WorkerDead { .. }) => true,
            Err(error) => {
                tracing::warn!(worker.id = %worker.id(), %error, "Worker did not stop in order.");
                !shutdown.drain.is_cancelled()
            }
        })
    }

    fn performer(&self, registration: &Registration, worker: &Worker) -> Result<Performer, Error> {
        let (layers, codecs) = (self.layers.clone(), self.codecs.clone());
        Ok(match &registration.work {
            Work::Plain(handler) => {
                let mut handler = Arc::clone(handler);
                if !layers.is_empty() {
                    handler = Arc::new(Around { layers, handler });
                }
                Performer::Plain(Arc::new(Decoding { codecs, handler }))
            }
            Work::Transactional(handler) => {
                let at_once = registration.options.concurrency;
                let effects = Effects::new(self.url.clone(), worker, at_once)?;
                let mut handler = Arc::clone(handler);
                if !layers.is_empty() {
                    handler = Arc::new(AroundTx { layers, handler });
                }
                Performer::Transactional(Arc::new(Decoding { codecs, handler }), effects)
            }
        })
    }
}

/// Refuses a stream: only its groups can read it.
pub(crate) fn is_consumable(topic: &Topic) -> Result<(), Error> {
    match topic.kind {
        TopicKind::Stream { .. } => {
            Err(rowmq_core::Error::ReadByGroups { topic: topic.name.clone() }.into())
        }
        TopicKind::Queue | TopicKind::Group { .. } | TopicKind::Broadcast { .. } => Ok(()),
    }
}

type Refreshed = (watch::Sender<Arc<Topic>>, watch::Receiver<Arc<Topic>>);

/// Whether the server answers: a worker that is cut off finds nothing, without an error.
fn reachable(life: &watch::Receiver<Life>) -> Result<(), String> {
    match &life.borrow().phase {
        Phase::Alive => Ok(()),
        Phase::Silent => Err("the server has not answered for almost a lease".to_owned()),
        Phase::Dead { reason } => Err(format!("the worker is dead: {reason}")),
    }
}

/// Interrupts running handlers when the worker can no longer vouch for its claims, and when the
/// time to drain is over.
async fn interrupt_when_due(
    worker: Worker,
    interruption: Interruption,
    shutdown: Shutdown,
    drain: Duration,
) {
    let mut life = worker.life();
    let silent = async {
        loop {
            if life.wait_for(|life| life.phase != Phase::Alive).await.is_err() {
                std::future::pending::<()>().await;
            }
            tracing::warn!(worker.id = %worker.id(), "Handlers are interrupted: the claims may be lost.");
            interruption.interrupt();
            if life.wait_for(|life| life.phase == Phase::Alive).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let stopping = async {
        shutdown.drain.cancelled().await;
        tokio::select! {
            () = shutdown.quit.cancelled() => {}
            () = tokio::time::sleep(drain) => {}
        }
        // While the server is away, a settlement is tried again, and a claim that a loop waits for
        // stands behind it. From now on the settlement gives up.
        worker.begin_stop();
        // Runs that a last claim starts in the meantime are interrupted too.
        loop {
            interruption.interrupt();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = silent => {}
        () = stopping => {}
    }
}

async fn refresh(pool: Pool, topics: Vec<watch::Sender<Arc<Topic>>>, bell: Bell) {
    loop {
        tokio::time::sleep(REFRESH).await;
        let names: Vec<_> = topics.iter().map(|sender| sender.borrow().name.clone()).collect();
        let read = async |conn: &mut _| store::topic::named(conn, &names).await;
        let found = match pool.call("read the topics' settings", read).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "Cannot read the topics.");
                continue;
            }
        };
        for (sender, name) in topics.iter().zip(&names) {
            match found.iter().find(|topic| topic.name == *name) {
                Some(topic) => {
                    bell.listen(topic);
                    sender.send_if_modified(|old| {
                        let changed = **old != *topic;
                        *old = Arc::new(topic.clone());
                        changed
                    });
                }
                None => tracing::warn!(topic.name = %name, "The topic has been deleted."),
            }
        }
    }
}
