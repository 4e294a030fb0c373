//! What the manifests promise beyond their schema: nothing is named that is not there, no process
//! has more rights than it needs, and a pod has the time to drain.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::name;

/// What a pod has beyond its drain, to give back what is left.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// The drain of `producer relay`, which no setting changes.
const RELAY_DRAIN: Duration = Duration::from_secs(25);

/// The promises that these resources, deployed together, do not keep.
pub fn broken(documents: &[Value], programs: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    let pods: Vec<_> = documents.iter().filter(|it| has(it, "/spec/template/spec")).collect();
    for workload in &pods {
        let mut faults = Vec::new();
        pod(workload, documents, &mut faults);
        for container in containers(workload) {
            let called = container["name"].as_str().unwrap_or_default();
            let mut own = Vec::new();
            self::container(workload, container, &mut own);
            own.extend(command(container, programs)?);
            faults.extend(own.into_iter().map(|fault| format!("container {called}: {fault}")));
        }
        broken.extend(faults.into_iter().map(|fault| format!("{}: {fault}", name(workload))));
    }
    for document in documents {
        let selects = ["/spec/podSelector", "/spec/selector"]
            .iter()
            .filter_map(|at| document.pointer(&format!("{at}/matchLabels")))
            .filter(|_| !has(document, "/spec/template"));
        for labels in selects {
            if !pods
                .iter()
                .any(|pod| within(labels, &pod["spec"]["template"]["metadata"]["labels"]))
            {
                broken.push(format!("{}: it selects no pod", name(document)));
            }
        }
        if let Some(target) = document.pointer("/spec/scaleTargetRef/name") {
            let scaled = pods.iter().find(|pod| pod["metadata"]["name"] == *target);
            if scaled.is_none_or(|pod| has(pod, "/spec/replicas")) {
                broken.push(format!(
                    "{}: its target is not there, or says its replicas",
                    name(document)
                ));
            }
        }
    }
    Ok(broken)
}

fn pod(workload: &Value, documents: &[Value], faults: &mut Vec<String>) {
    let template = &workload["spec"]["template"];
    let spec = &template["spec"];
    if let Some(selector) = workload.pointer("/spec/selector/matchLabels")
        && !within(selector, &template["metadata"]["labels"])
    {
        faults.push("its selector does not match its own pods".to_owned());
    }
    if spec["automountServiceAccountToken"] != false {
        faults.push("its pods get a token of the cluster that they do not need".to_owned());
    }
    if let Some(account) = spec.get("serviceAccountName")
        && !documents
            .iter()
            .any(|it| it["kind"] == "ServiceAccount" && it["metadata"]["name"] == *account)
    {
        faults.push(format!("there is no service account {account}"));
    }
    let grace = Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30));
    let drains = containers(workload).filter_map(|it| it.pointer("/command/0")?.as_str());
    let drain = drains.filter_map(|program| match program.rsplit('/').next()? {
        "consumer" => Some(drain_of_consumers(documents)),
        "producer" => Some(RELAY_DRAIN),
        _ => None,
    });
    if drain.max().is_some_and(|drain| grace < drain + GIVE_BACK) {
        faults.push(format!("{} s are too short to drain", grace.as_secs()));
    }
}

/// What the configuration says, or the default.
fn drain_of_consumers(documents: &[Value]) -> Duration {
    let config = documents.iter().find_map(|it| it.pointer("/data/queue.toml")?.as_str());
    let line = config.unwrap_or_default().lines().find_map(|line| line.strip_prefix("drain = \""));
    let seconds = line.and_then(|line| line.split_once("s\"")?.0.parse().ok());
    Duration::from_secs(seconds.unwrap_or(25))
}

/// The Pod Security Standard "restricted", a read-only root, and what the scheduler has to know.
fn container(workload: &Value, container: &Value, faults: &mut Vec<String>) {
    let spec = &workload["spec"]["template"]["spec"];
    let own = &container["securityContext"];
    let either = |field: &str| own.get(field).or_else(|| spec["securityContext"].get(field));
    let mut want = |holds: bool, fault: &str| {
        if !holds {
            faults.push(fault.to_owned());
        }
    };
    want(either("runAsNonRoot") == Some(&Value::Bool(true)), "it may run as root");
    let seccomp = either("seccompProfile").map(|profile| &profile["type"]);
    want(seccomp == Some(&"RuntimeDefault".into()), "its system calls are not filtered");
    want(own["allowPrivilegeEscalation"] == false, "it may gain privileges");
    want(own["readOnlyRootFilesystem"] == true, "its root can be written to");
    want(own["capabilities"]["drop"] == serde_json::json!(["ALL"]), "it keeps capabilities");
    let resources = &container["resources"];
    for needed in ["/requests/cpu", "/requests/memory", "/limits/memory"] {
        want(resources.pointer(needed).is_some(), &format!("its resources lack {needed}"));
    }
    let ports = container["ports"].as_array().into_iter().flatten();
    let ports: Vec<_> = ports.map(|port| &port["name"]).collect();
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(port) = container.pointer(&format!("/{probe}/httpGet/port")) {
            want(ports.contains(&port), &format!("its {probe} asks a port that it does not have"));
        }
    }
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let volumes: Vec<_> = volumes.map(|volume| &volume["name"]).collect();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        want(volumes.contains(&&mount["name"]), &format!("there is no volume {}", mount["name"]));
    }
}

/// What a program says to the command line that its container gives it.
fn command(container: &Value, programs: Option<&Path>) -> anyhow::Result<Option<String>> {
    let words = |field: &str| {
        let words = container[field].as_array().into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let command = words("command");
    let (Some(programs), [program]) = (programs, command.as_slice()) else {
        return Ok(None);
    };
    let program = programs.join(Path::new(program).file_name().unwrap_or_default());
    // It reads everything before --help, and starts nothing.
    let said = Command::new(&program).args(words("args")).arg("--help").output();
    let said = said.with_context(|| format!("Cannot run {}", program.display()))?;
    let error = String::from_utf8_lossy(&said.stderr).trim().to_owned();
    Ok((!said.status.success()).then_some(error))
}

fn containers(workload: &Value) -> impl Iterator<Item = &Value> {
    let spec = &workload["spec"]["template"]["spec"];
    ["initContainers", "containers"].into_iter().filter_map(|list| spec[list].as_array()).flatten()
}

fn has(document: &Value, pointer: &str) -> bool {
    document.pointer(pointer).is_some()
}

fn within(labels: &Value, all: &Value) -> bool {
    labels.as_object().is_some_and(|labels| labels.iter().all(|(name, value)| all[name] == *value))
}
