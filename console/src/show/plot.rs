use chrono::{DateTime, Utc};
use maud::{Markup, html};

/// The size of a plot, in its own units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// A number at a moment.
pub(crate) type Sample = (DateTime<Utc>, f64);

/// A plot of recent samples, with what it shows in words.
pub(crate) fn plot(title: &str, samples: &[Sample], label: impl Fn(f64) -> String) -> Markup {
    let highest = highest(samples);
    let last = samples.last().map_or(0.0, |sample| sample.1);
    let first = samples.first().map(|sample| sample.0);
    html! {
        figure class="plot" {
            figcaption { (title) ": " strong { (label(last)) } }
            @if samples.len() < 2 {
                p class="nothing" { "There is a plot in a few seconds." }
            } @else {
                (drawing(&format!("{title}, at most {}", label(highest)), samples))
                p class="axis" {
                    span { @if let Some(first) = first { (super::time(first)) } }
                    span { "highest " (label(highest)) }
                    span { "now" }
                }
            }
        }
    }
}

/// A plot without words, for a row of a table.
pub(crate) fn spark(title: &str, samples: &[Sample]) -> Markup {
    html! { span class="spark" { @if samples.len() > 1 { (drawing(title, samples)) } } }
}

fn drawing(title: &str, samples: &[Sample]) -> Markup {
    let points = points(samples);
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
            aria-label=(title) {
            polygon class="area" points={ "0," (HEIGHT) " " (points) " " (WIDTH) "," (HEIGHT) } {}
            polyline class="line" points=(points) {}
        }
    }
}

fn highest(samples: &[Sample]) -> f64 {
    samples.iter().map(|sample| sample.1).fold(0.0, f64::max)
}

fn points(samples: &[Sample]) -> String {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return String::new() };
    let span = (last.0 - first.0).as_seconds_f64().max(f64::EPSILON);
    let highest = highest(samples).max(f64::EPSILON);
    let point = |(at, value): &Sample| {
        let x = (*at - first.0).as_seconds_f64() / span * WIDTH;
        // A line at the top or the bottom keeps its whole thickness.
        let y = HEIGHT - 2.0 - value / highest * (HEIGHT - 4.0);
        format!("{x:.1},{y:.1}")
    };
    samples.iter().map(point).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_spans_its_time_and_its_highest_value() {
        let at = |second| DateTime::from_timestamp(second, 0).expect("a time");
        let samples = [(at(0), 0.0), (at(5), 10.0), (at(10), 5.0)];
        assert_eq!(points(&samples), "0.0,118.0 300.0,2.0 600.0,60.0");
        let flat = [(at(0), 0.0), (at(10), 0.0)];
        assert_eq!(points(&flat), "0.0,118.0 600.0,118.0");
    }
}
