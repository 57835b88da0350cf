#![allow(clippy::unwrap_used)]

use roxmltree::{Document, Node};

use super::*;
use crate::bench::report::{CopyLimit, Line};

fn line(bytes: u64, algorithm: &str, us: f64) -> Line {
    let algbw = bytes as f64 / us / 1e3;
    Line {
        bytes,
        algorithm: algorithm.to_owned(),
        median_us: us,
        p10_us: 0.9 * us,
        p90_us: 1.5 * us,
        period_us: us,
        algbw_gbps: algbw,
        busbw_gbps: 1.5 * algbw,
        checked: true,
        routed: None,
    }
}

fn results() -> (Results, Limits) {
    let rows = vec![
        line(64, "packet", 0.7),
        line(1024, "one-shot", 1.3),
        line(16 << 10, "one-shot", 3.1),
        line(1 << 20, "two-shot", 150.0),
        line(64 << 20, "two-shot", 29_000.0),
    ];
    let copies = rows.iter().map(|row| CopyLimit {
        bytes: row.bytes,
        median_us: 0.4 * row.median_us,
        period_us: 0.4 * row.median_us,
    });
    let limits = Limits { floor_us: Some(0.3), link_gbps: None, copies: copies.collect() };
    let (op, backend, mode) = ("all-reduce", "host", "process");
    (
        Results { op, backend, ranks: 4, mode, dtype: "f32", setting: None, link_gbps: None, rows },
        limits,
    )
}

fn svg(results: &Results, limits: &Limits) -> String {
    let description = "sum of <f32> & more".to_owned();
    let isolated = "an untimed barrier, then one operation";
    Figure { results, limits, bus_factor: 1.5, description, isolated }.svg().unwrap()
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

fn text<'a>(node: Node<'a, '_>) -> &'a str {
    node.text().unwrap_or_default().trim()
}

/// The position that a labelled tick has, by its label; of the left or the right panel.
fn tick(document: &Document<'_>, label: &str, axis: &str, right: bool) -> f64 {
    let middle = f64::from(draw::WIDTH / 2);
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    let mut found =
        texts.filter(|node| text(*node) == label && (number(*node, "x") > middle) == right);
    number(found.next().unwrap(), axis)
}

/// The value that a position has on a logarithmic axis with two labelled ticks.
fn value(at: f64, (low, low_at): (f64, f64), (high, high_at): (f64, f64)) -> f64 {
    let part = (at - low_at) / (high_at - low_at);
    low * (high / low).powf(part)
}

#[test]
fn every_row_is_a_point_where_its_values_are() {
    let (results, limits) = results();
    let svg = svg(&results, &limits);
    let document = Document::parse(&svg).unwrap();
    let points: Vec<Node<'_, '_>> =
        document.descendants().filter(|node| node.has_tag_name("circle")).collect();
    assert_eq!(points.len(), 2 * results.rows.len());
    let (latency, bandwidth) = points.split_at(results.rows.len());
    for (points, right, low, high) in [
        (latency, false, ("1", 1.0), ("10000", 1e4)),
        (bandwidth, true, ("0.1", 0.1), ("10", 10.0)),
    ] {
        let x = |label, bytes: u64| (bytes as f64, tick(&document, label, "x", right));
        let y = |(label, value)| (value, tick(&document, label, "y", right));
        for (point, row) in points.iter().zip(&results.rows) {
            let bytes = value(number(*point, "cx"), x("256 B", 256), x("16 MiB", 16 << 20));
            let found = value(number(*point, "cy"), y(low), y(high));
            let wanted = if right { row.busbw_gbps } else { row.median_us };
            // A unit of the drawing is 1 or 2 %; a label's baseline is some units below its tick.
            assert!((bytes / row.bytes as f64).ln().abs() < 0.05, "{bytes} for {row:?}");
            assert!((found / wanted).ln().abs() < 0.15, "{found} for {row:?}");
        }
    }
}

#[test]
fn the_metadata_is_the_json() {
    let (results, limits) = results();
    let svg = svg(&results, &limits);
    let document = Document::parse(&svg).unwrap();
    let metadata = document.descendants().find(|node| node.has_tag_name("metadata")).unwrap();
    let results = serde_json::to_string(&results).unwrap();
    let limits = serde_json::to_string(&limits).unwrap();
    assert_eq!(text(metadata), format!("{{\"results\":{results},\"limits\":{limits}}}"));
}

#[test]
fn it_says_what_where_and_how() {
    let (results, limits) = results();
    let svg = svg(&results, &limits);
    let document = Document::parse(&svg).unwrap();
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    let all: Vec<&str> = texts.map(text).collect();
    for wanted in [
        "all-reduce: sum of <f32> & more",
        "message size",
        "isolated time (µs)",
        "bus bandwidth (GB/s)",
        "floor: one barrier",
        "packet",
        "one-shot",
        "two-shot",
    ] {
        assert!(all.contains(&wanted), "{wanted} in {all:?}");
    }
    let caption = all.iter().find(|text| text.contains("4 processes, host memory")).unwrap();
    assert!(caption.contains(env!("CARGO_PKG_VERSION")), "{caption}");
    assert!(caption.contains(&OffsetDateTime::now_utc().year().to_string()), "{caption}");
}

#[test]
fn one_size_and_no_limits_are_drawn_too_and_none_is_an_error() {
    let (mut results, _) = results();
    results.rows.truncate(1);
    let svg = svg(&results, &Limits::default());
    let document = Document::parse(&svg).unwrap();
    assert_eq!(document.descendants().filter(|node| node.has_tag_name("circle")).count(), 2);
    results.rows.clear();
    let limits = Limits::default();
    let (description, isolated) = (String::new(), "");
    let figure =
        Figure { results: &results, limits: &limits, bus_factor: 1.0, description, isolated };
    assert!(matches!(figure.svg(), Err(PlotError::Nothing)));
}
