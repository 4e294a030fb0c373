//! Thousands of histories a run, each from a seed.

use simulation::play;

#[test]
fn one() {
    let seed = std::env::var("SIM_SEED").map_or(1, |seed| seed.parse().unwrap());
    let played = play(seed, None, None, true);
    for line in &played.log {
        eprintln!("{line}");
    }
    eprintln!(
        "{:?} statements {} deliveries {} fenced {} repeated {}",
        played.violation, played.statements, played.deliveries, played.fenced, played.repeated
    );
    assert!(played.violation.is_none(), "{}", played.violation.unwrap());
}
