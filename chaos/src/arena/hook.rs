//! The web service that the real `rowmq-consumer webhook` calls: it records each call.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use rowmq_core::MsgId;
use tokio::net::TcpListener;

use crate::record::{Ended, Event, Record};
use crate::tag::Tag;
use crate::task::Task;

/// A running web service; it ends with the harness.
pub(crate) struct Hook {
    pub(crate) address: SocketAddr,
}

impl Hook {
    pub(crate) async fn start(records: &Path) -> anyhow::Result<Self> {
        let record = Arc::new(Record::open(&records.join("hook.log"))?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = Router::new().route("/", post(called)).with_state(record);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { address })
    }
}

/// Records a call. A call that names no message is refused; the checks will miss its message.
async fn called(
    State(record): State<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let call = Call::read(&headers, &body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let Call { tag, delivery_no, task } = call;
    let note = |event| record.note(&event).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
    note(Event::Start { share: tag.into(), delivery_no, place: None })?;
    tokio::time::sleep(Duration::from_millis(task.work_ms)).await;
    note(Event::End { share: tag.into(), delivery_no, ended: Ended::Done })?;
    Ok(StatusCode::NO_CONTENT)
}

struct Call {
    tag: Tag,
    delivery_no: u32,
    task: Task,
}

impl Call {
    fn read(headers: &HeaderMap, body: &[u8]) -> anyhow::Result<Self> {
        let header =
            |name| headers.get(name).context("a header is missing")?.to_str().context(name);
        let id: MsgId = header("queue-msg-id")?.parse()?;
        Ok(Self {
            tag: id.into(),
            delivery_no: header("queue-delivery-no")?.parse()?,
            task: serde_json::from_slice(body)?,
        })
    }
}
