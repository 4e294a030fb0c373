//! A throw-away queue on a real server for each test, and tools for such tests.
//!
//! Nothing is mocked: a test gets a database of its own on the MySQL or MariaDB server of the
//! environment variable `ROWMQ_URL`, with the queue's tables in it, and your producers and handlers
//! work on it as they do in production. The database is dropped at the test's end, also when the
//! test fails; those of test runs that were killed are swept after an hour.
//!
//! * [`TestQueue`] is what most tests want: enqueue through your own code, then
//!   [`assert_enqueued`](TestQueue::assert_enqueued), [`drain`](TestQueue::drain) the topic through
//!   your handler, and [`advance`](TestQueue::advance) the clock to the next retry.
//! * [`TestDatabase`] is only the database: for tests that start whole programs.
//! * [`until`] waits for what another process or task does.
//! * [`Program`] is a running program, with its log; it never outlives the test.
//! * [`Console`] is the web console as such a program.
//! * [`Supervisor`] takes systemd's place before a program.
//! * [`FaultProxy`](proxy::FaultProxy) stands between a program and the server. On demand it loses
//!   replies, cuts connections and swallows packets.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use rowmq_core::handler::{Context, Handler, HandlerError};
//! use rowmq_core::store::inspect::Peeked;
//! use rowmq_core::{NewMessage, enqueue};
//! use rowmq_test::TestQueue;
//!
//! struct Greet;
//!
//! impl Handler for Greet {
//!     type Payload = String;
//!
//!     async fn handle(&self, context: &Context, name: String) -> Result<(), HandlerError> {
//!         match context.delivery.failures {
//!             0 => Err(HandlerError::retry("the mail server is away")),
//!             _ => Ok(println!("Hello {name}")),
//!         }
//!     }
//! }
//!
//! # async fn test() -> Result<(), rowmq_core::Error> {
//! let queue = TestQueue::new().await;
//! let topic = queue.topic("greetings").await;
//!
//! // Your code enqueues, in its own transaction if it likes.
//! let mut conn = queue.connect().await;
//! enqueue(&mut conn, &topic.name, &NewMessage::json(&"Ada")?).await?;
//!
//! queue.assert_enqueued("greetings", 1).await;
//! queue.assert_enqueued("greetings", |m: &Peeked| m.body == br#""Ada""#).await;
//!
//! let report = queue.drain("greetings", &Greet).await;
//! assert_eq!((report.acked, report.retried), (0, 1));
//!
//! queue.advance(Duration::from_secs(60)).await;
//! assert_eq!(queue.drain("greetings", &Greet).await.acked, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Every function here panics with a sentence that says what is wrong: a test that cannot have its
//! database has failed.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test without its database has failed, and says why"
)]

mod aside;
mod clock;
mod console;
mod database;
mod drain;
mod names;
mod patience;
mod program;
pub mod proxy;
mod queue;
mod server;
mod spare;
mod supervisor;

pub use self::console::Console;
pub use self::database::TestDatabase;
pub use self::drain::Drained;
pub use self::patience::{PATIENCE, connected, greeted, session_at, until};
pub use self::program::Program;
pub use self::queue::{Expected, TestQueue};
pub use self::supervisor::Supervisor;
