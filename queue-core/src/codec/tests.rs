use crate::model::{Headers, NewMessage};

use super::*;

/// Reverses the body, and marks it.
struct Turned;

impl Codec for Turned {
    fn name(&self) -> &str {
        "turned"
    }

    fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(Some(b"!".iter().chain(body.iter().rev()).copied().collect()))
    }

    fn decode(&self, body: &[u8], _: usize) -> Result<Vec<u8>, BoxError> {
        let body = body.strip_prefix(b"!").ok_or("it has no mark")?;
        Ok(body.iter().rev().copied().collect())
    }
}

/// Would write more than any reader may read.
struct Flood;

impl Codec for Flood {
    fn name(&self) -> &str {
        "flood"
    }

    fn encode(&self, _: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        Err("it only decodes".into())
    }

    fn decode(&self, _: &[u8], limit: usize) -> Result<Vec<u8>, BoxError> {
        Ok(vec![0; limit + 1])
    }
}

fn text() -> Vec<u8> {
    b"the same again and again, ".repeat(100)
}

fn encoded(encoding: &Encoding) -> NewMessage {
    NewMessage::new(text()).encoded(encoding).expect("encoded")
}

fn header(value: &str) -> Headers {
    Headers::from_iter([("Content-Encoding", value)])
}

#[test]
fn what_was_encoded_by_several_codecs_is_decoded_in_the_opposite_order() {
    let message = encoded(&Encoding::none().then(Gzip::default()).then(Turned));
    assert_eq!(message.headers.get(CONTENT_ENCODING), Some("gzip, turned"));
    assert!(message.body.len() < text().len() / 2 && message.body.starts_with(b"!"));
    let codecs = Codecs::default().with(Turned);
    let decoded = codecs.decode(&message.headers, &message.body).expect("decoded");
    assert_eq!(decoded, Some(text()));
}

#[test]
fn what_is_encoded_already_is_encoded_once_more() {
    let turned = encoded(&Encoding::none().then(Turned));
    let twice = turned.encoded(&Encoding::none().then(Gzip::default())).expect("encoded");
    assert_eq!(twice.headers.get(CONTENT_ENCODING), Some("turned, gzip"));
    let codecs = Codecs::default().with(Turned);
    assert_eq!(codecs.decode(&twice.headers, &twice.body).expect("decoded"), Some(text()));
}

#[test]
fn a_short_body_and_one_that_does_not_shrink_are_sent_as_they_are() {
    let noise: Vec<u8> = (0..100).flat_map(|_| *uuid::Uuid::new_v4().as_bytes()).collect();
    for body in [b"short".to_vec(), noise] {
        let message = NewMessage::new(body.clone());
        let message = message.encoded(&Encoding::none().then(Gzip::default())).expect("sent");
        assert_eq!((message.body, message.headers.is_empty()), (body, true));
    }
}

#[test]
fn a_header_may_be_written_in_every_way_that_http_allows() {
    let message = encoded(&Encoding::none().then(Gzip::default()));
    for value in ["gzip", "GZIP", " x-gzip ", "identity, gzip,", "gzip,identity"] {
        let decoded = Codecs::default().decode(&header(value), &message.body);
        assert_eq!(decoded.expect(value), Some(text()), "{value}");
    }
    for value in ["", "identity", " , "] {
        assert_eq!(Codecs::default().decode(&header(value), b"x").expect(value), None);
    }
}

#[test]
fn what_cannot_be_decoded_is_reported_in_a_sentence() {
    let tried = |codecs: &Codecs, value: &str, body: &[u8]| {
        codecs.decode(&header(value), body).expect_err(value).to_string()
    };
    let codecs = Codecs::default();
    let unknown = tried(&codecs, "gzip, vault", b"x");
    assert!(unknown.contains("'vault'") && unknown.contains("it knows gzip"), "{unknown}");
    assert!(tried(&codecs, "gzip", b"no gzip").starts_with("The codec 'gzip' cannot decode"));
    let cut = &encoded(&Encoding::none().then(Gzip::default())).body[..30];
    assert!(tried(&codecs, "gzip", cut).starts_with("The codec 'gzip' cannot decode"));
    assert!(tried(&codecs, &"gzip,".repeat(9), b"x").contains("9 times"));
    let turned = codecs.with(Turned);
    assert_eq!(
        tried(&turned, "turned", b"x"),
        "The codec 'turned' cannot decode the body: it has no mark."
    );
}

/// A few kilobytes that would fill the memory.
#[test]
fn a_bomb_is_decoded_no_further_than_to_the_limit() {
    let limit = NonZeroUsize::new(100_000).expect("not zero");
    let codecs = Codecs::default().with(Flood).with_limit(limit);
    let bomb = |n| {
        let message = NewMessage::new(vec![0; n]);
        message.encoded(&Encoding::none().then(Gzip::default())).expect("encoded").body
    };
    let decoded = codecs.decode(&header("gzip"), &bomb(limit.get())).expect("as much as allowed");
    assert_eq!(decoded.map(|body| body.len()), Some(limit.get()));
    for (codec, body) in [("gzip", bomb(limit.get() + 1)), ("flood", Vec::new())] {
        let refused = codecs.decode(&header(codec), &body);
        assert!(matches!(refused, Err(CodecError::TooLarge { limit: 100_000, .. })), "{codec}");
    }
}

#[test]
fn a_codec_whose_name_cannot_be_written_and_one_that_fails_send_nothing() {
    struct Named(&'static str);
    impl Codec for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
            Ok(Some(body.to_vec()))
        }
        fn decode(&self, body: &[u8], _: usize) -> Result<Vec<u8>, BoxError> {
            Ok(body.to_vec())
        }
    }
    for name in ["", "a,b", "a b", "ä"] {
        let refused = NewMessage::new("x").encoded(&Encoding::none().then(Named(name)));
        assert!(matches!(refused, Err(crate::Error::Codec(CodecError::Name { .. }))), "{name}");
    }
    let failed = NewMessage::new("x").encoded(&Encoding::none().then(Flood));
    assert!(failed.expect_err("fails").to_string().contains("it only decodes"));
}
