//! The topics and their settings.

mod dead_letters;
mod row;

pub use self::dead_letters::{DeadLetterTopic, dead_letter_topic};

use std::num::NonZeroU64;
use std::time::Duration;

use chrono::NaiveDateTime;

use self::dead_letters::dead_letter_topic_id;
use self::row::{SELECT, TopicRow};
use super::{Statement, execute, execute_surely, load, load_surely};
use crate::connection::Connection;
use crate::model::{
    Access, Error, Fault, OnDone, Result, Sampling, Topic, TopicId, TopicKind, TopicName,
    TopicSettings,
};

/// UNIQUE (name): finds the topic; `None` if there is none.
pub async fn find(conn: &mut impl Connection, name: &TopicName) -> Result<Option<Topic>> {
    let statement = Statement::new(SELECT).sql("WHERE name = ?").bytes(name.as_str().as_bytes());
    let rows: Vec<TopicRow> = load(conn, "read the topic", statement).await?;
    Ok(rows.into_iter().next().map(TopicRow::into_topic))
}

/// PRIMARY: finds the topic with this number; `None` if there is none.
pub async fn by_id(conn: &mut impl Connection, id: TopicId) -> Result<Option<Topic>> {
    let statement = Statement::new(SELECT).sql("WHERE id = ?").number(id.0);
    let rows: Vec<TopicRow> = load(conn, "read the topic", statement).await?;
    Ok(rows.into_iter().next().map(TopicRow::into_topic))
}

/// As [`find`], for a topic that must exist.
///
/// # Errors
/// [`Error::UnknownTopic`].
pub async fn existing(conn: &mut impl Connection, name: &TopicName) -> Result<Topic> {
    let found = find(conn, name).await?;
    found.ok_or_else(|| Error::UnknownTopic { topic: name.clone() })
}

/// UNIQUE (name), then PRIMARY: locks the topic's row, if there is one, until the transaction ends.
/// A separate statement, because the rows of other topics that are read with it must not be locked.
pub async fn lock(conn: &mut impl Connection, name: &TopicName) -> Result<()> {
    let statement = Statement::new("SELECT id AS _id FROM queue_topic WHERE name = ? FOR UPDATE")
        .bytes(name.as_str().as_bytes());
    load::<TopicId>(conn, "lock the topic", statement).await.map(drop)
}

/// UNIQUE (name): reads every topic, by name.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let statement = Statement::new(SELECT).sql("ORDER BY name");
    let rows: Vec<TopicRow> = load(conn, "list the topics", statement).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// No index: reads the topics that have a limit, four times a second; a row for each topic.
pub async fn limited(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let statement =
        Statement::new(SELECT).sql("WHERE max_depth IS NOT NULL OR max_bytes IS NOT NULL");
    let rows: Vec<TopicRow> = load(conn, "list the topics with a limit", statement).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// UNIQUE (name): creates the topic.
///
/// # Errors
/// [`Error::TopicExists`]; [`Error::InvalidRetry`]; [`Error::InvalidFilter`] for one that is too
/// long, [`Error::Setting`] for one on a topic that is not a group; a dead-letter topic that does
/// not exist or leads back here.
pub async fn create(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    create_kind(conn, name, TopicKind::Queue, settings).await
}

/// UNIQUE (name): creates the row of a topic of any kind.
///
/// # Errors
/// As [`create`].
pub async fn create_kind(
    conn: &mut impl Connection,
    name: &TopicName,
    kind: TopicKind,
    settings: &TopicSettings,
) -> Result<()> {
    if name.as_group().is_some()
        != matches!(kind, TopicKind::Group { .. } | TopicKind::Broadcast { .. })
    {
        return Err(Error::InvalidName { name: name.as_str().to_owned() });
    }
    settings.retry.check()?;
    check_kind(kind, settings)?;
    let dead_letter_topic = dead_letter_topic_id(conn, name, settings).await?;
    let (word, partitions, stream, ordered) = match kind {
        TopicKind::Queue => ("queue", 0, None, false),
        TopicKind::Stream { partitions } => ("stream", partitions, None, false),
        TopicKind::Group { stream, ordered } => ("group", 0, Some(stream), ordered),
        TopicKind::Broadcast { stream, .. } => ("broadcast", 0, Some(stream), false),
    };
    let start = match kind {
        TopicKind::Broadcast { start, .. } => Some(start.to_string().into_bytes()),
        _ => None,
    };
    let statement = Statement::new(
        "INSERT INTO queue_topic (name, kind, partitions, stream_id, is_ordered, start_at, body_limit, \
         max_attempts, max_crashes, retry, max_run_time_ms, keep_done_ms, keep_dead_ms, \
         ledger_window_ms, \
         max_depth, max_bytes, when_full, max_running, max_running_per_key, rate_messages, \
         rate_period_ms, searchable_ms, dedupe_window_ms, \
         retention_ms, retention_bytes, retention_hard, prune_handled, trace_ppm, header_filter, \
         dead_letter_topic_id, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
    );
    let statement = statement
        .bytes(name.as_str().as_bytes())
        .bytes(word.as_bytes())
        .number(partitions)
        .maybe_number(stream.map(|stream| u64::from(stream.0)))
        .number(u64::from(ordered))
        .maybe_bytes(start);
    let statement = bind_settings(statement, settings)?.maybe_number(dead_letter_topic);
    match execute(conn, "create the topic", statement).await {
        Err(error) if error.fault() == Fault::Duplicate => {
            Err(Error::TopicExists { topic: name.clone() })
        }
        other => other.map(|_| ()),
    }
}

/// UNIQUE (name): replaces the topic's settings; for a stream, in two statements if its trace
/// changes, because its groups share the trace.
///
/// # Errors
/// [`Error::UnknownTopic`]; else as [`create`].
pub async fn set(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    settings.retry.check()?;
    let topic = existing(conn, name).await?;
    check_kind(topic.kind, settings)?;
    if topic.of_stream().is_some() {
        check_trace(name, settings.trace, topic.settings.trace)?;
    }
    let dead_letter_topic = dead_letter_topic_id(conn, name, settings).await?;
    let statement = Statement::new(
        "UPDATE queue_topic SET body_limit = ?, max_attempts = ?, max_crashes = ?, \
         retry = ?, max_run_time_ms = ?, keep_done_ms = ?, keep_dead_ms = ?, \
         ledger_window_ms = ?, \
         max_depth = ?, max_bytes = ?, when_full = ?, max_running = ?, max_running_per_key = ?, \
         rate_messages = ?, rate_period_ms = ?, searchable_ms = ?, dedupe_window_ms = ?, \
         retention_ms = ?, retention_bytes = ?, retention_hard = ?, prune_handled = ?, \
         trace_ppm = ?, header_filter = ?, dead_letter_topic_id = ?, \
         updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    );
    let statement = bind_settings(statement, settings)?
        .maybe_number(dead_letter_topic)
        .bytes(name.as_str().as_bytes());
    one_topic(name, execute_surely(conn, "set the topic", statement).await?)?;
    if topic.is_stream() && settings.trace != topic.settings.trace {
        trace_groups(conn, topic.id, settings.trace).await?;
    }
    Ok(())
}

/// Refuses a trace for a group that differs from its stream's.
pub(crate) fn check_trace(group: &TopicName, wanted: Sampling, of_stream: Sampling) -> Result<()> {
    if wanted == of_stream {
        return Ok(());
    }
    Err(Error::Setting {
        name: "trace",
        value: format!("{wanted} for '{group}'"),
        fix: "a group leaves a trace of what its stream does: set it for the stream",
    })
}

/// KEY (`stream_id`): sets the trace of a stream's groups to the stream's.
async fn trace_groups(
    conn: &mut impl Connection,
    stream: TopicId,
    sampling: Sampling,
) -> Result<()> {
    let statement = Statement::new("UPDATE queue_topic SET trace_ppm = ? WHERE stream_id = ?")
        .number(sampling.millionths())
        .number(stream.0);
    execute_surely(conn, "set the groups' trace", statement).await?;
    Ok(())
}

/// UNIQUE (name): sets which operations the topic allows.
///
/// # Errors
/// [`Error::UnknownTopic`].
pub async fn set_access(
    conn: &mut impl Connection,
    name: &TopicName,
    access: Access,
) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_topic SET enqueue_paused = ?, claim_paused = ?, \
         updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    )
    .number(u64::from(!access.may_enqueue()))
    .number(u64::from(!access.may_claim()))
    .bytes(name.as_str().as_bytes());
    one_topic(name, execute_surely(conn, "set the topic's access", statement).await?)
}

/// KEY (`stream_id`): reads the groups that read the stream, in the order of their creation.
pub async fn groups_of(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Topic>> {
    let statement = Statement::new(SELECT).sql("WHERE stream_id = ? ORDER BY id").number(stream.0);
    let rows: Vec<TopicRow> = load_surely(conn, "list the groups", statement).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// PRIMARY: removes the topic's row; its messages must be gone already.
pub async fn delete(conn: &mut impl Connection, id: TopicId) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_topic WHERE id = ?").number(id.0);
    execute_surely(conn, "delete the topic", statement).await
}

/// UNIQUE (name): gives a topic that was just created the number of one that is gone, in the
/// transaction that created it.
///
/// # Errors
/// A database failure, if the number is taken.
pub async fn set_id(conn: &mut impl Connection, name: &TopicName, id: TopicId) -> Result<()> {
    let statement = Statement::new("UPDATE queue_topic SET id = ? WHERE name = ?")
        .number(id.0)
        .bytes(name.as_str().as_bytes());
    one_topic(name, execute_surely(conn, "restore the topic", statement).await?)
}

/// Checks that the settings fit the kind of topic. The lookup does not cover logs: it would report
/// their messages as gone. A message that one member of a broadcast group has handled must still be
/// handled by the others. And only groups have a filter.
fn check_kind(kind: TopicKind, settings: &TopicSettings) -> Result<()> {
    let is_group = matches!(kind, TopicKind::Group { .. } | TopicKind::Broadcast { .. });
    if !is_group && !settings.filter.wants_all() {
        return Err(Error::Setting {
            name: "filter",
            value: settings.filter.to_string(),
            fix: "only a group of a stream has one",
        });
    }
    if kind != TopicKind::Queue && !settings.limits.is_off() {
        return Err(Error::Setting {
            name: "limit of claims",
            value: "on".to_owned(),
            fix: "only queues have one: members of a group are limited by its partitions, and by \
                  their own concurrency",
        });
    }
    if matches!(kind, TopicKind::Stream { .. }) && settings.searchable.is_some() {
        return Err(Error::Setting {
            name: "searchable",
            value: "on".to_owned(),
            fix: "only messages of queues and of groups can be looked up",
        });
    }
    if let (TopicKind::Broadcast { .. }, Some(window)) = (kind, settings.ledger_window) {
        return Err(Error::Setting {
            name: "ledger window",
            value: format!("{} s", window.as_secs()),
            fix: "a broadcast group keeps no ledger, because each of its members handles every \
                  message; leave it out",
        });
    }
    Ok(())
}

fn bind_settings<'q>(statement: Statement<'q>, settings: &TopicSettings) -> Result<Statement<'q>> {
    let keep = match settings.on_done {
        OnDone::Delete => None,
        OnDone::Keep(time) => Some(millis(time)),
    };
    let (filter, limits) = (settings.filter.to_stored()?, settings.limits);
    Ok(statement
        .number(settings.body_limit)
        .number(settings.max_attempts)
        .number(settings.max_crashes)
        .bytes(settings.retry.to_string().into_bytes())
        .maybe_number(settings.max_run_time.map(millis))
        .maybe_number(keep)
        .maybe_number(settings.keep_dead.map(millis))
        .maybe_number(settings.ledger_window.map(millis))
        .maybe_number(settings.max_depth.map(NonZeroU64::get))
        .maybe_number(settings.max_bytes.map(NonZeroU64::get))
        .bytes(settings.when_full.word().as_bytes())
        .maybe_number(limits.max_running.map(|n| n.get().into()))
        .maybe_number(limits.max_running_per_key.map(|n| n.get().into()))
        .maybe_number(limits.rate.map(|rate| rate.messages().get().into()))
        .maybe_number(limits.rate.map(|rate| millis(rate.period())))
        .maybe_number(settings.searchable.map(millis))
        .maybe_number(settings.dedupe_window.map(millis))
        .maybe_number(settings.retention.time.map(millis))
        .maybe_number(settings.retention.bytes)
        .number(u64::from(settings.retention.hard))
        .number(u64::from(settings.retention.handled))
        .number(settings.trace.millionths())
        .maybe_bytes(filter))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn one_topic(name: &TopicName, matched: usize) -> Result<()> {
    if matched == 1 { Ok(()) } else { Err(Error::UnknownTopic { topic: name.clone() }) }
}

/// Reads the server's clock, UTC.
pub async fn server_time(conn: &mut impl Connection) -> Result<NaiveDateTime> {
    let statement = Statement::new("SELECT UTC_TIMESTAMP(6) AS now");
    let rows: Vec<NaiveDateTime> = load(conn, "read the server's clock", statement).await?;
    rows.into_iter().next().ok_or(Error::Counts {
        operation: "read the server's clock",
        expected: 1,
        found: 0,
    })
}
