//! Those who send: through a producer's lanes, and in transactions of their own.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use producer::{Producer, ProducerOptions, SendError};
use queue_core::connection::{Session, SessionKind};
use queue_core::{Error, enqueue_all};
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
                let sent = sent(&producer.send_all(&stage.topic, messages).await);
                for id in ids {
                    stage.recorder.borrow_mut().sent(id, sent);
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
                stage.recorder.borrow_mut().sent(id, sent(&outcome));
            }
        }
    }))
    .await;
    producer.close().await;
}

fn sent<T>(outcome: &Result<T, SendError>) -> Sent {
    match outcome {
        Ok(_) => Sent::Stored,
        Err(SendError::Refused(_) | SendError::GaveUp { .. }) => Sent::NotStored,
        Err(_) => Sent::Unknown,
    }
}

/// Sends `n` messages in transactions of its own, some of them long, some rolled back.
pub(crate) async fn transact(stage: Rc<Stage>, name: String, n: u32) {
    for _ in 0..n {
        stage.doze(400).await;
        let kind = SessionKind::Leased(stage.settings.lease);
        let session = Session::open(&stage.url(&name), kind, stage.settings.lease).await;
        let Ok(mut session) = session else { continue };
        let messages: Vec<_> = (0..=stage.below(2)).map(|_| stage.message()).collect();
        for message in &messages {
            stage.recorder.borrow_mut().sending(message.msg_id, &name, stage.strict.get());
        }
        let keep = stage.below(4) > 0;
        let think = stage.below(900);
        let done = session
            .transaction("an order of the user's", async |conn| {
                enqueue_all(conn, &stage.topic, &messages).await?;
                sleep(Duration::from_millis(think.into())).await;
                // Any error of the user's own rolls back.
                if keep { Ok(()) } else { Err(Error::WorkerStopped) }
            })
            .await;
        let sent = match done {
            Ok(()) => Sent::Stored,
            Err(Error::UnknownOutcome { .. }) => Sent::Unknown,
            Err(_) => Sent::NotStored,
        };
        for message in &messages {
            stage.recorder.borrow_mut().sent(message.msg_id, sent);
        }
    }
}
