//! The real binaries as a fleet: killed, frozen, stopped, restarted under them.

mod fleet;
mod freeze;
mod kill;
mod load;
mod poison;
mod restart;
mod stop;
