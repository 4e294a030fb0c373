//! How long the code is: lines that hold code, and functions that hold many of them.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, ImplItemFn, Item, ItemFn, TraitItemFn};

use crate::package::{Module, is_for_tests};

/// A longer function contains a part that deserves its own name.
pub const LONG_FUNCTION: usize = 50;

/// Returns the lines of a module that hold code: no blanks, comments, documentation or tests.
#[must_use]
pub fn code_lines(module: &Module) -> usize {
    lines(module).len()
}

/// Returns the functions of a module with more than [`LONG_FUNCTION`] lines of code, each with its
/// lines.
#[must_use]
pub fn long_functions(module: &Module) -> Vec<(String, usize)> {
    let mut finder = Functions { lines: lines(module), long: Vec::new() };
    finder.visit_file(&module.syntax);
    finder.long
}

fn lines(module: &Module) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    // The text was parsed once, so it can be read as tokens.
    let tokens: TokenStream = module.text.parse().unwrap_or_default();
    collect(tokens, &mut lines);
    let mut tests = Tests { spans: Vec::new() };
    tests.visit_file(&module.syntax);
    for span in tests.spans {
        lines.retain(|line| !(span.start().line..=span.end().line).contains(line));
    }
    lines
}

/// Adds the lines of all tokens except documentation.
fn collect(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if let TokenTree::Punct(mark) = &token
            && mark.as_char() == '#'
        {
            let next =
                tokens.next_if(|it| matches!(it, TokenTree::Punct(it) if it.as_char() == '!'));
            if tokens.next_if(is_documentation).is_some() {
                continue;
            }
            lines.extend(next.map(|it| it.span().start().line));
        }
        match token {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                lines.insert(group.span_close().end().line);
                collect(group.stream(), lines);
            }
            token => lines.extend(token.span().start().line..=token.span().end().line),
        }
    }
}

fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket
        && matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

/// Finds code that is only compiled for tests.
struct Tests {
    spans: Vec<Span>,
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            self.spans.push(item.span());
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_for_tests(&function.attrs) => {
                self.spans.push(item.span());
            }
            _ => visit::visit_impl_item(self, item),
        }
    }
}

/// Returns the attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Finds long functions.
struct Functions {
    lines: BTreeSet<usize>,
    long: Vec<(String, usize)>,
}

impl Functions {
    fn note(&mut self, name: String, span: Span) {
        let length = self.lines.range(span.start().line..=span.end().line).count();
        if length > LONG_FUNCTION {
            self.long.push((name, length));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.note(function.sig.ident.to_string(), function.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.note(function.sig.ident.to_string(), function.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.note(function.sig.ident.to_string(), function.span());
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(text: &str) -> Module {
        let syntax = syn::parse_file(text).expect("Rust");
        Module { file: "a.rs".to_owned(), text: text.to_owned(), syntax }
    }

    #[test]
    fn blanks_comments_documentation_and_tests_are_no_code() {
        let text = "//! What it is.\n\nuse a::b; // why\n\n/// Documented.\n#[must_use]\n\
                    pub fn c() -> &'static str {\n    // A comment.\n    \"two\n\nlines\"\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn d() {}\n}\n";
        // use, must_use, fn, three lines of text, the brace.
        assert_eq!(code_lines(&module(text)), 7);
    }

    #[test]
    fn a_function_is_long_by_its_lines_of_code() {
        let body = "    // a comment\n    f();\n";
        let short = format!("fn a() {{\n{}}}\n", body.repeat(LONG_FUNCTION - 2));
        assert!(long_functions(&module(&short)).is_empty());
        let long = format!("struct S;\nimpl S {{\nfn b() {{\n{}}}\n}}\n", body.repeat(49));
        assert_eq!(long_functions(&module(&long)), [("b".to_owned(), 51)]);
    }
}
