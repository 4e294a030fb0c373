//! The fields of a span, as they are recorded.

use std::collections::BTreeMap;
use std::fmt;

use tracing::field::{Field, Visit};

/// Each field as text.
#[derive(Debug, Default)]
pub(super) struct Fields(BTreeMap<&'static str, String>);

impl Fields {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
