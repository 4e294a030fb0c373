//! Checks that traces report neither more nor less than what was committed.

use super::history::History;
use super::message::Message;
use super::{Breach, Leftovers, Trace};
use crate::record::Enqueued;
use crate::stream::Share;

/// Finds messages whose trace is wrong. Every message of the stream leaves a trace in every group;
/// in queues, only the messages of transactional handlers do.
pub(super) fn breaches(history: &History, leftovers: &Leftovers) -> Vec<(Breach, Share)> {
    if leftovers.traces.is_empty() {
        return Vec::new();
    }
    let is_wrong = |(share, message): &(&Share, &Message)| {
        let of = |share: Share| leftovers.traces.get(&share).copied().unwrap_or_default();
        let is_dead = leftovers.dead.contains_key(share);
        match share.group {
            // Members claim nothing, and write nothing about their work.
            Some(group) if group.is_member() => false,
            Some(_) => {
                let sent = of(share.tag.into());
                !is_sent_as_told(message, sent)
                    || !is_acked_as_told(message, of(**share), is_dead, history.is_rewound(**share))
            }
            None if message.effects > 0 => {
                of(**share).enqueued != 1 || !is_acked_as_told(message, of(**share), is_dead, false)
            }
            None => false,
        }
    };
    let wrong = history.messages.iter().filter(is_wrong);
    wrong.map(|(share, _)| (Breach::WrongTrace, *share)).collect()
}

/// Returns whether the trace has one row if the message was stored, and none if it was not.
fn is_sent_as_told(message: &Message, trace: Trace) -> bool {
    match message.outcome() {
        Enqueued::Stored => trace.enqueued == 1,
        Enqueued::NotStored => trace.enqueued == 0,
        Enqueued::InDoubt if message.starts.is_empty() => trace.enqueued <= 1,
        Enqueued::InDoubt => trace.enqueued == 1,
    }
}

/// Returns whether a message was acked once for each group, however often it was handled; after a
/// reset of the group it may have been acked again.
fn is_acked_as_told(message: &Message, trace: Trace, is_dead: bool, rewound: bool) -> bool {
    let acked = message.is_done() && !is_dead;
    if rewound { (trace.acked > 0) == acked } else { trace.acked == u64::from(acked) }
}
