//! Why records of the journal were put aside, for callers that still ask.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::SendError;

/// Held by a caller that may still ask.
pub(super) type Interest = Arc<()>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    /// By the number after a group's last record: the number of its first record, and the reason.
    groups: Mutex<BTreeMap<u64, (u64, SendError)>>,
    interest: Interest,
}

impl SetAside {
    /// What is put aside from now on is remembered until this is dropped.
    pub(super) fn interest(&self) -> Interest {
        Arc::clone(&self.interest)
    }

    /// Records that these were put aside, and why.
    pub(super) fn add(&self, records: Range<u64>, why: SendError) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.interest) == 1 {
            groups.clear();
            return;
        }
        groups.insert(records.end, (records.start, why));
    }

    /// Why this record was put aside, if it was.
    pub(super) fn why(&self, number: u64) -> Option<SendError> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, (first, why)) = groups.range(number + 1..).next()?;
        (*first <= number).then(|| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_is_remembered_as_long_as_a_client_may_ask() {
        let set_aside = SetAside::default();
        let why = || SendError::Closed;
        set_aside.add(0..5, why());
        assert!(set_aside.why(3).is_none(), "no caller was there to ask");
        let interest = set_aside.interest();
        set_aside.add(5..7, why());
        set_aside.add(9..10, why());
        let asked: Vec<_> = (4..11).filter(|number| set_aside.why(*number).is_some()).collect();
        assert_eq!(asked, [5, 6, 9]);
        drop(interest);
        set_aside.add(10..11, why());
        assert!(set_aside.groups.lock().expect("not poisoned").is_empty());
    }
}
