//! The topics and their settings.

mod dead_letters;
mod row;

pub use self::dead_letters::{DeadLetterTopic, dead_letter_topic};

use chrono::NaiveDateTime;
use diesel::prelude::*;

use self::dead_letters::dead_letter_topic_id;
use self::row::{SettingsRow, TopicRow, topics};
use super::{limit, select, select_surely, write, write_surely};
use crate::connection::Connection;
use crate::model::{
    Access, Error, Fault, Result, Sampling, Topic, TopicId, TopicKind, TopicName, TopicSettings,
};
use crate::schema::functions::now;
use crate::schema::queue_topic;

/// UNIQUE (name): finds the topic; `None` if there is none.
pub async fn find(conn: &mut impl Connection, name: &TopicName) -> Result<Option<Topic>> {
    let query = topics().filter(queue_topic::name.eq(name));
    let rows: Vec<TopicRow> = select(conn, "read the topic", query).await?;
    Ok(rows.into_iter().next().map(TopicRow::into_topic))
}

/// PRIMARY: finds the topic with this number; `None` if there is none.
pub async fn by_id(conn: &mut impl Connection, id: TopicId) -> Result<Option<Topic>> {
    let query = topics().filter(queue_topic::id.eq(id));
    let rows: Vec<TopicRow> = select(conn, "read the topic", query).await?;
    Ok(rows.into_iter().next().map(TopicRow::into_topic))
}

/// As [`find`], for a topic that must exist.
///
/// # Errors
/// [`Error::UnknownTopic`].
pub async fn existing(conn: &mut impl Connection, name: &TopicName) -> Result<Topic> {
    tracing::trace!(step = "existing");
    let found = find(conn, name).await?;
    found.ok_or_else(|| Error::UnknownTopic { topic: name.clone() })
}

/// UNIQUE (name), then PRIMARY: locks the topic's row, if there is one, until the transaction ends.
/// A separate statement, because the rows of other topics that are read with it must not be locked.
pub async fn lock(conn: &mut impl Connection, name: &TopicName) -> Result<()> {
    let query =
        queue_topic::table.filter(queue_topic::name.eq(name)).select(queue_topic::id).for_update();
    select::<TopicId, _>(conn, "lock the topic", query).await.map(drop)
}

/// PRIMARY: as [`lock`], by the topic's number.
pub async fn lock_by_id(conn: &mut impl Connection, id: TopicId) -> Result<()> {
    let query = queue_topic::table.find(id).select(queue_topic::id).for_update();
    select::<TopicId, _>(conn, "lock the topic", query).await.map(drop)
}

/// UNIQUE (name): reads every topic, by name.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let query = topics().order(queue_topic::name);
    let rows: Vec<TopicRow> = select(conn, "list the topics", query).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// UNIQUE (name): reads those of these topics that exist.
pub async fn named(conn: &mut impl Connection, names: &[TopicName]) -> Result<Vec<Topic>> {
    let query = topics().filter(queue_topic::name.eq_any(names));
    let rows: Vec<TopicRow> = select(conn, "read the topics", query).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// No index: reads the topics that have a limit, four times a second; a row for each topic.
pub async fn limited(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let has_limit = queue_topic::max_depth.is_not_null().or(queue_topic::max_bytes.is_not_null());
    let query = topics().filter(has_limit);
    let rows: Vec<TopicRow> = select(conn, "list the topics with a limit", query).await?;
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
    let row = (
        (
            queue_topic::name.eq(name),
            queue_topic::kind.eq(word.as_bytes()),
            queue_topic::partitions.eq(partitions),
            queue_topic::stream_id.eq(stream),
            queue_topic::is_ordered.eq(ordered),
            queue_topic::start_at.eq(start),
            queue_topic::created_at.eq(now()),
            queue_topic::updated_at.eq(now()),
        ),
        SettingsRow::new(settings, dead_letter_topic)?,
    );
    let statement = diesel::insert_into(queue_topic::table).values(row);
    match write(conn, "create the topic", statement).await {
        Err(error) if error.fault() == Fault::Duplicate => {
            Err(Error::TopicExists { topic: name.clone() })
        }
        other => other.map(|_| ()),
    }
}

/// UNIQUE (name): replaces the topic's settings; in more statements if its limits change, or the
/// trace of a stream, which its groups share.
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
    let row = SettingsRow::new(settings, dead_letter_topic)?;
    let statement = diesel::update(queue_topic::table.filter(queue_topic::name.eq(name)))
        .set((&row, queue_topic::updated_at.eq(now())));
    one_topic(name, write_surely(conn, "set the topic", statement).await?)?;
    if settings.limits != topic.settings.limits {
        limit::forget_shares(conn, topic.id).await?;
    }
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
    let statement = diesel::update(queue_topic::table.filter(queue_topic::stream_id.eq(stream)))
        .set(queue_topic::trace_ppm.eq(sampling.millionths()));
    write_surely(conn, "set the groups' trace", statement).await?;
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
    let statement = diesel::update(queue_topic::table.filter(queue_topic::name.eq(name))).set((
        queue_topic::enqueue_paused.eq(!access.may_enqueue()),
        queue_topic::claim_paused.eq(!access.may_claim()),
        queue_topic::updated_at.eq(now()),
    ));
    one_topic(name, write_surely(conn, "set the topic's access", statement).await?)
}

/// KEY (`stream_id`): reads the groups that read the stream, in the order of their creation.
pub async fn groups_of(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Topic>> {
    let query = topics().filter(queue_topic::stream_id.eq(stream)).order(queue_topic::id);
    let rows: Vec<TopicRow> = select_surely(conn, "list the groups", query).await?;
    Ok(rows.into_iter().map(TopicRow::into_topic).collect())
}

/// PRIMARY: removes the topic's row; its messages must be gone already.
pub async fn delete(conn: &mut impl Connection, id: TopicId) -> Result<usize> {
    let statement = diesel::delete(queue_topic::table.filter(queue_topic::id.eq(id)));
    write_surely(conn, "delete the topic", statement).await
}

/// UNIQUE (name): gives a topic that was just created the number of one that is gone, in the
/// transaction that created it.
///
/// # Errors
/// A database failure, if the number is taken.
pub async fn set_id(conn: &mut impl Connection, name: &TopicName, id: TopicId) -> Result<()> {
    let statement = diesel::update(queue_topic::table.filter(queue_topic::name.eq(name)))
        .set(queue_topic::id.eq(id));
    one_topic(name, write_surely(conn, "restore the topic", statement).await?)
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

fn one_topic(name: &TopicName, matched: usize) -> Result<()> {
    if matched == 1 { Ok(()) } else { Err(Error::UnknownTopic { topic: name.clone() }) }
}

/// Reads the server's clock, UTC.
pub async fn server_time(conn: &mut impl Connection) -> Result<NaiveDateTime> {
    let rows = select(conn, "read the server's clock", diesel::select(now())).await?;
    rows.into_iter().next().ok_or(Error::Counts {
        operation: "read the server's clock",
        expected: 1,
        found: 0,
    })
}
