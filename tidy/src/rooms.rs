//! `rooms.toml`: what each package may contain, and which names it may take.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use anyhow::Context;
use serde::Deserialize;

use crate::edges::{self, Edges};
use crate::package::Package;
use crate::{size, tree};

/// Its path from the root of the checkout.
pub const FILE: &str = "tidy/rooms.toml";

/// Budgets are multiples of this many lines.
pub const STEP: usize = 50;

/// How the file begins.
const HEAD: &str = "\
# The house: what each package may hold and take. `lines` are lines of code: no blanks, no
# comments, no tests. `takes` are packages of this workspace. An edge says which modules a module
# may take names from; a child counts as its outermost parent, and a target's root goes by the
# target's name. `cycle` lists what still has to be untied. `ops/measure --rooms` prints this file
# as the tree is today.
";

/// The rooms, by package.
pub type Rooms = BTreeMap<String, Room>;

/// What a package may contain, and which names it may take.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// How many lines of code it may have: no blanks, no comments, no tests.
    pub lines: usize,
    /// Whether it only tests and measures the others, and is never published.
    #[serde(default)]
    pub harness: bool,
    /// The packages of the workspace that it may depend on.
    #[serde(default)]
    pub takes: BTreeSet<String>,
    /// For each target, the modules that still take names from each other in a cycle.
    #[serde(default)]
    pub cycle: BTreeMap<String, BTreeSet<String>>,
    /// For each target, which module may take names from which.
    #[serde(default)]
    pub edges: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// Reads the file.
///
/// # Errors
/// If it is missing, or is not valid.
pub fn read() -> anyhow::Result<Rooms> {
    let text = fs::read_to_string(tree::root().join(FILE)).context(FILE)?;
    toml::from_str(&text).context(FILE)
}

/// Returns the lines of code of a package.
#[must_use]
pub fn lines(package: &Package) -> usize {
    let modules = package.targets.iter().flat_map(|target| target.modules.values());
    modules.map(size::code_lines).sum()
}

/// Returns the file as it would be if it allowed exactly what `packages` are and take today. Which
/// packages belong to the harness is taken from the existing file.
#[must_use]
pub fn written(packages: &[Package], rooms: &Rooms) -> String {
    let mut text = HEAD.to_owned();
    for package in packages {
        let harness = rooms.get(&package.name).is_some_and(|room| room.harness);
        // Writing to a `String` cannot fail.
        let _written = write_room(&mut text, package, harness);
    }
    text
}

fn write_room(text: &mut String, package: &Package, harness: bool) -> std::fmt::Result {
    writeln!(text, "\n[{}]", package.name)?;
    writeln!(text, "lines = {}", lines(package).next_multiple_of(STEP))?;
    if harness {
        writeln!(text, "harness = true")?;
    }
    writeln!(text, "takes = {}", list(&package.takes))?;
    let edges: Vec<(&str, Edges)> =
        package.targets.iter().map(|it| (it.name.as_str(), edges::of(it))).collect();
    for (target, edges) in &edges {
        let circling: BTreeSet<String> = edges::cycles(edges).into_iter().flatten().collect();
        if !circling.is_empty() {
            writeln!(text, "cycle.{target} = {}", list(&circling))?;
        }
    }
    for (target, edges) in edges.iter().filter(|(_, edges)| !edges.is_empty()) {
        writeln!(text, "\n[{}.edges.{target}]", package.name)?;
        for (from, to) in edges::grouped(edges) {
            writeln!(text, "{from} = {}", list(&to))?;
        }
    }
    Ok(())
}

/// Formats names as a TOML list.
fn list(names: &BTreeSet<String>) -> String {
    format!("{:?}", names.iter().collect::<Vec<_>>())
}
