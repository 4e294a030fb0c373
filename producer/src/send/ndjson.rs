//! A message as a line of JSON.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use queue_core::{Headers, Moment, MsgId, NewMessage, OnConflict, Priority, Unique};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::input::Template;

/// What `consumer forward` writes is read, too; where a message was is of no account here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    body: Option<String>,
    #[serde(default, deserialize_with = "present")]
    json: Option<Box<RawValue>>,
    body_base64: Option<String>,
    msg_id: Option<MsgId>,
    priority: Option<Priority>,
    key: Option<String>,
    key_base64: Option<String>,
    biz_id: Option<String>,
    biz_id_base64: Option<String>,
    #[serde(rename = "topic")]
    _topic: Option<IgnoredAny>,
    #[serde(rename = "delivery_no")]
    _delivery_no: Option<IgnoredAny>,
    #[serde(rename = "enqueued_at")]
    _enqueued_at: Option<IgnoredAny>,
    headers: Option<Headers>,
    deliver: Option<Moment>,
    expires: Option<Moment>,
    unique: Option<String>,
    unique_base64: Option<String>,
    #[serde(default, with = "humantime_serde")]
    unique_for: Option<Duration>,
    on_conflict: Option<OnConflict>,
    #[serde(default, with = "humantime_serde")]
    max_wait: Option<Duration>,
}

/// A value that is there, also `null`.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(value).map(Some)
}

/// Reads one line; what it does not say is as the template has it. The error says what is wrong,
/// as the end of a sentence.
pub(super) fn parse(line: &[u8], template: &Template) -> Result<NewMessage, String> {
    let record: Record = serde_json::from_slice(line)
        .map_err(|error| error.to_string().replace(" at line 1 column ", " at column "))?;
    let body = match (record.body, record.json, record.body_base64) {
        (Some(text), None, None) => text.into_bytes(),
        (None, Some(json), None) => json.get().as_bytes().to_vec(),
        (None, None, text @ Some(_)) => bytes("body_base64", None, text)?.unwrap_or_default(),
        _ => return Err("it needs one of body, json and body_base64".to_owned()),
    };
    let mut message = template.message(body);
    if let Some(msg_id) = record.msg_id {
        message.msg_id = msg_id;
    }
    if let Some(priority) = record.priority {
        message.priority = priority;
    }
    if let Some(key) = bytes("key", record.key, record.key_base64)? {
        message.key = Some(key);
    }
    message.biz_id = bytes("biz_id", record.biz_id, record.biz_id_base64)?;
    message.deliver = record.deliver.or(message.deliver);
    message.expires = record.expires.or(message.expires);
    if let Some(headers) = record.headers {
        message.headers.0.extend(headers.0);
    }
    let key = bytes("unique", record.unique, record.unique_base64)?;
    message.unique =
        Unique::from_options(key, record.unique_for, record.on_conflict, record.max_wait)
            .map_err(|error| error.to_string())?;
    Ok(message)
}

/// A field that is text, or bytes in base64.
fn bytes(
    name: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, String> {
    match (text, base64) {
        (text, None) => Ok(text.map(String::into_bytes)),
        (None, Some(base64)) => match STANDARD.decode(base64) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(format!("{name}_base64: {error}")),
        },
        (Some(_), Some(_)) => Err(format!("it has both {name} and {name}_base64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(line: &str) -> Result<Vec<u8>, String> {
        parse(line.as_bytes(), &Template::default()).map(|message| message.body)
    }

    #[test]
    fn a_body_is_text_json_as_written_or_base64() {
        assert_eq!(body(r#"{"body":"a\nb"}"#), Ok(b"a\nb".to_vec()));
        let json = r#"{"json": {"b":1.10, "a":12345678901234567890123}}"#;
        assert_eq!(body(json), Ok(br#"{"b":1.10, "a":12345678901234567890123}"#.to_vec()));
        assert_eq!(body(r#"{"json":null}"#), Ok(b"null".to_vec()));
        assert_eq!(body(r#"{"body_base64":"/wA="}"#), Ok(vec![0xff, 0]));
    }

    #[test]
    fn the_line_goes_before_the_template() {
        let template = Template {
            priority: Priority::FIRST,
            key: Some(b"k".to_vec()),
            headers: Headers::from_iter([("a", "1"), ("b", "1")]),
            deliver: Some(Moment::After(Duration::from_secs(1))),
            expires: None,
        };
        let plain = parse(br#"{"body":""}"#, &template).expect("a message");
        assert_eq!((plain.priority, plain.key), (Priority::FIRST, Some(b"k".to_vec())));
        let line = br#"{"body":"","priority":9,"key":"x","biz_id":"o-1","headers":{"b":"2"},"expires":"2d",
            "msg_id":"0199f5a0-0000-7000-8000-000000000001"}"#;
        let full = parse(line, &template).expect("a message");
        assert_eq!(full.deliver, Some(Moment::After(Duration::from_secs(1))));
        assert_eq!(full.expires, Some(Moment::After(Duration::from_secs(172_800))));
        assert_eq!(full.priority, Priority::LAST);
        assert_eq!(full.key.as_deref(), Some(&b"x"[..]));
        assert_eq!(full.biz_id.as_deref(), Some(&b"o-1"[..]));
        assert_eq!(full.headers, Headers::from_iter([("a", "1"), ("b", "2")]));
        assert_eq!(full.msg_id.to_string(), "0199f5a0-0000-7000-8000-000000000001");
    }

    #[test]
    fn a_line_of_a_forward_is_a_message_again() {
        let line =
            br#"{"msg_id":"0199f5a0-0000-7000-8000-000000000001","topic":"a","delivery_no":2,
            "enqueued_at":"2026-11-21T17:00:00Z","key_base64":"/w==","biz_id":"o-1","body":"b"}"#;
        let message = parse(line, &Template::default()).expect("a message");
        assert_eq!(message.msg_id.to_string(), "0199f5a0-0000-7000-8000-000000000001");
        assert_eq!(message.key.as_deref(), Some(&[0xff][..]));
        assert_eq!((message.biz_id, message.body), (Some(b"o-1".to_vec()), b"b".to_vec()));
    }

    #[test]
    fn a_line_that_is_no_message_says_why() {
        for (line, why) in [
            ("", "EOF"),
            ("[]", "invalid length"),
            (r#"{"body":"a""#, "EOF"),
            (r#"{}"#, "one of body, json and body_base64"),
            (r#"{"body":"a","json":1}"#, "one of body, json and body_base64"),
            (r#"{"body":"a","prio":1}"#, "unknown field `prio`"),
            (r#"{"body":"a","priority":12}"#, "Priority 12 does not exist"),
            (r#"{"body":"a","msg_id":"x"}"#, "UUID"),
            (r#"{"body":"a","headers":{"a":1}}"#, "expected a string"),
            (r#"{"body":"a","deliver":"soon"}"#, "no moment"),
            (r#"{"body_base64":"?"}"#, "body_base64"),
            (r#"{"body":"","key_base64":"?"}"#, "key_base64"),
            (r#"{"body":"","key":"a","key_base64":"YQ=="}"#, "both key and key_base64"),
            ("{\"body\":\"\u{fffd}", "EOF"),
        ] {
            let error = body(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
            assert!(!error.contains("at line"), "{line}: {error}");
        }
        assert!(parse(b"{\"body\":\"\xff\"}", &Template::default()).is_err());
    }
}
