use clap::value_parser;
use rowmq_core::TopicName;
use rowmq_core::store::inspect::{self, Peeked};
use serde::Serialize;

use super::topic::find;
use crate::body::Body;
use crate::invocation::Invocation;
use crate::output::Row;

/// Show a topic's first messages, in order of handling; claims nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Peek {
    topic: TopicName,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 10)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Show the bodies too: their beginnings in the table, whole with --json.
    #[arg(long)]
    body: bool,
}

#[derive(Debug, Serialize)]
struct Message {
    #[serde(flatten)]
    peeked: Peeked,
    body_bytes: usize,
    #[serde(flatten)]
    body: Option<Body>,
}

/// The last column is for the body.
const HEADER: [&str; 12] = [
    "row",
    "message id",
    "priority",
    "state",
    "deliveries",
    "failures",
    "enqueued (UTC)",
    "key",
    "biz id",
    "headers",
    "bytes",
    "body",
];

impl Row for Message {
    fn cells(&self) -> Vec<String> {
        let peeked = &self.peeked;
        let state = match (peeked.conn_id, peeked.suspect) {
            (Some(conn), _) => format!("claimed by connection {conn}"),
            (None, true) => "ready, suspect".to_owned(),
            (None, false) => "ready".to_owned(),
        };
        let headers = peeked.headers.0.iter().map(|(name, value)| format!("{name}={value}"));
        let mut cells = vec![
            peeked.row.to_string(),
            peeked.msg_id.to_string(),
            peeked.priority.to_string(),
            state,
            peeked.delivery_no.to_string(),
            peeked.failures.to_string(),
            peeked.enqueued_at.format("%F %T%.3f").to_string(),
            peeked.key.clone().unwrap_or_default(),
            peeked.biz_id.clone().unwrap_or_default(),
            headers.collect::<Vec<_>>().join(" "),
            self.body_bytes.to_string(),
        ];
        cells.extend(self.body.as_ref().map(Body::beginning));
        cells
    }
}

impl Peek {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let messages: Vec<_> = session
            .call("peek", async |conn| inspect::peek(conn, topic.id, self.limit).await)
            .await?
            .into_iter()
            .map(|peeked| self.message(peeked))
            .collect();
        let header = if self.body { &HEADER[..] } else { &HEADER[..HEADER.len() - 1] };
        let none = format!("The topic '{}' holds no message that is ready or claimed.", topic.name);
        invocation.output.rows(header, &messages, &none)
    }

    fn message(&self, mut peeked: Peeked) -> Message {
        let body = std::mem::take(&mut peeked.body);
        let body_bytes = body.len();
        let body = self.body.then(|| Body::new(&peeked.headers, body));
        Message { peeked, body_bytes, body }
    }
}
