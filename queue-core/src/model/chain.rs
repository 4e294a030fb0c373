/// The error of user code: of a handler or a codec.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The error and its sources in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
