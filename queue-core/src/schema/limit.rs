//! The tables of limits on claims.

use diesel::table;

table! {
    queue_limit (topic_id) {
        topic_id -> Unsigned<Integer>,
        spent_until -> Datetime,
    }
}

table! {
    queue_slot (topic_id, id) {
        topic_id -> Unsigned<Integer>,
        id -> Unsigned<BigInt>,
        priority -> Unsigned<TinyInt>,
        worker_id -> Unsigned<BigInt>,
        claim_no -> Unsigned<BigInt>,
        slot_key -> Nullable<Varbinary>,
    }
}

table! {
    queue_share (topic_id, worker_id) {
        topic_id -> Unsigned<Integer>,
        worker_id -> Unsigned<BigInt>,
        n -> Unsigned<Integer>,
        max_running -> Unsigned<Integer>,
    }
}
