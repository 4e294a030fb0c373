use anyhow::Context;
use rowmq_core::model::FailedRun;
use rowmq_core::store::dead::{self as stored, DeadFilter, DeadLetter};
use rowmq_core::{MsgId, TopicName, dead};
use serde::Serialize;

use crate::body::Body;
use crate::commands::topic::find;
use crate::invocation::Invocation;
use crate::output::Row;

/// Show a dead letter in full: body, headers, what it died of, and each failed run before.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    topic: TopicName,
    /// The message id.
    id: MsgId,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    letter: DeadLetter,
    #[serde(flatten)]
    body: Body,
    /// The failed runs, oldest first; if there are many, the newest.
    history: Vec<FailedRun>,
}

pub(in crate::commands) const HISTORY: [&str; 4] = ["delivery", "worker", "failed (UTC)", "error"];

impl Row for FailedRun {
    fn cells(&self) -> Vec<String> {
        vec![
            self.delivery_no.to_string(),
            self.worker.to_string(),
            self.at.format("%F %T%.3f").to_string(),
            self.error.clone(),
        ]
    }
}

impl Show {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let filter = DeadFilter { msg_id: Some(self.id), ..DeadFilter::default() };
        let gone = || {
            format!(
                "The topic '{}' has no dead letter {}: `rowmq dead list {}` shows those it has",
                topic.name, self.id, topic.name
            )
        };
        let letters = dead::list(&mut session, topic.id, &filter, 1).await?;
        let letter = letters.into_iter().next().with_context(gone)?;
        let read = async |conn: &mut _| stored::body(conn, topic.id, letter.row).await;
        let body = session.call("read a dead letter", read).await?.with_context(gone)?;
        let read = async |conn: &mut _| stored::history(conn, topic.id, letter.row).await;
        let history = session.call("read a dead letter's history", read).await?;
        let shown = Shown { body: Body::new(&letter.headers, body), letter, history };
        invocation.output.properties(&shown, &shown.properties())?;
        invocation.output.more_rows(&HISTORY, &shown.history)
    }
}

impl Shown {
    fn properties(&self) -> Vec<(&'static str, String)> {
        let letter = &self.letter;
        let mut properties = vec![
            ("message id", letter.msg_id.to_string()),
            ("priority", letter.priority.to_string()),
            ("enqueued (UTC)", letter.enqueued_at.format("%F %T%.6f").to_string()),
            ("died (UTC)", letter.died_at.format("%F %T%.6f").to_string()),
            ("cause", letter.cause.clone()),
            ("deliveries", letter.delivery_no.to_string()),
            ("failures", letter.failures.to_string()),
            ("crashes", letter.crashes.to_string()),
            ("last error", letter.last_error.clone()),
        ];
        properties.extend(letter.key.clone().map(|key| ("key", key)));
        properties.extend(letter.biz_id.clone().map(|biz_id| ("biz id", biz_id)));
        let headers = letter.headers.0.iter().map(|(name, value)| format!("{name}={value}"));
        properties.extend(headers.map(|header| ("header", header)));
        properties.push(("bytes", letter.body_bytes.to_string()));
        properties.push(("body", self.body.whole()));
        properties
    }
}
