//! The drawing.

use std::error::Error;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Figure;
use super::scale::{self, Axis};
use crate::bench::report::Line;

/// In the drawing's units. Coordinates are whole, so they are finer than a screen's.
pub const WIDTH: u32 = 2200;
pub const HEIGHT: u32 = 1000;

const FONT: &str = "Helvetica, Arial, sans-serif";
const TITLE_HEIGHT: u32 = 80;
const CAPTION_HEIGHT: u32 = 120;
/// Above each panel, for the names of the algorithms.
const STRIP_HEIGHT: u32 = 104;

/// Of what is measured beside each other.
const OPERATIONS: [RGBColor; 3] =
    [RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
const LIMIT: RGBColor = RGBColor(213, 94, 0);
const FLOOR: RGBColor = RGBColor(90, 90, 90);
const SWITCH: RGBColor = RGBColor(120, 120, 120);
const TEXT: RGBColor = RGBColor(30, 30, 30);

type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn<T = ()> = Result<T, Box<dyn Error>>;

/// What a panel shows, in the units of its axis.
struct Panel<'a> {
    unit: &'a str,
    curves: Vec<Curve>,
    limit: Vec<(u64, f64)>,
    floor: Option<f64>,
    legend: SeriesLabelPosition,
}

/// One thing that was measured.
struct Curve {
    name: String,
    colour: RGBColor,
    points: Vec<(u64, f64)>,
    /// The lower and upper end at each size.
    band: Vec<(u64, f64, f64)>,
}

/// A curve of all rows, or of routed tokens one for each part, with their values.
fn curves(
    rows: &[Line],
    name: &str,
    value: impl Fn(&Line) -> f64,
    band: impl Fn(&Line) -> Option<(u64, f64, f64)>,
) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows {
        let name = row.routed.as_ref().map_or(name, |_| &row.algorithm);
        let at = curves.iter().position(|curve| curve.name == name).unwrap_or_else(|| {
            let colour = OPERATIONS[curves.len() % OPERATIONS.len()];
            let (points, band) = (Vec::new(), Vec::new());
            curves.push(Curve { name: name.to_owned(), colour, points, band });
            curves.len() - 1
        });
        curves[at].points.push((row.bytes, value(row)));
        curves[at].band.extend(band(row));
    }
    curves
}

pub fn draw(figure: &Figure<'_>) -> Drawn<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, rest) = root.split_vertically(TITLE_HEIGHT);
        let (panels, caption) = rest.split_vertically(HEIGHT - TITLE_HEIGHT - CAPTION_HEIGHT);
        let (left, right) = panels.split_horizontally(WIDTH / 2);
        write(&title, &figure.title(), (40, 26), 40, Pos::new(HPos::Left, VPos::Top))?;
        for (line, at) in figure.caption().iter().zip([24, 66]) {
            write(&caption, line, (40, at), 28, Pos::new(HPos::Left, VPos::Top))?;
        }
        let rows = &figure.results.rows;
        panel(&left, rows, &latency(figure))?;
        panel(&right, rows, &bandwidth(figure))?;
        root.present()?;
    }
    Ok(text)
}

fn latency<'a>(figure: &Figure<'_>) -> Panel<'a> {
    let rows = &figure.results.rows;
    Panel {
        unit: "isolated time (µs)",
        curves: curves(
            rows,
            "median",
            |row| row.median_us,
            |row| Some((row.bytes, row.p10_us, row.p90_us)),
        ),
        limit: ascending(figure.limits.copies.iter().map(|copy| (copy.bytes, copy.median_us))),
        floor: figure.limits.floor_us,
        legend: SeriesLabelPosition::UpperLeft,
    }
}

fn bandwidth<'a>(figure: &Figure<'_>) -> Panel<'a> {
    let rows = &figure.results.rows;
    let limit = figure.limits.copies.iter().map(|copy| {
        let row = rows.iter().find(|row| row.bytes == copy.bytes && row.routed.is_some());
        let factor = row.map_or(figure.bus_factor, Line::bus_factor);
        // Bytes per microsecond are 10^6 bytes a second.
        (copy.bytes, factor * copy.bytes as f64 / copy.period_us / 1e3)
    });
    Panel {
        unit: "bus bandwidth (GB/s)",
        curves: curves(rows, "bus bandwidth", |row| row.busbw_gbps, |_| None),
        limit: ascending(limit),
        floor: None,
        legend: SeriesLabelPosition::LowerRight,
    }
}

/// By size.
fn ascending(points: impl Iterator<Item = (u64, f64)>) -> Vec<(u64, f64)> {
    let mut points: Vec<_> = points.collect();
    points.sort_by_key(|(bytes, _)| *bytes);
    points
}

fn panel(area: &Drawing<'_>, rows: &[Line], panel: &Panel<'_>) -> Drawn {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points).chain(&panel.limit);
    let bands = panel.curves.iter().flat_map(|curve| &curve.band);
    let sizes = points().map(|(bytes, _)| *bytes);
    let ends = bands.flat_map(|(_, low, high)| [*low, *high]);
    let values = points().map(|(_, value)| *value);
    let x = scale::sizes(sizes);
    let y = scale::values(values.chain(ends).chain(panel.floor));
    let mut chart = ChartBuilder::on(area)
        .margin_top(STRIP_HEIGHT)
        .margin_right(50)
        .margin_left(30)
        .set_label_area_size(LabelAreaPosition::Left, 120)
        .set_label_area_size(LabelAreaPosition::Bottom, 96)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .axis_style(TEXT.stroke_width(2))
        .bold_line_style(RGBColor(215, 215, 215).stroke_width(2))
        .light_line_style(RGBColor(238, 238, 238).stroke_width(1))
        .x_desc("message size")
        .y_desc(panel.unit)
        .axis_desc_style((FONT, 32).into_font().color(&TEXT))
        .label_style((FONT, 28).into_font().color(&TEXT))
        .set_all_tick_mark_size(8)
        .draw()?;
    if rows.iter().all(|row| row.routed.is_none()) {
        switches(area, &chart, rows)?;
    }
    series(&mut chart, panel)?;
    chart
        .configure_series_labels()
        .position(panel.legend.clone())
        .margin(20)
        .legend_area_size(70)
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, 28).into_font().color(&TEXT))
        .draw()?;
    Ok(())
}

/// The curves, those that matter most last.
fn series(chart: &mut Chart<'_, '_>, panel: &Panel<'_>) -> Drawn {
    let at = |(bytes, value): &(u64, f64)| (scale::of_bytes(*bytes), scale::of_value(*value));
    // A line in a legend.
    let short = |(x, y): (i32, i32)| [(x, y), (x + 56, y)];
    if let Some(floor) = panel.floor {
        let across = chart.x_range();
        let ends = [across.start, across.end].map(|x| (x, scale::of_value(floor)));
        let style = FLOOR.stroke_width(4);
        chart
            .draw_series(DashedLineSeries::new(ends, 4, 8, style))?
            .label("floor: one barrier")
            .legend(move |at| DashedPathElement::new(short(at), 4, 8, style));
    }
    if !panel.limit.is_empty() {
        let style = LIMIT.stroke_width(4);
        chart
            .draw_series(DashedLineSeries::new(panel.limit.iter().map(at), 18, 10, style))?
            .label("limit: all ranks copy as much at once")
            .legend(move |at| DashedPathElement::new(short(at), 18, 10, style));
    }
    let banded = panel.curves.iter().filter(|curve| !curve.band.is_empty());
    for (index, Curve { colour, band, .. }) in banded.enumerate() {
        let lower = band.iter().map(|(bytes, low, _)| at(&(*bytes, *low)));
        let upper = band.iter().rev().map(|(bytes, _, high)| at(&(*bytes, *high)));
        let style = colour.mix(0.25).filled();
        let polygon = Polygon::new(lower.chain(upper).collect::<Vec<_>>(), style);
        let drawn = chart.draw_series([polygon])?;
        if index == 0 {
            drawn
                .label("10th to 90th percentile")
                .legend(move |(x, y)| Rectangle::new([(x, y - 10), (x + 56, y + 10)], style));
        }
    }
    for Curve { name, colour, points, .. } in &panel.curves {
        let style = colour.stroke_width(5);
        chart
            .draw_series(LineSeries::new(points.iter().map(at), style))?
            .label(name)
            .legend(move |at| PathElement::new(short(at), style));
        let dots = points.iter().map(|point| Circle::new(at(point), 9, colour.filled()));
        chart.draw_series(dots)?;
    }
    Ok(())
}

/// Where the algorithm changes, and the names above.
fn switches(area: &Drawing<'_>, chart: &Chart<'_, '_>, rows: &[Line]) -> Drawn {
    let (base_x, base_y) = area.get_base_pixel();
    let (across, down) = chart.plotting_area().get_pixel_range();
    let (top, bottom) = (down.start - base_y, down.end - base_y);
    let pixel = |at: f64| chart.backend_coord(&(at, chart.y_range().start)).0 - base_x;
    let stretches: Vec<&[Line]> = rows.chunk_by(|a, b| a.algorithm == b.algorithm).collect();
    let between = stretches.windows(2).filter_map(|pair| {
        let (last, first) = (pair[0].last()?, pair[1].first()?);
        Some(pixel((scale::of_bytes(last.bytes) + scale::of_bytes(first.bytes)) / 2.0))
    });
    let between: Vec<i32> = between.collect();
    for at in &between {
        let line = [(*at, STRIP_HEIGHT as i32 / 5), (*at, bottom)];
        area.draw(&DashedPathElement::new(line, 6, 8, SWITCH.stroke_width(2)))?;
    }
    let starts = [across.start - base_x].into_iter().chain(between.iter().copied());
    let ends = between.iter().copied().chain([across.end - base_x]);
    // The right end of the last name in each of two rows.
    let mut taken = [i32::MIN; 2];
    for ((start, end), stretch) in starts.zip(ends).zip(&stretches) {
        let Some(name) = stretch.first().map(|line| line.algorithm.as_str()) else { continue };
        let (middle, half) = ((start + end) / 2, 8 * name.len() as i32);
        let row = usize::from(taken[0] > middle - half);
        taken[row] = middle + half + 12;
        let y = top - 14 - 40 * row as i32;
        write(area, name, (middle, y), 28, Pos::new(HPos::Center, VPos::Bottom))?;
    }
    Ok(())
}

fn write(area: &Drawing<'_>, text: &str, at: (i32, i32), size: i32, anchor: Pos) -> Drawn {
    let style = (FONT, size).into_font().color(&TEXT).pos(anchor);
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}
