//! The producer as a library and as a command, on real servers.

mod command;
mod direct;
mod notify;
mod once;
mod receipts;
mod relay;
mod resend;
mod restart;
mod send;
mod setup;
mod sharing;
mod spill;
mod spill_command;
mod traces;
