//! The files that pages need. They are part of the program; nothing is loaded from elsewhere.

const FILES: [(&str, &str, &str); 3] = [
    ("console.css", "text/css; charset=utf-8", include_str!("../assets/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("../assets/console.js")),
    ("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
];

/// The address of a file, which changes with each version of the program.
pub(crate) fn href(name: &str) -> String {
    format!("/assets/{name}?{}", env!("CARGO_PKG_VERSION"))
}

/// A file's type and text.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    let known = FILES.iter().find(|(known, ..)| *known == name);
    known.map(|(_, kind, text)| (*kind, *text))
}
