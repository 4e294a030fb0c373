//! This consumer's members of broadcast groups.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rowmq_core::model::{MemberName, TopicId};
use rowmq_core::worker::Member;
use rowmq_core::{Result, Topic};

/// One member of each broadcast group. They outlive the consumer's workers, so positions in memory
/// survive a lost connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    name: Option<MemberName>,
    members: Arc<Mutex<HashMap<TopicId, Member>>>,
}

impl Members {
    pub(crate) fn new(name: Option<MemberName>) -> Self {
        Self { name, members: Arc::default() }
    }

    /// Returns this consumer's member of the topic, if that is a broadcast group.
    pub(crate) fn of(&self, topic: &Topic) -> Result<Option<Member>> {
        if topic.broadcast().is_none() {
            return Ok(None);
        }
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get(&topic.id) {
            return Ok(Some(member.clone()));
        }
        let member = Member::new(topic, self.name.clone())?;
        members.insert(topic.id, member.clone());
        Ok(Some(member))
    }
}
