/// Suggests which of `names` was meant by `wrong`, as the end of a sentence: the nearest one if one
/// is near enough, else all of them.
pub(super) fn meant<'n>(wrong: &str, names: impl Iterator<Item = &'n str> + Clone) -> String {
    // Above this likeness a name is a misspelling; clap suggests options from the same value on.
    const NEAR: f64 = 0.7;
    let likeness = |name: &str| strsim::jaro(wrong, name);
    let nearest = names.clone().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest {
        Some(name) if likeness(name) > NEAR => format!("is '{name}' meant?"),
        _ => {
            let mut names: Vec<&str> = names.collect();
            names.sort_unstable();
            names.dedup();
            format!("there are {}", names.join(", "))
        }
    }
}
