use maud::{Markup, html};
use rowmq_core::{MsgId, TopicName};
use serde::Deserialize;

use crate::show;

/// How much of a body a page shows; all of it can be downloaded.
const SHOWN: usize = 64 * 1024;

/// Bytes in a line of hexadecimal digits.
const LINE: usize = 16;

/// How a body is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Shape {
    /// As JSON if it is JSON, else as text if it is text, else in hexadecimal digits.
    #[default]
    Best,
    Text,
    Json,
    Hex,
}

impl Shape {
    const CHOICE: [(Self, &str); 3] =
        [(Self::Text, "text"), (Self::Json, "json"), (Self::Hex, "hex")];
}

/// A body, links to its other forms, and a link to download it.
pub(super) fn shown(topic: &TopicName, id: MsgId, body: &[u8], wanted: Shape) -> Markup {
    let (shape, text) = shaped(body, wanted);
    html! {
        p class="choice" {
            @for (one, word) in Shape::CHOICE {
                a href={ "?as=" (word) } aria-current=[(one == shape).then_some("true")] { (word) } " "
            }
            a href={ "/messages/" (topic) "/" (id) "/body" } download { "keep" } " "
            (show::size(body.len() as u64))
        }
        @if body.is_empty() { (show::nothing("It is empty.")) } @else { pre class="body" tabindex="0" { (text) } }
        @if body.len() > SHOWN { p class="hint" { "This is its beginning: keep it to see all of it." } }
    }
}

/// The body as wanted, if possible: a body that is no text is shown in digits.
fn shaped(body: &[u8], wanted: Shape) -> (Shape, String) {
    let head = &body[..body.len().min(SHOWN)];
    let is_text = || std::str::from_utf8(body).is_ok();
    if matches!(wanted, Shape::Best | Shape::Json)
        && body.len() <= SHOWN
        && let Some(pretty) = pretty(body)
    {
        return (Shape::Json, pretty);
    }
    if wanted == Shape::Text || (wanted != Shape::Hex && is_text()) {
        return (Shape::Text, String::from_utf8_lossy(head).into_owned());
    }
    (Shape::Hex, digits(head))
}

fn pretty(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    serde_json::to_string_pretty(&value).ok()
}

fn digits(body: &[u8]) -> String {
    let line = |(nth, line): (usize, &[u8])| {
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let is_shown = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let ascii: String =
            line.iter().map(|byte| if is_shown(*byte) { char::from(*byte) } else { '.' }).collect();
        format!("{:08x}  {:47}  {ascii}\n", nth * LINE, hex.join(" "))
    };
    body.chunks(LINE).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_as_what_it_is_unless_the_user_asks_otherwise() {
        assert_eq!(shaped(b"{\"a\":1}", Shape::Best), (Shape::Json, "{\n  \"a\": 1\n}".to_owned()));
        assert_eq!(shaped(b"plain", Shape::Json), (Shape::Text, "plain".to_owned()));
        assert_eq!(shaped(b"\xff", Shape::Best).0, Shape::Hex);
        assert_eq!(shaped(b"\xff", Shape::Text).1, "\u{fffd}");
        let line = "00000000  61 00 62                                         a.b\n";
        assert_eq!(shaped(b"a\0b", Shape::Hex), (Shape::Hex, line.to_owned()));
    }
}
