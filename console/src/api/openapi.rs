//! The description of the API, for client generators and for people.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::Refused;
use super::endpoint::{Answer, Endpoint, Kind};
use super::schemas::Schemas;

/// The document, in `OpenAPI` 3.1, whose schema language is JSON Schema.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Document {
    /// The version of the format.
    openapi: &'static str,
    /// What it describes.
    info: Value,
    /// Each address with its operation.
    paths: BTreeMap<String, Value>,
    /// How clients authenticate.
    security: Value,
    /// Definitions that other parts of the document refer to.
    components: BTreeMap<&'static str, Value>,
}

impl Document {
    pub(super) fn of(endpoints: &[Endpoint]) -> Self {
        let mut schemas = Schemas::new();
        let paths = endpoints
            .iter()
            .map(|endpoint| (format!("/api/v1{}", endpoint.path), item(endpoint, &mut schemas)))
            .collect();
        let refusal = json!({
            "description": "Why not, in one sentence.",
            "content": { "application/json": { "schema": schemas.answer::<Refused>() } },
        });
        Self {
            openapi: "3.1.0",
            info: json!({
                "title": "The queue's console",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "What the pages show, and what they change. Fields may be added to answers.",
            }),
            paths,
            security: json!([{ "login": [] }]),
            components: BTreeMap::from([
                ("schemas", schemas.named().into()),
                ("responses", json!({ "Refusal": refusal })),
                ("securitySchemes", json!({ "login": login() })),
            ]),
        }
    }
}

fn login() -> Value {
    json!({
        "type": "apiKey", "in": "cookie", "name": "rowmq-console",
        "description": "As POST /sign-in sets it; __Host-rowmq-console where the console's origin is https.",
    })
}

/// The single operation of an address, under its method.
fn item(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let mut parameters = (endpoint.parameters)(schemas);
    let content = match endpoint.answer {
        Answer::Json(answer) => json!({ "application/json": { "schema": answer(schemas) } }),
        Answer::Events => json!({ "text/event-stream": { "schema": { "type": "string" } } }),
    };
    let mut operation = json!({
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "responses": {
            "200": { "description": "As asked for.", "content": content },
            "default": { "$ref": "#/components/responses/Refusal" },
        },
    });
    let method = match endpoint.kind {
        Kind::Read => "get",
        Kind::Change { needs, asks } => {
            let asks = asks(schemas);
            parameters.push(json!({
                "name": "X-CSRF-Token", "in": "header", "required": true,
                "description": "The `data-csrf` of any page of the same sign-in.",
                "schema": { "type": "string" },
            }));
            operation["description"] = format!("It takes the role {needs}.").into();
            operation["requestBody"] = json!({
                "required": true,
                "content": {
                    "application/json": { "schema": asks },
                    "application/x-www-form-urlencoded": { "schema": asks },
                },
            });
            "post"
        }
    };
    operation["parameters"] = parameters.into();
    json!({ method: operation })
}
