//! The header `traceparent` of W3C Trace Context (<https://www.w3.org/TR/trace-context/>, level 1,
//! section 3.2): the distributed trace that a message is part of.

use std::fmt;
use std::str::FromStr;

use crate::chance;
use crate::model::{Delivery, Error, Headers};

/// The header's name.
pub const TRACE_PARENT: &str = "traceparent";

/// The name of the header beside it, which is passed on unchanged.
pub const TRACE_STATE: &str = "tracestate";

/// The length of the fields of version 00, with the hyphens between them.
const LENGTH: usize = 55;

/// The position in a distributed trace: the trace, and the span that continues here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceParent {
    /// The first span of a new trace, sampled: for a producer that starts the trace.
    #[must_use]
    pub fn start() -> Self {
        let trace = u128::from(chance::number()) << 64 | u128::from(chance::number());
        Self { trace: trace.max(1), span: chance::number().max(1), flags: 1 }
    }

    /// A new span of the same trace, below this one.
    #[must_use]
    pub fn child(self) -> Self {
        Self { span: chance::number().max(1), ..self }
    }

    /// The trace, as 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The span, as 16 lower-case hexadecimal digits: the header's `parent-id`.
    #[must_use]
    pub fn span_id(self) -> String {
        format!("{:016x}", self.span)
    }

    /// Whether the caller records the trace.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.flags & 1 == 1
    }

    /// The span of one delivery, below this one. It is always the same for the same claim, and
    /// another for the next claim.
    fn of_delivery(self, delivery: &Delivery) -> Self {
        let (high, low) = delivery.msg_id.0.as_u64_pair();
        let place = u64::from(delivery.topic_id.0) << 32 | u64::from(delivery.delivery_no.0);
        let at = u64::try_from(delivery.claimed_at.timestamp_micros()).unwrap_or(0);
        let parts = [self.span, high, low, place, delivery.claim_no.0, at];
        Self { span: parts.into_iter().fold(0, |sum, part| mixed(sum ^ part)).max(1), ..self }
    }
}

/// Spreads every bit over all bits (the finalizer of `SplitMix64`).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Writes the header in version 00.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Version 00 defines only the first flag; the others must be zero.
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags & 1)
    }
}

impl FromStr for TraceParent {
    type Err = Error;

    /// Reads the header. Of a later version, it reads the part that version 00 defines.
    fn from_str(text: &str) -> Result<Self, Error> {
        read(text).ok_or_else(|| Error::InvalidHeaders {
            reason: format!(
                "{TRACE_PARENT} must be of the form of W3C Trace Context, such as \
                 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            ),
        })
    }
}

fn read(text: &str) -> Option<TraceParent> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let field =
        |from: usize, to: usize| text.get(from..to).filter(|field| field.bytes().all(is_hex));
    let hyphen = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    let version = u8::from_str_radix(field(0, 2)?, 16).ok()?;
    let ends = match version {
        0 => text.len() == LENGTH,
        255 => false,
        _ => text.len() == LENGTH || hyphen(LENGTH),
    };
    if !(ends && hyphen(2) && hyphen(35) && hyphen(52)) {
        return None;
    }
    let trace = u128::from_str_radix(field(3, 35)?, 16).ok()?;
    let span = u64::from_str_radix(field(36, 52)?, 16).ok()?;
    let flags = u8::from_str_radix(field(53, LENGTH)?, 16).ok()?;
    (trace != 0 && span != 0).then_some(TraceParent { trace, span, flags })
}

impl Headers {
    /// The span of the message's producer; `None` if the header is missing or cannot be read.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.ignoring_case(TRACE_PARENT)?.parse().ok()
    }

    /// The vendors' trace data, to be passed on unchanged; `None` without a
    /// [`traceparent`](Self::traceparent).
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.traceparent().and_then(|_| self.ignoring_case(TRACE_STATE))
    }

    /// The value of a header, ignoring the case of its name, as in HTTP.
    fn ignoring_case(&self, name: &str) -> Option<&str> {
        let other = || self.0.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        self.get(name).or_else(|| other().map(|(_, value)| value.as_str()))
    }
}

impl Delivery {
    /// The span of this delivery, a child of the producer's span; `None` if the message belongs to
    /// no trace.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        Some(self.headers.traceparent()?.of_delivery(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_as_it_was() {
        let parent: TraceParent = EXAMPLE.parse().expect("valid");
        assert_eq!(parent.to_string(), EXAMPLE);
        assert_eq!(parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.span_id(), "00f067aa0ba902b7");
        assert!(parent.is_sampled());
        let quiet: TraceParent = EXAMPLE.replace("-01", "-00").parse().expect("valid");
        assert!(!quiet.is_sampled() && !quiet.child().is_sampled());
    }

    #[test]
    fn what_the_specification_calls_invalid_is_no_parent() {
        for wrong in [
            "",
            "00",
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00-", "ff-", 1),
            &EXAMPLE.replacen("00-", "0-", 1),
            &EXAMPLE.replacen('-', "_", 1),
            &format!("{EXAMPLE}-00"),
            &format!("{EXAMPLE} "),
            &EXAMPLE[..54],
            &EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &EXAMPLE.replace("00f067", "+0f067"),
            &EXAMPLE.replace("00f0", "0ü0"),
        ] {
            assert!(wrong.parse::<TraceParent>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn of_a_later_version_is_read_what_version_00_knows() {
        let later = EXAMPLE.replacen("00-", "01-", 1);
        for text in [later.clone(), format!("{later}-more")] {
            let parent: TraceParent = text.parse().expect("valid");
            assert_eq!(parent.to_string(), EXAMPLE);
        }
        assert!(format!("{later}more").parse::<TraceParent>().is_err());
    }

    #[test]
    fn a_new_trace_and_each_child_have_ids_of_their_own() {
        let (one, other) = (TraceParent::start(), TraceParent::start());
        assert_ne!(one.trace_id(), other.trace_id());
        assert_eq!(one.to_string().parse::<TraceParent>().ok(), Some(one));
        let child = one.child();
        assert_eq!(child.trace_id(), one.trace_id());
        assert_ne!(child.span_id(), one.span_id());
    }

    #[test]
    fn names_of_headers_are_read_in_any_case_and_state_needs_a_parent() {
        let headers = Headers::from_iter([("TraceParent", EXAMPLE), ("TraceState", "a=1")]);
        assert_eq!(
            headers.traceparent().map(|parent| parent.to_string()).as_deref(),
            Some(EXAMPLE)
        );
        assert_eq!(headers.tracestate(), Some("a=1"));
        let headers = Headers::from_iter([(TRACE_PARENT, "?"), (TRACE_STATE, "a=1")]);
        assert_eq!((headers.traceparent(), headers.tracestate()), (None, None));
    }
}
