//! Links within and between the documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::{File, files, none_of};

/// Returns the anchors of a document's headings, as the hosts of repositories make them.
fn anchors(file: &File) -> BTreeSet<String> {
    let mut times = BTreeMap::<String, u32>::new();
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in file.text.lines() {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if is_code || title == line || !title.starts_with(' ') {
            continue;
        }
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let kept: String = title.trim().to_lowercase().chars().filter(is_kept).collect();
        let anchor = kept.replace(' ', "-");
        let time = times.entry(anchor.clone()).or_default();
        anchors.insert(if *time == 0 { anchor } else { format!("{anchor}-{time}") });
        *time += 1;
    }
    anchors
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = files(&[".md"]);
    let anchors: BTreeMap<_, _> =
        documents.iter().map(|file| (file.path.canonicalize().unwrap(), anchors(file))).collect();
    let mut violations = Vec::new();
    for file in &documents {
        for part in file.text.split("](").skip(1) {
            let link = part.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = match target {
                "" => file.path.clone(),
                target => file.path.parent().unwrap().join(target),
            };
            let headings = path.canonicalize().map(|path| anchors.get(&path));
            let is_there = match headings {
                Err(_) => false,
                Ok(headings) => anchor.is_empty() || headings.is_some_and(|it| it.contains(anchor)),
            };
            if !is_there {
                violations.push(format!("{}: {link}", file.name()));
            }
        }
    }
    none_of("Links lead to files and headings that exist", violations);
}
