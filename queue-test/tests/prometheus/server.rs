//! A Prometheus for one test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long its start may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub(crate) struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Prometheus {
    /// Starts it with the rules of this checkout, scraping these addresses each second.
    pub(crate) fn start(program: &str, targets: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let rules =
            checkout().canonicalize().expect("a checkout").join("ops/deploy/prometheus/rules");
        let targets = serde_json::to_string(targets).expect("JSON");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}/*.yml']\n\
             scrape_configs: [{{job_name: queue, static_configs: [{{targets: {targets}}}]}}]\n",
            rules.display()
        );
        fs::write(&config, text).expect("written");
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        let prometheus = Self { child, address, _folder: folder };
        let start = Instant::now();
        while prometheus.get("/-/ready").is_none_or(|(head, _)| !head.contains(" 200 ")) {
            assert!(start.elapsed() < PATIENCE, "Prometheus is not ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        prometheus
    }

    fn get(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }

    fn ask(&self, path: &str) -> Value {
        let (head, body) = self.get(path).expect("Prometheus answers");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {head} {body}");
        answer["data"].clone()
    }

    /// Returns how many series a query finds now.
    pub(crate) fn query(&self, query: &str) -> usize {
        let escaped: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let data = self.ask(&format!("/api/v1/query?query={escaped}"));
        data["result"].as_array().expect("a vector").len()
    }

    /// Returns every rule with its health.
    pub(crate) fn rules(&self) -> Vec<(String, String)> {
        let data = self.ask("/api/v1/rules");
        let groups = data["groups"].as_array().expect("groups").iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        rules.map(|rule| (text(&rule["name"]), text(&rule["health"]))).collect()
    }

    /// Returns the labels of every series of ours.
    pub(crate) fn series(&self) -> Vec<BTreeMap<String, String>> {
        let data = self.ask("/api/v1/series?match[]=%7B__name__%3D~%22queue_.%2A%22%7D");
        serde_json::from_value(data).expect("labels")
    }
}
