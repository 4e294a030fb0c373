//! The stored procedures of the SQL contract.
//!
//! Each public name leads to its body in three steps, so that a release can replace everything
//! under load:
//!
//! 1. `queue_claim`: the procedure that callers are granted. It calls the links in use, which
//!    `queue_installation` names. It is created again only if its parameters change, because MySQL
//!    drops the grants on a procedure with the procedure.
//! 2. `queue_claim__even` and `queue_claim__odd`, the links: each calls the body of one release. An
//!    upgrade re-creates the links that are not in use, and then switches over in one statement. It
//!    cannot re-create links in use: MySQL cannot replace a procedure, and cannot drop one that an
//!    open transaction has called; and calls would fail while the link is missing.
//! 3. `queue_claim__1a2b3c4d`: the body. Its name contains the checksum of all sources, and bodies
//!    call bodies of the same checksum, so a call ends in the release in which it began.

use std::collections::BTreeMap;

use sha2_of_driver::{Digest, Sha256};

use crate::store::installation::{Links, ODD_LINKS_ARE_IN_USE};

/// A source: its name, its text, and whether it is part of the contract.
struct Source {
    name: &'static str,
    text: &'static str,
    public: bool,
}

macro_rules! sources {
    ($($reach:ident $name:literal,)*) => {
        [$(Source {
            name: $name,
            text: include_str!(concat!("../procedures/", $name, ".sql")),
            public: sources!(@ $reach),
        }),*]
    };
    (@ public) => { true };
    (@ internal) => { false };
}

/// All procedures; the tidy test compares the names with the folder.
const SOURCES: &[Source] = &sources![
    internal "queue_refuse_killed",
    internal "queue_undo_killed",
    internal "queue_own_worker",
    internal "queue_retry_wait",
    internal "queue_refuse_trigger",
    internal "queue_refuse_clock",
    internal "queue_may",
    internal "queue_refuse_access",
    internal "queue_begin",
    internal "queue_end",
    internal "queue_refuse_delivery",
    internal "queue_count_settled",
    internal "queue_settle_row",
    internal "queue_ack_rows",
    internal "queue_give_back",
    internal "queue_take_places",
    internal "queue_enter_gate",
    internal "queue_admit",
    internal "queue_book",
    internal "queue_own_range",
    internal "queue_peek_log",
    internal "queue_repeated",
    internal "queue_sequence",
    internal "queue_file_messages",
    internal "queue_pass",
    internal "queue_file_next",
    internal "queue_take_out",
    internal "queue_end_range",
    internal "queue_settle_range",
    internal "queue_claim_range",
    internal "queue_claim_once",
    internal "queue_wait",
    internal "queue_duration",
    internal "queue_moment",
    internal "queue_options",
    internal "queue_enqueue",
    internal "queue_held",
    public "queue_contract",
    public "queue_send",
    public "queue_send_unique",
    public "queue_send_all",
    public "queue_cancel",
    public "queue_claim",
    public "queue_settle",
    public "queue_beat",
    public "queue_checkpoint",
    public "queue_last_checkpoint",
    public "queue_leave",
];

/// The names of earlier contracts.
const FORMER: &[&str] = &["queue_enqueue", "queue_enqueue_at", "queue_enqueue_unique"];

/// The names that callers know.
pub fn public() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().filter(|source| source.public).map(|source| source.name)
}

/// A procedure as it must be in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routine {
    /// Its name there.
    pub name: String,
    /// The text that its comment must contain: it shows whether an installed procedure is stale.
    pub mark: String,
    /// `CREATE PROCEDURE …`.
    pub create: String,
}

impl Routine {
    /// Whether the procedure is installed as it must be, according to its comment.
    #[must_use]
    pub fn is_in(&self, installed: &BTreeMap<String, String>) -> bool {
        installed.get(&self.name).is_some_and(|comment| comment.contains(&self.mark))
    }
}

/// The first eight digits of the SHA-256 of all sources.
#[must_use]
pub fn checksum() -> String {
    let mut digest = Sha256::new();
    for source in SOURCES {
        digest.update(source.text.as_bytes());
    }
    short(&digest.finalize())
}

fn short(digest: &[u8]) -> String {
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether there are procedures of any release: no others have names like those of the links.
#[must_use]
pub fn are_there(installed: &BTreeMap<String, String>) -> bool {
    let odd = link("queue_contract", Links::Odd);
    installed.contains_key(&odd)
}

/// Whether these links all lead to the bodies of this release.
#[must_use]
pub fn are_current(links: Links, installed: &BTreeMap<String, String>) -> bool {
    let is_link = |routine: &Routine| routine.name.ends_with(&link("", links));
    wanted(links).iter().filter(|routine| is_link(routine)).all(|link| link.is_in(installed))
}

/// Returns every procedure for these links in use, in the order of their creation: bodies first,
/// public names last.
#[must_use]
pub fn wanted(links: Links) -> Vec<Routine> {
    let checksum = checksum();
    let bodies = SOURCES.iter().map(|source| body(source, &checksum));
    let public = || SOURCES.iter().filter(|source| source.public);
    let links = public().map(|source| {
        let target = body_name(source.name, &checksum);
        let mark = format!("Calls {target}.");
        let call = format!("CALL {target}({})", heading(source.text).arguments());
        forward(source, link(source.name, links), &mark, &mark, &call)
    });
    let wrappers = public().map(|source| {
        let heading = heading(source.text);
        let interface = short(&Sha256::digest(heading.parameters.as_bytes()));
        let mark = format!("[{interface}]");
        let comment = format!("{} {mark}", heading.comment);
        forward(source, source.name.to_owned(), &mark, &comment, &call_links_in_use(source))
    });
    bodies.chain(links).chain(wrappers).collect()
}

fn link(name: &str, links: Links) -> String {
    format!("{name}__{}", links.name())
}

fn call_links_in_use(source: &Source) -> String {
    let arguments = heading(source.text).arguments();
    let call = |links: Links| format!("CALL {}({arguments});", link(source.name, links));
    let (odd, even) = (call(Links::Odd), call(Links::Even));
    format!(
        "BEGIN\n  IF {ODD_LINKS_ARE_IN_USE} THEN\n    {odd}\n  ELSE\n    {even}\n  END IF;\nEND"
    )
}

fn body_name(name: &str, checksum: &str) -> String {
    format!("{name}__{checksum}")
}

/// Makes a body of the source: its own name and the names of the bodies it calls get the checksum.
fn body(source: &Source, checksum: &str) -> Routine {
    let mut create = source.text.to_owned();
    for before in ["CALL ", "CREATE PROCEDURE "] {
        let mut parts = create.split(before);
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            renamed.push_str(before);
            match part.split_once('(') {
                Some((name, rest)) if SOURCES.iter().any(|source| source.name == name) => {
                    renamed.extend([body_name(name, checksum).as_str(), "(", rest]);
                }
                _ => renamed.push_str(part),
            }
        }
        create = renamed;
    }
    Routine { name: body_name(source.name, checksum), mark: String::new(), create }
}

/// The part before the body of a source.
struct Heading<'a> {
    /// Between the parentheses.
    parameters: &'a str,
    /// The text of its COMMENT.
    comment: &'a str,
}

impl Heading<'_> {
    /// The name of each parameter, separated by commas.
    fn arguments(&self) -> String {
        arguments(self.parameters).join(", ")
    }
}

/// Reads a source's heading. A part that is not found is empty: the sources are part of this
/// program, and a test reads each heading.
fn heading(text: &str) -> Heading<'_> {
    let after = text.split_once("CREATE PROCEDURE ").map_or("", |(_, after)| after);
    let head = after.split_once("\nBEGIN").map_or("", |(head, _)| head);
    let (_, head) = head.split_once('(').unwrap_or_default();
    let (parameters, rest) = split_at_closing(head);
    let comment = rest.split_once("COMMENT '").map_or("", |(_, comment)| comment);
    Heading { parameters, comment: comment.trim_end().trim_end_matches('\'') }
}

/// Splits at the parenthesis that closes the one open before `text`.
fn split_at_closing(text: &str) -> (&str, &str) {
    let mut depth = 1_u32;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    (text, "")
}

/// The name of each parameter.
fn arguments(parameters: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, character) in parameters.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&parameters[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&parameters[start..]);
    parts.into_iter().filter_map(|part| part.split_whitespace().nth(1)).collect()
}

/// A procedure with the parameters of `source` that does nothing but `call`.
fn forward(source: &Source, name: String, mark: &str, comment: &str, call: &str) -> Routine {
    let Heading { parameters, .. } = heading(source.text);
    let create = format!(
        "CREATE PROCEDURE {name}({parameters})\n  MODIFIES SQL DATA\n  SQL SECURITY DEFINER\n  \
         COMMENT '{comment}'\n{call}"
    );
    Routine { name, mark: mark.to_owned(), create }
}

/// Returns the installed procedures to drop: bodies that no link led to when this upgrade began,
/// whose calls ended long ago, names of earlier contracts with their links, and helpers under plain
/// names, which the first migrations created.
#[must_use]
pub fn superseded(installed: &BTreeMap<String, String>) -> Vec<String> {
    let checksum = checksum();
    let target = |comment: &String| {
        let target = comment.strip_prefix("Calls ")?.strip_suffix('.')?;
        target.rsplit_once("__").map(|(_, checksum)| checksum.to_owned())
    };
    let previous: Vec<String> = installed.values().filter_map(target).collect();
    let stays = |name: &String| match name.rsplit_once("__") {
        Some((public, "even" | "odd")) => !FORMER.contains(&public),
        Some((_, end)) => end == checksum || previous.iter().any(|of| of == end),
        None => {
            let is_internal = SOURCES.iter().any(|source| source.name == name && !source.public);
            !is_internal && !FORMER.contains(&name.as_str())
        }
    };
    installed.keys().filter(|name| !stays(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_heading_is_understood() {
        for source in SOURCES {
            let heading = heading(source.text);
            assert!(!heading.comment.is_empty(), "{}", source.name);
            assert!(!heading.comment.contains('\''), "{}", source.name);
            let names = arguments(heading.parameters);
            let is_told =
                |name: &&str| ["in_", "out_", "io_"].iter().any(|it| name.starts_with(it));
            assert!(names.iter().all(is_told), "{}", source.name);
            assert_eq!(names.is_empty(), heading.parameters.trim().is_empty(), "{}", source.name);
        }
    }

    #[test]
    fn bodies_call_bodies_of_the_same_release_only() {
        let wanted = [wanted(Links::Even), wanted(Links::Odd)].concat();
        for routine in &wanted {
            for called in routine.create.split("CALL ").skip(1) {
                let name = called.split('(').next().unwrap_or_default();
                assert!(wanted.iter().any(|it| it.name == name), "{}: {name}", routine.name);
                let is_wrapper = public().any(|it| it == routine.name);
                let is_link = name.ends_with("__even") || name.ends_with("__odd");
                assert_eq!(is_wrapper, is_link, "{}: {name}", routine.name);
            }
        }
    }

    #[test]
    fn an_upgrade_removes_what_is_older_than_the_release_before() {
        let installed = [
            ("queue_claim", "Claim [0]"),
            ("queue_claim__odd", "Calls queue_claim__00000002."),
            ("queue_claim__00000002", ""),
            ("queue_claim__00000001", ""),
            ("queue_give_back", ""),
            ("queue_enqueue_at", "Enqueue [0]"),
            ("queue_enqueue_at__even", "Calls queue_enqueue_at__00000002."),
            ("queue_enqueue__00000002", ""),
            ("queue_of_the_user", ""),
        ];
        let installed =
            installed.map(|(name, comment)| (name.to_owned(), comment.to_owned())).into();
        let gone = [
            "queue_claim__00000001",
            "queue_enqueue_at",
            "queue_enqueue_at__even",
            "queue_give_back",
        ];
        assert_eq!(superseded(&installed), gone);
    }
}
