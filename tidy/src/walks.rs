//! The walks of docs/architecture.md: the way of a message through the code, as lists of
//! `file:function`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context;

use crate::tree;

/// The document with the walks.
const DOCUMENT: &str = "docs/architecture.md";

/// The heading of a walk, before its name.
const HEADING: &str = "## Walk: ";

/// One way of a message.
#[derive(Debug)]
pub struct Walk {
    /// The heading's text.
    pub name: String,
    /// The functions on the straight way, in the order in which they are named.
    pub steps: Vec<Step>,
    /// Those of its branches, which only some messages take: the bullet points.
    pub branches: Vec<Step>,
}

/// A function of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The file, from the root of the checkout.
    pub file: String,
    /// The function's name.
    pub function: String,
}

impl Walk {
    /// Returns what the document names that the code does not have.
    #[must_use]
    pub fn gone(&self) -> Vec<&Step> {
        self.steps.iter().chain(&self.branches).filter(|step| !step.exists()).collect()
    }

    /// How many files the straight way passes through.
    #[must_use]
    pub fn files(&self) -> usize {
        self.steps.iter().map(|step| &step.file).collect::<BTreeSet<_>>().len()
    }
}

impl Step {
    /// Whether the file has such a function.
    #[must_use]
    pub fn exists(&self) -> bool {
        let signature = format!("fn {}", self.function);
        let is_its = |rest: &str| rest.starts_with(['(', '<']);
        fs::read_to_string(tree::root().join(&self.file))
            .is_ok_and(|text| text.split(&signature).skip(1).any(is_its))
    }
}

/// Reads all walks.
///
/// # Errors
/// If the document cannot be read.
pub fn all() -> anyhow::Result<Vec<Walk>> {
    let text = fs::read_to_string(tree::root().join(DOCUMENT)).context(DOCUMENT)?;
    Ok(of(&text))
}

fn of(text: &str) -> Vec<Walk> {
    let mut walks: Vec<Walk> = Vec::new();
    let (mut is_walk, mut is_branch) = (false, false);
    for line in text.lines() {
        if line.starts_with("## ") {
            let name = line.strip_prefix(HEADING);
            is_walk = name.is_some();
            walks.extend(name.map(|name| Walk {
                name: name.to_owned(),
                steps: Vec::new(),
                branches: Vec::new(),
            }));
        } else if let (true, Some(walk)) = (is_walk, walks.last_mut()) {
            // A line that begins with spaces continues the one before.
            is_branch = line.starts_with("* ") || is_branch && line.starts_with("  ");
            let steps = if is_branch { &mut walk.branches } else { &mut walk.steps };
            // Every second part of a line is code.
            steps.extend(line.split('`').skip(1).step_by(2).filter_map(step));
        }
    }
    walks
}

/// The step that a piece of code names, if it is one: `queue-core/src/enqueue.rs:enqueue`.
fn step(code: &str) -> Option<Step> {
    let (file, function) = code.split_once(".rs:")?;
    Some(Step { file: format!("{file}.rs"), function: function.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_ends_with_the_next_heading() {
        let text = "## Walk: ack\n1. `a/b.rs:one` and `c.rs:two` of `T`.\n2. `a/b.rs:three`\n\
                    Branches:\n* `e.rs:five`,\n  `f.rs:six`\n## Why\n`d.rs:four`\n";
        let walks = of(text);
        assert_eq!((walks.len(), walks[0].name.as_str(), walks[0].files()), (1, "ack", 2));
        let functions: Vec<_> = walks[0].steps.iter().map(|step| step.function.as_str()).collect();
        assert_eq!(functions, ["one", "two", "three"]);
        assert_eq!(walks[0].branches.len(), 2);
    }

    #[test]
    fn a_function_is_not_another_one_whose_name_begins_alike() {
        let step = |function: &str| Step {
            file: "tidy/src/walks.rs".to_owned(),
            function: function.to_owned(),
        };
        assert!(step("exists").exists() && !step("exist").exists());
    }
}
