//! The body, as a program's standard input.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

/// Returns a file in memory that holds the whole body before the program starts. With a pipe, a
/// consumer that dies would leave its program with only the beginning of the message, and an end of
/// file that looks like the true one.
///
/// # Errors
/// If there is no memory or no file descriptor left.
pub(super) fn standard_input(body: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("rowmq-body", MemfdFlags::CLOEXEC)?);
    file.write_all(body)?;
    file.rewind()?;
    Ok(file.into())
}
