//! The alerts and the dashboard: they query only metrics that the programs export, and a real
//! Prometheus that scrapes a small fleet answers every query of the dashboard.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

mod documents;
mod fleet;
mod server;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowmq_core::telemetry::METRICS;
use rowmq_test::{TestDatabase, until};

use crate::tool::tool;
use documents::{dashboard, documented_labels, metric_of, rules, selectors, words_of};
use fleet::Fleet;
use server::Prometheus;

/// The labels that Prometheus adds.
const ADDED: [&str; 4] = ["__name__", "instance", "job", "le"];

/// Returns the metrics and labels of a query that do not exist.
fn unknown(query: &str, labels: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, asked) in selectors(query) {
        let Some(known) = metric_of(name).and_then(|metric| labels.get(metric)) else {
            wrong.push(format!("no program exports {name}: {query}"));
            continue;
        };
        for label in asked.iter().filter(|label| !known.contains(*label)) {
            wrong.push(format!("{name} has no label {label}: {query}"));
        }
    }
    // A grouping label must be one of a metric in the query.
    let asked: BTreeSet<&str> = selectors(query)
        .iter()
        .filter_map(|(name, _)| labels.get(metric_of(name)?))
        .flatten()
        .copied()
        .chain(ADDED)
        .collect();
    for word in words_of(query).filter(|word| !asked.contains(word)) {
        wrong.push(format!("nothing there has the label {word}: {query}"));
    }
    wrong
}

#[test]
fn alerts_and_dashboard_ask_only_for_metrics_and_labels_that_exist() {
    let labels = documented_labels();
    let queries: Vec<String> =
        rules().into_iter().map(|rule| rule.query).chain(dashboard()).collect();
    assert!(queries.len() > 70, "{} queries were read", queries.len());
    let wrong: Vec<_> = queries.iter().flat_map(|query| unknown(query, &labels)).collect();
    assert_eq!(wrong, Vec::<String>::new());
    assert_ne!(unknown("sum(queue_deepth)", &labels), Vec::<String>::new());
    assert_ne!(unknown("queue_depth{tpic=\"a\"}", &labels), Vec::<String>::new());
    assert_ne!(unknown("sum by (verb) (queue_depth)", &labels), Vec::<String>::new());
}

#[test]
fn every_alert_has_its_page_and_a_case_that_fires_and_one_that_does_not() {
    let tests = documents::texts("ops/deploy/prometheus/tests").concat();
    let index = documents::text("docs/runbooks/README.md");
    let mut pages: BTreeSet<String> =
        documents::names("docs/runbooks").into_iter().filter(|name| name != "README.md").collect();
    for rule in rules() {
        let name = &rule.alert;
        let page = format!("{name}.md");
        assert!(pages.remove(&page), "{name} has no page in docs/runbooks");
        assert_eq!(rule.runbook, format!("docs/runbooks/{page}"));
        assert!(index.contains(&format!("[{name}]({page})")), "{name} is not in the index");
        let text = documents::text(&rule.runbook);
        for part in [format!("# {name}\n"), "\n## Look\n".into(), "\n## Do\n".into()] {
            assert!(text.contains(&part), "{page} lacks {part:?}");
        }
        assert!(text.contains("\n## When it is harmless\n"), "{page}");
        // An alert shows what to look at first, as its page does.
        let shown = rule.description.strip_prefix("First: ").expect("a command");
        let command = text.lines().find_map(|line| line.strip_prefix("$ ")).expect("a command");
        let named = ["TOPIC", "GROUP"].map(|it| command.replace(it, "{{ $labels.topic }}"));
        let is_first = |command: &String| command.starts_with(shown);
        assert!(command.starts_with(shown) || named.iter().any(is_first), "{name}: {shown}");
        let cases: Vec<_> = tests.split("  - name: ").filter(|case| case.contains(name)).collect();
        let of = |case: &&&str| case.contains(&format!("alertname: {name}\n"));
        let fires = |case: &&&str| !case.contains("exp_alerts: []");
        assert!(cases.iter().filter(of).any(|case| fires(&case)), "no case of {name} fires");
        assert!(cases.iter().filter(of).any(|case| !fires(&case)), "{name} is never quiet");
    }
    assert_eq!(pages, BTreeSet::new(), "pages without an alert");
}

/// Returns what is wrong with the labels of all scraped series.
fn mislabelled(series: &[BTreeMap<String, String>]) -> BTreeSet<String> {
    let documented = documented_labels();
    let mut wrong = BTreeSet::new();
    for one in series {
        let Some(metric) = metric_of(&one["__name__"]) else {
            wrong.insert(format!("{} is not in rowmq_core::telemetry", one["__name__"]));
            continue;
        };
        let labels: BTreeSet<&str> =
            one.keys().map(String::as_str).filter(|label| !ADDED.contains(label)).collect();
        if labels != documented[metric] {
            wrong.insert(format!("{metric} has the labels {labels:?}"));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_returns_data_from_a_running_fleet() {
    let Some(program) = tool("prometheus") else { return };
    let database = TestDatabase::new().await;
    let fleet = Fleet::start(&database).await;
    let prometheus = Prometheus::start(&program, &fleet.addresses());
    let queries: Vec<String> = dashboard();
    let mut left: Vec<&String> = queries.iter().collect();
    let found_all = until("every query of the dashboard returns data", async || {
        fleet.send();
        let before = left.len();
        left.retain(|query| prometheus.query(&executable(query)) == 0);
        if left.len() < before {
            eprintln!("no data yet: {left:#?}");
        }
        if !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        left.is_empty()
    });
    found_all.await;
    until("every rule was evaluated", async || {
        let health = prometheus.rules();
        assert!(health.iter().all(|(_, health)| health != "err"), "{health:?}");
        health.len() == rules().len() && health.iter().all(|(_, health)| health == "ok")
    })
    .await;
    let series = prometheus.series();
    assert_eq!(mislabelled(&series), BTreeSet::new(), "docs/metrics.md says other labels");
    let seen: BTreeSet<_> = series.iter().filter_map(|one| metric_of(&one["__name__"])).collect();
    let unseen: Vec<_> = METRICS.iter().map(|it| it.0).filter(|it| !seen.contains(it)).collect();
    eprintln!("{} metrics were seen; not seen in a fleet without faults: {unseen:?}", seen.len());
    assert!(seen.len() > METRICS.len() / 2);
}

/// Returns the query with Grafana's variables filled in.
fn executable(query: &str) -> String {
    query.replace("$topic", ".*").replace("$__rate_interval", "15s")
}
