//! The functions of the store, and the calls of them here, read from the sources.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// A public function of the store that takes a connection.
pub(crate) struct Function {
    name: String,
    file: PathBuf,
}

impl Function {
    /// Returns whether `text` calls it, by its module or, where that exports it, by the one around.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        let around = self.file.parent().unwrap();
        [self.file.file_stem(), around.file_stem()].into_iter().flatten().any(|module| {
            let call = format!("{}::{}(", module.to_string_lossy(), self.name);
            let is_part_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
            text.match_indices(&call).any(|(at, _)| !text[..at].ends_with(is_part_of_a_name))
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.name)
    }
}

pub(crate) fn of_the_store() -> Vec<Function> {
    let mut functions = Vec::new();
    for file in sources("src/store") {
        let text = fs::read_to_string(&file).unwrap();
        let signatures =
            text.split("pub async fn ").skip(1).map(|it| it.split_once('{').unwrap().0);
        for signature in signatures.filter(|it| it.contains("impl Connection")) {
            let name = signature.split(['(', '<']).next().unwrap().to_owned();
            functions.push(Function { name, file: file.clone() });
        }
    }
    functions
}

/// Returns the sources that call the store, without comments.
pub(crate) fn calls() -> String {
    let texts =
        sources("tests/statements").into_iter().map(|file| fs::read_to_string(file).unwrap());
    let mut code = String::new();
    for text in texts {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.for_each(|line| code.extend([line, "\n"]));
    }
    code
}

/// Lists the sources of a folder of this package, those in folders below it included.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}
