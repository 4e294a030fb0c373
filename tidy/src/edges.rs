//! Finds which module takes names from which. A child counts as its outermost parent, and a name
//! that a facade re-exports counts for the module that defines it.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

use crate::package::{ModulePath, Target, is_for_tests};
use crate::size::attributes;

/// From one module to another, with the names taken and the files that take them.
pub type Edges = BTreeMap<(String, String), BTreeSet<Taken>>;

/// A name that a file takes from another module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// Its path from the root of the checkout.
    pub file: String,
    /// Its name where it is defined.
    pub name: String,
}

/// How far a name is followed from facade to facade.
const LONGEST_CHAIN: usize = 8;

/// Returns the edges between the outermost modules of a target. Its root goes by the target's name.
#[must_use]
pub fn of(target: &Target) -> Edges {
    let mut scopes = BTreeMap::new();
    let mut references = Vec::new();
    for path in target.modules.keys() {
        scopes.entry(path.clone()).or_default();
    }
    for (path, module) in &target.modules {
        let mut reader = Reader {
            scopes: &mut scopes,
            references: &mut references,
            file: &module.file,
            here: path.clone(),
        };
        reader.visit_file(&module.syntax);
    }
    let outermost = |path: &ModulePath| path.first().unwrap_or(&target.name).clone();
    let mut edges = Edges::new();
    for Reference { from, path, file } in references {
        let (from, to) = (outermost(&from), outermost(&defining(&scopes, &path, LONGEST_CHAIN)));
        if from != to {
            let name = path.last().cloned().unwrap_or_default();
            edges.entry((from, to)).or_default().insert(Taken { file, name });
        }
    }
    edges
}

/// Returns the modules from which each module takes names.
#[must_use]
pub fn grouped(edges: &Edges) -> BTreeMap<String, BTreeSet<String>> {
    let mut grouped: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        grouped.entry(from.clone()).or_default().insert(to.clone());
    }
    grouped
}

/// Returns the modules that take names from each other in a cycle: one set per cycle.
#[must_use]
pub fn cycles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let graph: DiGraphMap<&str, ()> =
        edges.keys().map(|(from, to)| (from.as_str(), to.as_str(), ())).collect();
    let circles = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1);
    circles.map(|circle| circle.into_iter().map(str::to_owned).collect()).collect()
}

/// The names that a module has besides its own: by `use`, re-exported or not.
#[derive(Debug, Default)]
struct Scope {
    imports: BTreeMap<String, ModulePath>,
    globs: Vec<ModulePath>,
}

/// A path used in a module, from the root of the target.
struct Reference {
    from: ModulePath,
    path: Vec<String>,
    file: String,
}

/// Returns the module that defines what `path` names.
fn defining(scopes: &BTreeMap<ModulePath, Scope>, path: &[String], chain: usize) -> ModulePath {
    let mut here = ModulePath::new();
    for (index, name) in path.iter().enumerate() {
        let child: ModulePath = here.iter().chain([name]).cloned().collect();
        if scopes.contains_key(&child) {
            here = child;
            continue;
        }
        let Some(scope) = scopes.get(&here).filter(|_| chain > 0) else { break };
        let rest = &path[index + 1..];
        let follow = |start: &ModulePath, name: Option<&String>| {
            let path: Vec<String> = start.iter().chain(name).chain(rest).cloned().collect();
            (path != here).then(|| defining(scopes, &path, chain - 1))
        };
        if let Some(import) = scope.imports.get(name) {
            return follow(import, None).unwrap_or(here);
        }
        let by_glob = scope.globs.iter().find(|glob| has(scopes, glob, name));
        if let Some(glob) = by_glob {
            return follow(glob, Some(name)).unwrap_or(here);
        }
        break;
    }
    here
}

/// Returns whether a module imports `name`, or has a module of that name.
fn has(scopes: &BTreeMap<ModulePath, Scope>, module: &ModulePath, name: &String) -> bool {
    let child: ModulePath = module.iter().chain([name]).cloned().collect();
    let imports = |scope: &Scope| scope.imports.contains_key(name);
    scopes.contains_key(&child) || scopes.get(module).is_some_and(imports)
}

/// Reads which names the code of one file takes.
struct Reader<'a> {
    scopes: &'a mut BTreeMap<ModulePath, Scope>,
    references: &'a mut Vec<Reference>,
    file: &'a str,
    here: ModulePath,
}

impl Reader<'_> {
    /// Resolves a path used here from the root of the target; none if it leads out of the target.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let mut absolute = match first {
            "crate" => Vec::new(),
            "self" | "super" => self.here.clone(),
            child => {
                let child = self.here.iter().cloned().chain([child.to_owned()]).collect();
                return self
                    .scopes
                    .contains_key::<ModulePath>(&child)
                    .then(|| self.here.iter().chain(path).cloned().collect());
            }
        };
        let rest = path.iter().skip(usize::from(first != "super"));
        for name in rest {
            if name == "super" {
                absolute.pop();
            } else {
                absolute.push(name.clone());
            }
        }
        Some(absolute)
    }

    fn refer(&mut self, path: &[String]) {
        if let Some(path) = self.absolute(path) {
            let (from, file) = (self.here.clone(), self.file.to_owned());
            self.references.push(Reference { from, path, file });
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>, is_facade: bool) {
        let (name, known_as) = match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix, is_facade);
                prefix.pop();
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_facade);
                }
                return;
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute(prefix) {
                    self.scopes.entry(self.here.clone()).or_default().globs.push(path);
                }
                if !is_facade {
                    self.refer(prefix);
                }
                return;
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
        };
        let path = if name == "self" {
            prefix.clone()
        } else {
            prefix.iter().cloned().chain([name]).collect()
        };
        let known_as =
            if known_as == "self" { path.last().cloned().unwrap_or_default() } else { known_as };
        if let Some(path) = self.absolute(&path) {
            self.scopes.entry(self.here.clone()).or_default().imports.insert(known_as, path);
        }
        if !is_facade {
            self.refer(&path);
        }
    }

    /// Refers to the paths in a macro's arguments or definition.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.refer_to_all_of(&path);
                        path.clear();
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                other => {
                    self.refer_to_all_of(&path);
                    path.clear();
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.refer_to_all_of(&path);
    }

    fn refer_to_all_of(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.refer(path);
        }
    }

    fn enter(&mut self, module: &ItemMod) {
        self.here.push(module.ident.to_string());
        self.scopes.entry(self.here.clone()).or_default();
        visit::visit_item_mod(self, module);
        self.here.pop();
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            item if is_for_tests(attributes(item)) => {}
            Item::Mod(module) if module.content.is_some() => self.enter(module),
            item => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_for_tests(&function.attrs) => {}
            item => visit::visit_impl_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A root's re-exports are its table of contents, not a use.
        let is_public = !matches!(item.vis, Visibility::Inherited);
        let is_facade = self.here.is_empty() && is_public;
        self.import(&item.tree, &mut Vec::new(), is_facade);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.refer_to_all_of(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.scan(call.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::Module;

    fn target(modules: &[(&str, &str)]) -> Target {
        let modules = modules.iter().map(|(path, text)| {
            let names = path.split("::").filter(|it| !it.is_empty()).map(str::to_owned);
            let syntax = syn::parse_file(text).expect("Rust");
            let file = format!("{path}.rs");
            (names.collect(), Module { file, text: (*text).to_owned(), syntax })
        });
        Target { name: "lib".to_owned(), modules: modules.collect() }
    }

    /// Returns each edge with the names that are taken.
    fn taken(modules: &[(&str, &str)]) -> Vec<String> {
        of(&target(modules))
            .into_iter()
            .map(|((from, to), names)| {
                let names: Vec<String> = names.into_iter().map(|it| it.name).collect();
                format!("{from} → {to}: {}", names.join(" "))
            })
            .collect()
    }

    #[test]
    fn uses_paths_and_macros_are_edges_and_tests_are_none() {
        let a = "use crate::b::{self, One, two::Three as Four};\n\
                 fn f() { crate::c::g(); log!(x = crate::d::h(), \"{}\", 1); }\n\
                 #[cfg(test)]\nmod tests { use crate::e::Fifth; }\n";
        let edges = taken(&[("", ""), ("a", a), ("b", ""), ("b::two", ""), ("c", ""), ("d", "")]);
        assert_eq!(edges, ["a → b: One Three b", "a → c: g", "a → d: h"]);
    }

    #[test]
    fn a_child_counts_as_its_parent() {
        let child =
            "use super::Own; use super::super::b::Other; mod inner { use super::super::Own; }";
        assert_eq!(taken(&[("", ""), ("a", ""), ("a::child", child), ("b", "")]), ["a → b: Other"]);
    }

    #[test]
    fn a_name_counts_for_the_module_that_defines_it() {
        let root = "pub use crate::b::Two; mod a; mod b; mod c; pub struct Own;";
        let facade = "pub use crate::c::Three; pub use crate::d::*;";
        let a = "use crate::{Own, Two, b::Three}; use crate::b::e::Five;";
        let modules = [
            ("", root),
            ("a", a),
            ("b", facade),
            ("c", ""),
            ("d", ""),
            ("d::e", "pub struct Five;"),
        ];
        let edges = taken(&modules);
        let expected = [
            "a → b: Two",
            "a → c: Three",
            "a → d: Five",
            "a → lib: Own",
            "b → c: Three",
            "b → d: d",
        ];
        assert_eq!(edges, expected);
    }

    #[test]
    fn two_files_that_take_names_from_each_other_are_a_cycle() {
        let modules = [("", ""), ("a", "use crate::b::B;"), ("b", "fn f() { crate::a::g() }")];
        let edges = of(&target(&modules));
        assert_eq!(cycles(&edges), [BTreeSet::from(["a".to_owned(), "b".to_owned()])]);
        let modules = [("", ""), ("a", "use crate::b::B;"), ("b", "fn f() {}")];
        assert!(cycles(&of(&target(&modules))).is_empty());
    }
}
