//! The processes of a history, and what can be done to them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use rowmq_janitor::{Driver, DriverOptions};
use tokio_util::sync::CancellationToken;

use crate::canceller::cancel;
use crate::consumer::consume;
use crate::operator::operate;
use crate::process::Process;
use crate::receiver::receive;
use crate::rules::Rule;
use crate::sender::{produce, transact};
use crate::stage::Stage;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Consumer,
    Janitor,
    Sender,
    Canceller,
    Operator,
}

/// The running processes, by name.
pub(crate) struct Troupe {
    stage: Rc<Stage>,
    running: BTreeMap<String, (Part, Process)>,
    started: u32,
}

impl Troupe {
    pub(crate) fn new(stage: Rc<Stage>) -> Self {
        let mut troupe = Self { stage, running: BTreeMap::new(), started: 0 };
        for (part, n) in [
            (Part::Consumer, troupe.stage.settings.consumers),
            (Part::Janitor, troupe.stage.settings.janitors),
            (Part::Sender, troupe.stage.settings.senders),
            (Part::Canceller, troupe.stage.settings.cancellers),
            (Part::Operator, troupe.stage.settings.operators),
        ] {
            (0..n).for_each(|_| troupe.start(part));
        }
        troupe
    }

    /// Starts a process under a name that none has had.
    pub(crate) fn start(&mut self, part: Part) {
        self.started += 1;
        let name = format!("{}-{}", format!("{part:?}").to_lowercase(), self.started);
        let stage = Rc::clone(&self.stage);
        let process = match part {
            Part::Consumer if stage.settings.receives => {
                Process::start(receive(stage, name.clone()))
            }
            Part::Consumer => Process::start(consume(stage, name.clone())),
            Part::Janitor => Process::start(sweep(stage, name.clone())),
            Part::Sender if self.started.is_multiple_of(2) => {
                Process::start(transact(stage, name.clone(), 7))
            }
            Part::Sender => Process::start(produce(stage, name.clone(), 10)),
            Part::Canceller => {
                let n = stage.settings.cancels;
                Process::start(cancel(stage, name.clone(), n))
            }
            Part::Operator => Process::start(operate(stage, name.clone(), 3)),
        };
        self.stage.server.note(&format!("{name} starts"));
        self.running.insert(name, (part, process));
    }

    /// Draws a process.
    pub(crate) fn draw(&self, part: Part) -> Option<String> {
        let names: Vec<_> =
            self.running.iter().filter(|(_, (p, _))| *p == part).map(|(name, _)| name).collect();
        let at = self.stage.below(names.len() as u32) as usize;
        names.get(at).map(|name| (*name).clone())
    }

    /// Kills a process. Its connections close, unless `cut`: then the server is not notified.
    pub(crate) async fn kill(&mut self, name: &str, cut: bool) -> Option<Part> {
        let (part, process) = self.running.remove(name)?;
        self.stage.server.note(&format!("{name} is killed, cut off: {cut}"));
        if cut {
            self.stage.server.lose(name);
        }
        process.kill().await;
        self.stage.recorder.borrow_mut().died(name);
        self.stage.vigil.borrow_mut().leaves(name);
        Some(part)
    }

    pub(crate) fn freeze(&self, name: &str, frozen: bool) {
        if let Some((_, process)) = self.running.get(name)
            && process.is_frozen() != frozen
        {
            self.stage.server.note(&format!("{name} is frozen: {frozen}"));
            if !frozen {
                self.stage.recorder.borrow_mut().woke(name);
            }
            process.freeze(frozen);
        }
    }

    pub(crate) fn thaw(&self) {
        self.running.keys().for_each(|name| self.freeze(name, false));
    }

    /// Restores the original number of processes.
    pub(crate) fn fill(&mut self) {
        let settings = self.stage.settings.clone();
        for (part, n) in [(Part::Consumer, settings.consumers), (Part::Janitor, settings.janitors)]
        {
            let running = self.running.values().filter(|(p, _)| *p == part).count();
            (running..n as usize).for_each(|_| self.start(part));
        }
    }
}

/// Runs the janitor as its program does.
async fn sweep(stage: Rc<Stage>, name: String) {
    let mut options = DriverOptions::new(stage.url(&name), name);
    options.lease = stage.settings.lease;
    match stage.settings.rule {
        Some(Rule::Grace) => options.rescue.grace = Duration::ZERO,
        Some(Rule::NoOrphans) => {
            tokio::task::spawn_local(crate::naive::forget_dead_workers(Rc::clone(&stage)));
        }
        Some(Rule::MovesByKeys) => {
            tokio::task::spawn_local(crate::naive::promote(Rc::clone(&stage)));
        }
        _ => {}
    }
    Driver::new(options).run(CancellationToken::new(), drop).await;
}
