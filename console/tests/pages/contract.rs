//! The promises of the API's document, checked against the answers.

use std::collections::BTreeSet;

use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::fixture::Browser;

/// The document, and which parts of it were used.
pub(crate) struct Contract {
    pub(crate) document: Value,
    pub(crate) tried: BTreeSet<String>,
    /// The names of the fields in the answers so far.
    pub(crate) came: BTreeSet<String>,
}

impl Contract {
    pub(crate) async fn of(browser: &mut Browser) -> Self {
        let text = browser.read("/api/v1/openapi.json").await;
        let document = serde_json::from_str(&text).expect("JSON");
        Self { document, tried: BTreeSet::new(), came: BTreeSet::new() }
    }

    /// Returns every operation: its address, its method, and its description in the document.
    pub(crate) fn operations(&self) -> Vec<(String, Method, Value)> {
        let paths = self.document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, item)| {
            let item = item.as_object().expect("operations");
            item.iter().map(move |(method, operation)| {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("one");
                (path.clone(), method, operation.clone())
            })
        });
        operations.collect()
    }

    /// Calls the operation at this address below the API's, with these fields, and checks the
    /// answer against the document.
    pub(crate) async fn ask(
        &mut self,
        browser: &mut Browser,
        name: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Value {
        let named = |operation: &Value| operation["operationId"] == name;
        let operations = self.operations();
        let (template, method, operation) =
            operations.into_iter().find(|(.., it)| named(it)).expect(name);
        let path = format!("/api/v1{path}");
        assert!(fits(&template, path.split('?').next().expect("one")), "{path} is no {template}");
        self.are_known(&operation, &path, fields);
        let answer = browser.send(method, &path, fields).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let value: Value = serde_json::from_str(&answer.text).expect("JSON");
        self.holds(&operation["responses"]["200"], &value, &path);
        self.tried.insert(name.to_owned());
        value
    }

    /// Asserts that the answer matches the document's description of this response.
    pub(crate) fn holds(&mut self, response: &Value, answer: &Value, of: &str) {
        let schema = &response["content"]["application/json"]["schema"];
        let validator = self.validator(schema);
        let errors: Vec<_> = validator
            .iter_errors(answer)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{of}: {errors:#?}\n{answer:#}");
        names(answer, &mut self.came);
        // An undocumented field would have been noticed, wherever it is.
        for place in objects(answer, "") {
            let mut more = answer.clone();
            let object = more.pointer_mut(&place).and_then(Value::as_object_mut).expect("one");
            object.insert("undocumented".to_owned(), json!({}));
            let free = ["/headers", "/report"].iter().any(|name| place.contains(name));
            // The document describes itself only roughly.
            let free = free || (of.ends_with("openapi.json") && !place.is_empty());
            assert!(free || !validator.is_valid(&more), "{of}: {place} may have any field");
        }
    }

    /// Asserts that the fields are those of the document's query, or of its form.
    fn are_known(&self, operation: &Value, path: &str, fields: &[(&str, &str)]) {
        let parameters = operation["parameters"].as_array().expect("parameters");
        let query = path.split_once('?').map_or("", |(_, query)| query);
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let is = |it: &&Value| it["in"] == "query" && it["name"] == *name;
            let parameter = parameters.iter().find(is).unwrap_or_else(|| panic!("{path}: {name}"));
            let value = match parameter["schema"]["type"].as_str() {
                Some("string") => json!(value),
                _ => serde_json::from_str(&value).expect("JSON"),
            };
            assert!(self.validator(&parameter["schema"]).is_valid(&value), "{path}: {name}");
        }
        if !fields.is_empty() {
            let asked = fields.iter().map(|(name, value)| {
                let value = if *name == "all" { json!(*value == "true") } else { json!(value) };
                ((*name).to_owned(), value)
            });
            let asked = Value::Object(asked.collect());
            for kind in ["application/json", "application/x-www-form-urlencoded"] {
                let schema = &operation["requestBody"]["content"][kind]["schema"];
                assert!(self.validator(schema).is_valid(&asked), "{path}: {asked}");
            }
        }
    }

    /// Returns a validator for a schema of the document that allows no additional fields.
    fn validator(&self, schema: &Value) -> Validator {
        let mut schema = json!({ "allOf": [schema], "components": self.document["components"] });
        close(&mut schema["allOf"][0], false);
        let named = schema["components"]["schemas"].as_object_mut().expect("schemas");
        named.values_mut().for_each(|it| close(it, false));
        jsonschema::draft202012::options()
            .should_validate_formats(true)
            .build(&schema)
            .expect("a schema")
    }

    /// Returns the names of all fields that an answer may have.
    pub(crate) fn may_come(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let schemas = self.document["components"]["schemas"].as_object().expect("schemas");
        schemas.values().for_each(|schema| declared(schema, &mut found));
        found
    }
}

/// Returns whether the path matches this template: `/topics/mail` matches `/topics/{topic}`.
fn fits(template: &str, path: &str) -> bool {
    let (template, path) = (template.split('/'), path.split('/'));
    template.clone().count() == path.clone().count()
        && template.zip(path).all(|(wanted, one)| wanted.starts_with('{') || wanted == one)
}

/// Closes the schema to fields that it does not name. The enclosing schema closes its parts.
fn close(schema: &mut Value, is_part: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    for (keyword, below) in schema.iter_mut() {
        match (keyword.as_str(), below) {
            ("properties", Value::Object(all)) => all.values_mut().for_each(|it| close(it, false)),
            ("items" | "additionalProperties", below) => close(below, false),
            ("oneOf" | "anyOf" | "allOf", Value::Array(all)) => {
                all.iter_mut().for_each(|it| close(it, true));
            }
            _ => {}
        }
    }
    let is_object =
        ["properties", "oneOf", "anyOf", "allOf"].iter().any(|it| schema.contains_key(*it));
    if is_object && !is_part && !schema.contains_key("additionalProperties") {
        schema.insert("unevaluatedProperties".to_owned(), false.into());
    }
}

/// Returns the pointers to all objects.
fn objects(value: &Value, at: &str) -> Vec<String> {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, it)| (escaped(name), it)).collect(),
        // The first of many: the others are alike.
        Value::Array(all) => {
            all.iter().take(20).enumerate().map(|(n, it)| (n.to_string(), it)).collect()
        }
        _ => Vec::new(),
    };
    let here = value.is_object().then(|| at.to_owned());
    let deeper = below.into_iter().flat_map(|(name, it)| objects(it, &format!("{at}/{name}")));
    here.into_iter().chain(deeper).collect()
}

/// Escapes a name for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, below) in fields {
                found.insert(name.clone());
                names(below, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|it| names(it, found)),
        _ => {}
    }
}

fn declared(schema: &Value, found: &mut BTreeSet<String>) {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for (name, below) in properties {
        found.insert(name.clone());
        declared(below, found);
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        let all = schema[choice].as_array();
        all.into_iter().flatten().for_each(|it| declared(it, found));
    }
}
