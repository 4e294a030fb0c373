//! The files of the checkout that people write.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders without files that people write.
const SKIPPED: [&str; 3] = ["target", "node_modules", ".git"];

/// A file of text.
#[derive(Debug)]
pub struct File {
    /// Its path.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

impl File {
    /// Returns its path from the root of the checkout.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }
}

/// Returns the root of the checkout.
#[must_use]
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Returns all files below the root whose names end with one of `endings`, in the order of their
/// paths. Files that are not text are left out: no rule is about them.
///
/// # Errors
/// If a folder cannot be read.
pub fn files(endings: &[&str]) -> io::Result<Vec<File>> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending))
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}
