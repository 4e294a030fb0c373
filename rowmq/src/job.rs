//! Messages that are values of a type.

use std::future::Future;

use rowmq_core::{AsyncMysqlConnection, Enqueued, NewMessage, Result, TopicName, enqueue};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type whose values are messages of a topic: `#[derive(Job)]` with `#[job(topic = "mail")]`.
///
/// The body is the value as JSON, and the header `queue-kind` names the type, so that several jobs
/// can share a topic.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The topic, or the stream, that it is sent to.
    const TOPIC: &'static str;

    /// Distinguishes it from the other jobs of its topic.
    const KIND: &'static str;

    /// Returns the job's topic.
    ///
    /// # Errors
    /// [`Error::InvalidName`](crate::Error::InvalidName), if [`Self::TOPIC`] is no name of a topic.
    fn topic() -> Result<TopicName> {
        TopicName::new(Self::TOPIC)
    }

    /// Returns the job as a message, to add what a message can also have: a delay, a priority,
    /// keys.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rowmq::{AsyncMysqlConnection, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)]
    /// # #[job(topic = "mail")]
    /// # struct Mail { to: String }
    /// # async fn remind(mail: Mail, conn: &mut AsyncMysqlConnection) -> Result<(), rowmq::Error> {
    /// let later = mail.message()?.with_delay(Duration::from_secs(3600));
    /// rowmq::enqueue(conn, &Mail::topic()?, &later).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Encode`](crate::Error::Encode), if the value cannot be written as JSON.
    fn message(&self) -> Result<NewMessage> {
        Ok(NewMessage::json(self)?.with_kind(Self::KIND))
    }

    /// Enqueues the job in the transaction that is open on `conn`, or in one of its own.
    ///
    /// # Errors
    /// As [`enqueue`]; [`Error::Encode`](crate::Error::Encode).
    fn enqueue(
        &self,
        conn: &mut AsyncMysqlConnection,
    ) -> impl Future<Output = Result<Enqueued>> + Send {
        let message = self.message();
        async move { enqueue(conn, &Self::topic()?, &message?).await }
    }
}
