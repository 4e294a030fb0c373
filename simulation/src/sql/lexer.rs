#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    /// A name in backticks, as Diesel writes them: no keyword.
    Name(String),
    Number(i128),
    Text(Vec<u8>),
    Symbol(&'static str),
    Param,
}

const SYMBOLS: [&str; 22] = [
    "<=>", "<=", ">=", "<>", "!=", "=", "<", ">", "(", ")", ",", "+", "-", "*", "/", "%", ".", ";",
    "@@", "@", "[", "]",
];

/// Returns the tokens of `text`, without comments to the end of the line.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = rest.trim_start();
        } else if rest.starts_with("-- ") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if first.is_ascii_digit() {
            let (number, tail) = split(rest, |c| c.is_ascii_digit());
            tokens.push(Token::Number(number.parse().expect("digits")));
            rest = tail;
        } else if first.is_ascii_alphabetic() || first == '_' {
            let (word, tail) = split(rest, |c| c.is_ascii_alphanumeric() || c == '_');
            tokens.push(Token::Word(word.to_owned()));
            rest = tail;
        } else if first == '`' {
            let (name, tail) = rest[1..].split_once('`').expect("the end of a name");
            tokens.push(Token::Name(name.to_owned()));
            rest = tail;
        } else if first == '\'' {
            let (literal, tail) = literal(&rest[1..]);
            tokens.push(Token::Text(literal));
            rest = tail;
        } else if first == '?' {
            tokens.push(Token::Param);
            rest = &rest[1..];
        } else {
            let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
            let symbol = symbol.unwrap_or_else(|| panic!("unknown to the model: {rest}"));
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
        }
    }
    tokens
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// Returns the literal that begins here, after its quote, and the rest after it.
fn literal(text: &str) -> (Vec<u8>, &str) {
    let mut literal = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != '\'' {
            literal.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        } else if chars.peek().is_some_and(|(_, next)| *next == '\'') {
            literal.push(b'\'');
            chars.next();
        } else {
            return (literal, &text[at + 1..]);
        }
    }
    panic!("a text without an end: {text}")
}
