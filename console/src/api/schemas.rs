//! The types of the API as the document has them.

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Where the document has the types that it names.
const NAMED: &str = "/components/schemas";

/// Writes types into the document.
pub(super) struct Schemas {
    /// What is answered: types that have a name are named.
    answered: SchemaGenerator,
    /// What is given: each where it is used, because it may look otherwise than in an answer.
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

    /// A type that is answered.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answered.subschema_for::<T>().to_value()
    }

    /// A type that is given.
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

    /// The types that were named.
    pub(super) fn named(mut self) -> Map<String, Value> {
        self.answered.take_definitions(true)
    }
}

/// What Rust says so that readers of JSON, and generators of clients, know it.
fn for_clients(schema: &mut Schema) {
    transform_subschemas(&mut for_clients, schema);
    as_one_of_words(schema);
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`").replace("`None`", "`null`");
    }
    if schema.get("format").is_some_and(|format| format == "uint") {
        schema.insert("format".to_owned(), "uint64".into());
    }
    // What is left out says nothing. Generators of clients take a field that has a default for one
    // that is always there.
    schema.remove("default");
}

/// A choice of words is an `enum`: of a choice of constants most generators make nothing useful.
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
