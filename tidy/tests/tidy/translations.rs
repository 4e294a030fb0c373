//! The pages in Chinese keep step with those in English.

use crate::{none_of, read};

/// The pages, and their translations.
const PAGES: [(&str, &str); 3] = [
    ("README.md", "README.zh-CN.md"),
    ("docs/tutorial.md", "docs/zh-CN/tutorial.md"),
    ("docs/concepts.md", "docs/zh-CN/concepts.md"),
];

/// What a page is made of, without its words.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Heading(usize),
    Paragraph,
    Item,
    Row(usize),
    /// A line of code, without its comment.
    Code(String),
    /// Where a link leads, from the root.
    Link(String),
}

fn parts(page: &str) -> Vec<Part> {
    let text = read(page);
    let mut parts = Vec::new();
    let mut language = None;
    let mut above = "";
    for line in text.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            language = if language.is_none() { Some(fence) } else { None };
            parts.push(Part::Code(line.to_owned()));
        } else if let Some(language) = language {
            // The words of a picture are translated.
            if language != "text" {
                parts.push(Part::Code(without_comment(line).to_owned()));
            }
        } else if !line.trim().is_empty() {
            let level = line.chars().take_while(|c| *c == '#').count();
            if level > 0 {
                parts.push(Part::Heading(level));
            } else if line.starts_with("* ") {
                parts.push(Part::Item);
            } else if line.starts_with('|') {
                parts.push(Part::Row(line.matches('|').count()));
            } else if above.trim().is_empty() {
                parts.push(Part::Paragraph);
            }
            parts.extend(line.split("](").skip(1).map(|rest| link(page, rest)));
        }
        above = line;
    }
    parts
}

fn without_comment(line: &str) -> &str {
    let ends = ["# ", "// ", "/// ", "-- "];
    let end = ends.iter().filter_map(|mark| line.find(mark)).min();
    line[..end.unwrap_or(line.len())].trim_end()
}

fn link(page: &str, rest: &str) -> Part {
    let target = rest.split(')').next().unwrap_or_default();
    if target.contains("://") {
        return Part::Link(target.to_owned());
    }
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in target.split('/') {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    // A translation leads to the translations that there are, and to the other language.
    let path = path.join("/").replace("docs/zh-CN/", "docs/");
    Part::Link(if path.starts_with("README") { "README".to_owned() } else { path })
}

#[test]
fn translations_have_the_structure_and_the_code_of_their_pages() {
    let mut violations = Vec::new();
    for (page, translation) in PAGES {
        let (page_parts, parts) = (parts(page), parts(translation));
        let at = page_parts.iter().zip(&parts).position(|(one, other)| one != other);
        let at =
            at.or((page_parts.len() != parts.len()).then(|| page_parts.len().min(parts.len())));
        if let Some(at) = at {
            let (one, other) = (page_parts.get(at), parts.get(at));
            violations.push(format!("{translation}: part {at} is {other:?}, not {one:?}"));
        }
    }
    none_of("README.zh-CN.md and docs/zh-CN follow the pages in English", violations);
}
