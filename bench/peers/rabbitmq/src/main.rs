//! The command `peer-rabbitmq`: runs the loads on a quorum queue, to compare it with our queue.

mod server;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use peer_program::{Case, Messages, Peer, Tally};

const QUEUE: &str = "bench";

/// Messages that the server may deliver to a consumer before it has settled them.
const PREFETCH: u16 = 1000;

/// Messages that a consumer settles at once.
const SETTLE: u64 = 100;

/// The delivery mode of a message that is stored on the disk. A quorum queue stores all of them.
const PERSISTENT: u8 = 2;

/// A channel on a connection of its own, which closes when it is dropped.
#[derive(Clone)]
struct Link {
    channel: Channel,
    _connection: Arc<Connection>,
}

#[derive(Clone)]
struct RabbitMq {
    url: String,
    producers: Vec<Link>,
    version: String,
}

impl Peer for RabbitMq {
    const NAME: &'static str = "rabbitmq";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let version = server::version(url).await.context("RabbitMQ does not say what it is")?;
        if !matches!(case, Case::Drain { .. }) {
            recreate(&connect(url).await?.channel).await.context("Cannot recreate the queue")?;
        }
        let mut producers = Vec::new();
        for _ in 0..case.producers() {
            let link = connect(url).await?;
            link.channel.confirm_select(ConfirmSelectOptions::default()).await?;
            producers.push(link);
        }
        Ok(Self { url: url.to_owned(), producers, version })
    }

    fn settings(&self, case: &Case) -> String {
        let server = format!("RabbitMQ {}, quorum queue of one node", self.version);
        match case {
            Case::Enqueue { producers, batch, .. } => format!(
                "{server}; {producers} × producer on a connection of its own, {batch} publisher \
                 confirms awaited together, delivery mode {PERSISTENT}"
            ),
            Case::Fill { .. } => format!("{server}; publisher confirms awaited together"),
            Case::Drain { consumers, .. } => format!(
                "{server}; {consumers} × consumer on a connection of its own, prefetch {PREFETCH}, \
                 ack multiple every {SETTLE}"
            ),
        }
    }

    async fn enqueue(&self, producer: usize, batch: Messages) -> anyhow::Result<()> {
        let channel = &self.producers.get(producer).context("No such producer")?.channel;
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions::default();
        let mut open = Vec::new();
        for payload in batch.payloads() {
            let (exchange, properties) = ("".into(), properties.clone());
            let sent =
                channel.basic_publish(exchange, QUEUE.into(), options, &payload, properties).await;
            open.push(sent.context("RabbitMQ took no message")?);
        }
        for confirm in open {
            let confirm = confirm.await.context("RabbitMQ confirmed no message")?;
            anyhow::ensure!(confirm.is_ack(), "RabbitMQ refused a message");
        }
        Ok(())
    }

    async fn consume(&self, tally: Arc<Tally>) -> anyhow::Result<()> {
        let link = connect(&self.url).await?;
        link.channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = link.channel.basic_consume(QUEUE.into(), "".into(), options, arguments);
        let mut ready = consumer.await?.ready_chunks(PREFETCH.into());
        let mut last = 0;
        while let Some(deliveries) = ready.next().await {
            let deliveries = deliveries.into_iter().collect::<Result<Vec<_>, _>>()?;
            let numbers = deliveries.iter().map(|delivery| Messages::number_in(&delivery.data));
            tally.all_started(numbers.collect::<anyhow::Result<Vec<_>>>()?);
            // The server numbers the deliveries on a channel from one.
            for tag in deliveries.iter().map(|delivery| delivery.delivery_tag) {
                if tag - last == SETTLE {
                    link.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
                    last = tag;
                }
            }
        }
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<Link> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await;
    let connection = connection.context("Cannot connect to the server of --url")?;
    let channel = connection.create_channel().await?;
    Ok(Link { channel, _connection: Arc::new(connection) })
}

/// An empty quorum queue.
async fn recreate(channel: &Channel) -> lapin::Result<()> {
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, arguments).await?;
    Ok(())
}

fn main() -> ExitCode {
    peer_program::run::<RabbitMq>()
}
