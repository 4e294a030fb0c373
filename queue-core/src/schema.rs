//! The tables as Diesel sees them, also for users' own queries. A test compares them with the live
//! database and so keeps them equal to `migrations/`.

#![allow(missing_docs)]

pub(crate) mod functions;
mod limit;
mod stream;

pub use self::limit::{queue_limit, queue_share, queue_slot};
pub use self::stream::{
    queue_cursor, queue_log, queue_member, queue_partition, queue_passed, queue_range,
};

use diesel::{allow_tables_to_appear_in_same_query, table};

table! {
    queue_topic (id) {
        id -> Unsigned<Integer>,
        name -> Varbinary,
        kind -> Varbinary,
        partitions -> Unsigned<Integer>,
        stream_id -> Nullable<Unsigned<Integer>>,
        is_ordered -> Bool,
        start_at -> Nullable<Varbinary>,
        enqueue_paused -> Bool,
        claim_paused -> Bool,
        body_limit -> Unsigned<Integer>,
        max_attempts -> Unsigned<Integer>,
        max_crashes -> Unsigned<Integer>,
        retry -> Varbinary,
        max_run_time_ms -> Nullable<Unsigned<BigInt>>,
        keep_done_ms -> Nullable<Unsigned<BigInt>>,
        dead_letter_topic_id -> Nullable<Unsigned<Integer>>,
        ledger_window_ms -> Nullable<Unsigned<BigInt>>,
        max_depth -> Nullable<Unsigned<BigInt>>,
        max_bytes -> Nullable<Unsigned<BigInt>>,
        when_full -> Varbinary,
        max_running -> Nullable<Unsigned<Integer>>,
        max_running_per_key -> Nullable<Unsigned<Integer>>,
        rate_messages -> Nullable<Unsigned<Integer>>,
        rate_period_ms -> Nullable<Unsigned<BigInt>>,
        backlog_depth -> Nullable<Unsigned<BigInt>>,
        backlog_bytes -> Nullable<Unsigned<BigInt>>,
        backlog_full -> Bool,
        backlog_at -> Nullable<Datetime>,
        searchable_ms -> Nullable<Unsigned<BigInt>>,
        dedupe_window_ms -> Nullable<Unsigned<BigInt>>,
        retention_ms -> Nullable<Unsigned<BigInt>>,
        retention_bytes -> Nullable<Unsigned<BigInt>>,
        retention_hard -> Bool,
        prune_handled -> Bool,
        trace_ppm -> Unsigned<Integer>,
        header_filter -> Nullable<Varbinary>,
        created_at -> Datetime,
        updated_at -> Datetime,
        keep_dead_ms -> Nullable<Unsigned<BigInt>>,
    }
}

table! {
    queue_switch (only_row) {
        only_row -> Unsigned<TinyInt>,
        enqueue_paused -> Bool,
        claim_paused -> Bool,
        updated_at -> Datetime,
    }
}

table! {
    queue_message (topic_id, priority, id) {
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        id -> Unsigned<BigInt>,
        msg_id -> Binary,
        conn_id -> Unsigned<BigInt>,
        worker_id -> Unsigned<BigInt>,
        claim_no -> Unsigned<BigInt>,
        delivery_no -> Unsigned<Integer>,
        failures -> Unsigned<Integer>,
        crashes -> Unsigned<Integer>,
        suspicions -> Unsigned<Integer>,
        enqueued_at -> Datetime,
        expires_at -> Nullable<Datetime>,
        ordering_key -> Nullable<Varbinary>,
        biz_id -> Nullable<Varbinary>,
        unique_key -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        history -> Nullable<Mediumblob>,
        body -> Longblob,
    }
}

table! {
    queue_claim (worker_id, claim_no) {
        worker_id -> Unsigned<BigInt>,
        claim_no -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        lo -> Unsigned<BigInt>,
        hi -> Unsigned<BigInt>,
        n -> Unsigned<Integer>,
        conn_id -> Unsigned<BigInt>,
        claimed_at -> Datetime,
    }
}

table! {
    queue_worker (id) {
        id -> Unsigned<BigInt>,
        instance -> Binary,
        client_id -> Varbinary,
        version -> Varbinary,
        account -> Varbinary,
        state -> Varbinary,
        conn_id -> Unsigned<BigInt>,
        life_conn_id -> Unsigned<BigInt>,
        server_uid -> Varbinary,
        server_started_at -> BigInt,
        lease_ms -> Unsigned<BigInt>,
        beat_no -> Unsigned<BigInt>,
        beat_at -> Datetime,
        registered_at -> Datetime,
        ended_at -> Nullable<Datetime>,
        end_reason -> Nullable<Varbinary>,
        topics -> Nullable<Mediumblob>,
    }
}

table! {
    queue_floor (topic_id, priority) {
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        floor -> Unsigned<BigInt>,
        seq -> Unsigned<BigInt>,
    }
}

table! {
    queue_scheduled (due_at, id) {
        due_at -> Datetime,
        id -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        msg_id -> Binary,
        delivery_no -> Unsigned<Integer>,
        failures -> Unsigned<Integer>,
        crashes -> Unsigned<Integer>,
        suspicions -> Unsigned<Integer>,
        enqueued_at -> Datetime,
        expires_at -> Nullable<Datetime>,
        ordering_key -> Nullable<Varbinary>,
        biz_id -> Nullable<Varbinary>,
        unique_key -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        history -> Nullable<Mediumblob>,
        body -> Longblob,
        last_error -> Nullable<Varbinary>,
        account -> Nullable<Varbinary>,
    }
}

table! {
    queue_dead (id) {
        id -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        msg_id -> Binary,
        delivery_no -> Unsigned<Integer>,
        failures -> Unsigned<Integer>,
        crashes -> Unsigned<Integer>,
        suspicions -> Unsigned<Integer>,
        enqueued_at -> Datetime,
        ordering_key -> Nullable<Varbinary>,
        biz_id -> Nullable<Varbinary>,
        unique_key -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        history -> Nullable<Mediumblob>,
        body -> Longblob,
        cause -> Varbinary,
        last_error -> Nullable<Varbinary>,
        died_at -> Datetime,
    }
}

table! {
    queue_archive (id) {
        id -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        priority -> Unsigned<TinyInt>,
        msg_id -> Binary,
        delivery_no -> Unsigned<Integer>,
        failures -> Unsigned<Integer>,
        crashes -> Unsigned<Integer>,
        suspicions -> Unsigned<Integer>,
        enqueued_at -> Datetime,
        ordering_key -> Nullable<Varbinary>,
        biz_id -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        history -> Nullable<Mediumblob>,
        body -> Longblob,
        outcome -> Varbinary,
        reason -> Nullable<Varbinary>,
        settled_at -> Datetime,
        keep_until -> Datetime,
    }
}

table! {
    queue_checkpoint (topic_id, msg_id) {
        topic_id -> Unsigned<Integer>,
        msg_id -> Binary,
        enqueued_at -> Datetime,
        delivery_no -> Unsigned<Integer>,
        saved_at -> Datetime,
        progress -> Nullable<Unsigned<TinyInt>>,
        state -> Mediumblob,
    }
}

table! {
    queue_throughput (worker_id, topic_id) {
        worker_id -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        done -> Unsigned<BigInt>,
        failed -> Unsigned<BigInt>,
        picked_up -> Unsigned<BigInt>,
        waited_us -> Unsigned<BigInt>,
    }
}

table! {
    queue_schedule (name) {
        name -> Varbinary,
        topic_id -> Unsigned<Integer>,
        cron -> Varbinary,
        time_zone -> Varbinary,
        missed -> Varbinary,
        paused -> Bool,
        next_at -> Nullable<Datetime>,
        last_at -> Nullable<Datetime>,
        ticks -> Unsigned<BigInt>,
        priority -> Unsigned<TinyInt>,
        ordering_key -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        body -> Longblob,
        created_at -> Datetime,
        updated_at -> Datetime,
    }
}

table! {
    queue_cancellation (row_id) {
        row_id -> Unsigned<BigInt>,
        requested_at -> Datetime,
        worker_id -> Unsigned<BigInt>,
    }
}

table! {
    queue_ledger (topic_id, group_id, biz_id) {
        topic_id -> Unsigned<Integer>,
        group_id -> Unsigned<Integer>,
        biz_id -> Varbinary,
        msg_id -> Binary,
        keep_until -> Datetime,
    }
}

table! {
    queue_lookup (topic_id, msg_id) {
        topic_id -> Unsigned<Integer>,
        msg_id -> Binary,
        row_id -> Nullable<Unsigned<BigInt>>,
        enqueued_at -> Datetime,
        biz_id -> Nullable<Varbinary>,
        ordering_key -> Nullable<Varbinary>,
    }
}

table! {
    queue_dedupe (topic_id, msg_id) {
        topic_id -> Unsigned<Integer>,
        msg_id -> Binary,
        repeats -> Unsigned<BigInt>,
        keep_until -> Datetime,
    }
}

table! {
    queue_unique (topic_id, unique_key) {
        topic_id -> Unsigned<Integer>,
        unique_key -> Varbinary,
        msg_id -> Binary,
        repeats -> Unsigned<BigInt>,
        keep_until -> Nullable<Datetime>,
        priority -> Nullable<Unsigned<TinyInt>>,
        ready_id -> Nullable<Unsigned<BigInt>>,
        scheduled_id -> Nullable<Unsigned<BigInt>>,
        account -> Nullable<Varbinary>,
    }
}

table! {
    queue_trace (id) {
        id -> Unsigned<BigInt>,
        topic_id -> Unsigned<Integer>,
        msg_id -> Binary,
        event -> Varbinary,
        at -> Datetime,
        delivery_no -> Unsigned<Integer>,
        worker_id -> Unsigned<BigInt>,
        conn_id -> Unsigned<BigInt>,
        client -> Nullable<Varbinary>,
        partition_no -> Nullable<Unsigned<Integer>>,
        offset_no -> Nullable<Unsigned<BigInt>>,
        outcome -> Nullable<Varbinary>,
        error -> Nullable<Varbinary>,
    }
}

table! {
    queue_duty (name) {
        name -> Varbinary,
        conn_id -> Unsigned<BigInt>,
        holder -> Varbinary,
        runs -> Unsigned<BigInt>,
        ran_at -> Datetime,
        report -> Mediumblob,
    }
}

table! {
    queue_audit (id) {
        id -> Unsigned<BigInt>,
        at -> Datetime,
        actor -> Varbinary,
        origin -> Varbinary,
        action -> Varbinary,
        target -> Varbinary,
        detail -> Nullable<Varbinary>,
        messages -> Unsigned<BigInt>,
    }
}

table! {
    queue_access (verb, account, topic) {
        verb -> Varbinary,
        account -> Varbinary,
        topic -> Varbinary,
    }
}

allow_tables_to_appear_in_same_query!(
    queue_topic,
    queue_switch,
    queue_message,
    queue_cancellation,
    queue_claim,
    queue_worker,
    queue_floor,
    queue_schedule,
    queue_scheduled,
    queue_dead,
    queue_archive,
    queue_checkpoint,
    queue_throughput,
    queue_limit,
    queue_slot,
    queue_share,
    queue_ledger,
    queue_lookup,
    queue_dedupe,
    queue_unique,
    queue_partition,
    queue_log,
    queue_cursor,
    queue_range,
    queue_passed,
    queue_member,
    queue_trace,
    queue_duty,
    queue_audit,
    queue_access,
);
