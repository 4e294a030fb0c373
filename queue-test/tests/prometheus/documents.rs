//! The rules, the dashboard and the table of metrics, as read from their files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rowmq_core::telemetry::METRICS;
use serde_json::Value;

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(checkout().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(checkout().join(folder)).expect("the folder is there");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("readable").file_name().to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

pub(crate) fn texts(folder: &str) -> Vec<String> {
    names(folder).iter().map(|name| text(&format!("{folder}/{name}"))).collect()
}

/// An alert of `ops/deploy/prometheus/rules`.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) alert: String,
    pub(crate) query: String,
    pub(crate) description: String,
    pub(crate) runbook: String,
}

/// Returns every alert. The files have a form that needs no YAML parser; Prometheus reads them too.
pub(crate) fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for file in texts("ops/deploy/prometheus/rules") {
        for part in file.split("- alert: ").skip(1) {
            let after = |key: &str| {
                let rest = part.split_once(key).map_or("", |(_, rest)| rest);
                rest.lines().next().unwrap_or_default().trim().to_owned()
            };
            let body = part.split_once("expr:").expect("an expression").1;
            let body = body.split("\n        labels:").next().expect("an expression");
            let body = body.split("\n        for:").next().expect("an expression");
            let lines: Vec<_> = body.lines().map(str::trim).filter(|line| *line != "|").collect();
            rules.push(Rule {
                alert: part.lines().next().expect("a name").to_owned(),
                query: lines.join(" ").trim().trim_matches('\'').to_owned(),
                description: after("description:").trim_matches('\'').replace("''", "'"),
                runbook: after("runbook_url:"),
            });
        }
    }
    rules
}

/// Returns every query of the dashboard.
pub(crate) fn dashboard() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&text("ops/deploy/grafana/rowmq.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// Returns the labels that docs/metrics.md lists for each metric.
pub(crate) fn documented_labels() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let document: &'static str = text("docs/metrics.md").leak();
    let mut labels = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, _, listed, _] = cells[..] else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let listed = listed.split(", ").filter(|label| !label.is_empty()).collect();
        labels.insert(name, listed);
    }
    assert_eq!(labels.len(), METRICS.len(), "docs/metrics.md lists the labels of every metric");
    labels
}

/// Returns the metric that a name in a query means: a histogram is scraped as three.
pub(crate) fn metric_of(name: &str) -> Option<&'static str> {
    let is = |metric: &(&'static str, &str, &str)| {
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        metric.0 == name || metric.1 == "histogram" && part == Some(metric.0)
    };
    METRICS.iter().find(|metric| is(metric)).map(|metric| metric.0)
}

/// Returns the metrics that a query names, each with the labels that it selects by.
pub(crate) fn selectors(query: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("queue_") {
        let name = &rest[at..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = name.find(|c: char| !is_name(c)).unwrap_or(name.len());
        let (name, after) = name.split_at(end);
        let inside = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let labels = inside.map_or_else(Vec::new, |(inner, _)| {
            let of = |part| str::split(part, ['=', '!']).next().unwrap_or_default().trim();
            inner.split(',').map(of).collect()
        });
        found.push((name, labels));
        rest = inside.map_or(after, |(_, after)| after);
    }
    found
}

/// Returns the labels that a query groups by.
pub(crate) fn words_of(query: &str) -> impl Iterator<Item = &str> {
    query
        .split("by (")
        .skip(1)
        .flat_map(|part| part.split(')').next().unwrap_or_default().split(','))
        .map(str::trim)
}
