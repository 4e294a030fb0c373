//! Validates Kubernetes manifests without a cluster: every field is one of the API's types and of
//! its type, every required one is there, and what these manifests promise is kept.

mod promise;
mod schema;

use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

const USAGE: &str = "validate-manifests [--programs DIR] < RENDERED.yaml
Reads what `kubectl kustomize` prints. With --programs, the command line of every container that
runs a program of DIR is tried on it. Exit status 1: a line for each thing that is wrong.";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let programs = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--programs", directory] => Some(PathBuf::from(directory)),
        _ => bail!("{USAGE}"),
    };
    let mut text = String::new();
    stdin().read_to_string(&mut text).context("Cannot read standard input")?;
    let documents = documents(&text)?;
    let mut wrong: Vec<String> = documents.iter().flat_map(schema::wrong).collect();
    wrong.extend(promise::broken(&documents, programs.as_deref())?);
    let mut out = stdout().lock();
    for line in &wrong {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{} resources, {} complaints", documents.len(), wrong.len())?;
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut documents = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        documents.push(Value::deserialize(document).context("Not YAML")?);
    }
    if documents.is_empty() {
        bail!("There is no manifest on standard input.");
    }
    Ok(documents)
}

/// `Deployment rowmq-janitor`.
fn name(document: &Value) -> String {
    let text = |pointer| document.pointer(pointer).and_then(Value::as_str).unwrap_or("unnamed");
    format!("{} {}", text("/kind"), text("/metadata/name"))
}
