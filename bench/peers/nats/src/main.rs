//! The command `peer-nats`: runs the loads on a stream of NATS, to compare it with the queue.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use futures_util::StreamExt as _;
use peer_program::{Case, Messages, Peer, Tally};

/// The stream, its only subject, and the consumer on the server that all consumers share.
const NAME: &str = "bench";

/// Messages that one pull asks for.
const PULL: usize = 1000;

/// Messages that may be delivered and not acknowledged (1000 by default, too few for four pulls).
const UNSETTLED: i64 = 20_000;

/// How long a producer waits for an acknowledgement (5 s by default). The server syncs each
/// message by itself, so on a slow disk the last of four thousand comes late.
const ACK: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Nats {
    url: String,
    producers: Vec<jetstream::Context>,
    /// The server's version, and the name that says how it writes to its disk.
    server: String,
}

impl Peer for Nats {
    const NAME: &'static str = "nats";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let client = connect(url).await?;
        if !matches!(case, Case::Drain { .. }) {
            recreate(&jetstream::new(client.clone())).await?;
        }
        let mut producers = Vec::new();
        for _ in 0..case.producers() {
            producers.push(ContextBuilder::new().timeout(ACK).build(connect(url).await?));
        }
        let said = client.server_info();
        let server = format!("NATS {}, {}, file storage", said.version, said.server_name);
        Ok(Self { url: url.to_owned(), producers, server })
    }

    fn settings(&self, case: &Case) -> String {
        let server = &self.server;
        match case {
            Case::Enqueue { producers, batch, .. } => format!(
                "{server}; {producers} × producer on a connection of its own, {batch} \
                 acknowledgements awaited together"
            ),
            Case::Fill { .. } => format!("{server}; acknowledgements awaited together"),
            Case::Drain { consumers, .. } => format!(
                "{server}; WorkQueue, {consumers} × pull of {PULL}, explicit ack, max_ack_pending \
                 {UNSETTLED} (1000 by default)"
            ),
        }
    }

    async fn enqueue(&self, producer: usize, batch: Messages) -> anyhow::Result<()> {
        let context = self.producers.get(producer).context("No such producer")?;
        let mut open = Vec::new();
        for payload in batch.payloads() {
            let sent = context.publish(NAME, payload.into()).await;
            open.push(sent.context("NATS took no message")?);
        }
        for acknowledgement in open {
            acknowledgement.await.context("NATS did not store a message")?;
        }
        Ok(())
    }

    async fn consume(&self, tally: Arc<Tally>) -> anyhow::Result<()> {
        let context = jetstream::new(connect(&self.url).await?);
        let consumer: PullConsumer =
            context.get_consumer_from_stream(NAME, NAME).await.context("There is no backlog")?;
        let messages = consumer.stream().max_messages_per_batch(PULL).messages().await?;
        let mut ready = messages.ready_chunks(PULL);
        while let Some(messages) = ready.next().await {
            let messages = messages.into_iter().collect::<Result<Vec<_>, _>>()?;
            let numbers = messages.iter().map(|message| Messages::number_in(&message.payload));
            tally.all_started(numbers.collect::<anyhow::Result<Vec<_>>>()?);
            for message in messages {
                // Any error of an ack is a boxed one.
                message
                    .ack()
                    .await
                    .map_err(|error| anyhow::anyhow!("NATS took no ack: {error}"))?;
            }
        }
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    async_nats::connect(url).await.context("Cannot connect to the server of --url")
}

/// An empty stream, with a consumer that has got nothing.
async fn recreate(context: &jetstream::Context) -> anyhow::Result<()> {
    // There is none at the first time.
    drop(context.delete_stream(NAME).await);
    let config = Config {
        name: NAME.to_owned(),
        subjects: vec![NAME.to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        ..Config::default()
    };
    let stream = context.create_stream(config).await.context("Cannot make the stream")?;
    let consumer = pull::Config {
        durable_name: Some(NAME.to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: UNSETTLED,
        ..pull::Config::default()
    };
    stream.create_consumer(consumer).await.context("Cannot make the consumer")?;
    Ok(())
}

fn main() -> ExitCode {
    peer_program::run::<Nats>()
}
