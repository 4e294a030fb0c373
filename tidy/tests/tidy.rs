//! Rules of the whole source tree that the compiler does not check. Needs no server.

#![allow(clippy::unwrap_used, reason = "a tree that cannot be read has failed")]

#[path = "tidy/book.rs"]
mod book;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/promises.rs"]
mod promises;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/translations.rs"]
mod translations;
#[path = "tidy/walks.rs"]
mod walks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use sha2::{Digest, Sha256};
use tidy::tree::{self, File, root};

/// The longest source file, in lines. A longer one contains a part that deserves its own file.
const LONGEST_FILE: usize = 400;
const LONGEST_TESTS: usize = 500;

/// The longest line, in characters, as in rustfmt.toml.
const LONGEST_LINE: usize = 100;

/// Marks of unfinished work, put together so that this file does not hold them itself.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("#[ig", "nore"),
];

/// Strings that distinguish SQL from prose.
const SQL: [&str; 8] = [
    concat!("sql_", "query("),
    "SELECT ",
    "INSERT INTO",
    "REPLACE INTO",
    "UPDATE queue_",
    "DELETE FROM",
    "CREATE TABLE",
    "CALL queue_",
];

/// The histories that broke an earlier draft of the protocol, and the defects of the designs it
/// grew from. Each is named, as in `H3` or `S5`, by a test's name or its documentation.
const KNOWN: [(char, u32); 2] = [('H', 26), ('S', 15)];

/// The histories and defects that no test of this workspace names, and why.
const ELSEWHERE: [(&str, &str); 2] = [
    ("H18", "dropping a partition of the log: it is no partitioned table"),
    ("H19", "offsets of a partitioned log: it is no partitioned table"),
];

/// The packages of other queues that the benchmark runs, each with a lock file of its own.
const PEERS: &str = "bench/peers/";

/// Programs of users, one of them a package with a lock file of its own.
const EXAMPLES: &str = "examples/";

/// A worker for users to copy, which stands alone.
const TEMPLATE: &str = "template/";

/// The check of the Kubernetes manifests, a package with a lock file of its own.
const VALIDATE: &str = "ops/deploy/kubernetes/validate/";

/// Returns whether a file is only for tests.
fn is_test(file: &File) -> bool {
    let name = file.name();
    let for_tests = ["queue-test/", "simulation/"];
    name.contains("/tests/")
        || name.ends_with("/tests.rs")
        || for_tests.iter().any(|folder| name.starts_with(folder))
}

/// Returns a file's lines with their numbers, up to its tests and without comments.
fn code(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let lines = file.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    (1..).zip(lines).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Returns all files below the root that people write and that end with one of `endings`.
fn files(endings: &[&str]) -> Vec<File> {
    tree::files(endings).unwrap()
}

fn sources() -> Vec<File> {
    files(&[".rs"])
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn none_of(rule: &str, violations: Vec<String>) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

#[test]
fn source_files_are_short_and_their_lines_too() {
    let mut violations = Vec::new();
    for file in sources() {
        let lines = file.text.lines().count();
        // A file of tests is a list of cases, which a reader looks up one at a time.
        let longest = if file.name().contains("/tests/") { LONGEST_TESTS } else { LONGEST_FILE };
        if lines > longest {
            violations.push(format!("{}: {lines} lines", file.name()));
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            // rustfmt does not break strings either.
            let is_text = line.contains('"') || line.ends_with('\\');
            if line.chars().count() > LONGEST_LINE && !is_text {
                violations.push(format!("{}:{number}: a line too long", file.name()));
            }
        }
    }
    none_of("Files have at most 400 lines (tests 500) of 100 characters", violations);
}

/// A file of tests that no module names is not compiled, and none of its tests runs.
#[test]
fn every_file_of_tests_is_part_of_a_binary() {
    let (sources, manifests) = (sources(), files(&["Cargo.toml"]));
    let is_of_tests = |file: &&File| file.path.iter().any(|part| part == "tests");
    let mut unseen = Vec::new();
    for file in sources.iter().filter(is_of_tests) {
        let mut path = file.path.with_extension("");
        if path.ends_with("mod") {
            path.pop();
        }
        let folder = path.parent().unwrap();
        let stem = path.file_name().unwrap().to_string_lossy();
        let name = file.path.file_name().unwrap().to_string_lossy();
        let declares = |other: &File| {
            let near =
                other.path.parent() == Some(folder) || other.path.with_extension("") == folder;
            near && (other.text.contains(&format!("mod {stem};"))
                || other.text.contains(&format!("{name}\"]")))
        };
        let is_binary = |manifest: &File| {
            let within = file.path.strip_prefix(manifest.path.parent().unwrap());
            within.is_ok_and(|path| {
                let path = path.to_string_lossy();
                manifest.text.contains(&format!("path = \"{path}\""))
                    || !manifest.text.contains("autotests = false")
                        && (path == format!("tests/{name}") || path.ends_with("/main.rs"))
            })
        };
        if !sources.iter().any(declares) && !manifests.iter().any(is_binary) {
            unseen.push(file.path.display().to_string());
        }
    }
    none_of("no module names these tests", unseen);
}

#[test]
fn nothing_is_unfinished() {
    let mut violations = Vec::new();
    let endings = [".rs", ".md", ".sql", ".toml", ".sh", ".yml", "run", "test", "demo", "tools"];
    for file in files(&endings) {
        for (number, line) in (1..).zip(file.text.lines()) {
            if UNFINISHED.iter().any(|mark| line.contains(mark)) {
                violations.push(format!("{}:{number}: {}", file.name(), line.trim()));
            }
        }
    }
    none_of("Nothing is left for later, and no test is switched off", violations);
}

#[test]
fn sql_is_only_in_the_store() {
    let mut violations = Vec::new();
    for file in sources().iter().filter(|file| !is_test(file)) {
        // The state of a server is queried before there is a connection to give to the store. The
        // chaos harness must not rely on the store for what is in the tables. The peers have their
        // own tables, and the references of the benchmark are bare statements.
        let may = [
            "queue-core/src/store",
            "queue-core/src/connection/role.rs",
            "chaos/",
            "bench/src/",
            PEERS,
            EXAMPLES,
            TEMPLATE,
        ];
        if may.iter().any(|folder| file.name().starts_with(folder)) {
            continue;
        }
        for (number, line) in code(file) {
            if SQL.iter().any(|mark| line.contains(mark)) {
                violations.push(format!("{}:{number}: {}", file.name(), line.trim()));
            }
        }
    }
    none_of("SQL belongs into queue-core/src/store, one function a statement", violations);
}

#[test]
fn every_public_module_says_what_it_is_for() {
    let mut violations = Vec::new();
    for file in sources().iter().filter(|file| !is_test(file)) {
        let folder = match file.path.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "main.rs" | "mod.rs") => file.path.parent().unwrap().to_owned(),
            _ => file.path.with_extension(""),
        };
        for (number, line) in code(file) {
            let module =
                line.trim().strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';'));
            let Some(module) = module else { continue };
            let places = [folder.join(format!("{module}.rs")), folder.join(module).join("mod.rs")];
            let text = places.iter().find_map(|place| fs::read_to_string(place).ok());
            if !text.is_some_and(|text| text.starts_with("//! ")) {
                violations.push(format!("{}:{number}: {module}", file.name()));
            }
        }
    }
    none_of("A public module begins with //! and what it is for", violations);
}

#[test]
fn the_documentation_lists_every_metric_and_no_other() {
    let documentation = read("docs/metrics.md");
    let documented: BTreeMap<&str, &str> = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter(|(name, _)| name.starts_with("queue_") && !name.contains(' '))
        .collect();
    let mut violations = Vec::new();
    for (name, kind, meaning) in rowmq_core::telemetry::METRICS {
        match documented.get(name) {
            None => violations.push(format!("{name} is not documented")),
            Some(row) if !row.starts_with(&format!("{kind} | {meaning} | ")) => {
                violations.push(format!("{name}: the code says: {kind} | {meaning}"));
            }
            Some(_) => {}
        }
    }
    let known: BTreeSet<&str> =
        rowmq_core::telemetry::METRICS.iter().map(|(name, ..)| *name).collect();
    let unknown = documented.keys().filter(|name| !known.contains(*name));
    violations.extend(unknown.map(|name| format!("{name} does not exist")));
    none_of("docs/metrics.md and rowmq_core::telemetry agree", violations);
}

#[test]
fn a_migration_that_has_landed_does_not_change() {
    let frozen: BTreeMap<String, String> = read("migrations/frozen.toml")
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, sum)| (name.trim_matches('"').to_owned(), sum.trim_matches('"').to_owned()))
        .collect();
    let mut violations = Vec::new();
    let mut present = BTreeSet::new();
    for file in files(&["up.sql"]).iter().filter(|it| it.name().starts_with("migrat")) {
        let name = file.path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let digest = Sha256::digest(file.text.as_bytes());
        let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        match frozen.get(&name) {
            None => {
                violations.push(format!("add to migrations/frozen.toml: \"{name}\" = \"{sum}\""))
            }
            Some(known) if *known != sum => violations.push(format!("{name} was changed")),
            Some(_) => {}
        }
        present.insert(name);
    }
    let gone = frozen.keys().filter(|name| !present.contains(*name));
    violations.extend(gone.map(|name| format!("{name} is gone")));
    none_of("A migration that has landed is frozen: write a new one", violations);
}

#[test]
fn every_file_of_a_procedure_is_part_of_the_program() {
    let listed = read("queue-core/src/procedures.rs");
    let mut violations = Vec::new();
    let procedures = files(&[".sql"]);
    for file in procedures.iter().filter(|it| it.name().starts_with("queue-core/procedures/")) {
        let name = file.path.file_stem().unwrap().to_string_lossy().into_owned();
        if !listed.contains(&format!("\"{name}\",")) {
            violations.push(format!("{}: not in SOURCES", file.name()));
        }
        if file.text.matches(&format!("CREATE PROCEDURE {name}(")).count() != 1 {
            violations.push(format!("{}: it makes {name} and nothing else", file.name()));
        }
    }
    none_of("queue-core/src/procedures.rs lists every procedure", violations);
}

#[test]
fn the_sql_contract_documents_every_refusal() {
    let contract = read("docs/sql-contract.md");
    let mut violations = Vec::new();
    for file in files(&[".sql"]) {
        for part in file.text.split("MYSQL_ERRNO = ").skip(1) {
            let number: String = part.chars().take_while(char::is_ascii_digit).collect();
            if !contract.contains(&format!("| {number} |")) {
                violations.push(number);
            }
        }
    }
    none_of("docs/sql-contract.md lists every error number", violations);
}

#[test]
fn versions_of_dependencies_stand_in_one_place() {
    let mut violations = Vec::new();
    // Peers and examples are not crates of this workspace.
    let ours = |file: &&File| {
        ![PEERS, EXAMPLES, TEMPLATE, VALIDATE].iter().any(|it| file.name().starts_with(it))
    };
    for file in files(&["Cargo.toml"]).iter().filter(ours) {
        let mut in_dependencies = false;
        for line in file.text.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]") && !line.contains("workspace.");
            } else if in_dependencies && !line.is_empty() && !line.contains("workspace = true") {
                violations.push(format!("{}: {line}", file.name()));
            }
        }
    }
    none_of("A crate takes its dependencies' versions from the workspace", violations);
}

/// Returns the documentation and name of each test function in `text`.
fn tests_in(text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let (mut said, mut is_test) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(documentation) = line.strip_prefix("///") {
            said.push_str(documentation);
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.contains("::test");
        } else {
            if is_test && let Some((_, name)) = line.split_once("fn ") {
                let name = name.split('(').next().unwrap_or_default();
                tests.push(format!("{said} {name}"));
            }
            (said, is_test) = (String::new(), false);
        }
    }
    tests
}

#[test]
fn every_known_history_and_defect_is_named_by_a_test() {
    let mut named = BTreeSet::new();
    for test in sources().iter().flat_map(|file| tests_in(&file.text)) {
        let words = test.split(|c: char| !c.is_ascii_alphanumeric());
        named.extend(words.map(str::to_ascii_uppercase));
    }
    let mut missing = Vec::new();
    for (letter, last) in KNOWN {
        for number in 1..=last {
            let id = format!("{letter}{number}");
            let excepted = ELSEWHERE.iter().any(|(other, _)| *other == id);
            if excepted == named.contains(&id) {
                missing.push(if excepted {
                    format!("{id} is an exception, and named")
                } else {
                    id
                });
            }
        }
    }
    none_of("A test names each history and defect", missing);
}

/// The last row of the fault matrix.
const FAULTS: u32 = 42;

/// Returns each fault of the chaos harness with the matrix rows that it names.
fn catalogue() -> BTreeSet<(String, String)> {
    let code = read("chaos/src/fault.rs");
    let faults = code.split("fault!(").skip(1).filter_map(|text| {
        let mut literals = text.split('"').skip(1).step_by(2);
        Some((literals.next()?.to_owned(), literals.next()?.to_owned()))
    });
    let mut catalogue = BTreeSet::new();
    for (name, rows) in faults {
        catalogue.extend(rows.split(' ').map(|row| (row.to_owned(), name.clone())));
    }
    catalogue
}

#[test]
fn the_table_of_faults_has_every_row_every_fault_and_only_tests_that_exist() {
    let table = read("docs/faults.md");
    let rows: BTreeMap<&str, &str> =
        table.lines().filter_map(|line| line.strip_prefix("| F")?.split_once(" | ")).collect();
    let tests: BTreeSet<String> = sources().iter().flat_map(|file| tests_in(&file.text)).collect();
    let exists = |name: &str| tests.iter().any(|test| test.split(' ').next_back() == Some(name));
    let mut violations = Vec::new();
    let mut named = BTreeSet::new();
    for number in 1..=FAULTS {
        let Some(row) = rows.get(number.to_string().as_str()) else {
            violations.push(format!("F{number} has no row"));
            continue;
        };
        let covered = row.split(" | ").nth(1).unwrap_or_default();
        let names: Vec<_> = covered.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !covered.contains("*Limit:*") {
            violations.push(format!("F{number} is neither covered nor a limit"));
        }
        for name in names {
            match name.strip_prefix("--faults ") {
                Some(fault) => {
                    named.insert((format!("F{number}"), fault.to_owned()));
                }
                None if exists(name) => {}
                None => violations.push(format!("F{number}: there is no test {name}")),
            }
        }
    }
    let catalogue = catalogue();
    assert!(!catalogue.is_empty());
    for (row, fault) in catalogue.symmetric_difference(&named) {
        violations.push(format!("{row} {fault}: in chaos/src/fault.rs or in the table only"));
    }
    none_of("docs/faults.md is the table of all faults", violations);
}

/// The number of the seeds' requirements.
const SEED_ROWS: usize = 56;

#[test]
fn the_table_of_the_seeds_has_every_row_and_only_tests_that_exist() {
    let table = read("docs/seeds.md");
    let tests: BTreeSet<String> = sources().iter().flat_map(|file| tests_in(&file.text)).collect();
    let exists = |name: &str| tests.iter().any(|test| test.split(' ').next_back() == Some(name));
    let mut violations = Vec::new();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|line| {
        let (number, row) = line.split_once(" | ")?;
        Some((number.parse::<usize>().ok()?, row))
    });
    let rows: Vec<(usize, &str)> = rows.collect();
    if !rows.iter().map(|(number, _)| *number).eq(1..=SEED_ROWS) {
        violations.push(format!("it does not have the rows 1 to {SEED_ROWS} in order"));
    }
    for (number, row) in rows {
        let names = row.rsplit(" | ").next().unwrap_or_default();
        let names: Vec<_> = names.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            violations.push(format!("row {number} names no test"));
        }
        let missing = names.iter().filter(|name| !exists(name));
        violations.extend(missing.map(|name| format!("row {number}: there is no test {name}")));
    }
    none_of("docs/seeds.md is the table of the seeds", violations);
}

/// A revert that does not apply proves nothing (`ops/chaos --revert`).
#[test]
fn every_revert_of_a_mend_applies() {
    let reverts =
        files(&[".patch"]).into_iter().filter(|it| it.name().starts_with("ops/lib/reverts/"));
    let apply = |file: &File| {
        let mut git = Command::new("git");
        git.current_dir(root()).args(["apply", "--check"]).arg(&file.path);
        let output = git.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then(|| format!("{}: {said}", file.name()))
    };
    let reverts: Vec<File> = reverts.collect();
    assert!(!reverts.is_empty());
    none_of("A revert applies to the code as it is", reverts.iter().filter_map(apply).collect());
}

#[test]
fn tests_are_recognised_by_their_attribute() {
    let text = "/// History H3.\n#[test]\nfn a_b() {}\n/// H4\nfn none() {}\n    #[tokio::test]\n    \
                async fn s5_c() {}\n";
    assert_eq!(tests_in(text), [" History H3. a_b", " s5_c"]);
}
