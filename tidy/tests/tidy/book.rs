//! The book of the documents.

use std::fs;

use tidy::tree::{files, root};

use crate::{none_of, read};

#[test]
fn the_book_has_every_page_and_a_search() {
    let to = tempfile::tempdir().unwrap();
    tidy::book::build(to.path()).unwrap();
    let missing = pages().into_iter().filter(|page| {
        let html = match page.strip_suffix("README.md") {
            Some(folder) => format!("{folder}index.html"),
            None => page.replace(".md", ".html"),
        };
        !to.path().join(html).is_file()
    });
    none_of("docs/SUMMARY.md lists every page of docs/", missing.collect());
    let names = fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let is_index = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("searchindex");
    assert!(names.into_iter().any(|name| is_index(&name)), "the book can be searched");
}

/// The pages, by their paths below `docs/`.
fn pages() -> Vec<String> {
    let documents = files(&[".md"]).unwrap().into_iter().map(|file| file.name());
    let below = documents.filter_map(|name| name.strip_prefix("docs/").map(str::to_owned));
    below.filter(|page| page != "SUMMARY.md").collect()
}

#[test]
fn nothing_that_is_not_published_is_offered() {
    if tidy::book::repository().unwrap().is_some() {
        return;
    }
    let offers =
        ["cargo add rowmq", "cargo install rowmq", "pip install rowmq", "npm install rowmq"];
    let mut violations = Vec::new();
    for file in files(&[".md"]).unwrap() {
        let name = file.name();
        let offered = offers.iter().filter(|offer| file.text.contains(**offer));
        violations.extend(offered.map(|offer| format!("{name}: {offer}")));
    }
    none_of("Cargo.toml has no `repository`, so nothing is published", violations);
    assert!(read("README.md").contains("not yet released"));
    assert!(root().join("README.md").is_file());
}
