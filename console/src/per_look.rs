use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rowmq_core::{Result, TopicName};
use tokio::sync::OnceCell;

/// The data of a topic that open pages need besides what every look reads. It is read at most once
/// for each look, however many clients have such a page open.
#[derive(Debug)]
pub(crate) struct PerLook<T> {
    /// By topic: the number of the look, and what was read then.
    known: Mutex<HashMap<TopicName, (u64, Read<T>)>>,
}

type Read<T> = Arc<OnceCell<Arc<T>>>;

impl<T> Default for PerLook<T> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<T> PerLook<T> {
    /// What was read of the topic since the look with the number `look`; `read` reads it.
    /// Concurrent callers wait for one read.
    pub(crate) async fn get(
        &self,
        look: u64,
        name: &TopicName,
        read: impl AsyncFnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let cell = self.cell(look, name);
        let known = cell.get_or_try_init(async || read().await.map(Arc::new)).await?;
        Ok(Arc::clone(known))
    }

    /// Makes the next caller read the topic again, because it was changed.
    pub(crate) fn forget(&self, name: &TopicName) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn cell(&self, look: u64, name: &TopicName) -> Read<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops the topics that no page has requested since the previous look.
        known.retain(|_, (of, _)| *of + 1 >= look);
        let (of, cell) = known.entry(name.clone()).or_default();
        if *of < look {
            (*of, *cell) = (look, Read::default());
        }
        Arc::clone(cell)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::join_all;
    use rowmq_core::Error;

    use super::*;

    #[tokio::test]
    async fn fifty_who_ask_at_once_read_it_once_a_look() {
        let (known, reads) = (PerLook::default(), AtomicU64::new(0));
        let name = TopicName::new("orders@billing").expect("a name");
        for look in 1..=3 {
            let ask = || {
                known.get(look, &name, async || {
                    let n = reads.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok(n + 1)
                })
            };
            let answers = join_all((0..50).map(|_| ask())).await;
            assert!(
                answers.iter().all(|answer| answer.as_ref().is_ok_and(|n| **n == look)),
                "{answers:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_failed_is_read_by_the_next_who_asks() {
        let known = PerLook::default();
        let name = TopicName::new("orders@billing").expect("a name");
        let failed = known.get(1, &name, async || Err(Error::UnknownTopic { topic: name.clone() }));
        assert!(failed.await.is_err());
        assert_eq!(*known.get(1, &name, async || Ok(7)).await.expect("read"), 7);
    }
}
