//! The walks of the architecture are walks through the code.

use tidy::walks;

use crate::none_of;

#[test]
fn the_walks_of_the_architecture_name_functions_that_there_are() {
    let walks = walks::all().expect("the document");
    assert_eq!(walks.len(), 3, "enqueue; claim to settlement; death to rescue");
    let steps = walks.into_iter().flat_map(|walk| walk.steps);
    let gone = steps.filter(|step| !step.exists());
    let gone = gone.map(|step| format!("{}: {}", step.file, step.function)).collect();
    none_of("A walk of docs/architecture.md names functions of the code", gone);
}
