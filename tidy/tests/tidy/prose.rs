//! The English of the pages for new users.

use tidy::prose;
use tidy::tree::files;

use crate::none_of;

#[test]
fn sentences_for_new_users_are_short() {
    let mut violations = Vec::new();
    let pages = files(&[".md"]).unwrap();
    let pages: Vec<_> = pages.iter().filter(|file| prose::is_for_new_users(&file.name())).collect();
    assert!(pages.len() > 12, "{} pages", pages.len());
    for page in pages {
        let sentences = prose::sentences(&page.text);
        let mean = prose::mean(&sentences);
        if mean > prose::MEAN {
            violations.push(format!("{}: {mean:.1} words a sentence", page.name()));
        }
        let long = sentences.iter().filter(|sentence| prose::words(sentence) > prose::LONGEST);
        violations.extend(long.map(|sentence| format!("{}: {sentence}", page.name())));
    }
    none_of("Sentences have at most 35 words, and 18 on average", violations);
}
