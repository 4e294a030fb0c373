//! The body, as a program's standard input.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

/// A file in memory that holds the whole body before the program starts. By a pipe, a consumer
/// that dies would leave its program with the beginning of a message, and an end that looks like
/// the true one.
///
/// # Errors
/// If there is no memory or no file descriptor left.
pub(super) fn standard_input(body: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("rowmq-body", MemfdFlags::CLOEXEC)?);
    file.write_all(body)?;
    file.rewind()?;
    Ok(file.into())
}
