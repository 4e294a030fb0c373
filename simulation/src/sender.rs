//! Senders: through a producer's lanes, and in transactions.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::{Link, Session, SessionKind};
use rowmq_core::store::{self, trace};
use rowmq_core::stream::append;
use rowmq_core::{Enqueued, Error, MsgId, NewMessage, TopicName, enqueue_all};
use rowmq_producer::{Producer, ProducerOptions, SendError};
use tokio::time::sleep;

use crate::recorder::Sent;
use crate::stage::Stage;

/// Sends `n` batches through a producer.
pub(crate) async fn produce(stage: Rc<Stage>, name: String, n: u32) {
    let lease = stage.settings.lease;
    let lanes = NonZeroU32::MIN.saturating_add(stage.below(2));
    let producer = loop {
        let options = ProducerOptions { lanes, lease, ..ProducerOptions::default() };
        match Producer::connect(stage.url(&name), options).await {
            Ok(producer) => break producer,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    };
    let producer = &producer;
    futures_util::future::join_all((0..n).map(|at| {
        let (stage, name) = (Rc::clone(&stage), name.clone());
        async move {
            sleep(Duration::from_millis(u64::from(at * 150 + stage.below(300)))).await;
            let messages: Vec<_> = (0..=stage.below(4)).map(|_| stage.message()).collect();
            let ids: Vec<_> = messages.iter().map(|message| message.msg_id).collect();
            for id in &ids {
                stage.recorder.borrow_mut().sending(*id, &name, stage.strict.get());
            }
            if stage.below(3) > 0 {
                let outcome = producer.send_all(&stage.topic, messages).await;
                for (at, id) in ids.into_iter().enumerate() {
                    let one = outcome.as_ref().map(|sent| sent[at].enqueued());
                    stage.recorder.borrow_mut().sent(id, sent(id, one));
                }
                return;
            }
            let mut receipts = Vec::new();
            for message in messages {
                receipts.push(producer.send_async(&stage.topic, message).await);
            }
            for (id, receipt) in ids.into_iter().zip(receipts) {
                let outcome = match receipt {
                    Ok(receipt) => receipt.await,
                    Err(error) => Err(error),
                };
                stage
                    .recorder
                    .borrow_mut()
                    .sent(id, sent(id, outcome.as_ref().map(rowmq_producer::Sent::enqueued)));
            }
        }
    }))
    .await;
    producer.close().await;
}

fn sent(id: MsgId, outcome: Result<Option<Enqueued>, &SendError>) -> Sent {
    match outcome {
        // `None`: in a spill journal, which no producer has here.
        Ok(enqueued) => enqueued.map_or(Sent::Unknown, |enqueued| told(id, enqueued)),
        Err(SendError::Refused(_) | SendError::GaveUp { .. }) => Sent::NotStored,
        Err(_) => Sent::Unknown,
    }
}

/// Translates the producer's answer. A message whose key another one holds is not stored.
fn told(id: MsgId, enqueued: Enqueued) -> Sent {
    if enqueued.msg_id() == id { Sent::Stored } else { Sent::NotStored }
}

/// Sends `n` messages in transactions, some of them long, some rolled back.
pub(crate) async fn transact(stage: Rc<Stage>, name: String, n: u32) {
    for _ in 0..n {
        stage.doze(400).await;
        let kind = SessionKind::Leased(stage.settings.lease);
        let session = Session::open(&stage.url(&name), kind, stage.settings.lease).await;
        let Ok(mut session) = session else { continue };
        let mut messages: Vec<_> = (0..=stage.below(2)).map(|_| stage.message()).collect();
        let goes_direct = stage.settings.stream.is_some() && stage.below(2) == 0;
        if goes_direct && stage.below(2) == 0 {
            messages.iter_mut().for_each(|message| message.key = None);
        }
        for message in &messages {
            stage.recorder.borrow_mut().sending(message.msg_id, &name, stage.strict.get());
        }
        let keep = stage.below(4) > 0;
        let think = stage.below(900);
        let done = session
            .transaction("an order of the user's", async |conn| {
                let enqueued = match goes_direct {
                    true => enqueue_past_the_inbox(conn, &stage.topic, &messages).await?,
                    false => enqueue_all(conn, &stage.topic, &messages).await?,
                };
                sleep(Duration::from_millis(think.into())).await;
                // Any error of the user's code rolls back.
                if keep { Ok(enqueued) } else { Err(Error::WorkerStopped) }
            })
            .await;
        let done = match done {
            Err(Error::UnknownOutcome { .. }) if stage.settings.dedupe => {
                resend(&stage, &name, &messages).await
            }
            done => done,
        };
        for (at, message) in messages.iter().enumerate() {
            let sent = match &done {
                Ok(enqueued) => told(message.msg_id, enqueued[at]),
                Err(Error::UnknownOutcome { .. }) => Sent::Unknown,
                Err(_) => Sent::NotStored,
            };
            stage.recorder.borrow_mut().sent(message.msg_id, sent);
        }
    }
}

/// Enqueues messages of a stream as a producer's lane does with large batches: if it can, straight
/// into the log.
async fn enqueue_past_the_inbox(
    conn: &mut Link,
    name: &TopicName,
    messages: &[NewMessage],
) -> rowmq_core::Result<Vec<Enqueued>> {
    let stream = store::topic::existing(conn, name).await?;
    let is_ready = messages.iter().all(|message| message.deliver.is_none());
    if is_ready && append(conn, stream.id, messages).await?.in_log {
        trace::enqueued(conn, stream.id, stream.settings.trace, messages).await?;
        return Ok(messages.iter().map(|message| Enqueued::Stored(message.msg_id)).collect());
    }
    enqueue_all(conn, name, messages).await
}

/// Sends messages again by their ids, which the topic remembers, until they are known to be stored.
async fn resend(
    stage: &Stage,
    name: &str,
    messages: &[NewMessage],
) -> rowmq_core::Result<Vec<Enqueued>> {
    loop {
        sleep(Duration::from_millis(200)).await;
        let kind = SessionKind::Leased(stage.settings.lease);
        let session = Session::open(&stage.url(name), kind, stage.settings.lease).await;
        let Ok(mut session) = session else { continue };
        let again = async |conn: &mut Link| enqueue_all(conn, &stage.topic, messages).await;
        if let Ok(enqueued) = session.transaction("an order sent again", again).await {
            return Ok(enqueued);
        }
    }
}
