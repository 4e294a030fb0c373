//! Sends the spans of messages to an OpenTelemetry collector by OTLP (HTTP with protobuf).
//!
//! The libraries know only `tracing`: the spans `send` and `run`, with the ids of the distributed
//! trace in their fields. Here these become spans of that trace, with exactly the ids that a
//! message's handler passes on; no general bridge from `tracing` could give them those ids.

mod fields;

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use rowmq_core::TraceParent;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use self::fields::Fields;

/// How long the process waits at the end for the collector to take the remaining spans.
const FLUSH: Duration = Duration::from_secs(5);

/// The targets of these spans, as the log filter names them.
pub(crate) const TARGETS: [&str; 2] = ["rowmq_consumer::span", "rowmq_producer::producer"];

/// Sends the spans, from the start of the logs to the end of the process.
static PROCESSOR: OnceLock<BatchSpanProcessor> = OnceLock::new();

/// Returns whether the environment asks for spans, by the names of OpenTelemetry's variables.
pub(crate) fn is_wanted() -> bool {
    is_wanted_by(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn is_wanted_by(variable: impl Fn(&str) -> Option<String>) -> bool {
    let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    let is = |name, value: &str| variable(name).is_some_and(|it| it.eq_ignore_ascii_case(value));
    endpoints.iter().any(|name| variable(name).is_some())
        && !is("OTEL_SDK_DISABLED", "true")
        && !is("OTEL_TRACES_EXPORTER", "none")
}

/// Returns the layer that takes the spans, if they are wanted.
///
/// # Errors
/// One sentence if the environment names an endpoint that cannot be used.
pub(crate) fn layer() -> anyhow::Result<Option<Export>> {
    if !is_wanted() {
        return Ok(None);
    }
    crate::tls::choose_provider();
    let exporter = SpanExporter::builder().with_http().build().map_err(|error| {
        anyhow::anyhow!(
            "The spans cannot be sent as the variables OTEL_EXPORTER_OTLP_… say: {error}"
        )
    })?;
    let mut processor = BatchSpanProcessor::builder(exporter).build();
    // It takes OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES from the environment.
    processor.set_resource(&Resource::builder().build());
    drop(PROCESSOR.set(processor));
    Ok(Some(Export))
}

/// Sends the remaining spans, at the end of the process.
pub(crate) fn flush() {
    if let Some(Err(error)) = PROCESSOR.get().map(|it| it.shutdown_with_timeout(FLUSH)) {
        tracing::warn!(%error, "The last spans have not reached the collector.");
    }
}

/// The layer that exports the spans of messages.
pub(crate) struct Export;

/// What is kept of a span while it is open.
struct Open {
    begun: SystemTime,
    fields: Fields,
}

/// Returns whether the span is one of ours.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    TARGETS.contains(&metadata.target()) && ["send", "run"].contains(&metadata.name())
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Export {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let (true, Some(span)) = (is_ours(attributes.metadata()), context.span(id)) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(Open { begun: SystemTime::now(), fields });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        let data = match span.name() {
            "run" => process(open),
            _ => send(open),
        };
        if let (Some(data), Some(processor)) = (data, PROCESSOR.get()) {
            processor.on_end(data);
        }
    }
}

/// Builds the span of a handler's run. A message that was never run has no outcome, and no span.
fn process(open: Open) -> Option<SpanData> {
    let settlement = open.fields.text("settlement")?.to_owned();
    let outcome = open.fields.text("outcome")?.to_owned();
    let trace = open.fields.text("trace_id")?.to_owned();
    let parent = context(&trace, open.fields.text("parent_id")?, true)?;
    let here = context(&trace, open.fields.text("span_id")?, false)?;
    let mut data = data(open, ("process", SpanKind::Consumer), here, &parent)?;
    data.attributes.push(KeyValue::new("queue.settlement", settlement.clone()));
    if ["retry", "dead_letter"].contains(&settlement.as_str()) {
        data.status = Status::error(format!("{outcome}: {settlement}"));
        data.attributes.push(KeyValue::new("error.type", outcome));
    }
    // Links to the context in which the message was made, for readers who look among the links.
    data.links.links.push(Link::with_context(parent));
    Some(data)
}

/// Builds the span of sending: a new one below the span that the message carries.
fn send(open: Open) -> Option<SpanData> {
    let trace = open.fields.text("trace_id")?.to_owned();
    let parent = context(&trace, open.fields.text("span_id")?, true)?;
    let here = context(&trace, &TraceParent::start().span_id(), false)?;
    data(open, ("send", SpanKind::Producer), here, &parent)
}

fn context(trace: &str, span: &str, is_remote: bool) -> Option<SpanContext> {
    let trace = opentelemetry::trace::TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    Some(SpanContext::new(trace, span, TraceFlags::SAMPLED, is_remote, TraceState::NONE))
}

/// Builds a span's data; `None` if the producer of the message does not record the trace.
fn data(
    open: Open,
    (operation, span_kind): (&'static str, SpanKind),
    span_context: SpanContext,
    parent: &SpanContext,
) -> Option<SpanData> {
    let fields = &open.fields;
    fields.is("sampled").then_some(())?;
    let topic = fields.text("topic.name")?.to_owned();
    let mut attributes = vec![
        KeyValue::new("messaging.system", "queue"),
        KeyValue::new("messaging.operation.name", operation),
        KeyValue::new("messaging.operation.type", operation),
        KeyValue::new("messaging.destination.name", topic.clone()),
    ];
    for (field, attribute) in
        [("message.id", "messaging.message.id"), ("delivery.no", "queue.delivery_no")]
    {
        let value = fields.text(field).map(|value| KeyValue::new(attribute, value.to_owned()));
        attributes.extend(value);
    }
    Some(SpanData {
        span_context,
        parent_span_id: parent.span_id(),
        parent_span_is_remote: true,
        span_kind,
        name: format!("{operation} {topic}").into(),
        start_time: open.begun,
        end_time: SystemTime::now(),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("queue")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_sent_only_where_an_endpoint_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/v1/traces");
        for (variables, wanted) in [
            (&[][..], false),
            (&[("OTEL_SERVICE_NAME", "mail")], false),
            (&[endpoint], true),
            (&[traces], true),
            (&[endpoint, ("OTEL_SDK_DISABLED", "true")], false),
            (&[endpoint, ("OTEL_SDK_DISABLED", "false")], true),
            (&[traces, ("OTEL_TRACES_EXPORTER", "none")], false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(set, _)| *set == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(is_wanted_by(variable), wanted, "{variables:?}");
        }
    }
}
