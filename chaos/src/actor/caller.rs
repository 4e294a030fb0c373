//! A consumer without the library: it claims and settles by the SQL contract, as a consumer in any
//! language does, and records what it handles.

use std::process::ExitCode;
use std::slice;
use std::time::Duration;

use anyhow::Context;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, Row};
use rowmq_core::connection::ServerUrl;
use rowmq_core::{MsgId, TopicName};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::signals;
use tokio_util::sync::CancellationToken;

use super::Identity;
use crate::record::{Answer, Ended, Event, Record};
use crate::stream::{Group, Share};
use crate::task::{Ending, Task};

/// Handles messages by the SQL contract until TERM.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CallerArgs {
    #[command(flatten)]
    identity: Identity,
    /// The queues and groups: it claims from all of them before it handles what it claimed.
    #[arg(long = "topic", required = true)]
    topics: Vec<TopicName>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// The same lease as that of the library's workers.
const LEASE: &str = "SET @queue_lease = 10";

const CLAIM: &str = "CALL queue_claim(?, 4, ?)";

/// How long it waits for messages of the last of its topics, in seconds. It looks for those of the
/// others, and whether it is to stop, between such waits.
const WAIT: u32 = 1;

/// How long it waits for a server that is away.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a statement may take: longer than the lease, at whose end the server has dropped the
/// session.
const DEADLINE: Duration = Duration::from_secs(15);

/// `queue_settle`: another consumer has the message.
const FENCED: u16 = 31015;

/// The first error number of the calls' own refusals. Lower numbers come from the server: a lock
/// wait, a deadlock, a KILL, a server that takes no writes. After such an error the session still
/// holds its delivery until it settles it, so the session repeats the whole transaction until it
/// succeeds.
const REFUSALS: u16 = 31_001;

/// `queue_settle`: an ack whose work may have been undone.
const UNDONE: u16 = 31025;

fn may_be_done_again(number: u16) -> bool {
    number < REFUSALS || number == UNDONE
}

pub(crate) async fn run(args: CallerArgs) -> anyhow::Result<ExitCode> {
    args.service.start_logs();
    let record = Record::open(&args.identity.record)?;
    record.note(&Event::Caller)?;
    let (url, stop) = (args.server.url()?, signals::shutdown_on_signals()?.drain);
    while !stop.is_cancelled() {
        // A new session is a new consumer: what the old one held is delivered again.
        if let Err(error) = consume(&url, &record, &args.topics, &stop).await {
            tracing::debug!(error = format!("{error:#}"), "The session is lost.");
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn consume(
    url: &ServerUrl,
    record: &Record,
    topics: &[TopicName],
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut session = Session { conn: writer(url).await?, record };
    session.say(LEASE, ()).await?;
    while !stop.is_cancelled() {
        let rows = session.claim_of_all(topics).await?;
        let claimed: Option<Vec<_>> =
            rows.iter().map(|(topic, row)| Claimed::of(topic, row)).collect();
        session.handle(claimed.context("the rows of queue_claim")?).await?;
    }
    session.say("CALL queue_leave()", ()).await?;
    Ok(())
}

/// Connects to the host that takes writes. A client in another language has to find it, too.
async fn writer(url: &ServerUrl) -> anyhow::Result<Conn> {
    let (account, place) = url.expose().rsplit_once('@').context("an account in the URL")?;
    let (hosts, database) = place.split_once('/').context("a database in the URL")?;
    let mut refusal = anyhow::anyhow!("no host takes writes");
    for host in hosts.split(',') {
        match tokio::time::timeout(DEADLINE, open(&format!("{account}@{host}/{database}"))).await {
            Ok(Ok(Some(conn))) => return Ok(conn),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => refusal = error,
            Err(late) => refusal = late.into(),
        }
    }
    Err(refusal)
}

/// Connects to one host; `None`: it takes no writes.
async fn open(url: &str) -> anyhow::Result<Option<Conn>> {
    let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
    let mut conn = Conn::new(opts).await?;
    let is_reader: Option<bool> = conn.query_first("SELECT @@GLOBAL.read_only").await?;
    Ok((is_reader != Some(true)).then_some(conn))
}

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The server refused; the session is still good.
    #[error("error {0}")]
    Refused(u16),
    /// The session is gone, or no longer answers.
    #[error("{0}")]
    Lost(String),
}

struct Claimed {
    delivery: String,
    delivery_no: u32,
    share: Share,
    is_first: bool,
    task: Task,
}

impl Claimed {
    fn of(topic: &TopicName, row: &Row) -> Option<Self> {
        let msg_id: MsgId = row.get::<String, _>("msg_id")?.parse().ok()?;
        let delivery_no = row.get("delivery_no")?;
        Some(Self {
            delivery: row.get("delivery")?,
            delivery_no,
            share: Share::of(msg_id.into(), topic.as_str()),
            is_first: delivery_no == 1 && row.get::<u32, _>("failures")? == 0,
            task: serde_json::from_slice(&row.get::<Vec<u8>, _>("body")?).ok()?,
        })
    }

    fn is_to_be_put_off(&self) -> bool {
        let puts_off = matches!(
            self.task.ending,
            Ending::RetryOnce | Ending::PanicOnce | Ending::SnoozeOnce | Ending::ReleaseOnce
        );
        puts_off && self.is_first
    }
}

struct Session<'r> {
    conn: Conn,
    record: &'r Record,
}

impl Session<'_> {
    async fn say(
        &mut self,
        sql: &str,
        values: impl Into<Params> + Send,
    ) -> Result<Vec<Row>, Failure> {
        let answer = async {
            match values.into() {
                // MySQL cannot prepare START TRANSACTION.
                Params::Empty => self.conn.query(sql).await,
                values => self.conn.exec(sql, values).await,
            }
        };
        // After a timeout the session is not used again.
        match tokio::time::timeout(DEADLINE, answer).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(Error::Server(error))) => Err(Failure::Refused(error.code)),
            Ok(Err(lost)) => Err(Failure::Lost(lost.to_string())),
            Err(_) => Err(Failure::Lost("no answer".to_owned())),
        }
    }

    /// Claims from the topics in turn. If it then holds messages, it claims once more from the
    /// topics that had none or failed; it keeps the messages that it holds.
    async fn claim_of_all<'t>(
        &mut self,
        topics: &'t [TopicName],
    ) -> Result<Vec<(&'t TopicName, Row)>, Failure> {
        let (mut rows, mut without) = (Vec::new(), Vec::new());
        for (nth, topic) in topics.iter().enumerate() {
            // It waits only while it holds nothing.
            let waits = rows.is_empty() && nth + 1 == topics.len();
            let claimed = self.claim(topic, if waits { WAIT } else { 0 }).await?;
            if claimed.is_empty() {
                without.push(topic);
            }
            rows.extend(claimed.into_iter().map(|row| (topic, row)));
        }
        for topic in without {
            if !rows.is_empty() {
                let claimed = self.claim(topic, 0).await?;
                rows.extend(claimed.into_iter().map(|row| (topic, row)));
            }
        }
        Ok(rows)
    }

    async fn claim(&mut self, topic: &TopicName, wait: u32) -> Result<Vec<Row>, Failure> {
        match self.say(CLAIM, (topic.as_str(), wait)).await {
            Err(Failure::Refused(_)) => self.undo().await.map(|()| Vec::new()),
            claimed => claimed,
        }
    }

    /// Handles messages to be put off one by one, and the rest in one transaction.
    async fn handle(&mut self, claimed: Vec<Claimed>) -> anyhow::Result<()> {
        let (put_off, booked): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(Claimed::is_to_be_put_off);
        for claimed in &put_off {
            self.begin(claimed)?;
            let outcome = self.put_off(claimed).await;
            self.end(slice::from_ref(claimed), false, outcome)?;
        }
        for claimed in &booked {
            self.begin(claimed)?;
        }
        match self.book(&booked).await {
            // One of them now belongs to another consumer, so none of them was settled.
            Err(Failure::Refused(FENCED)) if booked.len() > 1 => {
                for claimed in booked.chunks(1) {
                    let outcome = self.book(claimed).await;
                    self.end(claimed, true, outcome)?;
                }
                Ok(())
            }
            outcome => self.end(&booked, true, outcome),
        }
    }

    fn begin(&self, claimed: &Claimed) -> anyhow::Result<()> {
        let Claimed { share, delivery_no, .. } = *claimed;
        Ok(self.record.note(&Event::Start { share, delivery_no, place: None })?)
    }

    /// Records what became of them.
    fn end(
        &self,
        claimed: &[Claimed],
        ack: bool,
        outcome: Result<(), Failure>,
    ) -> anyhow::Result<()> {
        let answer = match &outcome {
            Ok(()) => Answer::Settled,
            Err(Failure::Refused(FENCED)) => Answer::Fenced,
            Err(_) => Answer::Unknown,
        };
        for Claimed { share, delivery_no, .. } in claimed {
            let (share, delivery_no) = (*share, *delivery_no);
            self.record.note(&Event::Settled { share, delivery_no, ack, answer })?;
        }
        match outcome {
            Err(Failure::Lost(_)) => Ok(outcome?),
            _ => Ok(()),
        }
    }

    /// Commits the effects and their acks in one transaction, and repeats it until it succeeds.
    async fn book(&mut self, claimed: &[Claimed]) -> Result<(), Failure> {
        if claimed.is_empty() {
            return Ok(());
        }
        loop {
            match self.book_once(claimed).await {
                Err(Failure::Refused(number)) => {
                    self.undo().await?;
                    if !may_be_done_again(number) {
                        return Err(Failure::Refused(number));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                ended => return ended,
            }
        }
    }

    async fn book_once(&mut self, claimed: &[Claimed]) -> Result<(), Failure> {
        self.say("START TRANSACTION", ()).await?;
        for Claimed { share, delivery_no, task, .. } in claimed {
            let (share, delivery_no) = (*share, *delivery_no);
            // A message of the stream has one effect, in the one group that writes effects.
            let books = share.group.is_none_or(|group| group == Group::Booked);
            if books {
                let msg_id = share.tag.msg_id().as_bytes().to_vec();
                self.say("INSERT INTO chaos_effect (msg_id) VALUES (?)", (msg_id,)).await?;
            }
            tokio::time::sleep(Duration::from_millis(task.work_ms)).await;
            let written = self.record.note(&match books {
                true => Event::Effect { share, delivery_no },
                false => Event::End { share, delivery_no, ended: Ended::Done },
            });
            written.map_err(|error| Failure::Lost(error.to_string()))?;
        }
        let deliveries: Vec<_> = claimed.iter().map(|claimed| &*claimed.delivery).collect();
        self.say("CALL queue_settle(?, 'ack', NULL, NULL)", (deliveries.join(","),)).await?;
        self.say("COMMIT", ()).await.map(drop)
    }

    /// Does what the task asks for at the first try.
    async fn put_off(&mut self, claimed: &Claimed) -> Result<(), Failure> {
        let Claimed { share, delivery_no, .. } = *claimed;
        let (verdict, delay, ended) = match claimed.task.ending {
            Ending::ReleaseOnce => ("release", None, Ended::Release),
            Ending::SnoozeOnce => ("snooze", Some(0.3), Ended::Retry),
            _ => ("retry", None, Ended::Retry),
        };
        let written = self.record.note(&Event::End { share, delivery_no, ended });
        written.map_err(|error| Failure::Lost(error.to_string()))?;
        let settle = "CALL queue_settle(?, ?, 'it is asked to', ?)";
        loop {
            match self.say(settle, (&claimed.delivery, verdict, delay)).await {
                Err(Failure::Refused(number)) if may_be_done_again(number) => {
                    self.undo().await?;
                    tokio::time::sleep(PAUSE).await;
                }
                ended => return ended.map(drop),
            }
        }
    }

    async fn undo(&mut self) -> Result<(), Failure> {
        while let Err(failure) = self.say("ROLLBACK", ()).await {
            if let Failure::Lost(_) = failure {
                return Err(failure);
            }
        }
        Ok(())
    }
}
