//! The web console of the queue: pages that show what is in it, search it and put it right, and the
//! same as JSON under `/api/v1`. It reads and changes the queue through the functions of
//! `queue-core` that `rowmq` uses, and never writes SQL.
//!
//! * `settings` and `command`: its configuration;
//! * `visitor`, `login`, `users`, `link`, `throttle`, `asked`: who sends a request, and what they
//!   may ask for; every change is written into the audit by the transaction that makes it;
//! * `database`, `sampler`, `per_look`, `runs`: what it asks of the server, and how often;
//! * `page`: the pages; `api`: the JSON; `show`: how numbers and times look.

mod api;
mod asked;
mod assets;
mod command;
mod database;
mod frame;
mod link;
mod login;
mod page;
mod per_look;
mod refusal;
mod role;
mod runs;
mod sampler;
mod secret;
mod server;
mod settings;
mod show;
mod state;
mod throttle;
mod users;
mod visitor;

pub use self::command::main;
