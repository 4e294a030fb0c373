//! The tables of streams.

use diesel::table;

table! {
    queue_partition (topic_id, partition_no) {
        topic_id -> Unsigned<Integer>,
        partition_no -> Unsigned<Integer>,
        next_offset -> Unsigned<BigInt>,
        first_offset -> Unsigned<BigInt>,
        pages -> Bool,
    }
}

table! {
    queue_log (topic_id, partition_no, offset_no) {
        topic_id -> Unsigned<Integer>,
        partition_no -> Unsigned<Integer>,
        offset_no -> Unsigned<BigInt>,
        msg_id -> Binary,
        enqueued_at -> Datetime,
        sequenced_at -> Datetime,
        expires_at -> Nullable<Datetime>,
        ordering_key -> Nullable<Varbinary>,
        biz_id -> Nullable<Varbinary>,
        headers -> Nullable<Mediumblob>,
        body -> Longblob,
        messages -> Unsigned<Integer>,
        entries -> Nullable<Mediumblob>,
    }
}

table! {
    queue_cursor (group_id, partition_no) {
        group_id -> Unsigned<Integer>,
        partition_no -> Unsigned<Integer>,
        next_offset -> Unsigned<BigInt>,
        generation -> Unsigned<BigInt>,
        lost -> Unsigned<BigInt>,
    }
}

table! {
    queue_range (id) {
        id -> Unsigned<BigInt>,
        group_id -> Unsigned<Integer>,
        partition_no -> Unsigned<Integer>,
        mark -> Unsigned<BigInt>,
        hi -> Unsigned<BigInt>,
        worker_id -> Unsigned<BigInt>,
        claim_no -> Unsigned<BigInt>,
        conn_id -> Unsigned<BigInt>,
        delivery_no -> Unsigned<Integer>,
        failures -> Unsigned<Integer>,
        crashes -> Unsigned<Integer>,
        suspicions -> Unsigned<Integer>,
        history -> Nullable<Mediumblob>,
        ready_at -> Nullable<Datetime>,
        claimed_at -> Nullable<Datetime>,
    }
}

table! {
    queue_passed (range_id, offset_no) {
        range_id -> Unsigned<BigInt>,
        offset_no -> Unsigned<BigInt>,
    }
}

table! {
    queue_member (group_id, name, partition_no) {
        group_id -> Unsigned<Integer>,
        name -> Varbinary,
        partition_no -> Unsigned<Integer>,
        next_offset -> Unsigned<BigInt>,
        lost -> Unsigned<BigInt>,
        worker_id -> Unsigned<BigInt>,
        told_at -> Datetime,
    }
}
