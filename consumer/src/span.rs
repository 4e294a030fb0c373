//! The spans of runs.

use rowmq_core::{Delivery, Topic};
use tracing::Span;
use tracing::field::Empty;

/// Returns the span of a delivery that is part of a distributed trace: log lines within it carry
/// the trace's ids. For any other delivery there is no span, at no cost.
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
        // Recorded at the end of the run.
        outcome = Empty,
        settlement = Empty,
    )
}
