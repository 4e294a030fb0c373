//! The book of `docs/`: its pages as HTML, with a search.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;
use serde::Deserialize;

use crate::tree::root;

/// The places of `Cargo.toml` that say where the project is published.
#[derive(Debug, Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Debug, Deserialize)]
struct Workspace {
    package: Package,
}

#[derive(Debug, Deserialize)]
struct Package {
    repository: Option<String>,
}

/// Returns the address of the repository, `repository` of `[workspace.package]`; `None` until the
/// project is published.
///
/// # Errors
/// If `Cargo.toml` cannot be read.
pub fn repository() -> anyhow::Result<Option<String>> {
    let text = fs::read_to_string(root().join("Cargo.toml")).context("Cannot read Cargo.toml")?;
    Ok(toml::from_str::<Manifest>(&text)?.workspace.package.repository)
}

/// Builds the book into the folder `to`.
///
/// # Errors
/// A page of `SUMMARY.md` that is not there; a folder that cannot be written.
pub fn build(to: &Path) -> anyhow::Result<()> {
    let repository = repository()?;
    let mut book = MDBook::load(root().join("docs"))?;
    book.config.build.create_missing = false;
    book.config.build.build_dir = to.to_owned();
    book.book.for_each_mut(|item| {
        if let BookItem::Chapter(chapter) = item
            && let Some(path) = &chapter.path
        {
            chapter.content = with_links(&chapter.content, path, repository.as_deref());
        }
    });
    book.build()
}

/// Makes links that lead out of the book lead into the repository. They become plain text while
/// there is none.
fn with_links(text: &str, page: &Path, repository: Option<&str>) -> String {
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("](") {
        let (before, link) = rest.split_at(at);
        let Some(end) = link.find(')') else { break };
        let target = &link[2..end];
        match outside(page, target) {
            None => written.push_str(&rest[..=at + end]),
            Some(path) => {
                let start = before.rfind('[').unwrap_or(before.len());
                let words = before.get(start + 1..).unwrap_or_default();
                written.push_str(&before[..start]);
                match repository {
                    Some(address) => {
                        written.push_str(&format!("[{words}]({address}/blob/main/{path})"));
                    }
                    None => written.push_str(words),
                }
            }
        }
        rest = &link[end + 1..];
    }
    written + rest
}

/// Returns the path from the checkout's root that a link of a page leads to, if it is not in
/// `docs/`.
fn outside(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with('#') {
        return None;
    }
    let mut path: Vec<_> = Path::new("docs").join(page.parent()?).components().map(owned).collect();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            other => path.push(owned(other)),
        }
    }
    let path: PathBuf = path.iter().collect();
    (!path.starts_with("docs")).then(|| path.display().to_string())
}

fn owned(part: Component<'_>) -> PathBuf {
    PathBuf::from(part.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_lead_into_the_repository() {
        let text = "See [a](../a/README.md), [b](b.md#c), [`d`](https://d/) and [e](../../f.toml).";
        let page = Path::new("how-to/x.md");
        assert_eq!(
            with_links(text, page, Some("https://r")),
            "See [a](../a/README.md), [b](b.md#c), [`d`](https://d/) and \
             [e](https://r/blob/main/f.toml)."
        );
        let text = "[a](../a/README.md) or [b](b.md)";
        assert_eq!(with_links(text, Path::new("x.md"), None), "a or [b](b.md)");
    }
}
