//! The packages of the workspace: the targets that are built from their folder `src`, and the
//! modules of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;
use syn::{Attribute, Item, ItemMod, Meta};

use crate::tree;

/// A module's names from the root of its target: empty for the root itself.
pub type ModulePath = Vec<String>;

/// A package of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Its published name.
    pub name: String,
    /// Its path from the root of the checkout.
    pub folder: String,
    /// The packages of this workspace that it depends on, including optional ones; without those
    /// only for tests.
    pub takes: BTreeSet<String>,
    /// Its library and its programs.
    pub targets: Vec<Target>,
}

/// A library or a program.
#[derive(Debug)]
pub struct Target {
    /// `lib`, or the name of the program's file.
    pub name: String,
    /// Every module that is not for tests.
    pub modules: BTreeMap<ModulePath, Module>,
}

/// A module in a file of its own.
#[derive(Debug)]
pub struct Module {
    /// Its path from the root of the checkout.
    pub file: String,
    /// Its source text.
    pub text: String,
    /// The parsed text.
    pub syntax: syn::File,
}

#[derive(Deserialize)]
struct Manifest {
    package: Named,
    #[serde(default)]
    dependencies: toml::Table,
    #[serde(default)]
    bin: Vec<Binary>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Binary {
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Root {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    members: Vec<String>,
}

/// Returns the packages of the workspace, in the order of its manifest.
///
/// # Errors
/// If a file is missing or cannot be parsed.
pub fn all() -> anyhow::Result<Vec<Package>> {
    let root: Root = manifest(&tree::root().join("Cargo.toml"))?;
    let members: Vec<(String, Manifest)> = root
        .workspace
        .members
        .into_iter()
        .map(|folder| {
            let manifest = manifest(&tree::root().join(&folder).join("Cargo.toml"))?;
            Ok((folder, manifest))
        })
        .collect::<anyhow::Result<_>>()?;
    let ours: BTreeSet<String> = members.iter().map(|(_, it)| it.package.name.clone()).collect();
    members
        .into_iter()
        .map(|(folder, manifest)| {
            let targets = targets(&folder, &manifest.bin)?;
            let takes = manifest.dependencies.keys().filter(|name| ours.contains(*name));
            let takes = takes.cloned().collect();
            Ok(Package { name: manifest.package.name, folder, takes, targets })
        })
        .collect()
}

fn manifest<T: for<'de> Deserialize<'de>>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

fn targets(folder: &str, binaries: &[Binary]) -> anyhow::Result<Vec<Target>> {
    let mut roots = BTreeSet::from(["src/lib.rs", "src/main.rs"].map(PathBuf::from));
    roots.extend(binaries.iter().filter_map(|it| it.path.clone()));
    roots
        .into_iter()
        .map(|path| (tree::root().join(folder).join(&path), path))
        .filter(|(place, _)| place.exists())
        .map(|(place, path)| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let mut modules = BTreeMap::new();
            let children = place.parent().unwrap_or(&place).to_owned();
            read(&place, &children, Vec::new(), &mut modules)?;
            Ok(Target { name, modules })
        })
        .collect()
}

/// Reads the module in `file`, whose own modules have their files in `children`, and those modules
/// too.
fn read(
    file: &Path,
    children: &Path,
    path: ModulePath,
    modules: &mut BTreeMap<ModulePath, Module>,
) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let syntax = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    for item in declared(&syntax.items) {
        let name = item.ident.to_string();
        let places = [children.join(format!("{name}.rs")), children.join(&name).join("mod.rs")];
        let Some(place) = places.iter().find(|place| place.exists()) else {
            bail!("{} declares a module {name} that has no file", file.display());
        };
        let child = path.iter().cloned().chain([name.clone()]).collect();
        read(place, &children.join(name), child, modules)?;
    }
    let name = file.strip_prefix(tree::root()).unwrap_or(file).display().to_string();
    modules.insert(path, Module { file: name, text, syntax });
    Ok(())
}

/// Returns the modules that `items` declare in separate files, without those for tests.
fn declared(items: &[Item]) -> impl Iterator<Item = &ItemMod> {
    items.iter().filter_map(|item| match item {
        Item::Mod(it) if it.content.is_none() && !is_for_tests(&it.attrs) => Some(it),
        _ => None,
    })
}

/// Returns whether `#[cfg(test)]` is among these attributes.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            attribute.path().is_ident("cfg") && list.tokens.to_string().trim() == "test"
        }
        _ => false,
    })
}
