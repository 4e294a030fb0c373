//! Files that a program must not read although its consumer may.

#[cfg(target_os = "linux")]
pub(super) use self::landlock::{can_hide, hide};
#[cfg(not(target_os = "linux"))]
pub(super) use self::unsupported::{can_hide, hide};

#[cfg(target_os = "linux")]
mod landlock;

#[cfg(not(target_os = "linux"))]
mod unsupported {
    use std::io;
    use std::path::PathBuf;

    pub(in super::super) fn hide(_: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }

    pub(in super::super) fn can_hide() -> bool {
        false
    }
}
