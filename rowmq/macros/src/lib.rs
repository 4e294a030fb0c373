//! The derive of `rowmq::Job`.

use proc_macro::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{DeriveInput, LitStr};

/// Makes a type a `rowmq::Job`: `#[job(topic = "mail")]`, or with a kind of its own,
/// `#[job(topic = "mail", kind = "welcome")]`.
///
/// Without `kind`, the kind is the name of the type. Stored messages carry their kind, so a type
/// that may be renamed one day should set it.
#[proc_macro_derive(Job, attributes(job))]
pub fn job(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    implement(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn implement(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let (mut topic, mut kind) = (None, None);
    for attribute in input.attrs.iter().filter(|it| it.path().is_ident("job")) {
        attribute.parse_nested_meta(|meta| {
            let place = if meta.path.is_ident("topic") {
                &mut topic
            } else if meta.path.is_ident("kind") {
                &mut kind
            } else {
                return Err(meta.error("`job` takes `topic` and `kind`"));
            };
            let text: LitStr = meta.value()?.parse()?;
            if place.replace(text).is_some() {
                return Err(meta.error("it is given twice"));
            }
            Ok(())
        })?;
    }
    let missing = "a job needs a topic: #[job(topic = \"mail\")]";
    let topic = topic.ok_or_else(|| syn::Error::new(input.span(), missing))?;
    check_topic(&topic)?;
    let name = &input.ident;
    let kind = kind.map_or_else(|| name.to_string(), |kind| kind.value());
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::rowmq::Job for #name #arguments #bounds {
            const TOPIC: &'static str = #topic;
            const KIND: &'static str = #kind;
        }
    })
}

/// Rejects, at compile time, a name that no topic can have.
fn check_topic(topic: &LitStr) -> syn::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name = topic.value();
    if name.is_empty() || !name.chars().all(is_plain) {
        let refusal = "no topic can have this name: letters, digits, dots, hyphens and underscores";
        return Err(syn::Error::new(topic.span(), refusal));
    }
    Ok(())
}
