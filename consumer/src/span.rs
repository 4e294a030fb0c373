//! The spans of runs.

use rowmq_core::{Delivery, Topic};
use tracing::Span;
use tracing::field::Empty;

/// The span of a delivery that is part of a distributed trace: whatever is logged within carries
/// its ids. None for any other delivery, which costs nothing.
pub(crate) fn of(topic: &Topic, delivery: &Delivery) -> Span {
    let (Some(here), Some(parent)) = (delivery.traceparent(), delivery.headers.traceparent())
    else {
        return Span::none();
    };
    tracing::info_span!(
        "run",
        topic.name = %topic.name,
        message.id = %delivery.msg_id,
        delivery.no = %delivery.delivery_no,
        trace_id = here.trace_id(),
        span_id = here.span_id(),
        parent_id = parent.span_id(),
        sampled = parent.is_sampled(),
        // Of what was run, once it has.
        outcome = Empty,
        settlement = Empty,
    )
}
