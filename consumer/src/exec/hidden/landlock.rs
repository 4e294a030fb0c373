use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError,
};

/// Keeps this thread, and every program that it starts afterwards, from reading `hidden` and what
/// is below it. Does nothing on a kernel without Landlock: see [`can_hide`].
///
/// A Landlock rule can only allow. So each file and directory that exists now is allowed, except
/// for `hidden` and the directories above it; a file created later in one of those directories is
/// not.
pub(in super::super) fn hide(hidden: &[PathBuf]) -> io::Result<()> {
    // A file that does not exist needs no rule. Links are followed.
    let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    if hidden.is_empty() {
        return Ok(());
    }
    let mut rules = ruleset(CompatLevel::BestEffort).map_err(io::Error::other)?;
    for path in all_but(Path::new("/"), &hidden) {
        // It may have been deleted since it was listed.
        let Ok(opened) = PathFd::new(&path) else { continue };
        rules = rules
            .add_rule(PathBeneath::new(opened, AccessFs::ReadFile))
            .map_err(io::Error::other)?;
    }
    rules.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

/// Returns whether this kernel supports Landlock: Linux 5.13 or later, unless it was disabled.
pub(in super::super) fn can_hide() -> bool {
    ruleset(CompatLevel::HardRequirement).is_ok()
}

fn ruleset(level: CompatLevel) -> Result<RulesetCreated, RulesetError> {
    let rules = Ruleset::default().set_compatibility(level).handle_access(AccessFs::ReadFile)?;
    rules.create()
}

/// Lists the files and directories that together are all of `directory` except for `hidden`.
fn all_but(directory: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    // If this process cannot list a directory above a hidden file, nothing in it is allowed.
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let mut allowed = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        // A rule for a link would allow its target.
        if entry.file_type().map_or(true, |kind| kind.is_symlink()) || hidden.contains(&path) {
            continue;
        }
        if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            allowed.extend(all_but(&path, hidden));
        } else {
            allowed.push(path);
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_allowed_but_the_hidden_file_and_links_to_it() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        for directory in ["etc/rowmq", "etc/other", "run"] {
            std::fs::create_dir_all(at(directory)).expect("made");
        }
        for file in ["etc/rowmq/url", "etc/rowmq/rowmq.toml", "etc/hosts"] {
            std::fs::write(at(file), "").expect("written");
        }
        std::os::unix::fs::symlink(at("etc/rowmq/url"), at("etc/link")).expect("linked");
        let mut found = all_but(root.path(), &[at("etc/rowmq/url")]);
        found.sort();
        assert_eq!(found, ["etc/hosts", "etc/other", "etc/rowmq/rowmq.toml", "run"].map(at));
    }
}
