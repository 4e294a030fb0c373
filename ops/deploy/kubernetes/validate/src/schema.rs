//! Each resource against the type that the API has for it. The types are made from the API's own
//! schemas. They leave out what they do not know and give required fields a default; so a resource
//! is read and written again, and what came of it compared.

use k8s_openapi::api::{apps, autoscaling, batch, core, networking, policy};
use kcr_keda_sh::v1alpha1::scaledobjects::ScaledObject;
use kcr_keda_sh::v1alpha1::triggerauthentications::TriggerAuthentication;
use kcr_monitoring_coreos_com::v1::podmonitors::PodMonitor;
use kcr_monitoring_coreos_com::v1::prometheusrules::PrometheusRule;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::name;

/// What the API server would refuse, or silently drop.
pub fn wrong(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    let typed = match (text("apiVersion"), text("kind")) {
        ("v1", "ConfigMap") => again::<core::v1::ConfigMap>(document),
        ("v1", "Service") => again::<core::v1::Service>(document),
        ("v1", "ServiceAccount") => again::<core::v1::ServiceAccount>(document),
        ("apps/v1", "Deployment") => again::<apps::v1::Deployment>(document),
        ("batch/v1", "Job") => again::<batch::v1::Job>(document),
        ("policy/v1", "PodDisruptionBudget") => again::<policy::v1::PodDisruptionBudget>(document),
        ("networking.k8s.io/v1", "Ingress") => again::<networking::v1::Ingress>(document),
        ("networking.k8s.io/v1", "NetworkPolicy") => {
            again::<networking::v1::NetworkPolicy>(document)
        }
        ("autoscaling/v2", "HorizontalPodAutoscaler") => {
            again::<autoscaling::v2::HorizontalPodAutoscaler>(document)
        }
        ("keda.sh/v1alpha1", "ScaledObject") => again::<ScaledObject>(document),
        ("keda.sh/v1alpha1", "TriggerAuthentication") => again::<TriggerAuthentication>(document),
        ("monitoring.coreos.com/v1", "PodMonitor") => again::<PodMonitor>(document),
        ("monitoring.coreos.com/v1", "PrometheusRule") => again::<PrometheusRule>(document),
        (version, kind) => Err(format!("no type is known for {kind} of {version}")),
    };
    let mut found = Vec::new();
    match typed {
        Ok(typed) => compare(document, &typed, "", &mut found),
        Err(error) => found.push(error),
    }
    found.into_iter().map(|fault| format!("{}: {fault}", name(document))).collect()
}

fn again<T: DeserializeOwned + Serialize>(document: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

fn compare(written: &Value, typed: &Value, path: &str, found: &mut Vec<String>) {
    match (written, typed) {
        (Value::Object(written), Value::Object(typed)) => {
            for (field, value) in written {
                let path = format!("{path}.{field}");
                match typed.get(field) {
                    Some(typed) => compare(value, typed, &path, found),
                    None => found.push(format!("the API knows no field {path}")),
                }
            }
            let missing = typed.keys().filter(|field| !written.contains_key(*field));
            found.extend(missing.map(|field| format!("the API requires {path}.{field}")));
        }
        (Value::Array(written), Value::Array(typed)) if written.len() == typed.len() => {
            for (at, (value, typed)) in written.iter().zip(typed).enumerate() {
                compare(value, typed, &format!("{path}[{at}]"), found);
            }
        }
        _ if written == typed => {}
        _ => found.push(format!("{path} is {written}, which the API takes for {typed}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(field: &str) -> Vec<String> {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"ServiceAccount","metadata":{{"name":"a"}}{field}}}"#
        );
        wrong(&serde_json::from_str(&text).unwrap_or_default())
    }

    #[test]
    fn a_field_that_the_api_does_not_know_is_wrong() {
        assert!(account("").is_empty());
        let misspelt = account(r#","automountServiceAccountTokens":false"#);
        assert_eq!(misspelt.len(), 1, "{misspelt:?}");
        assert!(misspelt[0].contains("knows no field .automountServiceAccountTokens"));
    }

    #[test]
    fn a_value_of_another_type_is_wrong() {
        assert_eq!(account(r#","automountServiceAccountToken":"no""#).len(), 1);
    }

    #[test]
    fn a_required_field_that_is_missing_is_wrong() {
        let document = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
            "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}},
        });
        let wrong = wrong(&document);
        assert_eq!(wrong, ["Deployment a: the API requires .spec.selector"]);
    }

    #[test]
    fn a_kind_that_is_not_known_is_wrong() {
        let document = serde_json::json!({"apiVersion": "v1", "kind": "Deployment"});
        assert!(wrong(&document)[0].contains("no type is known for Deployment of v1"));
    }
}
