//! An operator who creates and deletes topics, as `rowmq topic delete` does, while transactions
//! that enqueue to them are open.

use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::{Link, Session, SessionKind};
use rowmq_core::model::{Action, Actor, Change, MsgId, TOPIC_KNOWN_FOR, TopicSettings};
use rowmq_core::store::inspect::{MessageTable, purge_some};
use rowmq_core::topic::deletion::Closed;
use rowmq_core::{Error, NewMessage, Result, TopicName, enqueue_all, store};
use tokio::time::sleep;
use uuid::Uuid;

use crate::settings::SEARCHABLE;
use crate::stage::Stage;

/// How long a call may take; longer than any order is open.
const DEADLINE: Duration = Duration::from_secs(10);

/// Beyond the ids of all other messages.
const IDS: u128 = 1 << 100;

/// Creates and deletes `n` topics, one after the other.
pub(crate) async fn operate(stage: Rc<Stage>, name: String, n: u32) {
    for nth in 0..n {
        let topic = TopicName::new(format!("{name}-{nth}")).expect("a name");
        let round = Round { stage: &stage, name: &name, topic: &topic };
        until_done(async || round.make().await).await;
        let messages = (0..=stage.below(1)).map(|at| round.message(nth * 2 + at)).collect();
        let order = order(Rc::clone(&stage), topic.clone(), messages);
        let order = tokio::task::spawn_local(order);
        stage.doze(600).await;
        let deleted = round.delete(false).await;
        stage.server.note(&format!("{name} deletes {topic}: {deleted:?}"));
        order.await.expect("an order that ends");
        until_done(async || round.delete(true).await).await;
    }
}

/// Tries until it succeeds.
async fn until_done(mut attempt: impl AsyncFnMut() -> Result<()>) {
    while attempt().await.is_err() {
        sleep(Duration::from_millis(200)).await;
    }
}

/// Sends messages in one transaction, which stays open for a while.
async fn order(stage: Rc<Stage>, topic: TopicName, messages: Vec<NewMessage>) {
    let url = stage.url("customer");
    let Ok(mut session) = Session::open(&url, SessionKind::Plain, DEADLINE).await else { return };
    let think = Duration::from_millis(stage.below(4000).into());
    let enqueue = async |conn: &mut Link| {
        enqueue_all(conn, &topic, &messages).await?;
        sleep(think).await;
        Ok(())
    };
    if session.transaction("an order", enqueue).await.is_ok() {
        stage.check_acknowledged(&messages);
    }
}

/// A topic that comes and goes.
struct Round<'s> {
    stage: &'s Stage,
    name: &'s str,
    topic: &'s TopicName,
}

impl Round<'_> {
    async fn session(&self) -> Result<Session> {
        Session::open(&self.stage.url(self.name), SessionKind::Plain, DEADLINE).await
    }

    fn message(&self, n: u32) -> NewMessage {
        let message = NewMessage::new("").with_msg_id(MsgId(Uuid::from_u128(IDS + u128::from(n))));
        match self.stage.below(3) {
            0 => message.with_delay(Duration::from_secs(20_000)),
            _ => message,
        }
    }

    async fn make(&self) -> Result<()> {
        let searchable = self.stage.settings.searchable.then_some(SEARCHABLE);
        let settings = TopicSettings { searchable, ..TopicSettings::default() };
        let create =
            async |conn: &mut Link| store::topic::create(conn, self.topic, &settings).await;
        match self.session().await?.transaction("make the topic", create).await {
            Err(Error::TopicExists { .. }) => Ok(()),
            other => other,
        }
    }

    /// Deletes the topic: with the messages that it holds, or only if it holds none.
    async fn delete(&self, purge: bool) -> Result<()> {
        let mut session = self.session().await?;
        let by = Change {
            actor: Actor { name: self.name.to_owned(), origin: "simulation".to_owned() },
            action: Action::DeleteTopic,
            target: self.topic.to_string(),
            detail: None,
        };
        let closed = match Closed::close(&mut session, self.topic, &by).await {
            // It is deleted already.
            Err(Error::UnknownTopic { .. }) if purge => return Ok(()),
            other => other?,
        };
        sleep(TOPIC_KNOWN_FOR.mul_f64(1.5)).await;
        if purge {
            for table in [MessageTable::Ready, MessageTable::Scheduled] {
                let id = closed.topic.id;
                let some = async |conn: &mut Link| purge_some(conn, table, id, 10).await;
                while session.transaction("purge the topic", some).await? > 0 {}
            }
        }
        closed.refuse_unless_empty(&mut session).await?;
        closed.delete(&mut session).await
    }
}
