//! The rules of the protocol. A run can switch each of them off: the simulation must then find the
//! history that the rule prevents.

/// What a history is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A queue.
    Queue,
    /// A stream and its groups.
    Stream,
}

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// H1, H2: a move names its rows by keys that it has locked, never by a predicate twice.
    MovesByKeys,
    /// H3: death is decided by one update that competes with adoption and beats.
    DeathCompetes,
    /// H4: the grace runs from when a session was first seen missing.
    Grace,
    /// H5: a worker that finds its row dead stops its handlers and registers as a new worker.
    DeadWorkersStop,
    /// H6: claims whose answer was lost are found and given back.
    ClaimsCompared,
    /// H7: a worker's row stays while a claim of it is left, and claims of unknown workers are
    /// rescued.
    NoOrphans,
    /// H8: the server drops a session that is silent for a lease.
    SilentSessionsEnd,
    /// H11: a range names only rows that are done.
    RangesOfDoneRows,
    /// H12: after an unknown outcome a row that is gone is not called fenced.
    UnknownIsNotFenced,
    /// H20: the janitor's own clock decides whether a beat is old.
    OwnClock,
    /// H21: claims are fenced by worker and claim number, not by connection id.
    FencedByClaim,
    /// H22: only a crash of a worker that held one message alone is charged.
    LoneCrash,
    /// H24: rows that become ready below a low-water mark are published and walked to.
    FloorsAndWalks,
    /// A settle names its claim.
    SettlesAreFenced,
    /// `delivery_no` is never lowered.
    DeliveriesAreCounted,
    /// Claimed rows and their claim are committed together, after they were locked.
    ClaimsLock,
    /// The INSERT of a batch is refused unless its lane stands right before it.
    LanesAreFenced,
    /// The end of a message frees the unique key that it holds.
    KeysEndWithMessages,
    /// The outcome of a lost commit is looked up under the locks of its rows.
    DoubtWaitsForLocks,
    /// A message counts as cancelled if a row of it was deleted, not if it was seen.
    CancelsAreCounted,
    /// A worker that is asked to stop has not stopped yet: a claimed message is cancelled when its
    /// row is gone.
    AskingIsNoEnd,
    /// Only the claim that holds a message saves its checkpoint.
    CheckpointsAreFenced,
    /// The end of a message removes its checkpoint.
    CheckpointsEndWithMessages,
    /// A handler finds the checkpoint that was stored before.
    CheckpointsAreFound,
    /// A message that was taken away from a dead worker counts as one that it held.
    TakenAwayCounts,
    /// A worker reports totals, which may be reported twice.
    TotalsAreReported,
    /// The totals of workers that are gone are kept.
    GoneWorkersCount,
    /// A claim takes up room until it ends.
    SlotsCount,
    /// Claims of a topic with limits take turns.
    ClaimsTakeTurns,
    /// A claim within a worker's share holds the share until it ends.
    SharesAreLocked,
    /// A share is not given away while messages run in it.
    SharesInUseAreKept,
    /// H16: a reset removes the earlier ranges.
    ResetsForget,
    /// H17: retention waits for the lowest mark of all groups.
    RetentionWaits,
    /// An ordered group has one claim per partition.
    OneClaimInOrder,
    /// Ranges whose answer was lost are found and given back.
    RangesCompared,
    /// Ranges of dead workers are taken back.
    RangesRescued,
    /// A transaction that acks a message of a range holds the range until it ends.
    AcksTakeTurns,
    /// The sweeper's own clock decides how long a claim is held.
    RunsByOwnClock,
    /// A suspect is the only message that its worker handles.
    SuspectsRunAlone,
    /// Open transactions are also asked whether a topic is empty.
    DeletesWait,
    /// A row that a statement did not find is looked up again before it counts as gone.
    GoneIsAskedTwice,
    /// A ROLLBACK that was killed is sent again.
    RollbacksAreRepeated,
    /// A claim that ends within a page reads its messages of that page.
    PartsOfPagesAreRead,
    /// Retention keeps a page while it keeps a message of it.
    PagesAreKept,
    /// A listener that has heard nothing for the safety time looks for messages itself.
    ListenersLook,
    /// The sweeper does not take a bell twice: it lets go of it once, to ring.
    BellsDoNotStack,
}

impl Rule {
    /// Returns what a history must be about to break without the rule.
    #[must_use]
    pub fn subject(self) -> Subject {
        match self {
            Self::ResetsForget
            | Self::RetentionWaits
            | Self::OneClaimInOrder
            | Self::RangesCompared
            | Self::RangesRescued
            | Self::AcksTakeTurns
            | Self::GoneIsAskedTwice
            | Self::PartsOfPagesAreRead
            | Self::PagesAreKept => Subject::Stream,
            _ => Subject::Queue,
        }
    }

    /// Returns whether the rule matters only for statements that the server executes after their
    /// connection broke.
    #[must_use]
    pub fn is_about_late_statements(self) -> bool {
        self == Self::LanesAreFenced
    }

    /// Returns whether the rule matters only for consumers that wait for their bells.
    #[must_use]
    pub fn is_about_bells(self) -> bool {
        matches!(self, Self::ListenersLook | Self::BellsDoNotStack)
    }

    /// Returns whether the rule matters only for a cancel at the very moment of a promotion.
    #[must_use]
    pub fn is_about_cancels(self) -> bool {
        self == Self::CancelsAreCounted
    }

    /// Returns a statement of the store as it is without the rule; `None` leaves it unchanged.
    pub(crate) fn rewrite(self, text: &str) -> Option<String> {
        let changed = match self {
            Self::MovesByKeys => text.replace("WHERE due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, id LIMIT ? FOR UPDATE", "WHERE FALSE ORDER BY due_at, id LIMIT ? FOR UPDATE"),
            Self::DeathCompetes => {
                let decided_by =
                    ["state", "conn_id", "life_conn_id", "server_uid", "server_started_at", "beat_no"];
                decided_by.iter().fold(text.to_owned(), |text, column| any_worker(&text, column))
            }
            Self::DeadWorkersStop if !text.contains("end_reason") => any_worker(text, "state"),
            Self::ClaimsCompared if text.starts_with("SELECT worker_id, claim_no") => {
                text.replace("WHERE worker_id = ? AND claim_no >= ?", "WHERE worker_id = ? AND claim_no >= ? AND FALSE")
            }
            // The naive janitor removes the rows.
            Self::NoOrphans => text.replace("WHERE w.id IS NULL AND", "WHERE FALSE AND"),
            Self::SilentSessionsEnd => text.replace("wait_timeout = ", "no_timeout = "),
            Self::OwnClock if text.contains("w.lease_ms, ") => text
                .replace("w.lease_ms, ", "CASE WHEN w.beat_at < UTC_TIMESTAMP(6) - INTERVAL w.lease_ms * 1000 MICROSECOND THEN 0 ELSE w.lease_ms END AS lease_ms, ")
                .replace("COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) IN (w.conn_id, w.life_conn_id), 0)", "FALSE")
                .replace("COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)), ':work')) IN (w.conn_id, w.life_conn_id), 0)", "FALSE"),
            Self::FencedByClaim if text.contains("queue_message") => text.replace(
                "AND worker_id = ? AND claim_no = ?",
                "AND conn_id = CONNECTION_ID() AND (TRUE OR ? = ?)",
            ),
            Self::LoneCrash => text
                .replace("suspicions = suspicions + ?, crashes = crashes + ?", "suspicions = suspicions + 0 * ?, crashes = crashes + 1 + 0 * ?"),
            Self::FloorsAndWalks => text
                .replace("worker_id = 0 ORDER BY topic_id, priority, id LIMIT 1)", "worker_id = 0 AND delivery_no = 0 ORDER BY topic_id, priority, id LIMIT 1)")
                .replace("ON DUPLICATE KEY UPDATE floor = ?, seq = seq + 1", "ON DUPLICATE KEY UPDATE floor = floor + 0 * ?"),
            Self::SettlesAreFenced if text.starts_with("DELETE m") => {
                text.replace("AND worker_id = ? AND claim_no = ?", "AND (TRUE OR ? = ?)")
            }
            Self::DeliveriesAreCounted => text.replace("delivery_no = delivery_no + 1", "delivery_no = 1"),
            Self::ClaimsLock => text
                .replace("ORDER BY topic_id, priority, id LIMIT ? FOR UPDATE SKIP LOCKED", "ORDER BY topic_id, priority, id LIMIT ?")
                .replace("AND worker_id = 0", "AND (worker_id = 0 OR conn_id <> 0)"),
            Self::LanesAreFenced => text.replace(
                "IF(topic_id = 0 AND msg_id = ? AND claim_no = ?",
                "IF(topic_id = 0 AND msg_id = ? AND (TRUE OR claim_no = ?)",
            ),
            Self::KeysEndWithMessages => text.replace(
                "AND u.msg_id = m.msg_id WHERE",
                "AND u.msg_id = m.msg_id WHERE m.failures = 0 AND",
            ),
            Self::DoubtWaitsForLocks if text.starts_with("SELECT id FROM queue_message") => {
                text.strip_suffix(" FOR UPDATE")?.to_owned()
            }
            Self::CheckpointsAreFenced => text
                .replace("AND m.worker_id = ? AND m.claim_no = ? ON DUPLICATE", "AND (TRUE OR ? = ?) ON DUPLICATE"),
            Self::CheckpointsEndWithMessages if text.starts_with("DELETE k FROM queue_message m") => {
                text.replace(" WHERE ", " WHERE FALSE AND ")
            }
            Self::CheckpointsAreFound if text.starts_with("SELECT k.delivery_no") => {
                text.replace(" WHERE ", " WHERE FALSE AND ")
            }
            Self::TakenAwayCounts if text.starts_with("SELECT `queue_cancellation`.`row_id`") => {
                text.replace(" WHERE ", " WHERE FALSE AND ")
            }
            Self::TotalsAreReported => text.replace(
                "UPDATE done = VALUES(done)",
                "UPDATE done = queue_throughput.done + VALUES(done)",
            ),
            Self::GoneWorkersCount if text.starts_with("INSERT INTO queue_throughput") => {
                text.replace("WHERE t.worker_id = ?", "WHERE FALSE AND t.worker_id = ?")
            }
            Self::SlotsCount => text.replace("AND m.claim_no = h.claim_no", "AND m.claim_no < h.claim_no"),
            Self::ClaimsTakeTurns if text.starts_with("SELECT `queue_limit`.`topic_id`") => {
                text.replace(" FOR UPDATE", "")
            }
            Self::SharesAreLocked if text.starts_with("SELECT n, max_running FROM queue_share") => {
                text.replace(" FOR UPDATE", "")
            }
            Self::SharesInUseAreKept => text.replace(
                "FORCE INDEX (queue_claim_frontier) WHERE topic_id = ?",
                "FORCE INDEX (queue_claim_frontier) WHERE FALSE AND topic_id = ?",
            ),
            Self::ResetsForget => text.replace(
                "DELETE r FROM queue_range r FORCE INDEX (queue_range_place) WHERE",
                "DELETE r FROM queue_range r FORCE INDEX (queue_range_place) WHERE FALSE AND",
            ),
            Self::RetentionWaits => text.replace(
                "LEAST(c.next_offset, COALESCE(MIN(r.mark), c.next_offset)) AS mark",
                "p.next_offset + 0 * COALESCE(MIN(r.mark), 0) AS mark",
            ),
            Self::OneClaimInOrder => text.replace(
                "r.partition_no = ? ORDER BY r.mark",
                "r.partition_no = ? AND r.worker_id = 0 ORDER BY r.mark",
            ),
            Self::RangesCompared => text.replace(
                "WHERE r.worker_id = ? ORDER BY r.claim_no",
                "WHERE FALSE AND r.worker_id = ? ORDER BY r.claim_no",
            ),
            Self::RangesRescued => text.replace(
                "WHERE w.state IN ('dead', 'stopped') AND r.id > ?",
                "WHERE FALSE AND r.id > ?",
            ),
            Self::AcksTakeTurns => text.replace(" LOCK IN SHARE MODE", ""),
            Self::RunsByOwnClock => text
                .replace("t.max_run_time_ms, w.lease_ms FROM queue_claim c", "0 AS max_run_time_ms, 0 AS lease_ms FROM queue_claim c")
                .replace("t.max_run_time_ms IS NOT NULL AND (c.worker_id", "c.claimed_at < UTC_TIMESTAMP(6) - INTERVAL (t.max_run_time_ms + w.lease_ms) * 1000 MICROSECOND AND (c.worker_id"),
            Self::DeletesWait if text.starts_with("SELECT id AS _id FROM queue_") => {
                text.strip_suffix(" LIMIT 1 FOR UPDATE")?.to_owned() + " LIMIT 1"
            }
            Self::PartsOfPagesAreRead => text.replace(
                "offset_no < ? AND offset_no + 1 < ? + messages",
                "offset_no < ? AND offset_no < ? + 0 * messages",
            ),
            Self::PagesAreKept if text.starts_with("DELETE l FROM queue_log") => {
                text.replace("offset_no < ?", "offset_no + 1 < ? + messages")
            }
            Self::PagesAreKept => text.replace(
                "SELECT offset_no, messages, sequenced_at FROM queue_log",
                "SELECT offset_no, 1 AS messages, sequenced_at FROM queue_log",
            ),
            Self::BellsDoNotStack => text.replace(
                "WHEN IS_USED_LOCK(?) <=> CONNECTION_ID() THEN 1",
                "WHEN FALSE AND IS_USED_LOCK(?) <=> CONNECTION_ID() THEN 1",
            ),
            Self::RangesOfDoneRows if text.starts_with("DELETE m") => widened(text)?,
            _ => return None,
        };
        (changed != text).then_some(changed)
    }

    /// Returns whether a statement that changed more or fewer rows than it named reports the
    /// expected number.
    pub(crate) fn hides_counts(self, text: &str) -> bool {
        match self {
            Self::RangesOfDoneRows => text.contains(" IN ("),
            Self::CancelsAreCounted => text.starts_with("DELETE s, u FROM queue_scheduled"),
            _ => false,
        }
    }
}

/// Makes a condition that Diesel wrote hold for workers with any value in the column.
fn any_worker(text: &str, column: &str) -> String {
    let condition = format!("`queue_worker`.`{column}` = ?");
    text.replace(&condition, &format!("TRUE OR {condition}"))
}

/// Widens a list of ids to the range that holds them all.
fn widened(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("id IN (")?;
    let (ids, after) = rest.split_once(')')?;
    // The ids ascend.
    let others = vec!["?"; ids.matches('?').count() - 1].join(", ");
    Some(format!("{before}id BETWEEN ? AND GREATEST({others}){after}"))
}
