//! The walks of the architecture are walks through the code.

use tidy::walks::{self, Walk};

use crate::none_of;

#[test]
fn the_walks_of_the_architecture_name_functions_that_there_are() {
    let walks = walks::all().expect("the document");
    assert_eq!(walks.len(), 3, "enqueue; claim to settlement; death to rescue");
    let gone = walks.iter().flat_map(Walk::gone);
    let gone = gone.map(|step| format!("{}: {}", step.file, step.function)).collect();
    none_of("A walk of docs/architecture.md names functions of the code", gone);
}

#[test]
fn a_message_passes_at_most_14_files_from_claim_to_settlement() {
    let walks = walks::all().expect("the document");
    let walk = walks.iter().find(|walk| walk.name.starts_with("claim")).expect("its walk");
    assert!(walk.files() <= 14, "{} files, without branches", walk.files());
}
