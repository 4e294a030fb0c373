//! Checks `tidy/rooms.toml`: budgets of lines, and which module may take names from which.

use std::collections::{BTreeMap, BTreeSet};

use tidy::edges::{self, Edges};
use tidy::package::{self, Package};
use tidy::rooms::{self, FILE, Room, STEP};

use crate::none_of;

/// A budget this far above the actual size must be lowered, so that the code does not grow back.
const SLACK: usize = 3 * STEP;

/// Returns each package with its room; either is missing where only the other list has it.
fn pairs() -> Vec<(String, Option<Package>, Option<Room>)> {
    let packages = package::all().unwrap().into_iter();
    let mut packages: BTreeMap<String, Package> =
        packages.map(|package| (package.name.clone(), package)).collect();
    let mut rooms = rooms::read().unwrap();
    let names: BTreeSet<String> = packages.keys().chain(rooms.keys()).cloned().collect();
    let pair = |name: String| {
        let (package, room) = (packages.remove(&name), rooms.remove(&name));
        (name, package, room)
    };
    names.into_iter().map(pair).collect()
}

/// Returns each package that has a room.
fn housed() -> Vec<(Package, Room)> {
    pairs().into_iter().filter_map(|(_, package, room)| Some((package?, room?))).collect()
}

#[test]
fn every_package_has_a_room() {
    let alone = pairs()
        .into_iter()
        .filter_map(|(name, package, room)| (package.is_none() || room.is_none()).then_some(name));
    none_of(&format!("{FILE} lists the packages of the workspace"), alone.collect());
}

#[test]
fn every_package_keeps_to_its_budget_of_lines() {
    let mut violations = Vec::new();
    for (package, room) in housed() {
        let lines = rooms::lines(&package);
        if lines > room.lines || room.lines >= lines + SLACK {
            violations.push(format!("{}: {lines} lines, {} allowed", package.name, room.lines));
        }
    }
    none_of(&format!("{FILE}: lines are at most the budget, and not far below it"), violations);
}

#[test]
fn packages_take_only_what_their_room_allows() {
    let mut violations = Vec::new();
    for (package, room) in housed() {
        for name in package.takes.difference(&room.takes) {
            violations.push(format!("{} must not take {name}", package.name));
        }
        for name in room.takes.difference(&package.takes) {
            violations.push(format!("{} does not take {name} any more: strike it", package.name));
        }
    }
    none_of(&format!("{FILE}: takes"), violations);
}

#[test]
fn modules_take_names_only_where_their_room_allows_it() {
    let mut violations = Vec::new();
    for (package, room) in housed() {
        for target in &package.targets {
            let allowed = room.edges.get(&target.name).cloned().unwrap_or_default();
            let place = format!("{} {}", package.name, target.name);
            violations.extend(differences(&place, &edges::of(target), &allowed));
        }
    }
    none_of(&format!("{FILE}: edges between modules"), violations);
}

/// Finds edges that the code has but must not have, and edges that it may have but does not.
fn differences(
    place: &str,
    edges: &Edges,
    allowed: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let may = |from: &str, to: &str| allowed.get(from).is_some_and(|names| names.contains(to));
    let mut differences = Vec::new();
    for ((from, to), taken) in edges.iter().filter(|((from, to), _)| !may(from, to)) {
        let taken = taken.iter().map(|it| format!("{} takes {}", it.file, it.name));
        let taken = taken.collect::<Vec<_>>().join(", ");
        differences.push(format!("{place}: {from} → {to} is forbidden: {taken}"));
    }
    let used = edges::grouped(edges);
    for (from, names) in allowed {
        for to in names {
            if !used.get(from).is_some_and(|used| used.contains(to)) {
                differences.push(format!("{place}: {from} → {to} is not used any more: strike it"));
            }
        }
    }
    differences
}

#[test]
fn modules_make_no_cycle_but_those_that_are_known() {
    let mut violations = Vec::new();
    for (package, room) in housed() {
        for target in &package.targets {
            let circles = edges::cycles(&edges::of(target));
            let circling: BTreeSet<String> = circles.into_iter().flatten().collect();
            let known = room.cycle.get(&target.name).cloned().unwrap_or_default();
            if circling != known {
                let (now, place) = (circling.difference(&known), &package.name);
                violations.extend(now.map(|it| format!("{place}: {it} is in a cycle now")));
                let free = known.difference(&circling);
                violations.extend(free.map(|it| format!("{place}: {it} is free: strike it")));
            }
        }
    }
    none_of(&format!("{FILE}: cycles"), violations);
}

#[test]
fn a_forbidden_edge_and_an_unused_one_are_named() {
    let text = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let taken = edges::Taken { file: "a.rs".to_owned(), name: "B".to_owned() };
    let edges = Edges::from([(text("a", "b"), BTreeSet::from([taken]))]);
    let allowed = BTreeMap::from([("a".to_owned(), BTreeSet::from(["c".to_owned()]))]);
    let expected =
        ["p: a → b is forbidden: a.rs takes B", "p: a → c is not used any more: strike it"];
    assert_eq!(differences("p", &edges, &allowed), expected);
}
