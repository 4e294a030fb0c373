//! Files that a program must not read although its consumer may.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError,
};

/// Keeps this thread, and every program that it starts from now on, from reading `hidden` and what
/// lies below. Where the kernel has no Landlock it changes nothing: see [`can_hide`].
///
/// Landlock knows what is allowed, not what is refused. So everything that is there now is allowed,
/// apart from `hidden`; in the directories above it, files that are made later cannot be read.
pub(super) fn hide(hidden: &[PathBuf]) -> io::Result<()> {
    // What is not there cannot be read. Links lead to what is.
    let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    if hidden.is_empty() {
        return Ok(());
    }
    let mut rules = ruleset(CompatLevel::BestEffort).map_err(io::Error::other)?;
    for path in beside(Path::new("/"), &hidden) {
        // It may have gone since it was listed.
        let Ok(opened) = PathFd::new(&path) else { continue };
        rules = rules
            .add_rule(PathBeneath::new(opened, AccessFs::ReadFile))
            .map_err(io::Error::other)?;
    }
    rules.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

/// Whether this kernel can keep a program from a file: Linux from 5.13, unless it was told not to.
pub(super) fn can_hide() -> bool {
    ruleset(CompatLevel::HardRequirement).is_ok()
}

fn ruleset(level: CompatLevel) -> Result<RulesetCreated, RulesetError> {
    let rules = Ruleset::default().set_compatibility(level).handle_access(AccessFs::ReadFile)?;
    rules.create()
}

/// The files and directories that together are all of `directory` but `hidden`.
fn beside(directory: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    // What cannot be listed here cannot be opened by name from here either, but for what is known.
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let mut beside = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        // A rule follows links: it would allow what they lead to.
        if entry.file_type().map_or(true, |kind| kind.is_symlink()) || hidden.contains(&path) {
            continue;
        }
        if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            beside.extend(self::beside(&path, hidden));
        } else {
            beside.push(path);
        }
    }
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_beside_a_file_but_the_file_and_what_leads_to_it() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        for directory in ["etc/queue", "etc/other", "run"] {
            std::fs::create_dir_all(at(directory)).expect("made");
        }
        for file in ["etc/queue/url", "etc/queue/queue.toml", "etc/hosts"] {
            std::fs::write(at(file), "").expect("written");
        }
        std::os::unix::fs::symlink(at("etc/queue/url"), at("etc/link")).expect("linked");
        let mut found = beside(root.path(), &[at("etc/queue/url")]);
        found.sort();
        assert_eq!(found, ["etc/hosts", "etc/other", "etc/queue/queue.toml", "run"].map(at));
    }
}
