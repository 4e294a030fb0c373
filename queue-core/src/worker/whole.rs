//! Claiming everything that a topic has: its ready messages, and a group's stream messages.

use super::cursor::Claimed;
use super::work::{Command, Handover};
use super::{Member, Worker};
use crate::model::{Error, Group, Result, Topic};
use crate::store::stream::range::Wanted;

impl Worker {
    /// Claims up to `limit` messages of a topic. A group's retries and the messages redriven to it
    /// come before the next ones of its stream, which a broadcast group's `member` reads.
    ///
    /// # Errors
    /// As [`Worker::claim`]; as [`Worker::read`].
    pub async fn claim_of(
        &self,
        topic: &Topic,
        member: Option<&Member>,
        limit: u32,
    ) -> Result<Claimed> {
        let id = topic.id;
        if let Some(member) = member {
            member.wants_as(&topic.settings.filter);
        }
        let own = self.ask(|reply| Command::Claim { topic: id, limit, reply }).await??;
        let rest = limit.saturating_sub(u32::try_from(own.len()).unwrap_or(u32::MAX));
        // The caller owns no messages until both claims are answered: if it goes before then, they
        // are given back.
        let of_stream = match (topic.group(), member) {
            (Some(group), _) if rest > 0 => self.ask_for_range(group, rest).await,
            (None, Some(member)) if rest > 0 => self.ask_for_member(member, rest).await,
            _ => return Ok(own.accept()),
        };
        match of_stream {
            Ok(of_stream) => Ok(both(own.accept(), of_stream.accept())),
            Err(error @ (Error::WorkerDead { .. } | Error::WorkerStopped)) => Err(error),
            Err(error) if own.len() == 0 => Err(error),
            // They are claimed, and must be handled whatever becomes of the stream.
            Err(error) => {
                tracing::warn!(
                    worker.id = %self.id(), topic.name = %topic.name, %error,
                    "A claim from a stream fails; the group's own messages are still handled."
                );
                Ok(own.accept())
            }
        }
    }

    /// Claims one message of a topic that must be handled alone; as [`Worker::claim_suspect`].
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect_of(&self, topic: &Topic) -> Result<Claimed> {
        let claimed = self.claim_suspect(topic.id).await?;
        match topic.group() {
            Some(group) if claimed.deliveries.is_empty() => self.claim_suspect_range(group).await,
            _ => Ok(claimed),
        }
    }

    pub(super) async fn ask_for_member(&self, member: &Member, limit: u32) -> Result<Handover> {
        let member = member.clone();
        self.ask(|reply| Command::Read { member, limit, reply }).await?
    }

    async fn ask_for_range(&self, group: Group, limit: u32) -> Result<Handover> {
        let wanted = Wanted::Shared;
        self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?
    }
}

fn both(mut own: Claimed, of_stream: Claimed) -> Claimed {
    own.deliveries.extend(of_stream.deliveries);
    own.suspect_waits |= of_stream.suspect_waits;
    own.lost += of_stream.lost;
    own.filtered += of_stream.filtered;
    own.more_later = of_stream.more_later;
    own
}
