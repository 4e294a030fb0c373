//! How long the sentences of a page are.

/// The longest sentence of a page for new users, in words.
pub const LONGEST: usize = 35;

/// The longest that the sentences of a page for new users may be on average, in words.
pub const MEAN: f64 = 18.0;

/// The pages for new users. Reference pages and decisions are not held to the bars yet.
const FOR_NEW_USERS: [&str; 13] = [
    "README.md",
    "docs/README.md",
    "docs/tutorial.md",
    "docs/concepts.md",
    "docs/install.md",
    "docs/sending.md",
    "docs/rust.md",
    "docs/comparison.md",
    "docs/coming-from-sidekiq-laravel.md",
    "docs/coming-from-rocketmq.md",
    "docs/your-database.md",
    "docs/backup.md",
    "docs/worker-in-production.md",
];

/// Returns whether a page is one for new users.
#[must_use]
pub fn is_for_new_users(name: &str) -> bool {
    FOR_NEW_USERS.contains(&name) || name.starts_with("docs/how-to/")
}

/// Returns the sentences of a page, without its headings, tables and code. An item of a list ends
/// its sentence.
#[must_use]
pub fn sentences(page: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut sentence = String::new();
    let mut is_code = false;
    for line in page.lines().chain([""]) {
        is_code ^= line.starts_with("```");
        let line = line.trim();
        let is_prose = !is_code && !line.starts_with(['#', '|', '`', '!']);
        let text = line.strip_prefix("* ").unwrap_or(line);
        if !is_prose || line.is_empty() || text != line {
            end(&mut sentence, &mut sentences);
        }
        if is_prose {
            for word in text.split_whitespace() {
                sentence.push_str(word);
                sentence.push(' ');
                let bare = word.trim_end_matches([')', '"', '*', '_']);
                if bare.ends_with(['.', '?', '!', ':']) {
                    end(&mut sentence, &mut sentences);
                }
            }
        }
    }
    sentences
}

fn end(sentence: &mut String, sentences: &mut Vec<String>) {
    let text = std::mem::take(sentence);
    let text = text.trim();
    if text.split_whitespace().count() > 1 {
        sentences.push(text.to_owned());
    }
}

/// Returns how many words a sentence has; one without letters (a dash, a number) counts as none.
#[must_use]
pub fn words(sentence: &str) -> usize {
    let is_word = |word: &&str| word.chars().any(char::is_alphabetic);
    sentence.split_whitespace().filter(is_word).count()
}

/// Returns the mean of the sentences, in words.
#[must_use]
pub fn mean(sentences: &[String]) -> f64 {
    let words: usize = sentences.iter().map(|sentence| words(sentence)).sum();
    words as f64 / sentences.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_divided_into_its_sentences() {
        let page = "# A title. Not one\n\nOne two\nthree. Four `five`?\n\n* six seven\n* eight nine: ten\n  eleven\n\n\
                    | a table. | x |\n\n```sh\nsome code. here\n```\n";
        let expected = ["One two three.", "Four `five`?", "six seven", "eight nine:", "ten eleven"];
        assert_eq!(sentences(page), expected);
        assert_eq!(words("One 2 — three."), 2);
        assert!((mean(&sentences(page)) - 2.2).abs() < 1e-9);
    }
}
