//! What each worker holds: the messages that a crash of it would affect.

use std::collections::BTreeMap;

use rowmq_core::Delivery;
use rowmq_core::model::{Settlement, WorkerId};

use super::{Recorder, Run, share};

impl Recorder {
    /// Records that the rest of an ordered group's claim comes back with this message of it. The
    /// settlement frees both, and another worker may claim them before this one hears the answer.
    pub(crate) fn comes_back_with_the_rest(&mut self, who: &str, delivery: &Delivery) {
        let group = share(delivery).0;
        let of_group = self.stories.iter_mut().filter(|(share, _)| share.0 == group);
        for run in of_group.flat_map(|(_, story)| &mut story.runs) {
            if run.consumer == who && run.claim == delivery.claim_no {
                run.asked.get_or_insert(Settlement::Release);
            }
        }
    }

    /// Records that the process was killed.
    pub(crate) fn died(&mut self, consumer: &str) {
        // A settlement in flight may have been committed without an answer: its row is no longer
        // held.
        let is_held = |gone: bool, run: &Run| !gone && run.asked.is_none();
        let mut held: BTreeMap<Option<WorkerId>, usize> = BTreeMap::new();
        for (gone, run) in self.runs_where(|run| run.consumer == consumer) {
            *held.entry(run.worker).or_default() += usize::from(is_held(gone, run));
        }
        for (gone, run) in self.runs_where(|run| run.consumer == consumer) {
            run.alone |= held[&run.worker] == usize::from(is_held(gone, run));
            run.over = true;
        }
        self.leave_wishes_of(consumer);
    }

    /// Returns the matching runs that are not over, and whether their claims may be gone: resetting
    /// a group takes its claims away, and a rescue does not count what runs on.
    fn runs_where(
        &mut self,
        asked: impl Fn(&Run) -> bool,
    ) -> impl Iterator<Item = (bool, &mut Run)> {
        let runs = self.stories.values_mut().flat_map(|story| {
            let gone = story.rewound;
            story.runs.iter_mut().map(move |run| (gone, run))
        });
        runs.filter(move |(_, run)| asked(run) && !run.over)
    }

    fn runs_of(&mut self, worker: WorkerId) -> impl Iterator<Item = (bool, &mut Run)> {
        self.runs_where(move |run| run.worker == Some(worker))
    }

    /// Marks the worker's messages that it may hold alone.
    pub(super) fn find_alone(&mut self, worker: WorkerId) {
        let held = self.runs_of(worker).filter(|(gone, _)| !gone).count();
        self.runs_of(worker).for_each(|(gone, run)| run.alone |= held == usize::from(!gone));
    }

    /// Checks what the worker holds after its handlers have begun with something more.
    pub(super) fn look_into_the_hands_of(&mut self, worker: WorkerId) {
        self.find_alone(worker);
        // A crash would affect both.
        let held = self.runs_of(worker).filter(|(gone, _)| !gone);
        let suspects: Vec<bool> = held.map(|(_, run)| run.suspect).collect();
        if suspects.len() > 1 && suspects.contains(&true) {
            self.fail(format!("worker {worker} has a suspect beside {}", suspects.len() - 1));
        }
    }
}
