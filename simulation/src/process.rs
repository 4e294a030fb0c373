//! Simulated processes: futures that can be frozen, thawed and killed as one.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::task::{JoinHandle, LocalSet};

#[derive(Debug, Default)]
struct Ice {
    frozen: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    ice: Rc<Ice>,
    task: JoinHandle<()>,
}

impl Process {
    /// Starts a process that runs `main` and all that it spawns.
    pub(crate) fn start(main: impl Future<Output = ()> + 'static) -> Self {
        let ice = Rc::new(Ice::default());
        let all = LocalSet::new();
        all.spawn_local(main);
        let task = tokio::task::spawn_local(Running { all, ice: Rc::clone(&ice) });
        Self { ice, task }
    }

    /// SIGSTOP or SIGCONT: a frozen process stands still while time continues.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.ice.frozen.set(frozen);
        if let (false, Some(waker)) = (frozen, self.ice.waker.take()) {
            waker.wake();
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.ice.frozen.get()
    }

    /// SIGKILL: the process stops, and its connections are closed.
    pub(crate) async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

struct Running {
    all: LocalSet,
    ice: Rc<Ice>,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.ice.frozen.get() {
            self.ice.waker.replace(Some(context.waker().clone()));
            return Poll::Pending;
        }
        Pin::new(&mut self.all).poll(context)
    }
}
