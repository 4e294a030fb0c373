//! The plots of a run.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use plotters::prelude::*;

use crate::figure::{Name, count};
use crate::load::{Backlog, Load};
use crate::measurement::{Outcome, Row};

const SIZE: (u32, u32) = (760, 420);

/// Colours that remain distinct for colour-blind readers (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// A line with its name.
type Line = (String, Vec<(f64, f64)>);

/// The labels and axes around the lines of a plot.
struct Frame {
    title: &'static str,
    across: &'static str,
    up: &'static str,
    /// Each tick on the horizontal axis is ten times the last.
    tenfold: bool,
}

/// Draws the plots of the cases that ran into `folder`, and returns their paths.
pub(crate) fn draw(folder: &Path, outcomes: &[Outcome]) -> anyhow::Result<Vec<PathBuf>> {
    let case = |name: &str| outcomes.iter().find(|outcome| outcome.case == name);
    let curves = |case: &Outcome| case.rows.iter().filter_map(curve).collect();
    let mut drawn = Vec::new();
    let mut plot = |name: &str, frame: &Frame, lines: Vec<Line>| -> anyhow::Result<()> {
        if lines.iter().any(|line| line.1.len() > 1) {
            let path = folder.join(format!("{name}.svg"));
            draw_lines(&path, frame, &lines)
                .with_context(|| format!("Cannot draw {}", path.display()))?;
            drawn.push(path);
        }
        Ok(())
    };
    if let Some(case) = case("backlog") {
        let frame = Frame {
            title: "Claim and settle by batches of 100, behind a backlog",
            across: "messages waiting",
            up: "messages/s",
            tenfold: true,
        };
        plot("backlog", &frame, vec![("one worker".to_owned(), against_backlog(case))])?;
    }
    if let Some(case) = case("pickup") {
        let frame = Frame {
            title: "From the enqueue to the handler, nothing else to do",
            across: "milliseconds",
            up: "% of messages",
            tenfold: false,
        };
        plot("pickup", &frame, curves(case))?;
    }
    if let Some(case) = case("long-reader") {
        let frame = Frame {
            title: "Draining, with and without a transaction that stays open",
            across: "seconds",
            up: "messages settled",
            tenfold: false,
        };
        plot("long-reader", &frame, curves(case))?;
    }
    Ok(drawn)
}

/// Returns the curve of the last round.
fn curve(row: &Row) -> Option<Line> {
    let sample = row.samples.last()?;
    Some((row.member.name.clone(), sample.curve.clone()))
}

fn against_backlog(case: &Outcome) -> Vec<(f64, f64)> {
    let point = |row: &Row| {
        let Load::Backlog(Backlog { backlog, .. }) = row.member.load else { return None };
        let rate = row.results.iter().find(|result| result.name == Name::Rate)?;
        Some((count(backlog), rate.value.median))
    };
    case.rows.iter().filter_map(point).collect()
}

fn draw_lines(path: &Path, frame: &Frame, lines: &[Line]) -> anyhow::Result<()> {
    let points = || lines.iter().flat_map(|line| &line.1);
    let right = points().map(|point| point.0).fold(f64::MIN, f64::max);
    let left = points().map(|point| point.0).fold(f64::MAX, f64::min);
    let top = points().map(|point| point.1).fold(f64::MIN, f64::max) * 1.05;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut builder = ChartBuilder::on(&area);
    builder.caption(frame.title, ("sans-serif", 18)).margin(12);
    builder.x_label_area_size(40).y_label_area_size(70);
    // The two kinds of axes are two types.
    macro_rules! chart {
        ($across:expr) => {{
            let mut chart = builder.build_cartesian_2d($across, 0.0..top).map_err(failed)?;
            chart
                .configure_mesh()
                .x_desc(frame.across)
                .y_desc(frame.up)
                .light_line_style(TRANSPARENT)
                .x_label_formatter(&|value| short(*value))
                .y_label_formatter(&|value| short(*value))
                .draw()
                .map_err(failed)?;
            for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
                let style = colour.stroke_width(2);
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), style).point_size(2))
                    .map_err(failed)?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            }
            let mut legend = chart.configure_series_labels();
            legend.position(SeriesLabelPosition::LowerRight).background_style(WHITE);
            legend.border_style(BLACK.mix(0.3)).draw().map_err(failed)?;
        }};
    }
    if frame.tenfold {
        chart!((left..right).log_scale());
    } else {
        chart!(0.0..right);
    }
    area.present().map_err(failed)
}

/// Formats a number for an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
