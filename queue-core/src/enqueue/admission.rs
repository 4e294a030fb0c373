//! Admission: a message is not stored if its id, or its unique key, is already there.

use std::collections::HashSet;

use super::{statement_limit, statements};
use crate::connection::Connection;
use crate::model::{KeyLifetime, MsgId, NewMessage, Repeat, Result, Topic, Unique};
use crate::store::unique::{Holder, WantedKey};
use crate::store::{dedupe, lookup, trace, unique};

/// The outcome of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It is stored.
    Stored(MsgId),
    /// It was not stored: a message with its id was stored within the topic's dedupe window, or the
    /// message with the returned id holds its unique key.
    Duplicate(MsgId),
    /// It replaced this message, whose id stays.
    Replaced(MsgId),
}

impl Enqueued {
    /// The id of the stored message.
    #[must_use]
    pub fn msg_id(self) -> MsgId {
        match self {
            Self::Stored(id) | Self::Duplicate(id) | Self::Replaced(id) => id,
        }
    }

    /// Whether it is stored as a message of its own.
    #[must_use]
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Stored(_))
    }

    /// The word for people: `stored`, `duplicate` or `replaced`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stored(_) => "stored",
            Self::Duplicate(_) => "duplicate",
            Self::Replaced(_) => "replaced",
        }
    }
}

/// Whether the messages can be stored without a check of ids and unique keys.
#[must_use]
pub fn is_plain(topic: &Topic, messages: &[NewMessage]) -> bool {
    messages.iter().all(|message| message.unique.is_none() && !is_deduped(topic, message))
}

fn is_deduped(topic: &Topic, message: &NewMessage) -> bool {
    topic.settings.dedupe_window.is_some() && message.has_given_id()
}

/// As [`enqueue_to`](super::enqueue_to), in a transaction that is certainly open and that the
/// caller rolls back after an error.
///
/// # Errors
/// As [`enqueue_to`](super::enqueue_to).
pub async fn enqueue_in_transaction(
    conn: &mut impl Connection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>> {
    super::check(topic, messages)?;
    statement_limit(conn, messages).await?;
    let mut enqueued = Vec::with_capacity(messages.len());
    for run in runs(topic, messages) {
        let refused = admit(conn, topic, run).await?;
        let outcome = |(at, message): (usize, &NewMessage)| {
            refused[at].unwrap_or(Enqueued::Stored(message.msg_id))
        };
        enqueued.extend(run.iter().enumerate().map(outcome));
        let new: Vec<NewMessage> = run
            .iter()
            .zip(&refused)
            .filter(|(_, refused)| refused.is_none())
            .map(|(message, _)| message.clone())
            .collect();
        store(conn, topic, &new).await?;
    }
    Ok(enqueued)
}

/// Splits the messages into runs in which no id and no key occurs twice. A later message with the
/// same id or key then finds the earlier one in the database, as it would find any other.
fn runs<'m>(
    topic: &Topic,
    mut messages: &'m [NewMessage],
) -> impl Iterator<Item = &'m [NewMessage]> {
    std::iter::from_fn(move || {
        let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
        let known = messages.iter().position(|message| {
            let new_id = !is_deduped(topic, message) || ids.insert(message.msg_id);
            let new_key = message.unique.as_ref().is_none_or(|unique| keys.insert(unique.key()));
            !new_id || !new_key
        });
        let n = known.unwrap_or(messages.len());
        let (run, rest) = messages.split_at(n);
        messages = rest;
        (n > 0).then_some(run)
    })
}

/// Enters the ids and takes the keys of the messages. Returns the outcomes of those that must not
/// be stored.
async fn admit(
    conn: &mut impl Connection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<Vec<Option<Enqueued>>> {
    tracing::trace!(step = "admit");
    let mut refused = vec![None; messages.len()];
    let mut nowhere = Vec::new();
    if let Some(window) = topic.settings.dedupe_window {
        let given = messages.iter().filter(|message| message.has_given_id());
        let given: Vec<MsgId> = given.map(|message| message.msg_id).collect();
        let repeated = dedupe::enter(conn, topic.id, &given, window).await?;
        let repeated: HashSet<MsgId> = repeated.into_iter().collect();
        for (message, refused) in messages.iter().zip(&mut refused) {
            if repeated.contains(&message.msg_id) {
                *refused = Some(Enqueued::Duplicate(message.msg_id));
            }
        }
    }
    let open = messages.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
    let wanted: Vec<WantedKey<'_>> = open.filter_map(|(message, _)| wanted(message)).collect();
    for holder in unique::take(conn, topic.id, &wanted).await? {
        let has_key = |unique: &Unique| unique.key() == holder.key;
        let at = messages.iter().position(|message| message.unique.as_ref().is_some_and(has_key));
        let Some(at) = at else { continue };
        let message = &messages[at];
        refused[at] = meet(conn, topic, message, &holder).await?;
        let is_nowhere = refused[at] == Some(Enqueued::Duplicate(holder.msg_id))
            && holder.msg_id != message.msg_id;
        if is_nowhere && is_deduped(topic, message) {
            nowhere.push(message.msg_id);
        }
    }
    // The id of a message that its unique key refused must stay unused. The id of a message that
    // replaced another stays entered, because its content is stored.
    dedupe::take_back(conn, topic.id, &nowhere).await?;
    Ok(refused)
}

fn wanted(message: &NewMessage) -> Option<WantedKey<'_>> {
    let unique = message.unique.as_ref()?;
    Some(WantedKey { key: unique.key(), msg_id: message.msg_id, time: unique.time() })
}

/// Decides about a message whose key another message holds; `None`: it is stored and takes over the
/// key.
async fn meet(
    conn: &mut impl Connection,
    topic: &Topic,
    message: &NewMessage,
    holder: &Holder,
) -> Result<Option<Enqueued>> {
    // The same message again. If it were stored twice, the end of the first would free the key of
    // the second.
    if holder.msg_id == message.msg_id {
        return Ok(Some(Enqueued::Duplicate(holder.msg_id)));
    }
    let max_wait = match message.unique.as_ref().map(Unique::hold) {
        Some(KeyLifetime::UntilDone(Repeat::Replace)) => None,
        Some(KeyLifetime::UntilDone(Repeat::Debounce { max_wait })) => max_wait,
        _ => return Ok(Some(Enqueued::Duplicate(holder.msg_id))),
    };
    if holder.location.is_none() {
        // The holder was enqueued to keep the key, so it is not replaced.
        return Ok(Some(Enqueued::Duplicate(holder.msg_id)));
    }
    if unique::replace(conn, topic.id, holder, message, max_wait).await? {
        if topic.settings.searchable.is_some() {
            lookup::replace(conn, topic.id, holder.msg_id, message).await?;
        }
        return Ok(Some(Enqueued::Replaced(holder.msg_id)));
    }
    unique::take_over(conn, topic.id, &holder.key, message.msg_id).await?;
    Ok(None)
}

/// Inserts the messages, in order. A message that may be replaced is inserted alone, because its
/// row is recorded.
async fn store(conn: &mut impl Connection, topic: &Topic, messages: &[NewMessage]) -> Result<()> {
    let replaces = |message: &NewMessage| message.unique.as_ref().is_some_and(Unique::replaces);
    for piece in messages.chunk_by(|one, next| !replaces(one) && !replaces(next)) {
        for part in statements(conn, topic, piece).await? {
            part.insert(conn, topic).await?;
        }
        if let [message @ NewMessage { unique: Some(unique), .. }] = piece
            && unique.replaces()
        {
            unique::place(conn, topic.id, unique.key(), message).await?;
        }
    }
    trace::enqueued(conn, topic.id, topic.settings.trace, messages).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Access, TopicId, TopicName, TopicSettings};

    #[test]
    fn an_id_or_key_that_comes_twice_begins_another_piece() {
        let topic = Topic {
            id: TopicId(1),
            name: TopicName::new("t").expect("a name"),
            settings: TopicSettings {
                dedupe_window: Some(std::time::Duration::from_secs(1)),
                ..TopicSettings::default()
            },
            access: Access::default(),
            effective_access: Access::default(),
            kind: crate::model::TopicKind::Queue,
            backlog: None,
        };
        let given = MsgId::new();
        let plain = || NewMessage::new("m");
        let unique = |key: &str| plain().with_unique(Unique::until_done(key));
        let messages = [
            plain(),
            plain().with_msg_id(given),
            unique("a"),
            unique("b"),
            plain(),
            unique("a"),
            plain().with_msg_id(given),
            plain().with_msg_id(given),
        ];
        assert!(!is_plain(&topic, &messages) && is_plain(&topic, &messages[..1]));
        let lens: Vec<_> = runs(&topic, &messages).map(<[NewMessage]>::len).collect();
        assert_eq!(lens, [5, 2, 1]);
        let open = Topic { settings: TopicSettings::default(), ..topic };
        assert!(is_plain(&open, &messages[..2]));
    }
}
