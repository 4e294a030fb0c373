//! A batch as the payload of a record: its messages' metadata as JSON, then their bodies as they
//! are.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rowmq_core::model::RowId;
use rowmq_core::store::lane::{LaneId, LaneKind};
use rowmq_core::{Headers, Moment, MsgId, NewMessage, OnConflict, Priority, TopicName, Unique};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::lane::Position;

/// What one record holds: messages that are stored together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) topic: TopicName,
    pub(crate) messages: Vec<NewMessage>,
    /// The position of the lane that may have stored them already.
    pub(crate) doubt: Option<Position>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    topic: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    doubt: Option<Doubt>,
    messages: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Doubt {
    row: u64,
    name: Uuid,
    seq: u64,
}

/// A message without its body.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    msg_id: MsgId,
    body_len: usize,
    priority: Priority,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    biz_id_base64: Option<String>,
    #[serde(skip_serializing_if = "Headers::is_empty", default)]
    headers: Headers,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    deliver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    unique: Option<Held>,
}

/// The unique key of a message, and its scope.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Held {
    key_base64: String,
    #[serde(with = "humantime_serde")]
    time: Option<Duration>,
    on_conflict: OnConflict,
    #[serde(with = "humantime_serde")]
    max_wait: Option<Duration>,
}

impl Held {
    fn of(unique: &Unique) -> Self {
        let (time, on_conflict, max_wait) = unique.options();
        Self { key_base64: STANDARD.encode(unique.key()), time, on_conflict, max_wait }
    }

    fn unique(self) -> Result<Option<Unique>, String> {
        let key = STANDARD.decode(self.key_base64).map_err(|error| error.to_string())?;
        Unique::from_options(Some(key), self.time, Some(self.on_conflict), self.max_wait)
            .map_err(|error| error.to_string())
    }
}

impl Record {
    /// The payload. The error says in words what cannot be written.
    pub(super) fn to_payload(&self) -> Result<Vec<u8>, String> {
        let doubt =
            self.doubt.map(|Position { id, seq }| Doubt { row: id.row.0, name: id.name, seq });
        let messages = self.messages.iter().map(Entry::of).collect();
        let head = Head { topic: self.topic.to_string(), doubt, messages };
        let head = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
        let len = u32::try_from(head.len()).map_err(|error| error.to_string())?;
        let bodies = self.messages.iter().map(|message| message.body.len()).sum::<usize>();
        let mut payload = Vec::with_capacity(4 + head.len() + bodies);
        payload.extend(len.to_le_bytes());
        payload.extend(head);
        self.messages.iter().for_each(|message| payload.extend(&message.body));
        Ok(payload)
    }

    /// What a payload holds. The error says in words why it cannot be read.
    pub(super) fn from_payload(payload: &[u8]) -> Result<Self, String> {
        let (head, mut bodies) = split(payload)?;
        let doubt = head.doubt.map(|Doubt { row, name, seq }| {
            let id = LaneId { row: RowId(row), name, kind: LaneKind::Durable };
            Position { id, seq }
        });
        let mut messages = Vec::with_capacity(head.messages.len());
        for entry in head.messages {
            let (body, rest) =
                bodies.split_at_checked(entry.body_len).ok_or("a body is cut short")?;
            bodies = rest;
            messages.push(entry.message(body)?);
        }
        let topic = TopicName::new(head.topic).map_err(|error| error.to_string())?;
        Ok(Self { topic, messages, doubt })
    }
}

/// How many messages a payload holds. The error says in words why it cannot be read.
pub(super) fn messages_in(payload: &[u8]) -> Result<u64, String> {
    split(payload).map(|(head, _)| head.messages.len() as u64)
}

fn split(payload: &[u8]) -> Result<(Head, &[u8]), String> {
    let (len, rest) = payload.split_first_chunk().ok_or("it is cut short")?;
    let len = usize::try_from(u32::from_le_bytes(*len)).map_err(|error| error.to_string())?;
    let (head, bodies) = rest.split_at_checked(len).ok_or("it is cut short")?;
    Ok((serde_json::from_slice(head).map_err(|error| error.to_string())?, bodies))
}

impl Entry {
    fn of(message: &NewMessage) -> Self {
        // Name every field: a field that is forgotten here would be lost in an outage. The record
        // does not keep whether the id was given: from here on it counts as given, so that the
        // server checks it once more.
        let NewMessage {
            msg_id,
            body,
            priority,
            key,
            biz_id,
            headers,
            deliver,
            expires,
            unique,
            ..
        } = message;
        Self {
            unique: unique.as_ref().map(Held::of),
            msg_id: *msg_id,
            body_len: body.len(),
            priority: *priority,
            key_base64: key.as_ref().map(|bytes| STANDARD.encode(bytes)),
            biz_id_base64: biz_id.as_ref().map(|bytes| STANDARD.encode(bytes)),
            headers: headers.clone(),
            deliver: deliver.map(text),
            expires: expires.map(text),
        }
    }

    fn message(self, body: &[u8]) -> Result<NewMessage, String> {
        let bytes = |text: Option<String>| text.map(|text| STANDARD.decode(text)).transpose();
        let moment = |text: Option<String>| text.map(|text| text.parse::<Moment>()).transpose();
        let mut message = NewMessage::new(body).with_msg_id(self.msg_id);
        message.priority = self.priority;
        message.key = bytes(self.key_base64).map_err(|error| error.to_string())?;
        message.biz_id = bytes(self.biz_id_base64).map_err(|error| error.to_string())?;
        message.headers = self.headers;
        message.deliver = moment(self.deliver)?;
        message.expires = moment(self.expires)?;
        message.unique = self.unique.map(Held::unique).transpose()?.flatten();
        Ok(message)
    }
}

/// A moment as text that parses to the same nanosecond.
pub(super) fn text(moment: Moment) -> String {
    match moment {
        Moment::After(time) => humantime::format_duration(time).to_string(),
        Moment::At(at) => at.to_rfc3339(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        let at = "2026-12-24T18:00:00.123456789Z".parse().expect("a moment");
        let mut message = NewMessage::new([0, 255, b'a'])
            .with_priority(Priority::FIRST)
            .with_key([0xff, 0])
            .with_biz_id("ride-1")
            .with_header("a", "1")
            .with_unique(Unique::debounced([0xfe], Some(Duration::from_secs(90))))
            .with_delay(Duration::new(100_000_000, 999_999_999));
        message.expires = Some(at);
        let id = LaneId { row: RowId(9), name: Uuid::from_u128(1), kind: LaneKind::Durable };
        let topic = TopicName::new("mail").expect("a name");
        let messages = vec![message, NewMessage::new("")];
        Record { topic, messages, doubt: Some(Position { id, seq: 4 }) }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_to_the_last_nanosecond() {
        let record = full();
        let payload = record.to_payload().expect("written");
        assert_eq!(messages_in(&payload), Ok(2));
        let read = Record::from_payload(&payload).expect("read");
        assert_eq!((&read.topic, read.doubt), (&record.topic, record.doubt));
        assert_eq!(read.messages.len(), record.messages.len());
        for (read, written) in read.messages.iter().zip(&record.messages) {
            assert_eq!((read.msg_id, &read.body), (written.msg_id, &written.body));
            assert_eq!((&read.key, &read.biz_id), (&written.key, &written.biz_id));
            assert_eq!((read.priority, &read.headers), (written.priority, &written.headers));
            assert_eq!((read.deliver, read.expires), (written.deliver, written.expires));
            assert_eq!(read.unique, written.unique);
        }
    }

    #[test]
    fn a_payload_cut_short_anywhere_says_so() {
        let payload = full().to_payload().expect("written");
        for len in 0..payload.len() {
            assert!(Record::from_payload(&payload[..len]).is_err(), "{len}");
        }
    }
}
