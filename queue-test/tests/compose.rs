//! Runs what `compose.yaml` describes as processes, in the order of `depends_on`, with a server of
//! the suite in the place of the one in a container.

#![allow(clippy::expect_used, clippy::panic, reason = "tests: what cannot be set up has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use rowmq_core::connection::ServerUrl;
use rowmq_test::{Program, TestDatabase, until};
use serde::Deserialize;
use serde_json::Value;

use crate::tool::checkout;

/// The service whose place the suite's server takes.
const SERVER: &str = "mariadb";

#[derive(Debug, Deserialize)]
struct Compose {
    services: BTreeMap<String, Service>,
}

#[derive(Debug, Deserialize)]
struct Service {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    volumes: Vec<String>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    depends_on: BTreeMap<String, Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    condition: String,
}

impl Compose {
    fn read() -> Self {
        let text = std::fs::read_to_string(checkout().join("compose.yaml")).expect("it is there");
        let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).expect("it is YAML");
        value.apply_merge().expect("its anchors are there");
        serde_yaml_ng::from_value(value).expect("services as they are known here")
    }

    /// Returns the names of the services, each behind those that it depends on.
    fn in_order(&self) -> Vec<&str> {
        let mut order: Vec<&str> = Vec::new();
        while order.len() < self.services.len() {
            let next = self.services.iter().find(|(name, service)| {
                let is_there = |name: &str| order.contains(&name);
                !is_there(name) && service.depends_on.keys().all(|name| is_there(name))
            });
            order.push(next.expect("no circle").0);
        }
        order
    }

    /// Returns the services that others wait for until they have ended.
    fn that_end(&self) -> BTreeSet<&str> {
        let waited_for = self.services.values().flat_map(|service| &service.depends_on);
        let ended = waited_for.filter(|(_, how)| how.condition == "service_completed_successfully");
        ended.map(|(name, _)| name.as_str()).collect()
    }
}

impl Service {
    /// Returns the service's command, with this machine's places for those of the container.
    fn command(&self, server: &ServerUrl) -> Command {
        let here = |text: &str| {
            let mut text = text.to_owned();
            for volume in &self.volumes {
                let (host, container) = volume.split_once(':').expect("two places");
                let host = checkout().join(host);
                text = text.replace(container.trim_end_matches(":ro"), &host.display().to_string());
            }
            text.replace("0.0.0.0:9480", "127.0.0.1:0")
        };
        let mut command = Program::built(&self.command[0]);
        command.args(self.command[1..].iter().map(|word| here(word))).env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, here(value))));
        command.env("ROWMQ_URL", server.expose());
        command
    }
}

#[tokio::test]
async fn the_services_of_compose_start_in_their_order_and_handle_messages() {
    let server = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
    let database = TestDatabase::empty_on(&ServerUrl::new(&server).expect("a URL")).await;
    let compose = Compose::read();
    let end = compose.that_end();
    let mut running = BTreeMap::new();
    for name in compose.in_order() {
        let service = &compose.services[name];
        if name == SERVER {
            continue;
        }
        let url = &service.environment["ROWMQ_URL"];
        assert!(url.contains(&format!("@{SERVER}/shop")), "{name} uses the server of compose.yaml");
        let mut command = service.command(database.url());
        if end.contains(name) {
            let ended = command.output().expect("it starts");
            assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
        } else {
            running.insert(name, Program::start(command.stdout(Stdio::null())));
        }
    }
    running["janitor"].said("Sweeping.").await;
    running["consumer"].said("Consuming.").await;
    let served = running["console"].said("The console is served").await;
    assert_eq!(compose.services["console"].ports, ["127.0.0.1:9480:9480"]);
    let address = served.split("address=").nth(1).expect("an address").trim();
    // A second test may have installed it already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
    let sign_in = client.expect("a client").post(format!("http://{address}/sign-in"));
    let form = sign_in.header("content-type", "application/x-www-form-urlencoded");
    let answer = form.body("name=demo&password=rowmq+demo").send().await.expect("it answers");
    assert_eq!(answer.status(), 303, "the password of the demo signs in");
    let rowmq = |words: &[&str]| {
        let mut command = Program::built("rowmq");
        command.args(words).env("ROWMQ_URL", database.url().expose());
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    rowmq(&["enqueue", "demo", "mine", "--biz-id", "mine"]);
    until("a message and a tick are handled", async || {
        let schedules: Value =
            serde_json::from_str(&rowmq(&["cron", "list", "--json"])).expect("JSON");
        schedules[0]["ticks"].as_u64() > Some(0)
            && rowmq(&["find", "demo", "--biz-id", "mine", "--json"]).contains("\"gone\"")
    })
    .await;
}
