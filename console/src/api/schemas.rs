//! The API's types as JSON Schema for the document.

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Where the document defines the named types.
const NAMED: &str = "/components/schemas";

/// Writes types into the document.
pub(super) struct Schemas {
    /// Types of answers: those with a name are defined once.
    answered: SchemaGenerator,
    /// Types of requests: each is written where it is used, because it may differ from the type in
    /// an answer.
    given: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let plain = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.meta_schema = None;
                settings.definitions_path = NAMED.into();
            })
        };
        let answered = plain().for_serialize().with_transform(for_clients);
        let given = plain().with_transform(for_clients).with(|it| it.inline_subschemas = true);
        Self { answered: answered.into_generator(), given: given.into_generator() }
    }

    /// The schema of an answer's type.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answered.subschema_for::<T>().to_value()
    }

    /// The schema of a request's type.
    pub(super) fn given<T: JsonSchema>(&mut self) -> Value {
        let mut schema = self.given.subschema_for::<T>();
        for_clients(&mut schema);
        schema.to_value()
    }

    /// The fields of a type, as parameters.
    pub(super) fn parameters<T: JsonSchema>(&mut self, place: &str) -> Vec<Value> {
        let schema = self.given::<T>();
        let fields = schema["properties"].as_object().cloned().unwrap_or_default();
        let must = schema["required"].as_array().cloned().unwrap_or_default();
        let parameter = |(name, mut schema): (String, Value)| {
            let required = must.contains(&json!(name));
            let description = schema.as_object_mut().and_then(|it| it.remove("description"));
            json!({
                "name": name, "in": place, "required": required,
                "description": description, "schema": schema,
            })
        };
        fields.into_iter().map(parameter).collect()
    }

    /// The definitions of the named types.
    pub(super) fn named(mut self) -> Map<String, Value> {
        self.answered.take_definitions(true)
    }
}

/// Rewrites what is specific to Rust for readers of JSON and for client generators.
fn for_clients(schema: &mut Schema) {
    transform_subschemas(&mut for_clients, schema);
    as_one_of_words(schema);
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`").replace("`None`", "`null`");
    }
    if schema.get("format").is_some_and(|format| format == "uint") {
        schema.insert("format".to_owned(), "uint64".into());
    }
    // Client generators take a field that has a default for one that is always present; here a
    // field that is left out has no meaning.
    schema.remove("default");
}

/// Turns a choice of words into an `enum`: most generators make nothing useful of a choice of
/// constants.
fn as_one_of_words(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else { return };
    let Some(words) = choices.iter().map(|it| it.get("const").cloned()).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let lines: String = choices
        .iter()
        .filter_map(|it| {
            Some(format!("\n* `{}`: {}", it["const"].as_str()?, it["description"].as_str()?))
        })
        .collect();
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let description = format!("{description}\n{lines}");
    schema.remove("oneOf");
    schema.insert("type".to_owned(), "string".into());
    schema.insert("enum".to_owned(), words.into());
    schema.insert("description".to_owned(), description.trim().into());
}
