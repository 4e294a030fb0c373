//! The plots of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use plotters::prelude::*;

use super::series::{Kind, Series};

const SIZE: (u32, u32) = (900, 460);

/// The most lines in a plot: with more, the reader cannot tell them apart.
const MOST: usize = 12;

/// Colours that remain distinct for colour-blind readers (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Draws a plot for each kind of series into `folder`, and returns their paths. `warm_up`: the part
/// that is not judged, which is shaded.
pub(super) fn draw(
    folder: &Path,
    all: &[Series],
    warm_up: Option<Duration>,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut drawn = Vec::new();
    for kind in Kind::ALL {
        let of_kind = all.iter().filter(|series| series.key.kind == kind);
        let mut series: Vec<&Series> = of_kind.filter(|series| top(series) > 0.0).collect();
        series.sort_by(|a, b| top(b).total_cmp(&top(a)));
        let title = match series.len() {
            n if n > MOST => format!("{}, the {MOST} largest of {n}", kind.word()),
            _ => kind.word().to_owned(),
        };
        series.truncate(MOST);
        if series.iter().all(|series| series.points.len() < 2) {
            continue;
        }
        let path = folder.join(format!("{}.svg", kind.word()));
        draw_lines(&path, &title, kind.unit(), &series, warm_up)
            .with_context(|| format!("Cannot draw {}", path.display()))?;
        drawn.push(path);
    }
    Ok(drawn)
}

fn top(series: &Series) -> f64 {
    series.points.iter().map(|(_, value)| *value).fold(0.0, f64::max)
}

fn draw_lines(
    path: &Path,
    title: &str,
    unit: &str,
    lines: &[&Series],
    warm_up: Option<Duration>,
) -> anyhow::Result<()> {
    let minutes = |(at, value): &(f64, f64)| (at / 60.0, *value);
    let last = lines.iter().filter_map(|series| series.points.last());
    let right = last.map(|point| minutes(point).0).fold(0.0, f64::max);
    let highest = lines.iter().map(|series| top(series)).fold(0.0, f64::max) * 1.08;
    let across = match warm_up {
        Some(_) => "minutes (shaded: the warm-up, not judged)",
        None => "minutes",
    };
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (chart_area, legend_area) = area.split_horizontally(680);
    let mut builder = ChartBuilder::on(&chart_area);
    builder.caption(title, ("sans-serif", 18)).margin(12);
    builder.x_label_area_size(40).y_label_area_size(70);
    let mut chart = builder.build_cartesian_2d(0.0..right, 0.0..highest).map_err(failed)?;
    if let Some(time) = warm_up {
        let corners = [(0.0, 0.0), (time.as_secs_f64() / 60.0, highest)];
        chart.draw_series([Rectangle::new(corners, BLACK.mix(0.06).filled())]).map_err(failed)?;
    }
    chart
        .configure_mesh()
        .x_desc(across)
        .y_desc(unit)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for (n, series) in lines.iter().enumerate() {
        // The colours come twice: the second time as thin lines.
        let width = if n < COLOURS.len() { 2 } else { 1 };
        let style = COLOURS[n % COLOURS.len()].stroke_width(width);
        let points = series.points.iter().map(minutes);
        chart.draw_series(LineSeries::new(points, style)).map_err(failed)?;
        let y = 40 + 22 * i32::try_from(n)?;
        let key = PathElement::new([(0, y), (18, y)], style);
        legend_area.draw(&key).map_err(failed)?;
        let font = ("sans-serif", 13).into_font();
        let name = Text::new(series.key.of.clone(), (24, y - 7), font);
        legend_area.draw(&name).map_err(failed)?;
    }
    area.present().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
