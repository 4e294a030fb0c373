use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rowmq_core::handler::Context;

use super::ExecError;

/// What a program sees of the consumer's environment; everything else is scrubbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Names of the consumer's own variables that are passed on, if they are set.
    pub pass: Vec<OsString>,
    /// Variables set for the program.
    pub set: Vec<(OsString, OsString)>,
}

impl Default for Environment {
    /// What nearly every program needs, and no variable that could hold a secret.
    fn default() -> Self {
        Self { pass: ["PATH", "LANG", "HOME"].map(OsString::from).to_vec(), set: Vec::new() }
    }
}

impl Environment {
    /// Returns the variables as they are now; `set` wins over `pass`.
    pub(super) fn resolve(self) -> Result<Vec<(OsString, OsString)>, ExecError> {
        let passed = self.pass.into_iter().map(|name| {
            let value = std::env::var_os(&name);
            (name, value)
        });
        let set = self.set.into_iter().map(|(name, value)| (name, Some(value)));
        let mut variables = Vec::new();
        for (name, value) in passed.chain(set) {
            let bytes = name.as_bytes();
            let value_fits = value.as_ref().is_none_or(|value| !value.as_bytes().contains(&0));
            if bytes.is_empty() || bytes.iter().any(|b| matches!(b, 0 | b'=')) || !value_fits {
                return Err(ExecError::Unsayable { what: "the variable", text: name });
            }
            variables.extend(value.map(|value| (name, value)));
        }
        Ok(variables)
    }
}

/// Returns the message's `ROWMQ_*` variables.
pub(super) fn message_variables(context: &Context) -> Vec<(&'static str, OsString)> {
    let delivery = &*context.delivery;
    // A map of strings can always be written as JSON.
    let headers = serde_json::to_string(&delivery.headers).unwrap_or_else(|_| "{}".to_owned());
    let mut variables = vec![
        ("ROWMQ_TOPIC", context.topic.as_str().into()),
        ("ROWMQ_MSG_ID", delivery.msg_id.to_string().into()),
        ("ROWMQ_DELIVERY_NO", delivery.delivery_no.to_string().into()),
        ("ROWMQ_FAILURES", delivery.failures.to_string().into()),
        ("ROWMQ_HEADERS", headers.into()),
    ];
    for (name, bytes) in [("ROWMQ_KEY", &delivery.key), ("ROWMQ_BIZ_ID", &delivery.biz_id)] {
        if let Some(bytes) = bytes.as_ref().filter(|bytes| !bytes.contains(&0)) {
            variables.push((name, OsStr::from_bytes(bytes).to_owned()));
        }
    }
    if let Some(here) = context.traceparent() {
        variables.push(("TRACEPARENT", here.to_string().into()));
        let state = delivery.headers.tracestate().filter(|state| !state.contains('\0'));
        variables.extend(state.map(|state| ("TRACESTATE", state.into())));
    }
    variables
}
