use serde_json::{Map, Value, json};

use crate::role::Role;

/// An address of the API, for people.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    summary: &'static str,
    kind: Kind,
    fields: &'static [&'static str],
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Change { needs: Role },
}

impl Endpoint {
    pub(super) fn read(path: &'static str, summary: &'static str) -> Self {
        Self { path, summary, kind: Kind::Read, fields: &[] }
    }

    pub(super) fn change(path: &'static str, summary: &'static str, needs: Role) -> Self {
        Self { path, summary, kind: Kind::Change { needs }, fields: &[] }
    }

    /// With these fields in the query, or in the form of a change.
    pub(super) fn with_fields(self, fields: &'static [&'static str]) -> Self {
        Self { fields, ..self }
    }

    /// The operation, and its method.
    fn operation(&self) -> (&'static str, Value) {
        let mut parameters: Vec<Value> = named(self.path)
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        let content = if self.path == "/live" { "text/event-stream" } else { "application/json" };
        let mut operation = json!({
            "summary": self.summary,
            "responses": {
                "200": { "description": "As asked for.", "content": { content: { "schema": {} } } },
                "default": { "$ref": "#/components/responses/Refusal" },
            },
        });
        match self.kind {
            Kind::Read => {
                let query = |name: &&str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
                parameters.extend(self.fields.iter().map(query));
                operation["parameters"] = parameters.into();
                ("get", operation)
            }
            Kind::Change { needs } => {
                let token = json!({ "name": "X-CSRF-Token", "in": "header", "required": true, "schema": { "type": "string" } });
                parameters.push(token);
                let field = |name: &&str| {
                    let kind = if *name == "all" { "boolean" } else { "string" };
                    ((*name).to_owned(), json!({ "type": kind }))
                };
                let fields: Map<String, Value> = self.fields.iter().map(field).collect();
                operation["parameters"] = parameters.into();
                operation["description"] = format!("It takes the role {needs}.").into();
                operation["requestBody"] = json!({
                    "content": { "application/json": { "schema": { "type": "object", "properties": fields } } },
                });
                ("post", operation)
            }
        }
    }
}

/// The names in braces.
fn named(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| part.split('}').next())
}

/// The description of the API.
pub(super) fn document<'e>(endpoints: impl Iterator<Item = &'e Endpoint>) -> Value {
    let mut paths = Map::new();
    for endpoint in endpoints {
        let (method, operation) = endpoint.operation();
        paths.insert(format!("/api/v1{}", endpoint.path), json!({ method: operation }));
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "The queue's console", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "security": [{ "login": [] }],
        "components": {
            "securitySchemes": {
                "login": {
                    "type": "apiKey", "in": "cookie", "name": "queue-console",
                    "description": "As POST /sign-in sets it; __Host-queue-console where the console's origin is https.",
                },
            },
            "responses": {
                "Refusal": {
                    "description": "Why not, in one sentence.",
                    "content": { "application/json": { "schema": {
                        "type": "object", "properties": { "error": { "type": "string" } },
                    } } },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_each_parameter_of_an_address() {
        let endpoint =
            Endpoint::change("/dead/{topic}/purge", "Purge", Role::Admin).with_fields(&["all"]);
        let document = document([endpoint].iter());
        let operation = &document["paths"]["/api/v1/dead/{topic}/purge"]["post"];
        let names: Vec<_> = operation["parameters"]
            .as_array()
            .expect("some")
            .iter()
            .map(|it| &it["name"])
            .collect();
        assert_eq!(names, ["topic", "X-CSRF-Token"]);
        assert_eq!(operation["description"], "It takes the role admin.");
        let fields =
            &operation["requestBody"]["content"]["application/json"]["schema"]["properties"];
        assert_eq!(fields["all"]["type"], "boolean");
    }
}
