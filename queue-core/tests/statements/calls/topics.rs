//! Topics, their schedules, and the records of what is done to them.

use rowmq_core::model::trace::{Event, Step, Traced};
use rowmq_core::model::{
    Access, Action, Actor, AuditNo, Backlog, Change, DeliveryNo, OffsetSpec, Recurrence, Schedule,
    ScheduleName, TopicKind, TopicSettings,
};
use rowmq_core::store::{audit, backlog, schedule, switch, topic, trace};

use crate::recorder::Recorder;
use crate::sample::{
    LIMIT, MESSAGE, NOW, POSITION, ROW, TIME, TOPIC, WORKER, group_name, topic, topic_name,
};

pub(super) async fn all(conn: &mut Recorder) {
    rows(conn).await;
    settings(conn).await;
    schedules(conn).await;
    backlogs(conn).await;
    audits(conn).await;
    traces(conn).await;
}

async fn rows(conn: &mut Recorder) {
    let name = topic_name();
    drop(topic::find(conn, &name).await);
    drop(topic::by_id(conn, TOPIC).await);
    drop(topic::existing(conn, &name).await);
    drop(topic::lock(conn, &name).await);
    drop(topic::lock_by_id(conn, TOPIC).await);
    drop(topic::all(conn).await);
    drop(topic::named(conn, std::slice::from_ref(&name)).await);
    drop(topic::limited(conn).await);
    drop(topic::groups_of(conn, TOPIC).await);
    drop(topic::dead_letter_topic(conn, TOPIC).await);
    drop(topic::delete(conn, TOPIC).await);
    drop(topic::set_id(conn, &name, TOPIC).await);
    drop(topic::server_time(conn).await);
}

async fn settings(conn: &mut Recorder) {
    let (name, group, settings) = (topic_name(), group_name(), TopicSettings::default());
    drop(topic::create(conn, &name, &settings).await);
    let stream = TOPIC;
    for (name, kind) in [
        (&name, TopicKind::Stream { partitions: 1 }),
        (&group, TopicKind::Group { stream, ordered: true }),
        (&group, TopicKind::Broadcast { stream, start: OffsetSpec::Latest }),
    ] {
        drop(topic::create_kind(conn, name, kind, &settings).await);
    }
    drop(topic::set(conn, &name, &settings).await);
    for access in Access::ALL {
        drop(topic::set_access(conn, &name, access).await);
        drop(switch::set(conn, access).await);
    }
    drop(switch::read(conn).await);
}

async fn schedules(conn: &mut Recorder) {
    let name = ScheduleName::new("nightly").unwrap();
    let recurrence = Recurrence::new("0 3 * * *", "UTC").unwrap();
    let nightly = Schedule::new(name.clone(), topic_name(), recurrence);
    drop(schedule::put(conn, &nightly, TOPIC, NOW).await);
    drop(schedule::all(conn).await);
    drop(schedule::lock(conn, &name).await);
    drop(schedule::lock_due(conn, &name).await);
    drop(schedule::next(conn, LIMIT).await);
    drop(schedule::advance(conn, &name, NOW, Some(NOW), Some(NOW), 1).await);
    drop(schedule::pause(conn, &name).await);
    drop(schedule::resume(conn, &name, Some(NOW)).await);
    drop(schedule::delete(conn, &name).await);
    drop(schedule::delete_of_topic(conn, TOPIC).await);
}

async fn backlogs(conn: &mut Recorder) {
    for places in [&[(5, ROW)][..], &[(5, ROW), (6, ROW)]] {
        drop(backlog::starts(conn, TOPIC, places).await);
        drop(backlog::sizes(conn, TOPIC, places).await);
    }
    drop(backlog::spans(conn, TOPIC).await);
    drop(backlog::count_rows(conn, TOPIC, 5, (ROW, ROW), LIMIT).await);
    let measured = Backlog { depth: 1, bytes: None, full: false };
    drop(backlog::publish(conn, &topic(), measured).await);
}

async fn audits(conn: &mut Recorder) {
    let actor = Actor { name: "operator".to_owned(), origin: "console".to_owned() };
    let (action, target) = (Action::Purge, "mail".to_owned());
    drop(audit::record(conn, &Change { actor, action, target, detail: None }).await);
    drop(audit::has_since(conn, AuditNo(1), Action::Purge, "mail").await);
    drop(audit::add(conn, AuditNo(1), 1).await);
    drop(audit::account(conn).await);
    drop(audit::prune(conn, TIME, LIMIT).await);
    drop(audit::latest(conn, Some(AuditNo(9)), LIMIT).await);
}

async fn traces(conn: &mut Recorder) {
    let step = Step {
        topic: TOPIC,
        traced: Traced { msg_id: MESSAGE, delivery_no: DeliveryNo(1) },
        event: Event::Claimed,
        worker: WORKER,
        client: Some("client"),
        position: Some(POSITION),
        outcome: None,
        error: None,
    };
    for steps in [&[step][..], &[step, step]] {
        drop(trace::record(conn, steps).await);
    }
    drop(trace::sampling_of(conn, TOPIC).await);
    drop(trace::of_message(conn, MESSAGE).await);
    drop(trace::prune(conn, TIME, LIMIT).await);
}
