//! `ops/measure`: how large the code is, and how its modules depend on each other.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Parser;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use tidy::package::{self, Package};
use tidy::rooms::{self, Rooms};
use tidy::{edges, prose, size, tree, walks};

/// Prints how large each package is and how its modules depend on each other: lines of code (no
/// blanks, no comments, no tests), modules, those in cycles, and functions over 50 lines.
#[derive(Debug, Parser)]
#[command(name = "ops/measure", version)]
struct Arguments {
    /// As JSON.
    #[arg(long, conflicts_with_all = ["rooms", "functions"])]
    json: bool,
    /// Prints tidy/rooms.toml for the tree as it is today, with exactly what the code uses.
    #[arg(long, conflicts_with = "functions")]
    rooms: bool,
    /// Lists the functions over 50 lines, the longest first.
    #[arg(long)]
    functions: bool,
}

/// Words of a dialect that a reader has to learn; plain English has better ones.
const DIALECT: [&str; 7] = ["anew", "meanwhile", "nobody", "somebody", "tells", "told", "whoever"];

/// The packages whose dependencies users build.
const LIBRARY: &str = "rowmq";

#[derive(Debug, Serialize)]
struct Figures {
    packages: Vec<PackageFigures>,
    /// Lines of code of all packages outside the harness.
    product_lines: usize,
    /// How often a word of the dialect occurs in the product's `src`.
    dialect: usize,
    /// The dependencies of the README's worker: the direct ones, and all packages.
    direct_dependencies: usize,
    all_dependencies: usize,
    walks: Vec<WalkFigures>,
    /// The sentences of the pages for new users, and of all pages in English.
    prose_for_new_users: ProseFigures,
    prose: ProseFigures,
}

/// How long sentences are, in words.
#[derive(Debug, Serialize)]
struct ProseFigures {
    mean: f64,
    longest: usize,
}

/// A walk of docs/architecture.md.
#[derive(Debug, Serialize)]
struct WalkFigures {
    walk: String,
    files: usize,
    functions: usize,
}

#[derive(Debug, Serialize)]
struct PackageFigures {
    package: String,
    harness: bool,
    lines: usize,
    budget: usize,
    modules: usize,
    in_cycles: usize,
    long_functions: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let packages = package::all()?;
    let rooms = rooms::read()?;
    if arguments.rooms {
        print(&rooms::written(&packages, &rooms));
    } else if arguments.functions {
        print(&functions(&packages));
    } else {
        let figures = figures(&packages, &rooms)?;
        let text =
            if arguments.json { serde_json::to_string_pretty(&figures)? } else { table(&figures) };
        print(&text);
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "what it was asked for")]
fn print(text: &str) {
    println!("{}", text.trim_end());
}

fn figures(packages: &[Package], rooms: &Rooms) -> anyhow::Result<Figures> {
    let packages: Vec<_> = packages.iter().map(|package| of_package(package, rooms)).collect();
    let product = packages.iter().filter(|package| !package.harness);
    let product_lines = product.map(|package| package.lines).sum();
    let direct = dependencies(Some(1))?;
    let all = dependencies(None)?;
    Ok(Figures {
        product_lines,
        dialect: dialect(rooms)?,
        // The list includes the library itself.
        direct_dependencies: direct.len() - 1,
        all_dependencies: all.len() - 1,
        walks: walks()?,
        prose_for_new_users: prose_of(prose::is_for_new_users)?,
        prose: prose_of(|name| name.starts_with("docs/") && !name.starts_with("docs/zh-CN/"))?,
        packages,
    })
}

/// Returns the walks' figures; an error names the functions that are gone.
fn walks() -> anyhow::Result<Vec<WalkFigures>> {
    let mut figures = Vec::new();
    for walk in walks::all()? {
        let gone = walk.gone();
        ensure!(gone.is_empty(), "the walk '{}' names what is gone: {gone:?}", walk.name);
        let (files, functions) = (walk.files(), walk.steps.len());
        figures.push(WalkFigures { walk: walk.name, files, functions });
    }
    Ok(figures)
}

fn of_package(package: &Package, rooms: &Rooms) -> PackageFigures {
    let room = rooms.get(&package.name);
    let outermost = package.targets.iter().flat_map(|target| {
        let names: BTreeSet<_> = target.modules.keys().filter_map(|path| path.first()).collect();
        names.into_iter()
    });
    let circling = package.targets.iter().flat_map(|target| edges::cycles(&edges::of(target)));
    PackageFigures {
        package: package.name.clone(),
        harness: room.is_some_and(|room| room.harness),
        lines: rooms::lines(package),
        budget: room.map_or(0, |room| room.lines),
        modules: outermost.count(),
        in_cycles: circling.map(|circle| circle.len()).sum(),
        long_functions: long_functions(package).len(),
    }
}

fn prose_of(is_wanted: impl Fn(&str) -> bool) -> anyhow::Result<ProseFigures> {
    let pages = tree::files(&[".md"])?.into_iter().filter(|file| is_wanted(&file.name()));
    let sentences: Vec<_> = pages.flat_map(|page| prose::sentences(&page.text)).collect();
    let longest = sentences.iter().map(|sentence| prose::words(sentence)).max();
    Ok(ProseFigures { mean: prose::mean(&sentences), longest: longest.unwrap_or_default() })
}

/// Returns each long function of a package: its lines, its file and its name.
fn long_functions(package: &Package) -> Vec<(usize, String, String)> {
    let modules = package.targets.iter().flat_map(|target| target.modules.values());
    modules
        .flat_map(|module| {
            let long = size::long_functions(module).into_iter();
            long.map(|(name, lines)| (lines, module.file.clone(), name))
        })
        .collect()
}

fn functions(packages: &[Package]) -> String {
    let mut long: Vec<_> = packages.iter().flat_map(long_functions).collect();
    long.sort_by(|a, b| b.cmp(a));
    let lines = long.into_iter().map(|(lines, file, name)| format!("{lines:>4} {file}:{name}\n"));
    lines.collect()
}

/// Counts the words of the dialect in the product's `src`, including comments and strings.
fn dialect(rooms: &Rooms) -> anyhow::Result<usize> {
    let mut count = 0;
    let packages = package::all()?;
    let product = packages.iter().filter(|it| !rooms.get(&it.name).is_some_and(|it| it.harness));
    let folders: Vec<String> = product.map(|it| format!("{}/src/", it.folder)).collect();
    for file in tree::files(&[".rs"])? {
        if folders.iter().any(|folder| file.name().starts_with(folder)) {
            let words = file.text.split(|letter: char| !letter.is_ascii_alphabetic());
            let ours = |word: &&str| DIALECT.iter().any(|it| it.eq_ignore_ascii_case(word));
            count += words.filter(ours).count();
        }
    }
    Ok(count)
}

/// Returns the packages that [`LIBRARY`] pulls in by default, including itself, down to a depth.
fn dependencies(depth: Option<usize>) -> anyhow::Result<BTreeSet<String>> {
    let mut command = Command::new("cargo");
    command.current_dir(tree::root());
    command.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"]);
    command.args(["--format", "{p}", "--package", LIBRARY]);
    if let Some(depth) = depth {
        command.args(["--depth", &depth.to_string()]);
    }
    let output = command.output().context("cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("cargo tree")?;
    let name = |line: &str| {
        let mut words = line.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    Ok(text.lines().filter_map(name).collect())
}

fn table(figures: &Figures) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["PACKAGE", "LINES", "BUDGET", "MODULES", "IN CYCLES", "LONG FUNCTIONS"]);
    for it in &figures.packages {
        let name =
            if it.harness { format!("{} (harness)", it.package) } else { it.package.clone() };
        let numbers = [it.lines, it.budget, it.modules, it.in_cycles, it.long_functions];
        table.add_row(std::iter::once(name).chain(numbers.map(|it| it.to_string())));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let walks: String = figures
        .walks
        .iter()
        .map(|it| format!("walk: {:<31}{} files, {} functions\n", it.walk, it.files, it.functions))
        .collect();
    format!(
        "{table}\n\nproduct, without harness and tests   {} lines of code\n\
         words of the dialect in its src      {}\n\
         {LIBRARY} takes                 {} packages itself, {} in all\n\
         a sentence for new users             {:.1} words, at most {}\n\
         a sentence of all pages              {:.1} words, at most {}\n{walks}",
        figures.product_lines,
        figures.dialect,
        figures.direct_dependencies,
        figures.all_dependencies,
        figures.prose_for_new_users.mean,
        figures.prose_for_new_users.longest,
        figures.prose.mean,
        figures.prose.longest,
    )
}
