//! Why a body cannot be encoded or decoded.

/// Why a body cannot be encoded or decoded, in one sentence.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The page of a stream's log that held the message cannot be read.
    #[error(
        "The page of the log that holds this message and others is damaged: {reason}. The body is the whole page: keep it, see whether a replica has a sound one, and look after the server's disk."
    )]
    DamagedPage {
        /// What is wrong with it.
        reason: String,
    },
    /// A codec failed to encode.
    #[error("The codec '{codec}' cannot encode the body: {reason}.")]
    Encode {
        /// Its name.
        codec: String,
        /// The error.
        reason: String,
    },
    /// A codec failed to decode.
    #[error("The codec '{codec}' cannot decode the body: {reason}.")]
    Decode {
        /// Its name.
        codec: String,
        /// The error.
        reason: String,
    },
    /// A body names a codec that the reader does not know.
    #[error(
        "The body is encoded by '{codec}', which this program does not know (it knows {known}): give it that codec, and redrive the message."
    )]
    Unknown {
        /// The name in the header.
        codec: String,
        /// The codecs that the reader knows.
        known: String,
    },
    /// A body names more codecs than are allowed.
    #[error("The body is encoded {n} times, at most {limit} times can be meant.")]
    TooMany {
        /// How many the header names.
        n: usize,
        /// The most.
        limit: usize,
    },
    /// A body that is larger decoded than its reader allows.
    #[error(
        "The body has more than {limit} bytes once '{codec}' has decoded it: allow more if that is meant, and redrive the message."
    )]
    TooLarge {
        /// The codec that was decoding.
        codec: String,
        /// The most bytes.
        limit: usize,
    },
    /// A body lacks the codec that its reader requires.
    #[error(
        "The body is not encoded by '{codec}', as this program requires of every body: see who sent it, and do not trust it."
    )]
    Missing {
        /// The codec's name.
        codec: String,
    },
    /// A codec's name cannot be written in a header.
    #[error(
        "'{codec}' is no name of a codec: use letters, digits, '-', '_' and '.', at most 64 of them."
    )]
    Name {
        /// The name.
        codec: String,
    },
}
