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

/// The drain of `rowmq-producer relay`, which no setting changes.
const RELAY_DRAIN: Duration = Duration::from_secs(25);

/// What the console takes at the most: for pages that are open, and then for runs.
const CONSOLE_DRAIN: Duration = Duration::from_secs(50);

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
        let mut faults = selection(document, &pods);
        match document["kind"].as_str() {
            Some("Service") => service(document, &pods, &mut faults),
            Some("Ingress") => ingress(document, documents, &mut faults),
            _ => {}
        }
        broken.extend(faults.into_iter().map(|fault| format!("{}: {fault}", name(document))));
    }
    Ok(broken)
}

/// Whatever selects pods, or scales them, has some to select.
fn selection(document: &Value, pods: &[&Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let selects = ["/spec/podSelector", "/spec/selector"]
        .iter()
        .filter_map(|at| document.pointer(&format!("{at}/matchLabels")))
        .filter(|_| !has(document, "/spec/template"));
    for labels in selects {
        if selected(labels, pods).next().is_none() {
            faults.push("it selects no pod".to_owned());
        }
    }
    if let Some(target) = document.pointer("/spec/scaleTargetRef/name") {
        let scaled = pods.iter().find(|pod| pod["metadata"]["name"] == *target);
        if scaled.is_none_or(|pod| has(pod, "/spec/replicas")) {
            faults.push("its target is not there, or says its replicas".to_owned());
        }
    }
    faults
}

/// Each of its ports is one that its pods have.
fn service(service: &Value, pods: &[&Value], faults: &mut Vec<String>) {
    let pods: Vec<_> = selected(&service["spec"]["selector"], pods).collect();
    let ports: Vec<_> =
        pods.iter().flat_map(|pod| containers(pod)).flat_map(|it| list(it, "ports")).collect();
    for port in list(&service["spec"], "ports") {
        let target = &port["targetPort"];
        if !ports.iter().any(|it| it["name"] == *target || it["containerPort"] == *target) {
            faults.push(format!("no pod that it selects has the port {target}"));
        }
    }
}

/// It leads to ports of services that are there, and a console expects to be asked by its name.
fn ingress(ingress: &Value, documents: &[Value], faults: &mut Vec<String>) {
    let services = documents.iter().filter(|it| it["kind"] == "Service");
    let services: Vec<_> = services.map(|it| (&it["metadata"]["name"], &it["spec"])).collect();
    let workloads = documents.iter().filter(|it| has(it, "/spec/template/spec"));
    let variables = workloads.flat_map(containers).flat_map(|it| list(it, "env"));
    let origins: Vec<_> = variables
        .filter(|it| it["name"] == "ROWMQ_CONSOLE_ORIGIN")
        .map(|it| &it["value"])
        .collect();
    for rule in list(&ingress["spec"], "rules") {
        for path in list(&rule["http"], "paths") {
            let to = &path["backend"]["service"];
            let port_of = |spec| list(spec, "ports").any(|it| it["name"] == to["port"]["name"]);
            if !services.iter().any(|(name, spec)| **name == to["name"] && port_of(spec)) {
                faults.push(format!("it leads to no port of a service: {to}"));
            }
            let origin = Value::from(format!("https://{}", rule["host"].as_str().unwrap_or("")));
            if to["name"] == "rowmq-console" && !origins.contains(&&origin) {
                faults.push(format!("the console does not expect to be asked by {origin}"));
            }
        }
    }
}

fn selected<'p>(labels: &'p Value, pods: &'p [&Value]) -> impl Iterator<Item = &'p Value> {
    let all = |pod: &&&Value| within(labels, &pod["spec"]["template"]["metadata"]["labels"]);
    pods.iter().filter(all).copied()
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
    if template["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rowmq"
        && spec["enableServiceLinks"] != false
    {
        // Those of a Service rowmq-console are called as settings of the console are.
        faults.push("the variables of Services could be taken for settings".to_owned());
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
        "rowmq-consumer" => Some(drain_of_consumers(documents)),
        "rowmq-producer" => Some(RELAY_DRAIN),
        "rowmq-console" => Some(CONSOLE_DRAIN),
        _ => None,
    });
    if drain.max().is_some_and(|drain| grace < drain + GIVE_BACK) {
        faults.push(format!("{} s are too short to drain", grace.as_secs()));
    }
}

/// What the configuration says, or the default.
fn drain_of_consumers(documents: &[Value]) -> Duration {
    let config = documents.iter().find_map(|it| it.pointer("/data/rowmq.toml")?.as_str());
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
    let ports: Vec<_> = list(container, "ports").map(|port| &port["name"]).collect();
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for way in ["httpGet", "tcpSocket"] {
            let port = container.pointer(&format!("/{probe}/{way}/port"));
            let has = port.is_none_or(|port| ports.contains(&port));
            want(has, &format!("its {probe} asks a port that it does not have"));
        }
    }
    let volumes: Vec<_> = list(spec, "volumes").map(|volume| &volume["name"]).collect();
    for mount in list(container, "volumeMounts") {
        want(volumes.contains(&&mount["name"]), &format!("there is no volume {}", mount["name"]));
    }
}

/// What a program says to the command line that its container gives it.
fn command(container: &Value, programs: Option<&Path>) -> anyhow::Result<Option<String>> {
    let words = |field: &str| {
        list(container, field).filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
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
    ["initContainers", "containers"].into_iter().flat_map(|field| list(spec, field))
}

fn list<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    value[field].as_array().into_iter().flatten()
}

fn has(document: &Value, pointer: &str) -> bool {
    document.pointer(pointer).is_some()
}

fn within(labels: &Value, all: &Value) -> bool {
    labels.as_object().is_some_and(|labels| labels.iter().all(|(name, value)| all[name] == *value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents() -> [Value; 3] {
        let container = json!({
            "name": "console",
            "ports": [{"name": "pages", "containerPort": 9480}],
            "env": [{"name": "ROWMQ_CONSOLE_ORIGIN", "value": "https://rowmq.example.com"}],
        });
        let template = json!({
            "metadata": {"labels": {"name": "console"}},
            "spec": {"containers": [container]},
        });
        let to = json!({"service": {"name": "rowmq-console", "port": {"name": "http"}}});
        let paths = json!([{"path": "/", "backend": to}]);
        [
            json!({
                "kind": "Deployment", "metadata": {"name": "rowmq-console"},
                "spec": {"template": template},
            }),
            json!({
                "kind": "Service", "metadata": {"name": "rowmq-console"},
                "spec": {
                    "selector": {"name": "console"},
                    "ports": [{"name": "http", "port": 80, "targetPort": "pages"}],
                },
            }),
            json!({
                "kind": "Ingress", "metadata": {"name": "rowmq-console"},
                "spec": {"rules": [{"host": "rowmq.example.com", "http": {"paths": paths}}]},
            }),
        ]
    }

    /// What is said of the resources, but for the Deployment, after one value is another.
    fn after(which: usize, pointer: &str, value: &str) -> Vec<String> {
        let mut documents = documents();
        if let Some(place) = documents[which].pointer_mut(pointer) {
            *place = value.into();
        }
        let broken = broken(&documents, None).unwrap_or_default();
        broken.into_iter().filter(|fault| !fault.starts_with("Deployment")).collect()
    }

    #[test]
    fn a_service_leads_to_a_port_that_its_pods_have() {
        assert_eq!(after(1, "/metadata/none", ""), Vec::<String>::new());
        let wrong = "Service rowmq-console: no pod that it selects has the port";
        assert_eq!(after(1, "/spec/ports/0/targetPort", "web"), [format!("{wrong} \"web\"")]);
        assert_eq!(after(1, "/spec/selector/name", "web"), [format!("{wrong} \"pages\"")]);
    }

    #[test]
    fn an_ingress_leads_to_a_service_by_the_name_that_the_console_expects() {
        let at = "/spec/rules/0/http/paths/0/backend/service/port/name";
        assert!(after(2, at, "https")[0].contains("it leads to no port of a service"));
        let wrong = "Ingress rowmq-console: the console does not expect to be asked by";
        let said = after(2, "/spec/rules/0/host", "other.example.com");
        assert_eq!(said, [format!("{wrong} \"https://other.example.com\"")]);
    }
}
